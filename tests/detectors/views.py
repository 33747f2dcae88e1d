"""Views of an attempt, and what the detectors say of them."""

from datetime import timedelta
from typing import Any

from activities.configuration import WatchSection
from activities.detectors.verdict import judge
from activities.detectors.view import AttemptView
from activities.records import (
    FatalLine,
    Symptom,
    SymptomKind,
)
from tests.builders import ECC_LINE, a_job, after, an_attempt, some_progress

PATIENCE = WatchSection()
HOUR = 3600.0


def a_view(at: float = HOUR, **changes: Any) -> AttemptView:
    """A healthy attempt, `at` seconds after it started: a step a second, lines every ten, all sources answering."""
    defaults: dict[str, Any] = {
        "now": after(at),
        "attempt": an_attempt(),
        "job": a_job(),
        "looked_at": after(at),
        "log_readable": True,
        "last_output_at": after(at - 5),
        "progress": some_progress(int(at), iteration_at=after(at - 5), checkpoint_at=after(at - 10)),
        "line_gap": timedelta(seconds=10),
        "checkpoint_count": 4,
    }
    return AttemptView(**{**defaults, **changes})


def a_fatal_line(at: float, **changes: Any) -> FatalLine:
    return FatalLine(**{"at": after(at), "read_at": after(at), "text": ECC_LINE, "rank": 3, **changes})


def kind_of(view: AttemptView, patience: WatchSection = PATIENCE) -> SymptomKind | None:
    verdict = judge(view, patience).verdict
    return verdict.kind if verdict is not None else None


def the_symptom(view: AttemptView, patience: WatchSection = PATIENCE) -> Symptom:
    verdict = judge(view, patience).verdict
    assert verdict is not None
    return verdict


def looked_at_again(view: AttemptView, seconds: float = 10) -> AttemptView:
    """The view some seconds later, with what the first look left as a suspicion."""
    suspicion = judge(view, PATIENCE).suspicion
    later = view.now + timedelta(seconds=seconds)
    return view.model_copy(update={"now": later, "looked_at": later, "suspicion": suspicion})


def a_silent_view(silent: float, **progress: Any) -> AttemptView:
    return a_view(
        progress=some_progress(3000, **{"iteration_at": after(HOUR - silent), "checkpoint_at": after(HOUR - silent - 30), **progress}),
        last_output_at=after(HOUR - silent),
    )
