"""What people see of a workflow in lists and on its page."""

import json
import re

from tests.builders import a_key, an_attempt, an_incident, node_names
from workflows.state import Stage, TrainingJobState
from workflows.visibility import JOB, NEEDS_APPROVAL, NODES, STATE, at_first, attributes_of, details_of, listed, one_line

SERVER_LIMIT_BYTES = 2048
"""Of one search attribute's value; Temporal fails the workflow that writes more."""


def a_state(**changes: object) -> TrainingJobState:
    return TrainingJobState.model_validate({"key": a_key(), "mode": "approve", "attempt": an_attempt(), **changes})


def test_a_thousand_nodes_with_long_names_fit_into_one_search_attribute() -> None:
    names = [f"ip-10-120-{number:03d}-77.us-west-2.compute.internal" for number in range(1000)]
    kept = listed(names)
    assert kept == names[: len(kept)]
    assert len(kept) > 30
    assert len(json.dumps(kept)) < SERVER_LIMIT_BYTES


def test_short_names_are_listed_up_to_fifty_each_once() -> None:
    assert listed([*node_names(60), *node_names(60)]) == list(node_names(50))


def test_a_new_watch_starts_with_its_job_and_nodes() -> None:
    first = at_first(a_key("17_4"), node_names(2))
    assert (first[JOB], first[STATE], first[NEEDS_APPROVAL], first[NODES]) == ("17_4", "watching", False, ["node-001", "node-002"])


def test_suspects_come_first_and_waiting_for_a_person_is_told() -> None:
    state = a_state(stage=Stage.AWAITING_DECISION, incidents=(an_incident(),))
    shown, updates = attributes_of(state)
    values = {update.key.name: update.value for update in updates}
    assert values["BackstayNodes"] == ["node-002", "node-001"]
    assert values["BackstayNeedsApproval"] is True
    assert values["BackstayCause"] == "ecc_uncorrectable"
    assert shown == attributes_of(state)[0], "the same state reads the same, so nothing is written twice"


def test_the_details_name_the_digest_while_it_can_be_decided_on() -> None:
    incident = an_incident()
    assert incident.recommendation is not None
    waiting = details_of(a_state(stage=Stage.AWAITING_DECISION, incidents=(incident,), warnings=("the log cannot be read",)))
    assert f"digest `{incident.recommendation.digest}`" in waiting
    assert "warning: the log cannot be read" in waiting
    assert "digest" not in details_of(a_state(stage=Stage.VERIFYING, incidents=(incident,)))


def test_a_users_words_become_no_link_picture_or_html_on_the_page() -> None:
    hostile = "unknown mode '<img src=x onerror=alert(1)> ![p](http://evil.example/p) `x`\n# heading'"
    shown = details_of(a_state(summary=hostile, warnings=(hostile,)))
    assert not re.search(r"(?<!\\)[<\[]", shown)
    assert "\\`x\\`" in shown
    assert "\n# heading" not in shown


def test_a_summary_is_one_line_within_the_servers_bound() -> None:
    assert one_line("1234 (ada) na\x1b[31mme\nline") == "1234 (ada) na [31mme line"
    for name in ("n" * 1000, "ü" * 500, "日" * 300):
        assert 190 < len(one_line(name).encode()) <= 200
