"""What ends an attempt, as tables of behaviours."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from activities.detectors.view import AttemptView
from activities.records import (
    JobFlag,
    JobState,
    LostNode,
    Node,
    NodeFlag,
    NodeState,
    Phase,
    Progress,
    SymptomKind,
)
from tests.builders import ECC_LINE, a_job, a_node, after, some_progress
from tests.detectors.views import HOUR, a_fatal_line, a_silent_view, a_view, kind_of, the_symptom

# ----------------------------------------------------------------------------------------------------- (a) how it ended

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


# --------------------------------------------------------------------------------- (a, d) requeued before we could look


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


# ----------------------------------------------------------------------------------------------------- (b) a fatal line


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
        "an exception, and silence of a job that never was heard to step",
        9000,
        {"fatal": a_fatal_line(HOUR - 9000, is_certain=False), "progress": Progress()},
        None,
    ),
    (
        "an exception, and silence at the start of a job whose attempt before stepped",
        300,
        {"fatal": a_fatal_line(HOUR - 300, is_certain=False), "progress": Progress(), "earlier_attempts_stepped": True},
        SymptomKind.CRASH,
    ),
    (
        "an exception, and lines that come a buffer at a time",
        700,
        {
            "fatal": a_fatal_line(HOUR - 700, is_certain=False),
            "line_gap": timedelta(seconds=2),
            "block": timedelta(seconds=500),
        },
        None,
    ),
    ("what would refute it cannot be read", 20, {"log_readable": False}, None),
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


# -------------------------------------------------------------------------------------------------------- (d) the nodes

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
