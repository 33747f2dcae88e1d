"""`audit`: the history alone tells who did what, with event IDs, whatever wrote it."""

import json

from activities.records import DecisionRequest, as_json
from tests.builders import NOON, a_decision, a_key, a_recommendation, after, an_incident
from tests.commands.histories import History
from tests.commands.states import a_state
from workers.commands.audit import exported, in_words
from workers.commands.facts import facts_of, predecessor_run_id
from workers.commands.lookup import state_of


def test_temporals_own_housekeeping_is_no_fact_and_event_ids_are_kept() -> None:
    history = History().housekeeping().activity("diagnose", result=None).written()
    assert [(fact.event_id, fact.name) for fact in facts_of(history)] == [
        (1, "workflow_started"),
        (5, "diagnose_began"),
        (7, "diagnose_completed"),
    ]


def test_records_are_told_in_words() -> None:
    recommendation = as_json(a_recommendation())
    decision = as_json(a_decision(reason="go on"))
    history = History(start=as_json(a_state())).activity("recommend", result={"recommendation": recommendation, "mode": "auto"}).update(
        "decide", {"approve": True, "actor": "bob", "digest": "abc", "reason": ""}, decision
    )  # fmt: skip
    told = {fact.name: fact.text for fact in facts_of(history.written())}
    assert told["workflow_started"] == "job 17 of alpha, mode auto, watching"
    assert told["recommend_completed"].startswith("restart excluding node-002 [")
    assert told["update_decide_accepted"] == "bob approves abc"
    assert told["update_decide_completed"] == "approved by bob: go on"


def test_a_signal_names_who_sent_it_and_what_was_meant() -> None:
    request = as_json(DecisionRequest(approve=False, actor="alice", digest="d1", reason="it is my job"))
    [_, fact] = facts_of(History().signal("reject", request).written())
    assert (fact.name, fact.text) == ("signal_reject_received", "alice rejects d1: it is my job")


def test_a_retry_by_another_worker_is_told_with_what_went_before() -> None:
    history = History().activity(
        "requeue_job", result={"step": "requeue_job", "done": True, "detail": "requeued"}, tries=2, before="heartbeat lost"
    )
    again = facts_of(history.written())[2]
    assert again.name == "requeue_job_tried_again"
    assert again.text == "try 2, by 4711@head-2; before it: Activity task failed: heartbeat lost"


def test_a_failure_is_told_down_to_its_cause() -> None:
    fact = facts_of(History().activity("expedite", failure="slurmctld is down").written())[-1]
    assert (fact.name, fact.text) == ("expedite_failed", "Activity task failed: slurmctld is down")


def test_what_is_encrypted_stays_closed_and_says_so() -> None:
    fact = facts_of(History().encrypted_result("diagnose").written())[-1]
    assert fact.text == "(2 bytes of binary/encrypted)"


def test_log_text_cannot_forge_another_line() -> None:
    fact = facts_of(History().activity("diagnose", result="first\n#99  forged\x1b[2J").written())[-1]
    for width in (None, 80):
        told = "".join(in_words(fact, width))
        assert "\n" not in told
        assert "\x1b" not in told


def test_an_unknown_shape_is_shown_as_shortened_json() -> None:
    fact = facts_of(History().activity("something_new", result={"numbers": list(range(500))}).written())[-1]
    assert fact.text.startswith('{"numbers": [0, 1')
    assert len(fact.text) <= 240


def test_a_run_names_the_one_it_continues() -> None:
    assert predecessor_run_id(History("run-2", continues="run-1").written()) == "run-1"
    assert predecessor_run_id(History("run-1").written()) is None


def test_an_exported_history_reads_the_same(tmp_path) -> None:  # type: ignore[no-untyped-def]
    history = History(start=as_json(a_state())).activity("diagnose", result=None).written()
    file = tmp_path / "history.json"
    file.write_text(history.to_json())
    assert facts_of(exported(file, "17")) == facts_of(history)


def test_facts_are_plain_json_lines() -> None:
    fact = facts_of(History(start=as_json(a_key())).written())[0]
    line = json.loads(json.dumps(as_json(fact)))
    assert (line["event_id"], line["run_id"], line["at"], line["name"]) == (
        1,
        "run-1",
        after(1).isoformat().replace("+00:00", "Z"),
        "workflow_started",
    )


def test_without_a_worker_the_newest_whole_state_is_read_from_the_history() -> None:
    began, ended = a_state(), a_state(incidents=(an_incident(),))
    assert state_of(History(start=as_json(began)).activity("watch_attempt").written()) == began
    assert state_of(History(start=as_json(began)).completed(as_json(ended)).written()) == ended
    assert state_of(History(start=as_json(began)).continued(as_json(ended)).written()) == ended


def test_a_history_of_another_workflow_holds_no_state() -> None:
    assert state_of(History(start={"cluster": "alpha", "at": str(NOON)}).written()) is None
