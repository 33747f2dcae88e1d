"""What all detectors together come to."""

from activities.detectors.verdict import DETECTORS, judge
from activities.detectors.view import AttemptView
from activities.records import (
    Job,
    JobState,
    SymptomKind,
)
from tests.builders import a_job, after, an_attempt
from tests.detectors.views import HOUR, PATIENCE, a_silent_view, a_view, looked_at_again, the_symptom


def test_a_healthy_attempt_has_no_symptom() -> None:
    assert judge(a_view(), PATIENCE) == (None, None)


def test_a_symptom_reported_before_is_not_reported_again_until_progress_moves_its_onset() -> None:
    known = (SymptomKind.HANG,)
    view = looked_at_again(a_silent_view(400))
    onset = the_symptom(view).onset
    assert judge(view, PATIENCE, known=known, known_onset=onset) == (None, None)
    later = looked_at_again(a_silent_view(301))
    assert judge(later, PATIENCE, known=known, known_onset=onset).verdict is not None


def test_another_kind_is_reported_beside_a_known_one() -> None:
    view = a_silent_view(400).model_copy(update={"job": a_job(state=JobState.FAILED, exit_code=1, ended_at=after(HOUR))})
    verdict = judge(view, PATIENCE, known=(SymptomKind.HANG,), known_onset=after(HOUR - 400)).verdict
    assert verdict is not None
    assert verdict.kind is SymptomKind.CRASH


def test_every_detector_is_silent_when_nothing_is_known() -> None:
    empty = AttemptView(now=after(HOUR), attempt=an_attempt())
    assert [detector(empty, PATIENCE) for detector in DETECTORS] == [None] * len(DETECTORS)


def test_a_job_of_states_not_known_is_left_alone() -> None:
    unknown: Job = a_job(state=JobState.UNKNOWN)
    assert judge(a_silent_view(5000).model_copy(update={"job": unknown}), PATIENCE) == (None, None)
