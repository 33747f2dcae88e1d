"""A job that is not watched, on real Slurm: `show` says why, and with what command that changes."""

from tests.e2e.site import Site, eventually

LIMIT = 60.0


async def test_show_says_why_a_job_is_not_watched_and_the_command_it_names_helps(site: Site) -> None:
    await site.start_worker()
    run = await site.submit(comment="", nodes=1)
    assert await eventually(lambda: runs(site, run.job_id), within=LIMIT, what="the job's start")
    told = await site.command("show", run.job_id)
    assert (told.exit_code, told.out) == (1, "")
    assert f"job {run.job_id} is not watched on cluster {site.cluster}: it has not opted in: it has no comment" in told.err
    assert f"`scontrol update jobid={run.job_id} comment=backstay`" in told.err
    await site.slurm.run("scontrol", "update", f"jobid={run.job_id}", "comment=backstay")
    await site.watched(run, within=LIMIT)
    assert (await site.command("show", "999999")).err.startswith(
        f"backstay: job 999999 is not watched on cluster {site.cluster}: Slurm does not know it"
    )


async def runs(site: Site, job_id: str) -> bool | None:
    return True if (await site.slurm_job(job_id))["JobState"] == "RUNNING" else None
