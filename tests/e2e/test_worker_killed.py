"""Scenario 8: a worker killed with SIGKILL between and inside the steps of a recovery. Another finishes it, with one requeue in all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from activities.records import Incident, OutcomeState
from tests.e2e.conftest import MakeSite
from tests.e2e.following import happened
from tests.e2e.site import Site, Training, awaits_decision, eventually, steps_of
from tests.e2e.traps import Traps, When
from workers.embedded.private_slurm import PrivateSlurm
from workflows.state import Stage

pytestmark = pytest.mark.timeout(600)

LIMIT = 240.0  # seconds for a life with several deaths; each costs a timeout of the server and the start of a worker

WHOLE = [
    "detected",
    "diagnosed",
    "recommended",
    "decided",
    "requeued",
    "pending",
    "excluded",
    "expedited",
    "running",
    "stepping",
    "recovered",
]

# Several deaths in one recovery, and three recoveries side by side, each with workers of its own: one waits while another computes.
BETWEEN_STEPS = {
    "until it is decided": [("completed", name) for name in ("watch_attempt", "diagnose", "recommend", "permit_action")],
    "while it acts": [("completed", name) for name in ("requeue_job", "confirm_pending", "exclude_nodes", "expedite")],
    "while it verifies": [("scheduled", name) for name in ("verify_running", "verify_stepping", "verify_checkpoint")],
}
INSIDE_STEPS = {
    "done but not heard": [(When.AFTER, "requeue"), (When.AFTER, "ExcNodeList"), (When.AFTER, "StartTime")],
    "never sent": [(When.BEFORE, "requeue"), (When.BEFORE, "ExcNodeList"), (When.BEFORE, "StartTime")],
}


@pytest.fixture
async def lanes(idle_slurm: PrivateSlurm) -> AsyncIterator[Sequence[str]]:
    """Partitions over all four nodes, so that each of several sites watches its own jobs only."""
    names = [f"lane-{number}" for number in range(1, 4)]
    for name in names:
        await idle_slurm.run("scontrol", "create", f"PartitionName={name}", "Nodes=ALL")
    yield names
    await idle_slurm.clear()
    for name in names:
        await idle_slurm.run("scontrol", "delete", f"PartitionName={name}")


async def broken(site: Site, *, mode: str = "auto") -> tuple[Training, str, int]:
    """A training job at work, whose node breaks now; that node and the checkpoint before."""
    lane = [f"--partition={name}" for name in site.configuration.watch.partitions]
    run = await site.submit(mode=mode, nodes=1, directives=["--exclusive", *lane])
    state = await site.training(run, within=LIMIT)
    (node,) = state.attempt.nodes
    run.break_with({"kind": "crash", "node": node})
    return run, node, run.checkpoint()


async def recovered_once(site: Site, run: Training, node: str, before: int) -> Incident:
    """The incident at its end: the whole story stands in it, and Slurm saw one requeue and one exclusion."""
    incident = await site.ended_incident(run, within=LIMIT)
    assert incident.outcome.state is OutcomeState.RECOVERED, incident.outcome
    assert steps_of(incident) == WHOLE
    assert all(getattr(incident.outcome.milestones, name) is not None for name in type(incident.outcome.milestones).model_fields)
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"], job["ExcNodeList"]) == ("RUNNING", "1", node)
    assert run.checkpoint() > before
    state = await site.until(run, lambda state: state.stage is Stage.WATCHING, within=LIMIT, what="the watch of the new attempt")
    assert (len(state.incidents), state.history.restarts, state.warnings) == (1, 1, ())
    return incident


async def dies_between(site: Site, deaths: Sequence[tuple[str, str]]) -> None:
    """The worker dies the moment each of these stands in the history, and another starts."""
    await site.start_worker()
    run, node, before = await broken(site)
    async for _ in happened(site, run, deaths):
        await site.workers[-1].kill()
        await site.start_worker()
    await recovered_once(site, run, node, before)
    assert len(site.workers) == 1 + len(deaths)


async def dies_inside(site: Site, traps: Traps, deaths: Sequence[tuple[When, str]]) -> None:
    """The worker dies in the middle of each of these commands of Slurm, and another starts."""
    traps.set(*deaths[0])
    await site.start_worker()
    run, node, before = await broken(site)
    for following in [*deaths[1:], None]:
        await eventually(lambda: _died(site, traps), within=LIMIT, what="the worker's death")
        if following is not None:
            traps.set(*following)
        await site.start_worker()
    await recovered_once(site, run, node, before)


async def hears_nothing(site: Site, traps: Traps) -> None:
    """Slurm requeues, and the command that asked for it never ends."""
    traps.set(When.SILENT, "requeue")
    await site.start_worker()
    run, node, before = await broken(site)
    await recovered_once(site, run, node, before)
    assert traps.has_sprung
    assert len(site.workers) == 1


async def test_a_worker_killed_between_two_steps_is_replaced_and_nothing_is_done_twice(make_site: MakeSite, lanes: Sequence[str]) -> None:
    async with asyncio.TaskGroup() as lives:
        for lane, (name, deaths) in zip(lanes, BETWEEN_STEPS.items(), strict=False):
            site = make_site({"watch": {"partitions": [lane]}})
            lives.create_task(dies_between(site, deaths), name=name)


async def test_a_change_of_slurm_is_made_once_though_its_worker_dies_in_it_or_its_answer_never_comes(
    make_site: MakeSite, lanes: Sequence[str], tmp_path: Path
) -> None:
    def trapped(lane: str, traps: Traps) -> Site:
        scheduler = {"bin_directory": str(traps.directory), "timeout": "8s"}
        return make_site({"watch": {"partitions": [lane]}, "cluster": {"scheduler": scheduler}})

    traps = [Traps(tmp_path / f"programs-{lane}") for lane in lanes]
    sites = [trapped(lane, trap) for lane, trap in zip(lanes, traps, strict=True)]
    async with asyncio.TaskGroup() as lives:
        for site, trap, (name, deaths) in zip(sites, traps, INSIDE_STEPS.items(), strict=False):
            lives.create_task(dies_inside(site, trap, deaths), name=name)
        lives.create_task(hears_nothing(sites[-1], traps[-1]), name="no answer")


async def test_a_recommendation_outlives_its_worker_and_is_approved_with_another(site: Site) -> None:
    await site.start_worker()
    run, node, before = await broken(site, mode="approve")
    pending = await site.until(run, awaits_decision, what="a recommendation that waits")
    await site.workers[-1].kill()
    await site.start_worker()
    state = await site.until(run, awaits_decision, what="the recommendation, told by the other worker")
    assert state.incidents == pending.incidents
    answer = await site.command("approve", run.job_id, "--actor", "olga")
    assert answer.exit_code == 0, answer.err
    incident = await recovered_once(site, run, node, before)
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.actor) == ("approved", "olga")


async def test_a_requeue_found_again_only_once_the_job_runs_is_backstays_own(make_site: MakeSite, tmp_path: Path) -> None:
    traps = Traps(tmp_path / "programs")
    site = make_site({"cluster": {"scheduler": {"bin_directory": str(traps.directory)}}})
    traps.set(When.AFTER, "requeue")
    await site.start_worker()
    run = await site.submit(nodes=1, directives=["--exclusive"])
    await site.training(run, within=LIMIT)
    run.break_with({"kind": "crash", "attempts": [0]})
    await eventually(lambda: _died(site, traps), within=LIMIT, what="the worker's death after it had sent the requeue")
    await site.slurm.wait_state(run.job_id, "PENDING")
    await site.slurm.run("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+3")  # as if it stayed dead for two minutes
    await site.slurm.wait_state(run.job_id, "RUNNING")
    await site.start_worker()

    incident = await site.ended_incident(run, within=LIMIT)
    assert incident.outcome.state is OutcomeState.RECOVERED, incident.outcome
    assert "another hand" not in incident.outcome.summary
    steps = {step.name: step.detail for step in incident.outcome.steps}
    assert "not repeated" in steps["requeued"]
    assert "the exclusion was not written" in steps["not_excluded"]
    assert "restarted_by_another_hand" not in steps
    state = await site.until(run, lambda state: state.stage is Stage.WATCHING, within=LIMIT, what="the watch of the new attempt")
    assert (len(state.incidents), state.history.restarts) == (1, 1)
    assert (await site.slurm_job(run.job_id))["Restarts"] == "1"


async def _died(site: Site, traps: Traps) -> bool | None:
    return True if traps.has_sprung and not site.workers[-1].is_running else None
