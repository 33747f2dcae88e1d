"""The whole of it, in order, also where every step is killed after its act."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from activities.records import JobState
from activities.slurm.simulated import REQUEUE_DELAY
from tests.reschedule.site import SHORT_DELAY, Site


async def walked(site: Site, steps: Sequence[str], *, tries: int) -> None:
    for step in steps:
        for attempt in range(1, tries + 1):
            assert (await site.run(step, attempt=attempt, nodes=("node-002",))).done, step


@pytest.mark.parametrize("delay", [REQUEUE_DELAY, SHORT_DELAY], ids=["delayed", "held"])
@pytest.mark.parametrize("tries", [1, 2], ids=["once", "every step killed after its act"])
async def test_the_whole_reschedule_restarts_the_job_once_off_the_suspect(delay: timedelta, tries: int) -> None:
    site = Site(requeue_delay=delay).submit().fail()
    last = "expedite" if delay == REQUEUE_DELAY else "release_job"
    await walked(site, ("requeue_job", "confirm_pending", "exclude_nodes", last), tries=tries)
    site.clock.advance(10)
    job = await site.job()
    assert (job.state, job.restart_count, job.is_held) == (JobState.RUNNING, 1, False)
    assert "node-002" not in job.nodes
    assert site.did("requeue") == 1
    assert site.did("exclude") == 1
