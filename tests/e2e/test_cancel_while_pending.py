"""Scenario 7: the user cancels the job while its recommendation waits for a person. It is superseded, and nothing is done."""

from activities.records import DecisionKind, OutcomeState, SymptomKind
from tests.e2e.conftest import MakeSite
from tests.e2e.site import awaits_decision, eventually, is_over

MUTATIONS = {"requeue_job", "exclude_nodes", "expedite", "release_job", "cancel_job", "drain_nodes", "permit_action"}


async def test_a_cancel_supersedes_the_recommendation_that_waits_and_nothing_is_done(make_site: MakeSite) -> None:
    site = make_site({"policy": {"rules": [{"when": {"symptom": "hang"}, "do": "restart"}]}})
    await site.start_worker()
    run = await site.submit(mode="approve")
    await site.training(run)
    run.break_with({"kind": "hang"})
    pending = await site.until(run, awaits_decision, what="a recommendation that waits")
    recommendation = pending.incidents[-1].recommendation
    assert recommendation is not None
    await site.slurm.run("scancel", run.job_id)
    incident = await site.incident(run, until=is_over, what="the end of the incident")
    assert incident.symptom.kind is SymptomKind.HANG
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.digest) == (DecisionKind.SUPERSEDED, recommendation.digest)
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    assert "cancelled" in incident.outcome.summary
    assert incident.outcome.milestones.acted is None

    async def closed() -> bool | None:
        return None if await site.is_open(run.job_id) else True

    await eventually(closed, what="the end of the job's workflow")
    assert not MUTATIONS & set(await site.activities(run.job_id))
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"]) == ("CANCELLED", "0")
    late = await site.command("approve", run.job_id, "--digest", recommendation.digest)
    assert (late.exit_code, "no longer watched" in late.err) == (1, True), late
