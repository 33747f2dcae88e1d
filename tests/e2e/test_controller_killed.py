"""slurmctld is killed before it saved what Backstay did, and comes back with older state: it is done again, and is one restart still.

Older state is made for certain: it is saved by a stop in good order before the act, and put back after the kill.
"""

from pathlib import Path

import pytest

from tests.e2e.conftest import MakeSite
from tests.e2e.following import happened
from tests.e2e.site import Site, Training, eventually, has_recovered, steps_of
from tests.e2e.traps import Traps, When
from workflows.state import Stage

pytestmark = pytest.mark.timeout(600)

LIMIT = 300.0


@pytest.mark.parametrize(
    ("lost_from", "struck_at", "told"),
    [
        ("ExcNodeList", "exclude_nodes", {"placement_lost", "act_lost"}),  # the exclusion; the job still waits
        ("ExcNodeList", "expedite", {"act_lost"}),  # exclusion and start; perhaps it runs already
        ("StartTime", "expedite", {"act_lost"}),  # the start alone: the begin time is back
        ("requeue", "requeue_job", {"requeue_lost", "act_lost"}),  # the requeue itself: it has FAILED again
    ],
    ids=["exclusion", "exclusion and start", "start", "requeue"],
)
async def test_what_a_killed_controller_lost_is_done_again(
    make_site: MakeSite, tmp_path: Path, lost_from: str, struck_at: str, told: set[str]
) -> None:
    traps = Traps(tmp_path / "programs")
    site = make_site({"cluster": {"scheduler": {"bin_directory": str(traps.directory)}}})
    traps.set(When.BEFORE, lost_from)
    await site.start_worker()
    run = await site.submit(nodes=1, directives=["--exclusive"])
    (node,) = (await site.training(run)).attempt.nodes
    run.break_with({"kind": "crash", "node": node})
    await eventually(lambda: _died(site, traps), within=LIMIT, what="the worker's death before the act")
    await site.slurm.stop_controller()
    site.slurm.save_state(tmp_path / "saved")
    await site.slurm.start_controller()

    await site.start_worker()
    async for _ in happened(site, run, [("completed", struck_at)]):
        await site.slurm.kill_controller()
    site.slurm.restore_state(tmp_path / "saved")
    await site.slurm.start_controller()

    incident = await site.incident(run, until=has_recovered, within=LIMIT, what="the recovery after the loss")
    assert told & set(steps_of(incident)), steps_of(incident)
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"], job["ExcNodeList"]) == ("RUNNING", "1", node)
    assert job["NodeList"] != node
    state = await site.until(run, lambda state: state.stage is Stage.WATCHING, within=LIMIT, what="the watch of the new attempt")
    assert (len(state.incidents), state.history.restarts) == (1, 1)
    assert _attempts_ended_on(site, run, node) == 1, "no attempt after the first ran on the broken node"


async def _died(site: Site, traps: Traps) -> bool | None:
    return True if traps.has_sprung and not site.workers[-1].is_running else None


def _attempts_ended_on(site: Site, run: Training, node: str) -> int:
    return sum(1 for line in site.completions(run.job_id) if f"NodeList={node} " in line and "JobState=FAILED" in line)
