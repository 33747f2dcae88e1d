"""Scenario 5: what a restart cannot mend is stopped with the reason, and never restarted in a loop."""

from activities.records import Action, Domain, OutcomeState
from tests.e2e.conftest import MakeSite
from tests.e2e.site import steps_of
from workflows.state import Stage

# The operator grants the program's own exceptions one more try; the default rule then sees that it got no further.
ONE_MORE_TRY = {"name": "one-more-try", "when": {"domain": "application", "earlier_same_cause": "<1"}, "do": "restart"}


async def test_an_application_bug_that_repeats_is_stopped_with_the_reason_and_without_a_loop(make_site: MakeSite) -> None:
    site = make_site({"policy": {"rules": [ONE_MORE_TRY]}})
    await site.start_worker()
    bug = await site.submit(faults=[{"kind": "app_bug", "at_iteration": 13}])
    typo = await site.submit(faults=[{"kind": "app_bug", "at_iteration": 13, "message": "KeyError: 'position_ids'"}])

    again = await site.ended_incident(bug, number=2, within=120)
    state = await site.until(bug, lambda state: state.stage is Stage.FOLLOWING, what="the stopped job to be followed")
    first = state.incidents[0]
    assert first.recommendation is not None
    assert (first.diagnosis.domain, first.recommendation.action) == (Domain.APPLICATION, Action.RESTART)
    assert first.attribution.suspects == (), "no node is blamed for a program's bug"
    assert again.recommendation is not None
    assert (again.recommendation.action, again.outcome.state) == (Action.STOP, OutcomeState.STOPPED)
    assert again.diagnosis.cause == first.diagnosis.cause
    assert "ValueError" in again.outcome.summary
    assert "the same way again without getting further" in again.outcome.summary
    assert "requeued" not in steps_of(again)

    # A mistake of the user's own is not even tried again.
    state = await site.until(typo, lambda state: state.stage is Stage.FOLLOWING, what="the mistake to be followed")
    assert len(state.incidents) == 1, state.incidents
    [mistake] = state.incidents
    assert mistake.outcome.state is OutcomeState.STOPPED
    assert "KeyError" in mistake.outcome.summary or "key" in mistake.outcome.summary

    for run, restarts in ((bug, "1"), (typo, "0")):
        job = await site.slurm_job(run.job_id)
        assert (job["JobState"], job["Restarts"], job["ExcNodeList"]) == ("FAILED", restarts, "(null)")
        assert (await site.activities(run.job_id)).count("requeue_job") == int(restarts)
