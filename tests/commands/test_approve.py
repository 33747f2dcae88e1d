"""`backstay approve`: what whoever approved is told of the guard rails, which are asked after the decision counts."""

from datetime import datetime

from activities.records import Outcome, OutcomeState, Step
from tests.builders import NOON, after, an_incident
from tests.commands.states import a_state
from workers.commands.approve import held_back
from workflows.state import Stage, TrainingJobState

TRIPPED = "the breaker is tripped by kim: switch work"


def a_state_after(*steps: tuple[str, datetime], stage: Stage = Stage.AWAITING_DECISION) -> TrainingJobState:
    """An incident whose last answer of the guard rails was no, if any was."""
    held = any(name == "held_by_guard_rails" for name, _ in steps)
    outcome = Outcome(
        state=OutcomeState.HELD if held else OutcomeState.IN_PROGRESS,
        summary=TRIPPED if held else "",
        steps=tuple(Step(name=name, at=at) for name, at in steps),
    )
    return a_state(stage=stage, incidents=(an_incident(outcome=outcome),))


def test_what_the_guard_rails_hold_back_is_told_with_their_reason() -> None:
    state = a_state_after(("recommended", NOON), ("decided", after(10)), ("held_by_guard_rails", after(10)))
    assert held_back(state, since=after(10)) == TRIPPED


def test_a_refusal_of_before_is_none_of_this_approval() -> None:
    state = a_state_after(("decided", after(10)), ("held_by_guard_rails", after(10)))
    assert held_back(state, since=after(20)) is None


def test_what_may_be_done_is_not_held_back() -> None:
    state = a_state_after(("held_by_guard_rails", after(10)), ("decided", after(20)), stage=Stage.ACTING)
    assert held_back(state, since=after(20)) is None


def test_while_the_guard_rails_are_asked_nothing_is_told() -> None:
    assert held_back(a_state_after(("recommended", NOON)), since=after(10)) is None
