"""`audit` on a history recorded from a real recovery: real Slurm, mode approve, a worker restarted while it waited."""

from pathlib import Path

import pytest

from workers.commands.audit import exported
from workers.commands.facts import Fact, facts_of
from workers.commands.lookup import state_of

RECORDED = Path(__file__).parent / "recorded" / "approved_and_recovered.json"


@pytest.fixture(scope="module")
def facts() -> dict[str, Fact]:
    """By name; a name that comes twice keeps its last fact."""
    return {fact.name: fact for fact in facts_of(exported(RECORDED, "1"))}


def test_the_steps_stand_in_their_order(facts: dict[str, Fact]) -> None:
    steps = (
        "watch_attempt_completed",
        "capture_evidence_completed",
        "diagnose_completed",
        "recommend_completed",
        "update_decide_accepted",
        "permit_action_completed",
        "requeue_job_completed",
        "confirm_pending_completed",
        "exclude_nodes_completed",
        "expedite_completed",
        "verify_running_completed",
        "verify_stepping_completed",
        "verify_checkpoint_completed",
    )
    event_ids = [facts[step].event_id for step in steps]
    assert event_ids == sorted(event_ids)


def test_symptom_cause_suspect_and_grounds_are_told(facts: dict[str, Fact]) -> None:
    assert facts["watch_attempt_completed"].text.startswith("symptom: crash since 2026-")
    assert facts["diagnose_completed"].text.startswith("hardware/ecc_uncorrectable at confidence 0.92")
    assert "node node-002" in facts["diagnose_completed"].text
    assert "restart excluding node-002" in facts["recommend_completed"].text


def test_the_approval_names_who_and_which_digest(facts: dict[str, Fact]) -> None:
    digest = facts["recommend_completed"].data["recommendation"]["digest"]
    assert facts["update_decide_accepted"].text == f"bob approves {digest}: go"


def test_the_worker_that_was_stopped_meanwhile_is_told(facts: dict[str, Fact]) -> None:
    assert facts["watch_for_change_tried_again"].text.startswith("try 2, by ")


def test_the_state_passed_on_at_the_end_of_the_run_is_read_from_it() -> None:
    state = state_of(exported(RECORDED, "1"))
    assert state is not None
    assert [incident.outcome.state for incident in state.incidents] == ["recovered"]
