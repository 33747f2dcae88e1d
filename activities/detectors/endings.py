"""Detectors of what ends an attempt: a bad end, a requeue that was faster than our poll, a fatal line, a lost node.

Each needs one look and no pace to compare with; where the attempt could still go on, it is given the time to show it.
"""

from datetime import datetime, timedelta

from activities.configuration import WatchSection
from activities.detectors.progress import GAP_MARGIN
from activities.detectors.view import AttemptView, fatal_signals, node_signals
from activities.records import Job, JobState, LostNode, NodeFlag, NodeState, Phase, Signal, SignalSource, Symptom, SymptomKind

NVRX_DO_NOT_REQUEUE = 93
"""NVRx's ft_launcher exits with it when it decided against another restart (`--ft-no-restart-exit-code`)."""

STEPS_TO_DISPROVE = 3.0  # a fatal line is refuted by the next iterations: give them the time of three

ENDED_BADLY = (JobState.FAILED, JobState.NODE_FAIL, JobState.OUT_OF_MEMORY, JobState.BOOT_FAIL)
_STATE_IN_WORDS = {
    JobState.FAILED: "the job failed",
    JobState.NODE_FAIL: "a node of the job failed",
    JobState.OUT_OF_MEMORY: "the job ran out of memory",
    JobState.BOOT_FAIL: "a node of the job did not boot",
}


