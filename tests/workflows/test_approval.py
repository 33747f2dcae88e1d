"""While a person decides: who may, on what, until when, and what supersedes it."""

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.testing import WorkflowEnvironment

from activities.records import (
    ChangeKind,
    Decision,
    DecisionKind,
    DecisionRequest,
    Domain,
    Mode,
    Opinion,
    OutcomeState,
    SymptomKind,
    Verdict,
)
from tests.workflows.asking import until_pending
from tests.workflows.scripted import World, a_change, crashes, ends, hangs, policy, recovers, step_names, the_end_of, watched
from workflows.state import Terms
from workflows.training_job import TrainingJob


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
        world.changes.append(a_change(ChangeKind.FORGOTTEN))
        request = DecisionRequest(approve=False, actor="bob", digest=pending.recommendation.digest, reason="known, we resubmit")
        await handle.execute_update(TrainingJob.decide, request)
        end = await handle.result()
    assert end.incidents[0].outcome.state is OutcomeState.NOT_ACTED
    assert "known, we resubmit" in end.incidents[0].outcome.summary
    assert (await world.now()).restart_count == 0


async def test_an_approval_expires_before_slurm_forgets_the_job_and_says_how_to_resubmit(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.append(crashes())
    world.changes.extend([a_change(ChangeKind.UNCHANGED), a_change(ChangeKind.FORGOTTEN)])
    end = await the_end_of(env, world)
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
    world.changes.append(a_change(ChangeKind.UNCHANGED))
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.reason) == (DecisionKind.EXPIRED, "policy.approval_expiry")
    assert world.asked[-1].known_symptoms == (SymptomKind.HANG,), "the same hang is not reported again"


async def test_a_cancel_while_approval_is_pending_supersedes_the_recommendation(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([hangs(), ends()])
    world.changes.append(a_change(ChangeKind.CANCELLED))
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.SUPERSEDED
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    assert world.permissions_asked == []


async def test_a_requeue_by_someone_else_supersedes_the_recommendation_and_is_verified(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    async with watched(env, world) as handle:
        world.changes.append(a_change(ChangeKind.REQUEUED))
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


async def test_a_disagreeing_opinion_asks_for_a_person_even_in_auto(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.opinions["ask_operator_service"] = Opinion(source="operator_service", verdict=Verdict.STOP, domain=Domain.APPLICATION, why="ours")
    world.script.append(crashes())
    async with watched(env, world, terms=Terms(opinions=("ask_operator_service",))) as handle:
        pending = await until_pending(handle)
        assert pending.opinions[0].verdict is Verdict.STOP
        assert (await world.now()).restart_count == 0


async def test_what_slurm_itself_requeued_off_a_lost_node_can_be_approved_while_it_waits(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(kind=SymptomKind.NODE_FAULT, node_lost=True), *recovers(), ends()])
    async with watched(env, world) as handle:
        pending = await until_pending(handle)
        assert pending.recommendation is not None
        assert "Slurm starts it by itself from" in pending.recommendation.why
        request = DecisionRequest(approve=True, actor="bob", digest=pending.recommendation.digest)
        await handle.execute_update(TrainingJob.decide, request)
        end = await handle.result()
    [incident] = end.incidents
    assert step_names(incident)[4:8] == ["requeued_by_slurm", "pending", "excluded", "expedited"]
    assert "requeued by Slurm itself; Backstay gave the delay back" in incident.outcome.summary
    assert ((await world.now()).excluded_nodes, end.history.restarts) == (("node-002",), 0)


async def test_what_slurm_requeued_and_started_before_anyone_decided_is_told_as_slurms(env: WorkflowEnvironment) -> None:
    async def start() -> None:
        world.clock.advance(200)

    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(kind=SymptomKind.NODE_FAULT, node_lost=True), *recovers(), ends()])
    started = a_change(ChangeKind.STARTED).model_copy(update={"by_slurm": True, "summary": "its delay was over before anyone decided"})
    world.changes.append(started)
    world.before_change = start
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.actor) == (DecisionKind.SUPERSEDED, "slurm")
    assert "requeued and started by Slurm itself, not by Backstay" in incident.outcome.summary
    assert (await world.now()).excluded_nodes == ()
