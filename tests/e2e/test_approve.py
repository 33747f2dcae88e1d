"""Scenario 3: approval by signal, by Update and by command; a wrong digest moves nothing; a rejection leaves the job alone."""

import asyncio
from collections.abc import Sequence

import pytest
from temporalio.client import WorkflowUpdateFailedError

from activities.records import Action, Decision, DecisionKind, DecisionRequest, OutcomeState, Recommendation
from tests.e2e.conftest import MakeSite
from tests.e2e.site import Site, Training, awaits_decision, eventually, has_recovered
from workflows.state import Stage

WRONG = "0123456789ab"
CRASH = {"kind": "crash", "rank": 0, "at_iteration": 12, "attempts": [0]}


async def test_an_approval_counts_by_signal_by_update_and_by_command_and_only_with_the_right_digest(make_site: MakeSite) -> None:
    # Four jobs of one node each break at once: that many failures are within the breaker's patience.
    site = make_site({"policy": {"limits": {"breaker_jobs": 10}}})
    await site.start_worker()
    runs = [await site.submit(mode="approve", nodes=1, faults=[CRASH]) for _ in range(4)]
    pending = await asyncio.gather(*(_pending(site, run) for run in runs))
    by_signal, by_update, by_command, rejected = runs
    await _are_listed_as_waiting(site, runs)

    await _wrong_digests_move_nothing(site, by_signal, by_update, by_command)

    await (await site.handle(by_signal.job_id)).signal("approve", _approval("ann", pending[0].digest))
    decision: Decision = await (await site.handle(by_update.job_id)).execute_update(
        "decide", _approval("ben", pending[1].digest), result_type=Decision
    )
    assert (decision.kind, decision.actor, decision.digest) == (DecisionKind.APPROVED, "ben", pending[1].digest)
    said = (await site.command("approve", by_command.job_id, "--actor", "cleo", "--reason", "looks right", "--json")).json
    assert (said["kind"], said["actor"], said["reason"]) == ("approved", "cleo", "looks right")
    said = (await site.command("reject", rejected.job_id, "--actor", "dora", "--reason", "we look ourselves", "--json")).json
    assert (said["kind"], said["actor"]) == ("rejected", "dora")

    for run, actor in ((by_signal, "ann"), (by_update, "ben"), (by_command, "cleo")):
        incident = await site.ended_incident(run)
        assert has_recovered(incident), incident.outcome
        assert incident.decision is not None
        assert (incident.decision.kind, incident.decision.actor) == (DecisionKind.APPROVED, actor)
        assert (await site.slurm_job(run.job_id))["Restarts"] == "1"
    state = await site.until(rejected, lambda state: state.stage is Stage.FOLLOWING, what="the rejected job to be followed")
    assert state.incidents[0].outcome.state is OutcomeState.NOT_ACTED
    assert "dora" in state.incidents[0].outcome.summary
    job = await site.slurm_job(rejected.job_id)
    assert (job["JobState"], job["Restarts"]) == ("FAILED", "0")

    await _are_listed_as_waiting(site, [])
    late = await site.command("approve", rejected.job_id)
    assert late.exit_code == 1
    assert "no recommendation that waits" in late.err


async def test_whoever_approves_under_a_tripped_breaker_is_told_and_only_approvers_reset_it(make_site: MakeSite) -> None:
    site = make_site({"policy": {"approvers": ["ann"]}})
    await site.start_worker()
    run = await site.submit(mode="approve", nodes=1, faults=[CRASH])
    await _pending(site, run)
    assert (await site.command("breaker", "trip", "--reason", "switch work", "--actor", "ann")).exit_code == 0

    told = await site.command("approve", run.job_id, "--actor", "ann")
    assert (told.exit_code, "not done yet: the breaker is tripped" in told.err) == (1, True), told
    assert (await site.slurm_job(run.job_id))["Restarts"] == "0"
    stranger = await site.command("breaker", "reset", "--actor", "mallory")
    assert (stranger.exit_code, "mallory is not among policy.approvers" in stranger.err) == (1, True), stranger

    assert (await site.command("breaker", "reset", "--actor", "ann")).exit_code == 0
    assert (await site.command("approve", run.job_id, "--actor", "ann", "--json")).json["held"] is None
    await site.incident(run, until=has_recovered, what="the recovery that was approved again")


async def _pending(site: Site, run: Training) -> Recommendation:
    state = await site.until(run, awaits_decision, what="a recommendation that waits for a person")
    recommendation = state.incidents[-1].recommendation
    assert recommendation is not None
    assert recommendation.action is Action.RESTART_EXCLUDING
    assert recommendation.expires_at is not None
    return recommendation


async def _are_listed_as_waiting(site: Site, runs: Sequence[Training]) -> None:
    """What Temporal's own list shows whoever asks it for the jobs that need a person."""
    query = f"BackstayCluster = '{site.cluster}' AND BackstayNeedsApproval = true AND ExecutionStatus = 'Running'"
    wanted = {(await site.handle(run.job_id)).id for run in runs}
    client = await site.client()

    async def listed() -> bool | None:
        return True if {execution.id async for execution in client.list_workflows(query)} == wanted else None

    await eventually(listed, what=f"Temporal's list to show {len(runs)} jobs that need approval")


async def _wrong_digests_move_nothing(site: Site, by_signal: Training, by_update: Training, by_command: Training) -> None:
    await (await site.handle(by_signal.job_id)).signal("approve", _approval("mallory", WRONG))
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await (await site.handle(by_update.job_id)).execute_update("decide", _approval("mallory", WRONG), result_type=Decision)
    assert WRONG in str(refused.value.__cause__)
    said = await site.command("approve", by_command.job_id, "--digest", WRONG, "--actor", "mallory")
    assert said.exit_code == 1
    assert f"digest {WRONG} is not the pending" in said.err

    for run in (by_signal, by_update, by_command):
        state = await site.state(run.job_id)
        assert state is not None
        assert awaits_decision(state)
        assert state.incidents[-1].decision is None
        job = await site.slurm_job(run.job_id)
        assert (job["JobState"], job["Restarts"]) == ("FAILED", "0")
        assert "requeue_job" not in await site.activities(run.job_id)


def _approval(actor: str, digest: str) -> DecisionRequest:
    return DecisionRequest(approve=True, actor=actor, digest=digest, reason="seen and agreed")
