"""Scenario 10: the Temporal server is restarted on its database file. Health is watched on, a recovery goes on where it stood."""

from tests.e2e.following import happened
from tests.e2e.site import Site, Training, eventually, has_recovered, steps_of

LIMIT = 120.0


async def test_a_restart_of_the_server_on_its_file_loses_neither_watch_nor_recovery(site: Site) -> None:
    worker = await site.start_worker()
    healthy, broken = runs = [await site.submit(nodes=1, directives=["--exclusive"]) for _ in range(2)]
    for run in runs:
        await site.training(run)
    broken.break_with({"kind": "crash", "attempts": [0]})
    async for _ in happened(site, broken, [("completed", "requeue_job")]):
        await site.server.stop()
    told = await site.command("show", healthy.job_id)
    assert (told.exit_code, "no Temporal server answers" in told.err) == (3, True), told
    await healthy.checkpoint_after(healthy.checkpoint())  # the jobs neither know nor care
    await site.server.start()

    incident = await site.incident(broken, until=has_recovered, within=LIMIT, what="recovery after the restart")
    assert steps_of(incident)[-3:] == ["running", "stepping", "recovered"]
    job = await site.slurm_job(broken.job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")
    written = healthy.checkpoint()
    assert await eventually(lambda: sees_checkpoint(site, healthy, written), within=LIMIT, what="the watch of the healthy job, going on")
    document = await site.show(healthy.job_id)
    assert (document["state"], document["attempt"], document["incidents"], document["warnings"]) == ("watching", 0, [], [])
    assert worker.is_running


async def sees_checkpoint(site: Site, run: Training, iteration: int) -> bool | None:
    """True once `show` tells of a checkpoint after this iteration."""
    seen = (await site.show(run.job_id))["checkpoint_iteration"]
    return True if seen is not None and seen > iteration else None
