"""What the cluster's guard rails hold back waits for a person, who asks them again."""

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment

from activities.records import (
    ChangeKind,
    DecisionKind,
    JobState,
    Mode,
    OutcomeState,
    Permission,
)
from tests.builders import a_judgement, an_application_bug
from tests.workflows.asking import approve, until_pending, until_withheld
from tests.workflows.scripted import World, a_change, crashes, ends, hangs, policy, recovers, the_end_of, watched

TRIPPED = Permission(granted=False, why="the breaker is tripped: 6 jobs failed within 10 min")
FULL = Permission(granted=False, why="10 actions in the last 60 min")


async def test_what_a_tripped_breaker_withheld_is_held_when_nobody_approves_it_in_time(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.permission = TRIPPED
    world.script.append(crashes())
    world.changes.extend([a_change(ChangeKind.UNCHANGED), a_change(ChangeKind.FORGOTTEN)])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.EXPIRED
    assert incident.outcome.state is OutcomeState.HELD
    assert "breaker is tripped" in incident.outcome.summary
    assert "nobody approved" in incident.outcome.summary
    assert (await world.now()).restart_count == 0
    assert [past.acted for past in end.history.incidents] == [False]


@pytest.mark.parametrize("refusal", [TRIPPED, FULL], ids=["breaker", "action window"])
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.APPROVE])
async def test_what_the_guard_rails_withheld_is_done_once_a_person_approves_it_and_they_permit_it(
    env: WorkflowEnvironment, mode: Mode, refusal: Permission
) -> None:
    world = World(policy(mode))
    world.script.extend([crashes(checkpoint=100), *recovers(checkpoint=120), ends()])
    world.permission = refusal
    async with watched(env, world) as handle:
        if mode is Mode.APPROVE:
            await approve(handle, await until_pending(handle))
        pending = await until_withheld(handle, times=1)
        assert pending.outcome.state is OutcomeState.HELD
        assert pending.outcome.milestones.decided is None
        recommendation = pending.recommendation
        assert recommendation is not None
        assert recommendation.expires_at is not None
        assert refusal.why in recommendation.why
        assert (await world.now()).restart_count == 0
        world.permission = Permission(granted=True, why="reset")
        await approve(handle, pending)
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.actor) == (DecisionKind.APPROVED, "bob")
    assert incident.decision.digest == recommendation.digest
    decided = [step.at for step in incident.outcome.steps if step.name == "decided"]
    assert incident.outcome.milestones.decided == decided[-1], "timed by the decision that was carried out"
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert (await world.now()).excluded_nodes == ("node-002",)
    assert end.history.restarts == 1


async def test_an_approval_that_the_guard_rails_refuse_again_keeps_waiting_and_says_so(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), ends()])
    world.permission = TRIPPED
    async with watched(env, world) as handle:
        first = await until_withheld(handle, times=1)
        world.permission = FULL
        await approve(handle, first)
        second = await until_withheld(handle, times=2)
        assert first.recommendation is not None
        assert second.recommendation is not None
        assert FULL.why in second.recommendation.why
        assert TRIPPED.why not in second.recommendation.why, "each reason in its turn"
        with pytest.raises(WorkflowUpdateFailedError):
            await approve(handle, first)
        world.permission = Permission(granted=True, why="room again")
        await approve(handle, second)
        end = await handle.result()
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED
    assert len(world.permissions_asked) == 3


async def test_why_a_stop_had_to_wait_is_no_reason_that_it_was_done_for(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO, stop_cancels_running=True), judgement=a_judgement(diagnosis=an_application_bug()))
    world.script.extend([hangs(), ends()])
    world.permission = TRIPPED
    async with watched(env, world) as handle:
        pending = await until_withheld(handle, times=1)
        world.permission = Permission(granted=True, why="reset")
        await approve(handle, pending)
        end = await handle.result()
    [incident] = end.incidents
    assert incident.outcome.state is OutcomeState.STOPPED
    assert TRIPPED.why not in incident.outcome.summary
    assert (await world.now()).state is JobState.CANCELLED


async def test_what_was_withheld_may_be_rejected(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.permission = TRIPPED
    world.script.append(crashes())
    async with watched(env, world) as handle:
        pending = await until_withheld(handle, times=1)
        world.changes.append(a_change(ChangeKind.FORGOTTEN))
        await approve(handle, pending, yes=False)
        end = await handle.result()
    assert end.incidents[0].outcome.state is OutcomeState.NOT_ACTED
    assert "rejected by bob" in end.incidents[0].outcome.summary


async def test_what_was_withheld_is_superseded_when_someone_restarts_the_job(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.permission = TRIPPED
    world.script.extend([crashes(), *recovers(), ends()])
    world.before_change = lambda: world.cluster.requeue(world.job_id)
    world.changes.append(a_change(ChangeKind.REQUEUED))
    end = await the_end_of(env, world)
    assert end.incidents[0].decision is not None
    assert end.incidents[0].decision.kind is DecisionKind.SUPERSEDED
    assert "another hand" in end.incidents[0].outcome.summary
    assert end.history.restarts == 0
