"""The desk where a recommendation waits: who may decide what, until when; whatever a signal carries."""

from typing import Any

import pytest

from activities.records import DecisionKind, DecisionRequest
from tests.builders import a_recommendation, after
from workflows.decision import LONGEST_REASON, DecisionDesk

OPEN = a_recommendation(expires_at=after(600), expiry_reason="policy.approval_expiry")


def a_request(**changes: Any) -> DecisionRequest:
    return DecisionRequest(**{"approve": True, "actor": "bob", "digest": OPEN.digest, "reason": "seen", **changes})


@pytest.fixture
def desk() -> DecisionDesk:
    desk = DecisionDesk()
    desk.open(OPEN, ())
    return desk


@pytest.mark.parametrize(("approve", "kind"), [(True, DecisionKind.APPROVED), (False, DecisionKind.REJECTED)])
def test_a_decision_names_who_when_why_and_on_what(desk: DecisionDesk, approve: bool, kind: DecisionKind) -> None:
    decision = desk.take(a_request(approve=approve), after(70))
    assert decision is not None
    assert (decision.kind, decision.actor, decision.at, decision.reason, decision.digest) == (kind, "bob", after(70), "seen", OPEN.digest)
    assert desk.decision == decision


@pytest.mark.parametrize(
    ("request_changes", "words"),
    [
        ({"digest": "0123456789ab"}, "digest 0123456789ab is not the pending"),
        ({"digest": ""}, "digest (none) is not the pending"),
        ({"actor": " "}, "--actor"),
        ({"actor": "b" * 101}, "at most 100 characters"),
        ({"actor": "bob\x1b[2J"}, "printable"),
    ],
    ids=["another digest", "no digest", "no actor", "an actor without end", "an actor that moves the cursor"],
)
def test_what_is_refused_is_refused_in_a_sentence_and_kept(desk: DecisionDesk, request_changes: dict[str, Any], words: str) -> None:
    request = a_request(**request_changes)
    refusal = desk.refusal(request, after(70))
    assert refusal is not None
    assert words in refusal
    assert desk.take(request, after(70)) is None
    assert desk.decision is None
    assert "refused" in desk.refused[0]


def test_nothing_can_be_decided_before_anything_is_open_or_after_it_was_closed(desk: DecisionDesk) -> None:
    assert "no recommendation is waiting" in (DecisionDesk().refusal(a_request(), after(70)) or "")
    desk.close()
    assert "no recommendation is waiting" in (desk.refusal(a_request(), after(70)) or "")


def test_the_first_decision_stands(desk: DecisionDesk) -> None:
    desk.take(a_request(), after(70))
    assert desk.refusal(a_request(actor="carol", approve=False), after(71)) == "already approved by bob"
    assert desk.take(a_request(actor="carol", approve=False), after(71)) is None
    assert desk.decision is not None
    assert desk.decision.actor == "bob"


def test_a_recommendation_that_is_opened_anew_forgets_the_decision_on_the_last(desk: DecisionDesk) -> None:
    desk.take(a_request(), after(70))
    desk.close()
    desk.open(OPEN, ())
    assert desk.decision is None
    assert desk.refusal(a_request(), after(80)) is None


def test_only_named_approvers_decide(desk: DecisionDesk) -> None:
    desk.open(OPEN, ("carol", "dave"))
    assert desk.refusal(a_request(), after(70)) == "bob is not among policy.approvers"
    assert desk.refusal(a_request(actor="carol"), after(70)) is None


@pytest.mark.parametrize(("seconds", "in_time"), [(599, True), (600, False), (6000, False)])
def test_it_can_be_decided_until_the_moment_it_expires(desk: DecisionDesk, seconds: float, in_time: bool) -> None:
    refusal = desk.refusal(a_request(), after(seconds))
    assert (refusal is None) is in_time
    if refusal is not None:
        assert refusal == "the recommendation expired at 2026-01-05T12:10:00Z (policy.approval_expiry)"


def test_a_reason_without_end_is_cut(desk: DecisionDesk) -> None:
    decision = desk.take(a_request(reason="x" * 1_000_000), after(70))
    assert decision is not None
    assert len(decision.reason) == LONGEST_REASON


# ------------------------------------------------------------------------------------------------ signals


def test_a_signal_decides_as_its_own_name_says_whatever_it_carries(desk: DecisionDesk) -> None:
    payload = {"actor": "bob", "digest": OPEN.digest, "approve": True}
    decision = desk.take_signal((payload,), after(70), approve=False)
    assert decision is not None
    assert decision.kind is DecisionKind.REJECTED


@pytest.mark.parametrize(
    "payload",
    [(), (None,), ("yes",), (17,), ([],), ({},), ({"actor": "bob"},), ({"actor": 5, "digest": OPEN.digest},), ({}, {})],
    ids=["nothing", "null", "a word", "a number", "a list", "an empty object", "no digest", "an actor of another type", "two"],
)
def test_a_signal_that_carries_anything_else_is_refused_and_kept(desk: DecisionDesk, payload: tuple[Any, ...]) -> None:
    assert desk.take_signal(payload, after(70), approve=True) is None
    assert desk.decision is None
    assert desk.refused == ["approval refused: the signal must carry one object with actor, digest and perhaps reason"]
