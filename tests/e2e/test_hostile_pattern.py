"""Users' patterns made to hang a matcher: their jobs are watched like any other, and every honest job beside them recovers."""

import asyncio

import pytest

from tests.e2e.conftest import MakeSite
from tests.e2e.site import Site, Training, has_recovered

pytestmark = pytest.mark.timeout(600)

LIMIT = 240.0  # seconds; eight jobs that are watched and recover side by side on two cores
HONEST = 6
# Five jobs that fail together would trip the breaker, and here that is what they are made to do.
SETTINGS = {
    "watch": {"startup_patience": "10m"},
    "policy": {"limits": {"breaker_jobs": 100, "actions_per_window": 100}},
}
# The pattern, and as a shell prints it a line that it nearly fits: the two that once stopped a worker for ever. The words behind it
# are looked at by a rule of our own, so that no cheaper matcher passes the line over.
HOSTILE = {
    "digits": (r"(?P<iteration>(?:\d|\d)+)x", "printf '%060d could not save checkpoint\\n' 7"),
    "letters": (r"x[^b]*[^b]*[^b]*[^b]*[^b]*y(?P<iteration>\d+)", "printf 'x%0400d could not save checkpoint\\n' 7"),
}


async def hostile_job(site: Site, name: str) -> str:
    """Submits a job whose comment holds the pattern and whose log holds the lines, again and again; its ID."""
    pattern, prints = HOSTILE[name]
    log = site.runs / f"{name}.log"
    comment = f"backstay:mode=auto,log={log},progress={pattern}"
    options = [f"--job-name={name}", "--nodes=1", f"--output={log}", f"--comment={comment}"]
    job_id = await site.slurm.submit_text(f"while {prints}; do sleep 0.2; done\n", *options)
    told = await site.slurm.run("scontrol", "show", "job", job_id)
    assert f"Comment={comment}" in told, told
    return job_id


async def recovers(site: Site) -> None:
    run: Training = await site.submit(nodes=1, tasks_per_node=1)
    await site.training(run, within=LIMIT)
    run.break_with({"kind": "crash", "attempts": [0], "message": "OSError: [Errno 98] Address already in use"})
    incident = await site.ended_incident(run, within=LIMIT)
    assert has_recovered(incident), incident.outcome
    assert (await site.slurm_job(run.job_id))["Restarts"] == "1"


async def test_beside_hostile_patterns_every_honest_job_recovers_and_the_worker_stops_and_starts_in_good_order(
    make_site: MakeSite,
) -> None:
    site = make_site(SETTINGS)
    worker = await site.start_worker()
    hostile = [await hostile_job(site, name) for name in HOSTILE]
    for job_id in hostile:
        await site.until(job_id, lambda state: state.attempt is not None, within=LIMIT, what="the watch of the hostile job")
    async with asyncio.TaskGroup() as jobs:
        for _ in range(HONEST):
            jobs.create_task(recovers(site))

    for job_id in hostile:
        state = await site.state(job_id)
        assert state is not None
        assert (state.incidents, state.warnings) == ((), ())
    assert await worker.stop() == 0
    assert "Traceback" not in worker.log.read_text()

    another = await site.start_worker()  # reads the hostile logs on, from where the first one stopped
    await recovers(site)
    assert await another.stop() == 0
