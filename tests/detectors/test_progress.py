"""What is not as usual in a training, as tables of behaviours."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from activities.detectors.progress import hang_patience, unseen
from activities.detectors.verdict import judge
from activities.detectors.view import AttemptView
from activities.records import (
    JobFlag,
    JobState,
    Phase,
    Progress,
    SymptomKind,
    WrittenBeside,
)
from tests.builders import a_job, after, some_progress
from tests.detectors.views import HOUR, PATIENCE, a_silent_view, a_view, kind_of, looked_at_again, the_symptom

# ----------------------------------------------------------------------------------------------------------- (c) a hang


def test_a_hang_is_confirmed_by_a_second_look() -> None:
    view = a_silent_view(301)
    first = judge(view, PATIENCE)
    assert first.verdict is None
    assert first.suspicion is not None
    assert judge(looked_at_again(view, 5), PATIENCE).verdict is None
    symptom = the_symptom(looked_at_again(view, 10))
    assert symptom.kind is SymptomKind.HANG
    assert symptom.onset == after(HOUR - 301)


def test_an_iteration_between_the_looks_ends_the_suspicion() -> None:
    again = looked_at_again(a_silent_view(301))
    resumed = again.model_copy(update={"progress": some_progress(3001, iteration_at=after(HOUR + 3), checkpoint_at=after(HOUR))})
    assert judge(resumed, PATIENCE) == (None, None)


HANGS: tuple[tuple[str, AttemptView, bool], ...] = (
    ("under the floor", a_silent_view(299), False),
    ("ten slow steps are longer than the floor", a_silent_view(500, step_seconds=60.0), False),
    ("more than ten slow steps", a_silent_view(601, step_seconds=60.0), True),
    ("a pause as long as this attempt has had before", a_silent_view(700).model_copy(update={"line_gap": timedelta(seconds=500)}), False),
    ("longer than any pause before", a_silent_view(751).model_copy(update={"line_gap": timedelta(seconds=500)}), True),
    ("only one line yet", a_silent_view(900).model_copy(update={"line_gap": None}), False),
    ("a long checkpoint", a_silent_view(1700, phase=Phase.CHECKPOINTING, phase_since=after(HOUR - 1700)), False),
    ("a checkpoint that never ends", a_silent_view(1801, phase=Phase.CHECKPOINTING, phase_since=after(HOUR - 1801)), True),
    ("an evaluation", a_silent_view(3500, phase=Phase.EVALUATING, phase_since=after(HOUR - 3500)), False),
    ("finishing", a_silent_view(599, phase=Phase.FINISHING, phase_since=after(HOUR - 599)), False),
    ("finishing for too long", a_silent_view(601, phase=Phase.FINISHING, phase_since=after(HOUR - 601)), True),
    ("checkpoints keep coming", a_silent_view(900, checkpoint_at=after(HOUR - 60), checkpoint_interval_seconds=300.0), False),
    ("the log cannot be read", a_silent_view(900).model_copy(update={"log_readable": False}), False),
    ("suspended", a_silent_view(900).model_copy(update={"job": a_job(state=JobState.SUSPENDED)}), False),
    ("stopped", a_silent_view(900).model_copy(update={"job": a_job(flags=(JobFlag.STOPPED,))}), False),
    ("resumed a moment ago", a_silent_view(900).model_copy(update={"paused_at": after(HOUR - 20)}), False),
    ("nodes still powering up", a_silent_view(900).model_copy(update={"job": a_job(flags=(JobFlag.CONFIGURING,))}), False),
    ("waiting in the queue", a_silent_view(900).model_copy(update={"job": a_job(state=JobState.PENDING)}), False),
    ("Slurm does not answer", a_silent_view(900).model_copy(update={"scheduler_unreachable_since": after(HOUR - 5)}), False),
    ("never looked at", a_silent_view(900).model_copy(update={"job": None}), False),
)


@pytest.mark.parametrize(("why", "view", "hangs"), HANGS)
def test_silence_is_a_hang_only_beyond_the_attempts_own_patience(why: str, view: AttemptView, hangs: bool) -> None:
    assert (judge(view, PATIENCE).suspicion is not None) is hangs, why


def test_a_silent_start_is_a_hang_only_where_the_attempt_before_stepped() -> None:
    starting = {"progress": Progress(), "line_gap": None, "last_output_at": after(30), "checkpoint_count": 0}
    assert judge(a_view(20 * HOUR, **starting), PATIENCE) == (None, None)
    restarted = {**starting, "earlier_attempts_stepped": True}
    assert judge(a_view(1799, **restarted), PATIENCE).suspicion is None
    suspicion = judge(a_view(1831, **restarted), PATIENCE).suspicion
    assert suspicion is not None
    assert "since the start" in suspicion.summary


def told_by_checkpoints(silent: float, count: int, **changes: Any) -> AttemptView:
    """No line was ever recognised; `count` checkpoints came ten minutes apart, the last one `silent` seconds ago."""
    at = 10 * HOUR
    progress = Progress(checkpoint_iteration=100, checkpoint_at=after(at - silent), checkpoint_interval_seconds=600.0)
    return a_view(at, progress=progress, line_gap=None, last_output_at=after(10), checkpoint_count=count, **changes)


CHECKPOINT_HABITS: tuple[tuple[str, AttemptView, bool], ...] = (
    ("a habit that goes on", told_by_checkpoints(2399, 3), False),
    ("a habit that has ended", told_by_checkpoints(2401, 3), True),
    ("no habit yet", told_by_checkpoints(9 * HOUR, 2), False),
    ("no habit yet, though the attempt before stepped", told_by_checkpoints(9 * HOUR, 2, earlier_attempts_stepped=True), False),
)


@pytest.mark.parametrize(("why", "view", "hangs"), CHECKPOINT_HABITS)
def test_checkpoints_alone_tell_a_hang_once_they_are_a_habit(why: str, view: AttemptView, hangs: bool) -> None:
    assert (judge(view, PATIENCE).suspicion is not None) is hangs, why


def written_beside(ago: float, *, habit: float, is_checkpoint: bool = False) -> AttemptView:
    """No line for 900 s, after `habit` seconds of lines; another file was written `ago` seconds ago."""
    beside = WrittenBeside(at=after(HOUR - ago), path="/runs/own.log", is_checkpoint=is_checkpoint)
    return a_silent_view(900).model_copy(update={"beside": beside, "stepping_since": after(HOUR - 900 - habit)})


BESIDE: tuple[tuple[str, AttemptView, bool], ...] = (
    ("it tells the rest in a file of its own", written_beside(100, habit=60), False),
    ("that file has ended as well", written_beside(400, habit=60), True),
    ("a job that told its steps for long does not need it", written_beside(100, habit=2000), True),
    ("a checkpoint is being written", written_beside(100, habit=2000, is_checkpoint=True), False),
    ("a checkpoint was being written", written_beside(400, habit=2000, is_checkpoint=True), True),
)


@pytest.mark.parametrize(("why", "view", "hangs"), BESIDE)
def test_what_a_job_writes_beside_its_log_is_a_sign_of_life(why: str, view: AttemptView, hangs: bool) -> None:
    assert (judge(view, PATIENCE).suspicion is not None) is hangs, why


def test_no_hang_is_confirmed_before_it_was_looked_for_what_else_the_job_writes() -> None:
    again = looked_at_again(a_silent_view(301))
    assert judge(again, PATIENCE).verdict is not None
    assert judge(again.model_copy(update={"has_looked_beside": False}), PATIENCE).verdict is None


def test_a_checkpoint_long_after_the_last_line_tells_that_the_job_steps_in_silence() -> None:
    view = a_silent_view(4000, checkpoint_at=after(HOUR - 100), checkpoint_interval_seconds=None)
    assert judge(view.model_copy(update={"now": after(3 * HOUR)}), PATIENCE) == (None, None)
    assert "a checkpoint came since" in (unseen(view, PATIENCE) or "")


def test_lines_that_come_a_buffer_at_a_time_are_waited_for() -> None:
    buffered = a_silent_view(800).model_copy(update={"block": timedelta(seconds=540)})
    assert judge(buffered, PATIENCE).suspicion is None
    assert judge(buffered.model_copy(update={"now": after(HOUR + 11)}), PATIENCE).suspicion is not None
    first = a_silent_view(0, iteration_at=after(HOUR)).model_copy(update={"line_gap": None, "now": after(HOUR + 5399)})
    assert judge(first, PATIENCE).suspicion is None, "the first buffer took an hour; so may the second"
    assert judge(first.model_copy(update={"now": after(HOUR + 5401)}), PATIENCE).suspicion is not None


def test_a_log_that_goes_on_in_other_words_after_its_steps_is_no_silence() -> None:
    view = a_silent_view(3000).model_copy(update={"last_output_at": after(HOUR - 60)})
    assert judge(view, PATIENCE) == (None, None)
    assert "other words" in (unseen(view, PATIENCE) or "")
    assert judge(view.model_copy(update={"last_output_at": after(HOUR - 301)}), PATIENCE).suspicion is not None


def test_a_log_that_goes_on_in_unknown_words_is_no_hang() -> None:
    assert judge(a_view(3 * HOUR, progress=Progress(), line_gap=None, last_output_at=after(3 * HOUR - 60)), PATIENCE) == (None, None)


@pytest.mark.parametrize("phase", Phase)
def test_no_phase_is_less_patient_than_the_floor(phase: Phase) -> None:
    assert hang_patience(a_silent_view(0, phase=phase), PATIENCE) >= PATIENCE.hang_floor


# ------------------------------------------------------------------------------------------------------ (e) checkpoints

CHECKPOINTS: tuple[tuple[str, float, Mapping[str, Any], SymptomKind | None], ...] = (
    ("within four usual intervals", 2000, {}, None),
    ("beyond them", 2406, {}, SymptomKind.NO_CHECKPOINT),
    ("only one interval is known", 2406, {"checkpoint_count": 2}, None),
    ("training is finishing", 2406, {"phase": Phase.FINISHING}, None),
    ("an evaluation took the time since", 2406, {"checkpoint_iteration": int(HOUR) - 1199}, None),
    ("an evaluation took less than half of it", 2406, {"checkpoint_iteration": int(HOUR) - 1200}, SymptomKind.NO_CHECKPOINT),
    ("checkpoints are counted otherwise", 2406, {"checkpoint_iteration": 10 * int(HOUR)}, SymptomKind.NO_CHECKPOINT),
    ("no iterations either: that is a hang", 2800, {"iteration_at": after(HOUR - 400)}, None),
)


@pytest.mark.parametrize(("why", "ago", "changes", "kind"), CHECKPOINTS)
def test_an_overdue_checkpoint(why: str, ago: float, changes: Mapping[str, Any], kind: SymptomKind | None) -> None:
    own = dict(changes)
    count = own.pop("checkpoint_count", 3)
    at, saved = int(HOUR), int(HOUR - ago)
    progress = {
        "iteration_at": after(HOUR - 5), "checkpoint_at": after(saved), "checkpoint_interval_seconds": 600.0,
        "checkpoint_iteration": saved, **own,
    }  # fmt: skip
    assert kind_of(a_view(checkpoint_count=count, progress=some_progress(at, **progress))) is kind, why


@pytest.mark.parametrize("blind", [{"log_readable": False}, {"checkpoints_readable": False}])
def test_no_checkpoint_is_missed_where_it_would_not_be_seen(blind: Mapping[str, bool]) -> None:
    progress = {
        "iteration_at": after(HOUR - 5), "checkpoint_at": after(HOUR - 2406), "checkpoint_interval_seconds": 600.0,
        "checkpoint_iteration": int(HOUR - 2406),
    }  # fmt: skip
    view = a_view(checkpoint_count=3, progress=some_progress(int(HOUR), **progress))
    assert kind_of(view) is SymptomKind.NO_CHECKPOINT
    assert kind_of(view.model_copy(update=blind)) is None


# --------------------------------------------------------------------------------------------------------- (f) the pace


@pytest.mark.parametrize(("slow_for", "kind"), [(599, None), (600, SymptomKind.SLOWDOWN)])
def test_only_a_sustained_slow_down_counts(slow_for: float, kind: SymptomKind | None) -> None:
    progress = some_progress(iteration_at=after(HOUR - 5), step_seconds=1.7, checkpoint_at=after(HOUR - 10))
    assert kind_of(a_view(slow_since=after(HOUR - slow_for), progress=progress)) is kind


# ---------------------------------------------------------------------------------------------------------- (g) numbers


@pytest.mark.parametrize(("iterations", "kind"), [((7,), None), ((7, 8), None), ((7, 8, 9), SymptomKind.BAD_NUMBERS)])
def test_a_single_spike_is_no_symptom(iterations: tuple[int, ...], kind: SymptomKind | None) -> None:
    assert kind_of(a_view(bad_loss_iterations=iterations, bad_loss_since=after(HOUR - 20))) is kind
