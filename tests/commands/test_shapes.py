"""The JSON of `show`, `jobs` and `diagnose`: exactly the documented keys, times ISO 8601 UTC."""

import json
from typing import Any

from activities.records import Decision, DecisionKind, Milestones, Mode, Outcome, OutcomeState, Progress, Step
from tests.builders import NOON, a_decision, a_judgement, a_recommendation, after, an_incident
from tests.commands.states import a_state
from workers.commands.shapes import job_document, job_row, judgement_document, moment
from workflows.state import Stage


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
                "recommendation": {**dict.fromkeys(("action", "why", "rule", "digest", "expires_at")), "exclude_nodes": [None]},
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


def test_a_decided_recommendation_is_not_offered_again() -> None:
    decided = Decision(kind=DecisionKind.APPROVED, actor="alice", at=after(5))
    row = job_row(a_state(stage=Stage.AWAITING_DECISION, incidents=(an_incident(recommendation=a_recommendation(), decision=decided),)))
    assert row["digest"] is None


def test_that_a_job_waits_is_told_also_where_no_worker_tells_for_what() -> None:
    row = job_row(a_state(stage=Stage.AWAITING_DECISION))
    assert (row["needs_approval"], row["digest"]) == (True, None)


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
        "recommendation": {"action": None, "exclude_nodes": [None], "why": None},
        "progress": dict.fromkeys(("iteration", "checkpoint_iteration", "step_seconds")),
        "notes": [None],
    }
