"""Weighing outside opinions: what counts as disagreement, and what does not."""

from typing import Any

import pytest

from activities.opinions.weighing import agree
from activities.records import Action, Domain, Judgement, Opinion, Side, Verdict
from tests.builders import a_diagnosis, a_judgement, a_suspect, an_application_bug, an_attribution


def an_opinion(verdict: Verdict = Verdict.RESTART, **changes: Any) -> Opinion:
    return Opinion(**{"source": "attrsvc", "verdict": verdict, **changes})


HARDWARE = a_judgement()
BUG = a_judgement(diagnosis=an_application_bug(), attribution=an_attribution())


def test_no_opinions_and_silent_ones_change_nothing() -> None:
    assert agree(HARDWARE, []) == (1.0, False, "")
    silent = an_opinion(Verdict.STOP, side=Side.WORKLOAD, note="timed out")
    assert agree(HARDWARE, [silent], action=Action.RESTART) == (1.0, False, "")


@pytest.mark.parametrize(
    ("judgement", "opinion"),
    [
        (HARDWARE, an_opinion(side=Side.INFRASTRUCTURE)),
        (HARDWARE, an_opinion(domain=Domain.NETWORK)),
        (BUG, an_opinion(Verdict.STOP, side=Side.WORKLOAD)),
        (BUG, an_opinion(domain=Domain.USER)),
        (HARDWARE, an_opinion(Verdict.UNKNOWN)),
        (a_judgement(diagnosis=a_diagnosis("unknown", Domain.UNKNOWN)), an_opinion(side=Side.WORKLOAD)),
    ],
)
def test_the_same_side_or_no_side_is_no_disagreement(judgement: Judgement, opinion: Opinion) -> None:
    assert agree(judgement, [opinion]).needs_approval is False


def test_the_other_side_lowers_confidence_and_asks_for_a_person() -> None:
    factor, needs_approval, note = agree(HARDWARE, [an_opinion(side=Side.WORKLOAD)])
    assert (factor, needs_approval) == (0.6, True)
    assert note == "attrsvc sees a fault of the workload, we of the infrastructure"


def test_two_that_disagree_lower_it_twice_and_are_both_named() -> None:
    both = [an_opinion(side=Side.WORKLOAD), an_opinion(source="operator_service", domain=Domain.USER)]
    factor, _, note = agree(HARDWARE, both)
    assert factor == pytest.approx(0.36)
    assert "attrsvc" in note
    assert "operator_service" in note


def test_stop_against_our_restart_is_a_disagreement() -> None:
    assert agree(HARDWARE, [an_opinion(Verdict.STOP)], action=Action.RESTART_EXCLUDING).note == "attrsvc says STOP"
    assert agree(HARDWARE, [an_opinion(Verdict.STOP)], action=Action.HOLD).needs_approval is False


def test_restart_by_default_is_no_objection_to_our_stop() -> None:
    assert agree(BUG, [an_opinion(Verdict.RESTART)], action=Action.STOP).needs_approval is False


def test_other_suspects_than_ours_are_a_disagreement() -> None:
    others = an_opinion(source="operator_service", domain=Domain.HARDWARE, suspects=(a_suspect("node-009"),))
    assert agree(HARDWARE, [others]).note == "operator_service suspects node-009"
    same = an_opinion(source="operator_service", domain=Domain.HARDWARE, suspects=(a_suspect("node-002"), a_suspect("node-009")))
    assert agree(HARDWARE, [same]).needs_approval is False
