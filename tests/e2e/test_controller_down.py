"""Scenario 9: slurmctld goes away for most of a minute. Backstay waits, says so where people look, and goes on; nobody is blamed."""

import time
from typing import Any

import pytest

from activities.records import OutcomeState
from tests.e2e.following import happened
from tests.e2e.site import Site, Training, eventually, has_recovered, steps_of

pytestmark = pytest.mark.timeout(600)

SILENT = "Slurm has not answered since"
DOWN_SECONDS = 45  # with the time to stop and start it, about a minute
LIMIT = 240.0


async def shown(site: Site, run: Training, word: str) -> Any:
    """What `backstay show` prints, once one of its warnings holds the word."""

    async def look() -> Any:
        document = await site.show(run.job_id)
        return document if any(word in warning for warning in document["warnings"]) else None

    return await eventually(look, within=LIMIT, what=f"a warning of job {run.job_id} that tells of {word!r}")


async def silent_again(site: Site, run: Training) -> Any:
    """What `backstay show` prints, once no warning is left and the watch has seen more iterations."""
    seen: list[int] = []

    async def look() -> Any:
        document = await site.show(run.job_id)
        seen.append(document["iteration"] or 0)
        return document if not document["warnings"] and seen[-1] > seen[0] else None

    return await eventually(look, within=LIMIT, what=f"job {run.job_id} without a warning, its iterations seen")


async def test_a_controller_that_goes_away_is_waited_for_in_health_and_in_recovery(site: Site) -> None:
    await site.start_worker()
    # They share a node, so that two exclusions leave three nodes for all.
    healthy, mid_recovery, breaks_meanwhile = runs = [await site.submit(nodes=1) for _ in range(3)]
    for run in runs:
        await site.training(run)

    mid_recovery.break_with({"kind": "crash", "attempts": [0]})
    async for _ in happened(site, mid_recovery, [("completed", "requeue_job")]):
        await site.slurm.stop_controller()
    went_at = time.monotonic()
    breaks_meanwhile.break_with({"kind": "crash", "attempts": [0]})

    await shown(site, healthy, SILENT)
    document = await shown(site, mid_recovery, "is tried again")
    assert document["state"] == "acting"
    document = await shown(site, breaks_meanwhile, SILENT)
    assert document["incidents"] == []
    told = await site.command("jobs")
    assert told.out.count(f"cannot be seen: {SILENT}") >= 1, told.out
    doctor = await site.command("doctor")
    assert doctor.exit_code != 0

    async def long_enough() -> bool | None:
        return True if time.monotonic() - went_at > DOWN_SECONDS else None

    await eventually(long_enough, what="the end of the outage")
    await site.slurm.start_controller()

    for run in (mid_recovery, breaks_meanwhile):
        incident = await site.incident(run, until=has_recovered, within=LIMIT, what="recovery after the outage")
        assert steps_of(incident)[-3:] == ["running", "stepping", "recovered"]
        job = await site.slurm_job(run.job_id)
        assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")
        state = await site.watched(run)
        assert [each.outcome.state for each in state.incidents] == [OutcomeState.RECOVERED]
    document = await silent_again(site, healthy)
    assert (document["state"], document["attempt"], document["incidents"]) == ("watching", 0, [])
    assert (await site.slurm_job(healthy.job_id))["Restarts"] == "0"
