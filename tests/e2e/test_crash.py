"""Scenario 1: a crash with a fatal line that names a rank is recovered off that rank's node, and everyone can see why."""

from tests.e2e.site import Site, has_recovered, steps_of


async def test_a_crash_is_restarted_off_the_node_of_the_rank_that_broke_and_recovers(site: Site) -> None:
    await site.start_worker()
    run = await site.submit()
    before = await site.training(run)
    broken = before.attempt.nodes[-1]
    run.break_with({"kind": "crash", "node": broken})
    incident = await site.ended_incident(run)
    assert has_recovered(incident), incident.outcome
    assert [suspect.node for suspect in incident.attribution.suspects] == [broken]
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"], job["ExcNodeList"]) == ("RUNNING", "1", broken)
    assert "requeued" in steps_of(incident)
