"""The JSON of `show`, `jobs` and `diagnose`: exactly the documented keys, times ISO 8601 UTC."""

import json
from typing import Any

import pytest

from activities.records import Decision, DecisionKind, Milestones, Mode, Outcome, OutcomeState, Progress, Step, SymptomKind
from tests.builders import NOON, a_decision, a_judgement, a_recommendation, a_symptom, after, an_incident
from tests.commands.states import a_state
from workers.commands.shapes import job_document, job_row, judgement_document, moment
from workflows.state import Stage, TrainingJobState


def keys(value: Any) -> Any:
    """The shape of a document: its keys, without values."""
    match value:
        case dict():
            return {key: keys(inner) for key, inner in value.items()}
        case list():
            return [keys(value[0])] if value else []
        case _:
            return None


def test_show_has_the_documented_shape() -> None:
    outcome = Outcome(state=OutcomeState.RECOVERED, steps=(Step(name="detected", at=NOON),), milestones=Milestones(detected=NOON))
    state = a_state(incidents=(an_incident(recommendation=a_recommendation(), decision=a_decision(), outcome=outcome),))
    primary = dict.fromkeys(("line", "text", "time", "rank", "node", "gpu"))
    suspect: dict[str, Any] = {**dict.fromkeys(("node", "rank", "gpu", "confidence")), "because": [None]}
    assert keys(job_document(state)) == {
        "job": {**dict.fromkeys(("cluster", "job_id", "name", "user", "partition")), "nodes": [None]},
        **dict.fromkeys(("state", "mode", "attempt", "iteration", "checkpoint_iteration")),
        "warnings": [],
        "incidents": [
            {
                "id": None,
                "symptom": dict.fromkeys(("kind", "onset", "detected_at", "summary")),
                "diagnosis": {**dict.fromkeys(("domain", "cause", "confidence", "cascades")), "primary": primary},
                "attribution": {"suspects": [suspect], "abstained": None},
                "recommendation": {
                    **dict.fromkeys(("action", "why", "rule", "digest", "expires_at")),
                    "exclude_nodes": [None],
                    "user_excluded": [],
                },
                "decision": dict.fromkeys(("kind", "actor", "at", "reason")),
                "outcome": {
                    "state": None,
                    "steps": [dict.fromkeys(("name", "at", "detail"))],
                    "milestones": dict.fromkeys(("detected", "recommended", "decided", "acted", "running", "stepping", "recovered")),
                },
            }
        ],
    }


def test_what_has_not_happened_yet_is_null() -> None:
    incident = job_document(a_state(incidents=(an_incident(recommendation=None, decision=None),)))["incidents"][0]
    assert incident["recommendation"] is None
    assert incident["decision"] is None
    assert set(incident["outcome"]["milestones"].values()) == {None}


def test_times_are_iso_8601_in_utc_and_the_document_is_plain_json() -> None:
    document = job_document(a_state(incidents=(an_incident(),)))
    assert json.loads(json.dumps(document)) == document
    assert moment(NOON) == "2026-01-05T12:00:00Z"


def test_the_watchs_newer_progress_is_shown_in_place_of_the_states() -> None:
    document = job_document(
        a_state(progress=Progress(iteration=10)), Progress(iteration=50, checkpoint_iteration=40), ["no worker answers"]
    )
    assert (document["iteration"], document["checkpoint_iteration"], document["warnings"]) == (50, 40, ["no worker answers"])


def test_jobs_tells_which_recommendation_waits_for_a_person() -> None:
    recommendation = a_recommendation()
    waiting = a_state(
        stage=Stage.AWAITING_DECISION, mode=Mode.APPROVE, incidents=(an_incident(recommendation=recommendation, decision=None),)
    )
    row = job_row(waiting)
    assert (row["needs_approval"], row["digest"], row["incidents"]) == (True, recommendation.digest, 1)
    assert row["needs_you"] == "decision"


def test_a_blind_watch_says_so_in_its_row_and_not_that_no_fault_was_seen() -> None:
    row = job_row(a_state(), blind="progress cannot be seen; crashes only")
    assert (row["blind"], row["summary"]) == (
        "progress cannot be seen; crashes only",
        "cannot be seen: progress cannot be seen; crashes only",
    )
    assert (job_row(a_state())["blind"], job_row(a_state())["summary"]) == (None, "no fault seen")
    assert job_row(a_state(stage=Stage.ENDED, summary="it completed"), blind="no log")["summary"] == "it completed"


def test_a_decided_recommendation_is_not_offered_again() -> None:
    decided = Decision(kind=DecisionKind.APPROVED, actor="alice", at=after(5))
    row = job_row(a_state(stage=Stage.AWAITING_DECISION, incidents=(an_incident(recommendation=a_recommendation(), decision=decided),)))
    assert row["digest"] is None


