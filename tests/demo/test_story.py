"""The demo's story: each fact is told once, in order."""

from datetime import timedelta
from io import StringIO

from rich.console import Console

from activities.records import Milestones, Outcome, OutcomeState, Step
from tests.builders import NOON, after, an_incident
from tests.commands.states import a_state
from workers.demo.story import ended, milestone_table, new_lines
from workflows.state import TrainingJobState


def a_state_with(*steps: str, state: OutcomeState = OutcomeState.IN_PROGRESS, **changes: object) -> TrainingJobState:
    told = tuple(Step(name=name, at=after(number), detail=f"detail of {name}") for number, name in enumerate(steps))
    return a_state(incidents=(an_incident(outcome=Outcome(state=state, steps=told), **changes),))


def test_the_first_look_tells_which_job_is_watched() -> None:
    assert list(new_lines(None, a_state())) == ["Backstay watches job 17 on node-001, node-002, mode auto"]


def test_only_what_is_new_is_told() -> None:
    lines = list(new_lines(a_state_with("detected"), a_state_with("detected", "requeued", "pending")))
    assert lines == ["scontrol requeue: detail of requeued", "the job waits in the queue: detail of pending"]


def test_nothing_new_is_nothing_told() -> None:
    assert list(new_lines(a_state_with("detected"), a_state_with("detected"))) == []


def test_the_diagnosis_is_told_with_its_grounds() -> None:
    lines = list(new_lines(a_state(), a_state_with("diagnosed")))
    assert any("ecc_uncorrectable (hardware)" in line for line in lines)
    assert any("suspect: node-002" in line for line in lines)


def test_the_story_ends_with_the_outcome() -> None:
    assert ended(a_state()) is None
    assert ended(a_state_with("detected")) is None
    assert ended(a_state_with("detected", state=OutcomeState.RECOVERED)) is not None


def test_the_table_names_every_milestone_also_those_not_reached() -> None:
    outcome = Outcome(state=OutcomeState.NO_PROGRESS, milestones=Milestones(detected=NOON + timedelta(seconds=2)))
    console = Console(width=100, file=StringIO())
    with console.capture() as printed:
        console.print(milestone_table(an_incident(outcome=outcome), NOON))
    told = printed.get()
    assert "2.0 s" in told
    assert told.count("not reached") == 6
