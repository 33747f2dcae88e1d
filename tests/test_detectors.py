"""The detectors as tables of behaviours: what one view of an attempt comes to."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from activities.configuration import WatchSection
from activities.detectors import DETECTORS, hang_patience, judge
from activities.records import (
    FatalLine,
    Job,
    JobFlag,
    JobState,
    LostNode,
    Node,
    NodeFlag,
    NodeState,
    Phase,
    Progress,
    Symptom,
    SymptomKind,
)
from activities.watching.view import AttemptView
from tests.builders import ECC_LINE, a_job, a_node, after, an_attempt, some_progress

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


def test_a_healthy_attempt_has_no_symptom() -> None:
    assert judge(a_view(), PATIENCE) == (None, None)


# -------------------------------------------------------------------------------------------------- (a) how it ended

ENDS: tuple[tuple[Mapping[str, Any], SymptomKind | None], ...] = (
    ({"state": JobState.FAILED, "exit_code": 1}, SymptomKind.CRASH),
    ({"state": JobState.FAILED, "exit_code": 0, "exit_signal": 9}, SymptomKind.CRASH),
    ({"state": JobState.OUT_OF_MEMORY, "exit_code": 0}, SymptomKind.CRASH),
    ({"state": JobState.NODE_FAIL}, SymptomKind.NODE_FAULT),
    ({"state": JobState.BOOT_FAIL}, SymptomKind.NODE_FAULT),
    ({"state": JobState.COMPLETED, "exit_code": 0, "derived_exit_code": 1}, SymptomKind.CRASH),
    ({"state": JobState.COMPLETED, "exit_code": 0, "derived_exit_code": 0}, None),
    ({"state": JobState.COMPLETED, "exit_code": 0, "derived_exit_code": None}, None),
    ({"state": JobState.CANCELLED, "exit_signal": 15}, None),
    ({"state": JobState.PREEMPTED}, None),
    ({"state": JobState.TIMEOUT, "derived_exit_code": 1}, None),
    ({"state": JobState.DEADLINE}, None),
)


@pytest.mark.parametrize(("job", "kind"), ENDS)
def test_only_a_bad_end_is_a_symptom(job: Mapping[str, Any], kind: SymptomKind | None) -> None:
    assert kind_of(a_view(job=a_job(**{"ended_at": after(HOUR - 2), **job}))) is kind


def test_the_onset_of_a_crash_is_its_fatal_line_not_the_end_slurm_saw() -> None:
    view = a_view(job=a_job(state=JobState.FAILED, exit_code=1, ended_at=after(HOUR)), fatal=a_fatal_line(HOUR - 40))
    symptom = the_symptom(view)
    assert symptom.onset == after(HOUR - 40)
    assert any(signal.text == ECC_LINE for signal in symptom.signals)


def test_exit_code_93_is_told_as_the_jobs_own_wish_not_to_restart() -> None:
    symptom = the_symptom(a_view(job=a_job(state=JobState.FAILED, exit_code=93, ended_at=after(HOUR))))
    assert symptom.kind is SymptomKind.CRASH
    assert "93" in symptom.summary
    assert "restart would not help" in symptom.summary


def test_a_failed_step_under_a_finished_training_is_no_fault() -> None:
    job = a_job(state=JobState.COMPLETED, exit_code=0, derived_exit_code=1, ended_at=after(HOUR))
    assert kind_of(a_view(job=job, progress=some_progress(phase=Phase.FINISHING))) is None


def test_a_job_that_is_still_completing_is_waited_for_but_not_for_ever() -> None:
    job = a_job(state=JobState.FAILED, flags=(JobFlag.COMPLETING,), exit_code=1, ended_at=after(HOUR))
    assert kind_of(a_view(HOUR + 5, job=job)) is None
    assert kind_of(a_view(HOUR + 15, job=job)) is SymptomKind.CRASH


# ------------------------------------------------------------------------------- (a, d) requeued before we could look


def test_an_automatic_requeue_after_a_lost_node_is_still_a_node_fault() -> None:
    job = a_job(state=JobState.PENDING, restart_count=1, submitted_at=after(HOUR))
    down = a_node(state=NodeState.DOWN)
    symptom = the_symptom(a_view(job=job, nodes=(down,), lost_nodes=(LostNode(node=down.name, since=after(HOUR - 4)),)))
    assert symptom.kind is SymptomKind.NODE_FAULT
    assert "Slurm has already requeued it" in symptom.summary


def test_a_requeue_after_a_fatal_line_is_a_crash_and_one_before_it_is_not() -> None:
    job = a_job(state=JobState.PENDING, restart_count=1, submitted_at=after(HOUR))
    assert kind_of(a_view(job=job, fatal=a_fatal_line(HOUR - 3))) is SymptomKind.CRASH
    assert kind_of(a_view(job=job, fatal=a_fatal_line(HOUR + 1))) is None  # the requeue's own SIGTERM made that line


def test_a_requeue_out_of_the_blue_is_no_symptom() -> None:
    assert kind_of(a_view(job=a_job(state=JobState.PENDING, restart_count=1))) is None


# ------------------------------------------------------------------------------------------------- (b) a fatal line


def a_view_with_a_fatal_line(seconds_ago: float, **changes: Any) -> AttemptView:
    return a_view(**{"fatal": a_fatal_line(HOUR - seconds_ago), "last_output_at": after(HOUR - seconds_ago), "line_gap": None, **changes})


FATAL: tuple[tuple[str, float, Mapping[str, Any], SymptomKind | None], ...] = (
    ("the settle time has not passed", 1, {}, None),
    ("the log is quiet and the job still runs", 4, {}, SymptomKind.CRASH),
    ("the log goes on, within the longest settle time", 10, {"last_output_at": after(HOUR)}, None),
    ("the log goes on, past the longest settle time", 15, {"last_output_at": after(HOUR)}, SymptomKind.CRASH),
    ("the job has not been looked at since", 20, {"looked_at": after(HOUR - 21)}, None),
    ("Slurm does not answer", 20, {"scheduler_unreachable_since": after(HOUR - 19)}, None),
    ("the job is ending by itself", 20, {"job": a_job(flags=(JobFlag.COMPLETING,))}, None),
    ("steps are slow: three of them could still come", 50, {"progress": some_progress(step_seconds=30.0)}, None),
    ("steps are slow: three of them did not come", 95, {"progress": some_progress(step_seconds=30.0)}, SymptomKind.CRASH),
    ("an exception, and no steps are due", 200, {"fatal": a_fatal_line(HOUR - 200, is_certain=False)}, None),
    ("an exception, and silence for as long as a hang", 300, {"fatal": a_fatal_line(HOUR - 300, is_certain=False)}, SymptomKind.CRASH),
    (
        "an exception, and a start that goes on",
        400,
        {"fatal": a_fatal_line(HOUR - 400, is_certain=False), "last_output_at": after(HOUR - 30), "progress": Progress()},
        None,
    ),
    (
        "an exception between steps",
        20,
        {"fatal": a_fatal_line(HOUR - 20, is_certain=False), "line_gap": timedelta(seconds=2)},
        SymptomKind.CRASH,
    ),
    ("lines are rare: the next could still come", 100, {"line_gap": timedelta(seconds=100)}, None),
)


@pytest.mark.parametrize(("why", "seconds_ago", "changes", "kind"), FATAL)
def test_a_fatal_line_while_the_job_runs(why: str, seconds_ago: float, changes: Mapping[str, Any], kind: SymptomKind | None) -> None:
    assert kind_of(a_view_with_a_fatal_line(seconds_ago, **changes)) is kind, why


# ------------------------------------------------------------------------------------------------------- (c) a hang


def a_silent_view(silent: float, **progress: Any) -> AttemptView:
    return a_view(
        progress=some_progress(3000, **{"iteration_at": after(HOUR - silent), "checkpoint_at": after(HOUR - silent - 30), **progress}),
        last_output_at=after(HOUR - silent),
    )


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


def test_before_the_first_iteration_the_start_has_its_own_patience() -> None:
    starting = {"progress": Progress(), "line_gap": None, "last_output_at": after(30)}
    assert judge(a_view(1799, **starting), PATIENCE).suspicion is None
    suspicion = judge(a_view(1831, **starting), PATIENCE).suspicion
    assert suspicion is not None
    assert "since the start" in suspicion.summary


def test_a_log_that_goes_on_in_unknown_words_is_no_hang() -> None:
    assert judge(a_view(3 * HOUR, progress=Progress(), line_gap=None, last_output_at=after(3 * HOUR - 60)), PATIENCE) == (None, None)


@pytest.mark.parametrize("phase", Phase)
def test_no_phase_is_less_patient_than_the_floor(phase: Phase) -> None:
    assert hang_patience(a_silent_view(0, phase=phase), PATIENCE) >= PATIENCE.hang_floor


# ------------------------------------------------------------------------------------------------------ (d) the nodes

NODES: tuple[tuple[str, Node, float, float, SymptomKind | None], ...] = (
    ("down at once", a_node(state=NodeState.DOWN), 0, 1, SymptomKind.NODE_FAULT),
    ("failing at once", a_node(flags=(NodeFlag.FAIL,)), 0, 1, SymptomKind.NODE_FAULT),
    ("silent for a moment", a_node(flags=(NodeFlag.NOT_RESPONDING,)), 59, 100, None),
    ("silent for a minute", a_node(flags=(NodeFlag.NOT_RESPONDING,)), 61, 100, SymptomKind.NODE_FAULT),
    ("silent for a minute while training goes on", a_node(flags=(NodeFlag.NOT_RESPONDING,)), 300, 5, None),
)


@pytest.mark.parametrize(("why", "node", "lost_for", "last_iteration", "kind"), NODES)
def test_a_lost_node(why: str, node: Node, lost_for: float, last_iteration: float, kind: SymptomKind | None) -> None:
    view = a_view(
        nodes=(node,),
        lost_nodes=(LostNode(node=node.name, since=after(HOUR - lost_for)),),
        progress=some_progress(iteration_at=after(HOUR - last_iteration), checkpoint_at=after(HOUR - last_iteration)),
    )
    assert kind_of(view) is kind, why


def test_a_draining_node_is_no_fault() -> None:
    assert not a_node(flags=(NodeFlag.DRAIN,)).is_lost


def test_a_lost_node_under_a_scheduler_that_does_not_answer_is_unknown() -> None:
    down = a_node(state=NodeState.DOWN)
    lost = (LostNode(node=down.name, since=after(HOUR - 300)),)
    assert kind_of(a_view(nodes=(down,), lost_nodes=lost, scheduler_unreachable_since=after(HOUR - 200))) is None


def test_a_lost_node_explains_a_silence_that_is_otherwise_a_hang() -> None:
    down = a_node(flags=(NodeFlag.NOT_RESPONDING,))
    lost = (LostNode(node=down.name, since=after(HOUR - 400)),)
    view = a_silent_view(400).model_copy(update={"nodes": (down,), "lost_nodes": lost})
    assert kind_of(view) is SymptomKind.NODE_FAULT


# ----------------------------------------------------------------------------------------------------- (e) checkpoints

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


# ------------------------------------------------------------------------------------------------------- (f) the pace


@pytest.mark.parametrize(("slow_for", "kind"), [(599, None), (600, SymptomKind.SLOWDOWN)])
def test_only_a_sustained_slow_down_counts(slow_for: float, kind: SymptomKind | None) -> None:
    progress = some_progress(iteration_at=after(HOUR - 5), step_seconds=1.7, checkpoint_at=after(HOUR - 10))
    assert kind_of(a_view(slow_since=after(HOUR - slow_for), progress=progress)) is kind


# --------------------------------------------------------------------------------------------------------- (g) numbers


@pytest.mark.parametrize(("iterations", "kind"), [((7,), None), ((7, 8), None), ((7, 8, 9), SymptomKind.BAD_NUMBERS)])
def test_a_single_spike_is_no_symptom(iterations: tuple[int, ...], kind: SymptomKind | None) -> None:
    assert kind_of(a_view(bad_loss_iterations=iterations, bad_loss_since=after(HOUR - 20))) is kind


# ----------------------------------------------------------------------------------------------------- what is known


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