def test_that_a_job_waits_is_told_also_where_no_worker_tells_for_what() -> None:
    row = job_row(a_state(stage=Stage.AWAITING_DECISION))
    assert (row["needs_approval"], row["digest"]) == (True, None)


def a_held_job(**changes: Any) -> TrainingJobState:
    """Its last incident was left to a person, and it has ended."""
    incident = an_incident(outcome=Outcome(state=OutcomeState.HELD, summary="the breaker is tripped"), progress=Progress(iteration=40))
    return a_state(**{"stage": Stage.FOLLOWING, "incidents": (incident,), **changes})


def test_a_job_that_was_left_to_a_person_says_so_and_why() -> None:
    row = job_row(a_held_job())
    assert (row["needs_you"], row["outcome"], row["needs_approval"]) == ("held", "the breaker is tripped", False)
    failed = an_incident(outcome=Outcome(state=OutcomeState.FAILED, summary="Slurm would not requeue"))
    assert job_row(a_held_job(incidents=(failed,)))["needs_you"] == "failed"


@pytest.mark.parametrize(
    "changes",
    [{"stage": Stage.VERIFYING}, {"stage": Stage.ACTING}, {"stage": Stage.ENDED}, {"incidents": ()}],
    ids=["another hand restarted it", "we act on another incident", "Slurm knows it no more", "nothing happened"],
)
def test_a_job_needs_nobody_once_something_is_done_about_it(changes: dict[str, Any]) -> None:
    assert job_row(a_held_job(**changes))["needs_you"] is None


def test_an_attempt_that_waits_to_run_tells_the_checkpoint_it_would_resume_from_and_no_iteration() -> None:
    waiting = job_document(a_state(progress=Progress(), newest_checkpoint=40))
    assert (waiting["iteration"], waiting["checkpoint_iteration"]) == (None, 40)
    assert job_document(a_state(progress=Progress(checkpoint_iteration=60), newest_checkpoint=40))["checkpoint_iteration"] == 60


def test_what_nobody_decided_in_time_is_left_to_a_person_until_somebody_acts() -> None:
    expired = an_incident(decision=a_decision(DecisionKind.EXPIRED), outcome=Outcome(state=OutcomeState.NOT_ACTED, summary="expired"))
    assert job_row(a_held_job(incidents=(expired,)))["needs_you"] == "held"
    restarted = expired.model_copy(update={"outcome": Outcome(state=OutcomeState.RECOVERED)})
    assert job_row(a_held_job(incidents=(restarted,)))["needs_you"] is None


@pytest.mark.parametrize("outcome", [state for state in OutcomeState if state not in (OutcomeState.HELD, OutcomeState.FAILED)])
def test_what_was_decided_and_done_needs_nobody(outcome: OutcomeState) -> None:
    assert job_row(a_held_job(incidents=(an_incident(outcome=Outcome(state=outcome)),)))["needs_you"] is None


def test_a_hang_that_was_left_to_a_person_and_steps_again_needs_nobody() -> None:
    held = a_held_job().incidents[0].model_copy(update={"symptom": a_symptom(SymptomKind.HANG)})
    standing = a_held_job(stage=Stage.WATCHING, incidents=(held,), progress=Progress(iteration=40))
    assert job_row(standing)["needs_you"] == "held"
    assert job_row(standing, Progress(iteration=41))["needs_you"] is None


def test_a_job_held_for_a_missing_checkpoint_needs_nobody_once_it_writes_one() -> None:
    silent = an_incident(
        symptom=a_symptom(SymptomKind.NO_CHECKPOINT), progress=Progress(checkpoint_iteration=40), outcome=Outcome(state=OutcomeState.HELD)
    )
    standing = a_held_job(stage=Stage.WATCHING, incidents=(silent,))
    assert job_row(standing, Progress(checkpoint_iteration=40))["needs_you"] == "held"
    assert job_row(standing, Progress(checkpoint_iteration=60))["needs_you"] is None


def test_diagnose_has_the_documented_shape() -> None:
    assert keys(judgement_document(a_judgement(notes=("dump_1: no dump",)), a_recommendation())) == {
        "symptom": {"kind": None},
        "diagnosis": {
            **dict.fromkeys(("domain", "cause", "confidence", "summary", "cascades", "benign")),
            "primary": dict.fromkeys(("line", "text", "time", "rank", "node", "gpu")),
        },
        "attribution": {
            "suspects": [{**dict.fromkeys(("node", "gpu", "rank", "confidence")), "because": [None]}],
            "abstained": None,
            "sources": [None],
        },
        "recommendation": {"action": None, "exclude_nodes": [None], "user_excluded": [], "why": None},
        "progress": dict.fromkeys(("iteration", "checkpoint_iteration", "step_seconds")),
        "notes": [None],
    }
