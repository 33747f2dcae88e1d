"""Scenario 2: in mode observe the recommendation is recorded, and Slurm looks exactly as it does for a job that nobody watches."""

from collections.abc import Mapping

from activities.records import Action, DecisionKind, OutcomeState
from tests.e2e.site import Site, Training, steps_of
from workflows.state import Stage

# What differs between any two jobs, watched or not: who they are, when and where they ran, and which of Slurm's two schedulers started
# them (an unlimited job that the backfill scheduler starts is shown with 365 days).
OF_ITS_OWN = {
    *("JobId", "JobName", "Comment", "Command", "Priority"),
    *("SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "LastSchedEval", "RunTime", "Deadline"),
    *("NodeList", "BatchHost", "AllocNode:Sid", "ReqNodeList", "StdErr", "StdOut", "Scheduler", "TimeLimit"),
}
OF_TIME = {"CPULoad", "FreeMem", "LastBusyTime", "SlurmdStartTime", "BootTime", "CurrentWatts", "LowestJoules", "ConsumedJoules"}
READING_ONLY = {
    *("watch_attempt", "watch_for_change", "capture_evidence", "node_history", "diagnose", "report_incident", "recommend"),
    *("verify_running", "verify_stepping", "verify_checkpoint"),
}


async def test_a_watched_crash_leaves_slurm_as_an_unwatched_one_does_and_the_recommendation_is_recorded(site: Site) -> None:
    await site.start_worker()
    nodes_before = await _node_facts(site)
    crash = {"kind": "crash", "rank": 2, "at_iteration": 15}
    watched = await site.submit(mode="observe", faults=[crash])
    twin = await site.submit(comment="a job of somebody else", faults=[crash])
    state = await site.until(
        watched, lambda state: state.stage is Stage.FOLLOWING, what="the watched job to be followed after its recommendation"
    )
    await site.slurm.wait_state(twin.job_id, "FAILED")

    [incident] = state.incidents
    broken = state.attempt.nodes[-1]
    assert incident.recommendation is not None
    assert (incident.recommendation.action, incident.recommendation.exclude_nodes) == (Action.RESTART_EXCLUDING, (broken,))
    assert incident.decision is not None
    assert (incident.decision.kind, incident.outcome.state) == (DecisionKind.OBSERVED, OutcomeState.NOT_ACTED)
    assert set(await site.activities(watched.job_id)) <= READING_ONLY

    seen, unseen = await _job_facts(site, watched), await _job_facts(site, twin)
    assert seen == unseen
    assert (seen["JobState"], seen["Restarts"], seen["ExcNodeList"]) == ("FAILED", "0", "(null)")
    for run in (watched, twin):
        assert f"Comment={run.comment}" in await site.slurm.run("scontrol", "--oneliner", "show", "job", run.job_id)
    assert await _node_facts(site) == nodes_before
    assert await site.state(twin.job_id) is None, "a job that did not opt in has no workflow"

    await _what_the_team_does_is_compared(site, watched, broken)


async def _what_the_team_does_is_compared(site: Site, run: Training, broken: str) -> None:
    """Somebody requeues the job by hand: it is verified, credited to that hand, and compared with what Backstay would have done."""
    run.break_with()
    await site.slurm.run("scontrol", "requeue", run.job_id)
    await site.slurm.wait_state(run.job_id, "PENDING")
    await site.slurm.run("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+2")  # past the second of its kill
    incident = await site.incident(run, until=lambda incident: "compared" in steps_of(incident), what="the comparison")
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert "another hand" in incident.outcome.summary
    compared = next(step.detail for step in incident.outcome.steps if step.name == "compared")
    assert f"would have: restart excluding {broken}" in compared
    assert (await site.slurm_job(run.job_id))["ExcNodeList"] == "(null)"
    assert set(await site.activities(run.job_id)) <= READING_ONLY


async def _job_facts(site: Site, run: Training) -> Mapping[str, str]:
    return {key: value for key, value in (await site.slurm_job(run.job_id)).items() if key not in OF_ITS_OWN}


async def _node_facts(site: Site) -> Mapping[str, Mapping[str, str]]:
    """Every node's facts, `Reason` and `State` among them, once the jobs are off."""
    await site.slurm.wait_idle()
    tables = await site.slurm_nodes()
    return {name: {key: value for key, value in table.items() if key not in OF_TIME} for name, table in tables.items()}
