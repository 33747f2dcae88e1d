"""A job's life as its workflow tells it, in every mode, on the time-skipping server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment

from activities.configuration import Limits, PolicySection
from activities.records import (
    Action,
    Change,
    ChangeKind,
    Decision,
    DecisionKind,
    DecisionRequest,
    Domain,
    Incident,
    JobState,
    Mode,
    Opinion,
    OutcomeState,
    Permission,
    SymptomKind,
    Verdict,
    WatchEnd,
    WatchRequest,
    WatchResult,
    WatchUntil,
)
from tests.builders import a_diagnosis, a_judgement, an_application_bug, an_attribution
from tests.workflows.scripted import World, crashes, ends, hangs, reaches, recovers, watched
from workflows.state import Stage, Terms, TrainingJobState
from workflows.training_job import TrainingJob

Handle = WorkflowHandle[TrainingJob, TrainingJobState]


def policy(mode: Mode, **changes: Any) -> PolicySection:
    """Half the partition may be excluded: the test cluster has four nodes."""
    return PolicySection(mode=mode, **{"limits": Limits(excluded_fraction=0.5), **changes})


def forgotten() -> Change:
    return _change(ChangeKind.FORGOTTEN)


def _change(kind: ChangeKind) -> Change:
    from tests.builders import NOON

    return Change(kind=kind, at=NOON, summary=f"the job was {kind}")


def step_names(incident: Incident) -> Sequence[str]:
    return [step.name for step in incident.outcome.steps]


async def until_pending(handle: Handle) -> Incident:
    """The incident that waits for a decision, once the scripted watch beside it has ended.

    A decision takes that watch back. The time-skipping server refuses to cancel an activity that ended in the same moment
    (ACTIVITY_UNKNOWN) and loses the update with the refused task: it would be waited for without end. A real server does neither.
    """
    while True:
        state = await handle.query(TrainingJob.state)
        described = await handle.describe()
        if state.stage is Stage.AWAITING_DECISION and not described.raw_description.pending_activities:
            return state.incidents[-1]
        await asyncio.sleep(0.05)


async def until_withheld(handle: Handle, *, times: int) -> Incident:
    """The incident that waits for a decision after the guard rails have said no so often."""
    while True:
        incident = await until_pending(handle)
        if step_names(incident).count("held_by_guard_rails") == times:
            return incident
        await asyncio.sleep(0.05)


async def approve(handle: Handle, incident: Incident, *, yes: bool = True) -> None:
    """What bob says to what is pending."""
    assert incident.recommendation is not None
    request = DecisionRequest(approve=yes, actor="bob", digest=incident.recommendation.digest)
    await handle.execute_update(TrainingJob.decide, request)


async def test_auto_restarts_off_the_suspect_and_calls_it_recovered_only_at_a_newer_checkpoint(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), *recovers(checkpoint=120), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.AUTO
    assert step_names(incident) == [
        "detected", "diagnosed", "recommended", "decided", "requeued", "pending", "excluded", "expedited", "running", "stepping",
        "recovered",
    ]  # fmt: skip
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert None not in dict(incident.outcome.milestones).values()
    job = await world.now()
    assert (job.restart_count, job.state, job.excluded_nodes) == (1, JobState.RUNNING, ("node-002",))
    assert "node-002" not in job.nodes
    assert end.history.restarts == 1
    assert end.history.restarts_without_checkpoint == 0
    assert [request.until for request in world.asked] == [
        WatchUntil.SYMPTOM, WatchUntil.RUNNING, WatchUntil.STEPPING, WatchUntil.CHECKPOINT, WatchUntil.SYMPTOM,
    ]  # fmt: skip
    assert world.asked[3].checkpoint_before == 100
    assert world.asked[1].excluded_nodes == ("node-002",)


async def test_an_attempt_that_did_not_load_the_checkpoint_is_told_not_to_have_resumed(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), reaches(), reaches(iteration=9, first_iteration=1), reaches(checkpoint=120), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    [stepping] = [step.detail for step in end.incidents[0].outcome.steps if step.name == "stepping"]
    assert stepping == "iteration 9, began at 1, not from checkpoint 100"


async def test_the_state_tells_where_the_new_attempt_runs_while_its_steps_and_checkpoint_are_awaited(env: WorkflowEnvironment) -> None:
    told: list[TrainingJobState] = []

    async def steps(world: World, request: WatchRequest) -> WatchResult:
        told.append(await handle.query(TrainingJob.state))
        return await reaches()(world, request)

    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), reaches(), steps, reaches(checkpoint=120), ends()])
    async with watched(env, world) as handle:
        await handle.result()
    [state] = told
    assert (state.stage, state.attempt.restart_count) == (Stage.VERIFYING, 1)
    assert state.attempt.nodes == (await world.now()).nodes


async def test_observe_records_the_recommendation_and_changes_nothing_in_slurm(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.script.append(crashes())
    world.changes.append(forgotten())
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert incident.recommendation is not None
    assert incident.recommendation.action is Action.RESTART_EXCLUDING
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.OBSERVED
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    job = await world.now()
    assert (job.state, job.restart_count, job.excluded_nodes) == (JobState.FAILED, 0, ())
    assert world.permissions_asked == []


async def test_a_job_whose_user_took_its_comment_back_is_observed_only(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO), comment="mine again")
    world.script.append(crashes())
    world.changes.append(forgotten())
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.OBSERVED
    assert (await world.now()).restart_count == 0


async def test_observe_verifies_and_compares_what_the_team_did(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.before_change = lambda: world.cluster.requeue(world.job_id)
    world.script.extend([crashes(), *recovers(), ends()])
    world.changes.append(_change(ChangeKind.REQUEUED))
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert {"restarted_by_another_hand", "recovered", "compared"} <= set(step_names(incident))
    assert "not by Backstay" in incident.outcome.summary
    assert end.history.restarts == 0


@pytest.mark.parametrize("way", ["signal", "update"])
async def test_approve_waits_for_a_person_and_then_acts(env: WorkflowEnvironment, way: str) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    async with watched(env, world) as handle:
        pending = await until_pending(handle)
        assert (await world.now()).restart_count == 0
        assert pending.recommendation is not None
        request = DecisionRequest(approve=True, actor="bob", digest=pending.recommendation.digest, reason="seen")
        if way == "signal":
            await handle.signal(TrainingJob.approve, request)
        else:
            decision: Decision = await handle.execute_update(TrainingJob.decide, request)
            assert (decision.kind, decision.actor) == (DecisionKind.APPROVED, "bob")
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.actor, incident.decision.reason) == (DecisionKind.APPROVED, "bob", "seen")
    assert incident.outcome.state is OutcomeState.RECOVERED


async def test_a_decision_on_another_digest_is_refused_and_changes_nothing(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    async with watched(env, world) as handle:
        pending = await until_pending(handle)
        assert pending.recommendation is not None
        wrong = DecisionRequest(approve=True, actor="bob", digest="0123456789ab")
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await handle.execute_update(TrainingJob.decide, wrong)
        assert pending.recommendation.digest in str(refusal.value.cause)
        await handle.signal(TrainingJob.approve, wrong)
        right = wrong.model_copy(update={"digest": pending.recommendation.digest})
        await handle.execute_update(TrainingJob.decide, right)
        end = await handle.result()
    assert any("0123456789ab" in warning for warning in end.warnings)
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED


NO_DECISIONS: tuple[tuple[object, ...], ...] = (
    (),
    ("garbage",),
    (None,),
    (5, [{}], {"x": 1}),
    ({"actor": "bob"},),
    ({"actor": 5, "digest": ["x"]},),
    ({"actor": "bob", "digest": "x"}, {"actor": "bob", "digest": "x"}),
    (b"\xff\x00",),
    ({"actor": "n" * 100_000, "digest": "x", "reason": "r" * 500_000},),
)
"""What signals and updates may carry when a person types them by hand into the UI, or means harm."""


async def test_what_is_no_decision_is_refused_and_the_watch_goes_on(env: WorkflowEnvironment) -> None:
    """A signal without a payload once failed every later task of the workflow: nobody could decide on that job any more."""
    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    async with watched(env, world) as handle:
        pending = await until_pending(handle)
        assert pending.recommendation is not None
        for payload in NO_DECISIONS:
            await handle.signal("approve", args=payload)
            await handle.signal("reject", args=payload)
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update("decide", args=payload)
        request = DecisionRequest(approve=True, actor="bob", digest=pending.recommendation.digest, reason="r" * 500_000)
        decision: Decision = await handle.execute_update(TrainingJob.decide, request)
        assert (decision.actor, len(decision.reason)) == ("bob", 2000)
        end = await handle.result()
    assert "approval refused: the signal must carry one object with actor, digest and perhaps reason" in end.warnings
    assert len(end.model_dump_json()) < 100_000
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED


async def test_only_named_approvers_may_decide(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE, approvers=("carol",)))
    world.script.extend([crashes(), *recovers(), ends()])
    async with watched(env, world) as handle:
        pending = await until_pending(handle)
        assert pending.recommendation is not None
        request = DecisionRequest(approve=True, actor="mallory", digest=pending.recommendation.digest)
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await handle.execute_update(TrainingJob.decide, request)
        assert "policy.approvers" in str(refusal.value.cause)
        await handle.execute_update(TrainingJob.decide, request.model_copy(update={"actor": "carol"}))
        await handle.result()


async def test_a_rejection_leaves_slurm_alone(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.append(crashes())
    async with watched(env, world) as handle:
        pending = await until_pending(handle)
        assert pending.recommendation is not None
        world.changes.append(forgotten())
        request = DecisionRequest(approve=False, actor="bob", digest=pending.recommendation.digest, reason="known, we resubmit")
        await handle.execute_update(TrainingJob.decide, request)
        end = await handle.result()
    assert end.incidents[0].outcome.state is OutcomeState.NOT_ACTED
    assert "known, we resubmit" in end.incidents[0].outcome.summary
    assert (await world.now()).restart_count == 0


async def test_an_approval_expires_before_slurm_forgets_the_job_and_says_how_to_resubmit(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.append(crashes())
    world.changes.extend([_change(ChangeKind.UNCHANGED), forgotten()])
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.EXPIRED
    assert "MinJobAge" in incident.decision.reason
    assert "sbatch" in incident.decision.reason
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    assert (await world.now()).restart_count == 0


async def test_a_hang_may_wait_for_approval_as_long_as_policy_says(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([hangs(), ends()])
    world.changes.append(_change(ChangeKind.UNCHANGED))
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.reason) == (DecisionKind.EXPIRED, "policy.approval_expiry")
    assert world.asked[-1].known_symptoms == (SymptomKind.HANG,), "the same hang is not reported again"


async def test_a_cancel_while_approval_is_pending_supersedes_the_recommendation(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([hangs(), ends()])
    world.changes.append(_change(ChangeKind.CANCELLED))
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.SUPERSEDED
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    assert world.permissions_asked == []


async def test_a_requeue_by_someone_else_supersedes_the_recommendation_and_is_verified(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    async with watched(env, world) as handle:
        world.changes.append(_change(ChangeKind.REQUEUED))
        await world.cluster.job(world.job_id)
        world.before_change = lambda: world.cluster.requeue(world.job_id)
        end = await handle.result()
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.SUPERSEDED
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert "not by Backstay" in incident.outcome.summary
    assert (await world.now()).restart_count == 1
    assert end.history.restarts == 0


async def test_what_slurm_itself_requeued_off_a_lost_node_is_not_requeued_again_but_gets_its_delay_back(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(kind=SymptomKind.NODE_FAULT, node_lost=True), *recovers(), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    steps = [step.name for step in incident.outcome.steps]
    assert steps[4:8] == ["requeued_by_slurm", "pending", "excluded", "expedited"]
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert "requeued by Slurm itself" in incident.outcome.summary
    assert ((await world.now()).restart_count, end.history.restarts) == (1, 0)


async def test_what_slurm_requeued_and_started_before_backstay_could_place_it_is_not_credited_to_backstay(env: WorkflowEnvironment) -> None:
    class Hasty(World):
        async def _pause(self, seconds: float) -> None:
            self.clock.advance(300)

    async def still_ending(world: World, request: WatchRequest) -> WatchResult:
        return await crashes(kind=SymptomKind.NODE_FAULT, node_lost=True, seen_after=0)(world, request)

    world = Hasty(policy(Mode.AUTO))
    world.script.extend([still_ending, *recovers(), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert {"requeued_by_slurm", "superseded"} <= set(step_names(incident))
    assert "expedited" not in step_names(incident)
    assert "not by Backstay" in incident.outcome.summary
    assert [asked.excluded_nodes for asked in world.asked if asked.until is not WatchUntil.SYMPTOM] == [()] * 3


async def test_what_slurm_requeued_off_a_lost_node_and_a_person_holds_is_left_to_that_person(env: WorkflowEnvironment) -> None:
    async def held_after_its_loss(world: World, request: WatchRequest) -> WatchResult:
        seen = await crashes(kind=SymptomKind.NODE_FAULT, node_lost=True)(world, request)
        await world.cluster.hold(world.job_id)
        return seen

    world = World(policy(Mode.AUTO))
    world.script.extend([held_after_its_loss, *recovers(), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    [incident] = end.incidents
    assert "superseded" in [step.name for step in incident.outcome.steps]
    assert (await world.now()).is_held
    assert not (await world.now()).excluded_nodes


async def test_three_restarts_without_a_new_checkpoint_end_in_stop(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO, limits=Limits(excluded_fraction=0.5, restarts_without_checkpoint=3)))
    world.script.append(crashes(checkpoint=100))
    for _ in range(3):
        world.script.extend([reaches(), reaches(), crashes(checkpoint=100)])
    world.changes.append(forgotten())
    async with watched(env, world) as handle:
        end = await handle.result()
    assert [incident.outcome.state for incident in end.incidents] == [OutcomeState.NO_PROGRESS] * 3 + [OutcomeState.STOPPED]
    assert (await world.now()).restart_count == 3
    last = end.incidents[-1].recommendation
    assert last is not None
    assert last.action is Action.STOP
    assert "checkpoint" in last.why


TRIPPED = Permission(granted=False, why="the breaker is tripped: 6 jobs failed within 10 min")
FULL = Permission(granted=False, why="10 actions in the last 60 min")


async def test_what_a_tripped_breaker_withheld_is_held_when_nobody_approves_it_in_time(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.permission = TRIPPED
    world.script.append(crashes())
    world.changes.extend([_change(ChangeKind.UNCHANGED), forgotten()])
    async with watched(env, world) as handle:
        end = await handle.result()
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
        world.changes.append(forgotten())
        await approve(handle, pending, yes=False)
        end = await handle.result()
    assert end.incidents[0].outcome.state is OutcomeState.NOT_ACTED
    assert "rejected by bob" in end.incidents[0].outcome.summary


async def test_what_was_withheld_is_superseded_when_someone_restarts_the_job(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.permission = TRIPPED
    world.script.extend([crashes(), *recovers(), ends()])
    world.before_change = lambda: world.cluster.requeue(world.job_id)
    world.changes.append(_change(ChangeKind.REQUEUED))
    async with watched(env, world) as handle:
        end = await handle.result()
    assert end.incidents[0].decision is not None
    assert end.incidents[0].decision.kind is DecisionKind.SUPERSEDED
    assert "another hand" in end.incidents[0].outcome.summary
    assert end.history.restarts == 0


async def test_an_application_bug_is_stopped_with_its_reason(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO), judgement=a_judgement(diagnosis=an_application_bug(), attribution=an_attribution()))
    for _ in range(4):
        world.script.extend([crashes(), reaches(), reaches()])
    world.changes.append(forgotten())
    async with watched(env, world) as handle:
        end = await handle.result()
    assert end.incidents[-1].outcome.state in (OutcomeState.STOPPED, OutcomeState.HELD)
    assert (await world.now()).restart_count <= 2


async def test_no_requeue_is_honoured_unless_policy_overrides_it(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO), requeue=False)
    world.script.append(crashes())
    world.changes.append(forgotten())
    async with watched(env, world) as handle:
        end = await handle.result()
    assert (await world.now()).restart_count == 0
    assert end.incidents[0].outcome.state is OutcomeState.HELD
    assert "--no-requeue" in end.incidents[0].outcome.summary


async def test_policy_may_override_no_requeue_while_the_job_still_runs(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO, override_no_requeue=True), requeue=False)
    world.script.extend([hangs(), *recovers(), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED


async def test_a_disagreeing_opinion_asks_for_a_person_even_in_auto(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.opinions["ask_operator_service"] = Opinion(source="operator_service", verdict=Verdict.STOP, domain=Domain.APPLICATION, why="ours")
    world.script.append(crashes())
    async with watched(env, world, terms=Terms(opinions=("ask_operator_service",))) as handle:
        pending = await until_pending(handle)
        assert pending.opinions[0].verdict is Verdict.STOP
        assert (await world.now()).restart_count == 0


async def test_an_opinion_that_never_comes_delays_nothing_and_leaves_a_note(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.opinions["ask_attrsvc"] = Opinion(source="attrsvc", note="timed out after 60 s")
    world.script.extend([crashes(), *recovers(), ends()])
    async with watched(env, world, terms=Terms(opinions=("ask_attrsvc",))) as handle:
        end = await handle.result()
    assert end.incidents[0].opinions[0].note == "timed out after 60 s"
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED


async def test_memory_survives_continue_as_new(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), *recovers(checkpoint=120), crashes(checkpoint=120), *recovers(checkpoint=140), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
        first = await handle.describe()
    assert [incident.id.rpartition("-")[2] for incident in end.incidents] == ["1", "2"]
    assert end.history.restarts == 2
    assert first.run_id != handle.first_execution_run_id


async def test_an_attempt_that_ends_well_before_a_checkpoint_is_not_called_recovered(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), reaches(), reaches(), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    assert end.incidents[0].outcome.state is OutcomeState.NO_PROGRESS
    assert end.incidents[0].outcome.milestones.recovered is None


async def test_a_job_that_is_restarted_healthy_by_someone_is_no_incident(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([ends(WatchEnd.REQUEUED), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
    assert end.incidents == ()
    assert end.stage is Stage.ENDED


async def test_an_unknown_cause_is_held_and_blames_nobody(env: WorkflowEnvironment) -> None:
    unknown = a_diagnosis("unknown", Domain.UNKNOWN, confidence=0.1, primary=None)
    world = World(policy(Mode.AUTO), judgement=a_judgement(diagnosis=unknown, attribution=an_attribution()))
    world.script.extend([crashes(), *recovers(), ends()])
    world.changes.append(forgotten())
    async with watched(env, world) as handle:
        end = await handle.result()
    assert (await world.now()).excluded_nodes == ()
    assert end.incidents[0].recommendation is not None
    assert end.incidents[0].recommendation.exclude_nodes == ()