def ended_badly(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(a) The job is over and its end is a fault. While Slurm still cleans up, up to `settle_longest`, it may yet requeue it."""
    job = view.job
    if job is None or view.was_requeued or not job.state.is_ended:
        return None
    ended_at = job.ended_at or view.now
    if job.is_ending and view.now - ended_at < patience.settle_longest:
        return None
    failed_step = job.state is JobState.COMPLETED and bool(job.derived_exit_code) and not job.exit_code
    # A launcher that retries inside its script leaves failed steps behind; training that reached its end is no fault.
    if failed_step and view.progress.phase is Phase.FINISHING:
        return None
    if job.state not in ENDED_BADLY and not failed_step:
        return None
    if failed_step:
        summary = f"a step of the job failed with exit code {job.derived_exit_code}, though its script ended with 0"
    else:
        summary = _STATE_IN_WORDS[job.state] + _exit_in_words(job)
    if job.exit_code == NVRX_DO_NOT_REQUEUE:
        summary += "; 93 is how NVRx says that a restart would not help"
    kind = SymptomKind.NODE_FAULT if job.state in (JobState.NODE_FAIL, JobState.BOOT_FAIL) else SymptomKind.CRASH
    earlier = [lost.since for lost in view.lost_nodes] if kind is SymptomKind.NODE_FAULT else []
    onset = min([ended_at, *earlier, *([view.fatal.at] if view.fatal is not None else [])])
    signals = (Signal(source=SignalSource.SCHEDULER, at=ended_at, text=summary), *fatal_signals(view), *node_signals(view))
    return Symptom(kind=kind, onset=onset, detected_at=view.now, summary=summary, signals=signals)


def requeued_after_a_fault(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(a, d) The restart count moved, and what we saw of the attempt before explains it: Slurm was faster than our poll."""
    job = view.job
    if job is None or not view.was_requeued:
        return None
    # A requeue resets SubmitTime (docs/slurm.md): a fatal line read after it may be the requeue's own doing.
    fatal = view.fatal if view.fatal is not None and (job.submitted_at is None or view.fatal.read_at < job.submitted_at) else None
    down = _down_nodes(view)
    if fatal is None and not down:
        return None
    reason = f"{_names(down)} went down" if down else f"a fatal line ended the attempt: {fatal.text}" if fatal else ""
    onset = min([lost.since for lost in down] + ([fatal.at] if fatal else []))
    return Symptom(
        kind=SymptomKind.NODE_FAULT if down else SymptomKind.CRASH,
        onset=onset,
        detected_at=view.now,
        summary=f"{reason}; Slurm has already requeued it",
        signals=(*fatal_signals(view), *node_signals(view)),
    )


def fatal_line(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(b) A fatal line, no iteration since, and the job still runs after the settle time: most jobs would have ended."""
    fatal = view.fatal
    if fatal is None or not view.is_running or view.looked_at is None or view.looked_at <= fatal.read_at:
        return None
    if not view.log_readable:
        return None  # what would refute it cannot be seen
    # Slow steps, or rare lines, need longer to refute it. What is certain is never waited for longer than for a hang; what is not may
    # stand in the log long before the lines that a buffer holds back.
    steps = timedelta(seconds=(view.progress.step_seconds or 0.0) * STEPS_TO_DISPROVE)
    disproof = max(steps, (view.line_gap or timedelta(0)) * GAP_MARGIN)
    disproof = min(disproof, patience.hang_floor) if fatal.is_certain else max(disproof, (view.block or timedelta(0)) * GAP_MARGIN)
    # Where no steps are due, a line that programs also survive is only believed when nothing more is heard at all.
    is_stepping = view.progress.phase is Phase.TRAINING and view.line_gap is not None
    by_silence_only = not fatal.is_certain and not is_stepping
    if by_silence_only:
        if view.progress.iteration_at is None and not view.earlier_attempts_stepped:
            return None  # of a job that is never heard to step, silence says nothing: its end will tell
        disproof = patience.hang_floor
    quiet_since = max(view.last_output_at or fatal.read_at, fatal.read_at)
    quiet = view.now - quiet_since >= max(patience.settle_quiet, disproof)
    longest = view.now - fatal.read_at >= max(patience.settle_longest, disproof) and not by_silence_only
    if not quiet and not longest:
        return None
    return Symptom(
        kind=SymptomKind.CRASH,
        onset=fatal.at,
        detected_at=view.now,
        summary=f"a fatal line and no iteration since, though the job still runs: {fatal.text}",
        signals=fatal_signals(view),
    )


def node_lost(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(d) A node of the running attempt is DOWN or FAIL, or has not responded for a while and no iteration came since."""
    if not view.is_running:
        return None
    down = _down_nodes(view)
    silent = [
        lost for lost in view.lost_nodes if lost not in down and view.now - _silent_since(view, lost) >= _node_patience(view, patience)
    ]
    if not down and not silent:
        return None
    said = [f"{_names(down)} is down" if len(down) == 1 else f"{_names(down)} are down"] if down else []
    if silent:
        said.append(f"{_names(silent)} {'does' if len(silent) == 1 else 'do'} not respond")
    return Symptom(
        kind=SymptomKind.NODE_FAULT,
        onset=min(lost.since for lost in (*down, *silent)),
        detected_at=view.now,
        summary=" and ".join(said) + " under the running job",
        signals=(*node_signals(view), *fatal_signals(view)),
    )


def _down_nodes(view: AttemptView) -> list[LostNode]:
    states = {node.name: node for node in view.nodes}
    down = []
    for lost in view.lost_nodes:
        node = states.get(lost.node)
        if node is not None and (node.state in (NodeState.DOWN, NodeState.ERROR) or NodeFlag.FAIL in node.flags):
            down.append(lost)
    return down


def _silent_since(view: AttemptView, lost: LostNode) -> datetime:
    # slurmd may be restarted, or cut off, while the training it started goes on: then iterations keep coming.
    return max(lost.since, view.progress.iteration_at or lost.since)


def _node_patience(view: AttemptView, patience: WatchSection) -> timedelta:
    two_steps = timedelta(seconds=2 * (view.progress.step_seconds or 0.0))
    return max(patience.node_not_responding_for, two_steps, (view.line_gap or timedelta(0)) * GAP_MARGIN)


def _exit_in_words(job: Job) -> str:
    if job.exit_signal:
        return f", ended by signal {job.exit_signal}"
    return f" with exit code {job.exit_code}" if job.exit_code else ""


def _names(lost: list[LostNode]) -> str:
    names = [one.node for one in lost]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
