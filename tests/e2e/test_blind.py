"""Nothing acts on what it cannot see: silent jobs and replaced logs in mode auto, beside a job that really hangs; and a requeue seen
while the job waits, whose next attempt then loses a node."""

from typing import Any

from activities.records import SymptomKind
from tests.e2e.conftest import MakeSite
from tests.e2e.site import Site, eventually, has_recovered, is_over
from workflows.state import Stage

ALL_IN_AUTO = {"watch": {"opt_in": "all", "startup_patience": "20s"}, "policy": {"mode": "auto"}}


async def warned(site: Site, job_id: str, words: str) -> dict[str, Any]:
    """What `backstay show` tells, once it warns in these words."""

    async def look() -> dict[str, Any] | None:
        shown: dict[str, Any] = await site.show(job_id)
        return shown if any(words in warning for warning in shown["warnings"]) else None

    return await eventually(look, what=f"the warning {words!r}")


async def test_a_job_that_prints_nothing_is_left_alone_while_one_that_hangs_is_recovered(make_site: MakeSite) -> None:
    site = make_site(ALL_IN_AUTO)
    await site.start_worker()
    silent = await site.slurm.submit_text("sleep 2700", f"--output={site.runs}/silent.out")
    own = await site.slurm.submit_text(
        f"echo loading; while true; do date >> {site.runs}/own.log; sleep 1; done", f"--output={site.runs}/own.out"
    )
    for job_id in (silent, own):
        await site.watched(job_id)
    hung = await site.submit(faults=[{"kind": "hang", "at_iteration": 22, "attempts": [0]}])
    incident = await site.ended_incident(hung, within=150)
    assert has_recovered(incident), incident.outcome
    assert incident.symptom.kind is SymptomKind.HANG
    for job_id in (silent, own):
        shown = await warned(site, job_id, "progress cannot be seen; crashes only")
        assert (shown["mode"], shown["incidents"]) == ("auto", [])
        job = await site.slurm_job(job_id)
        assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0")


async def test_a_job_whose_log_is_replaced_under_it_is_left_alone_and_that_is_said(site: Site) -> None:
    await site.start_worker()
    run = await site.submit(comment="backstay:mode=auto")  # names no checkpoints: its log is all that is seen of it
    await site.until(run, lambda state: state.stage is Stage.WATCHING, what="the watch")
    before = await run.checkpoint_after(0)
    run.log.unlink()
    run.log.touch()
    await warned(site, run.job_id, "was replaced by another file")
    steps = 5 * (site.configuration.watch.hang_floor + site.configuration.watch.second_look).total_seconds()  # of 0.2 s
    await run.checkpoint_after(before + 3 * int(steps))
    shown = await warned(site, run.job_id, "was replaced by another file")
    assert shown["incidents"] == []
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0")


async def test_a_requeue_seen_while_it_waits_leaves_the_next_attempts_nodes_known_when_one_is_lost(make_site: MakeSite) -> None:
    site = make_site({"watch": {"node_not_responding_for": "10m", "hang_floor": "10m"}, "policy": {"mode": "observe"}})
    await site.start_worker()
    run = await site.submit(mode="observe")
    await site.training(run)
    await site.slurm.run("scontrol", "requeue", run.job_id)
    await site.until(run, lambda state: state.attempt.restart_count == 1, what="the requeue to be seen")
    await site.slurm.wait_state(run.job_id, "PENDING")
    await site.slurm.run("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+2")  # past the second of its kill
    state = await site.until(run, lambda state: bool(state.attempt.nodes), what="the nodes of the attempt that waited")
    assert (state.attempt.restart_count, state.incidents) == (1, ())
    lost = state.attempt.nodes[0]
    await run.checkpoint_after(run.checkpoint())
    await site.slurm.kill_node(lost)
    incident = await site.incident(run, until=lambda incident: incident.recommendation is not None, within=120)
    assert (incident.restart_count, incident.nodes) == (1, state.attempt.nodes)
    assert incident.symptom.kind is SymptomKind.NODE_FAULT
    assert incident.evidence is not None
    assert any((excerpt.stored_at or "").endswith("nodes.txt") for excerpt in incident.evidence.excerpts)
    assert lost in [suspect.node for suspect in incident.attribution.suspects], incident.diagnosis
    await site.slurm.restart_node(lost)
    assert not is_over(incident) or incident.outcome.milestones.acted is None
