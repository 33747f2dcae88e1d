"""Scenario 4: a job that stands still while Slurm calls it RUNNING is found by its silence, restarted and recovered."""

from activities.records import Action, SymptomKind
from tests.e2e.site import Site, has_recovered


async def test_a_hang_is_confirmed_by_a_second_look_and_the_job_is_restarted_and_recovers(site: Site) -> None:
    await site.start_worker()
    run = await site.submit(faults=[{"kind": "hang", "at_iteration": 22, "attempts": [0]}])
    incident = await site.ended_incident(run, within=120)

    assert has_recovered(incident), incident.outcome
    assert incident.symptom.kind is SymptomKind.HANG
    assert incident.progress.iteration == 21
    watch = site.configuration.watch
    assert incident.symptom.detected_at - incident.symptom.onset >= watch.hang_floor + watch.second_look
    assert incident.recommendation is not None
    assert incident.recommendation.action in (Action.RESTART, Action.RESTART_EXCLUDING)
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")
    assert run.checkpoint() > 20
