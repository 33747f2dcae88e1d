"""The detectors: pure functions from what is seen of one attempt to a symptom, or nothing.

Nothing here reads a clock, a file or Slurm. `judge` asks every detector in the order of the table at the bottom; a new
detector is a function and a row there. Called by `watching.py`. Unknown is not gone: a scheduler that does not answer, or
a log that cannot be read, gives no verdict that rests on it.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from activities.configuration import WatchSection
from activities.records import (
    Job,
    JobState,
    LostNode,
    NodeFlag,
    NodeState,
    Phase,
    Progress,
    Signal,
    SignalSource,
    Symptom,
    SymptomKind,
)
from activities.watching.view import AttemptView, fatal_signals, in_words, node_signals

NVRX_DO_NOT_REQUEUE = 93  # NVRx `--ft-no-restart-exit-code`: the job itself decided that restarting would not help
BAD_LOSSES_IN_A_ROW = 3  # one NaN is a spike that training often survives (skipped step, loss scale); three are not
GAP_MARGIN = 1.5  # a pause this attempt has survived once may come again, somewhat longer
STEPS_TO_DISPROVE = 3.0  # a fatal line is refuted by the next iterations: give them the time of three

ENDED_BADLY = (JobState.FAILED, JobState.NODE_FAIL, JobState.OUT_OF_MEMORY, JobState.BOOT_FAIL)
_STATE_IN_WORDS = {
    JobState.FAILED: "the job failed",
    JobState.NODE_FAIL: "a node of the job failed",
    JobState.OUT_OF_MEMORY: "the job ran out of memory",
    JobState.BOOT_FAIL: "a node of the job did not boot",
}


class Judged(NamedTuple):
    """A verdict, or a suspicion that a second look must confirm, or neither."""

    verdict: Symptom | None
    suspicion: Symptom | None


Detector = Callable[[AttemptView, WatchSection], Symptom | None]


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
    # A requeue resets SubmitTime (facts/slurm.md): a fatal line read after it may be the requeue's own doing.
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
    # Slow steps, or rare lines, need longer to refute it; but it is never waited for longer than for a hang.
    steps = timedelta(seconds=(view.progress.step_seconds or 0.0) * STEPS_TO_DISPROVE)
    disproof = min(max(steps, (view.line_gap or timedelta(0)) * GAP_MARGIN), patience.hang_floor)
    # Where no steps are due, a line that programs also survive is only believed when nothing more is heard at all.
    is_stepping = view.progress.phase is Phase.TRAINING and view.line_gap is not None
    by_silence_only = not fatal.is_certain and not is_stepping
    if by_silence_only:
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


def hang(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(c) Allocated, readable, and no iteration for longer than this attempt, in this phase, ever needs."""
    if not view.is_running or not view.log_readable:
        return None
    progress = view.progress
    since = _last_sign_of_life(view)
    if since is None:
        return None
    allowed = hang_patience(view, patience)
    silent = view.now - since
    if silent < allowed:
        return None
    # A log that goes on in words we do not know is not silence: nothing can be said before the first iteration line.
    if progress.iteration_at is None and view.last_output_at is not None and view.now - view.last_output_at < allowed:
        return None
    doing = f"after iteration {progress.iteration}" if progress.iteration is not None else "since the start"
    phase = "" if progress.phase in (Phase.TRAINING, Phase.STARTING) else f", {progress.phase.value}"
    return Symptom(
        kind=SymptomKind.HANG,
        onset=since,
        detected_at=view.now,
        summary=f"no iteration for {in_words(silent)} {doing}{phase}; {in_words(allowed)} would be usual at most",
        signals=(Signal(source=SignalSource.LOG, at=since, text=f"last sign of progress: {doing}"), *node_signals(view)),
    )


def hang_patience(view: AttemptView, patience: WatchSection) -> timedelta:
    """How long the attempt may go without an iteration line, from its own pace and its phase."""
    progress = view.progress
    if progress.iteration_at is None:
        return patience.startup_patience
    own = timedelta(seconds=patience.hang_steps * (progress.step_seconds or 0.0))
    # One line tells nothing of how often lines come, and the first steps also compile kernels.
    pace = max(patience.hang_floor, own, view.line_gap * GAP_MARGIN) if view.line_gap else max(patience.startup_patience, own)
    usual_checkpoint = _usual_checkpoint_interval(view)
    if progress.checkpoint_at is not None and progress.checkpoint_at > progress.iteration_at and usual_checkpoint is not None:
        # Checkpoints came after the last line: the line format is what stopped, perhaps not the training.
        pace = max(pace, usual_checkpoint * patience.checkpoint_overdue_factor)
    match progress.phase:
        case Phase.STARTING:
            return max(pace, patience.startup_patience)
        case Phase.TRAINING:
            return pace
        case Phase.CHECKPOINTING:
            return max(pace, patience.checkpoint_patience)
        case Phase.EVALUATING:
            return max(pace, patience.evaluation_patience)
        case Phase.FINISHING:
            return patience.finishing_patience


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


def checkpoint_overdue(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(e) Iterations go on and no checkpoint came for `checkpoint_overdue_factor` times the usual interval."""
    progress = view.progress
    usual = _usual_checkpoint_interval(view)
    if not view.is_running or usual is None or progress.checkpoint_at is None or progress.iteration_at is None:
        return None
    if progress.phase is Phase.FINISHING or view.now - progress.iteration_at >= hang_patience(view, patience):
        return None
    # Measured to the last iteration, not to now: a pause without iterations is not time in which one should have come.
    waited = progress.iteration_at - progress.checkpoint_at
    allowed = usual * patience.checkpoint_overdue_factor
    if waited < allowed:
        return None
    # Nor is a pause between two iterations, such as an evaluation or a suspension: half of the wait must have gone into iterations.
    worked = _training_time_since_checkpoint(progress)
    if worked is not None and worked < allowed / 2:
        return None
    text = (
        f"no new checkpoint for {in_words(waited)}, usual are {in_words(usual)}; the newest is of iteration {progress.checkpoint_iteration}"
    )
    return Symptom(
        kind=SymptomKind.NO_CHECKPOINT,
        onset=progress.checkpoint_at + usual,
        detected_at=view.now,
        summary=text,
        signals=(Signal(source=SignalSource.CHECKPOINT, at=progress.checkpoint_at, text=text),),
    )


def slowed_down(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(f) Steps have been slow against this attempt's own baseline for `slowdown_for`, without a break."""
    progress = view.progress
    if not view.is_running or view.slow_since is None or progress.phase is not Phase.TRAINING:
        return None
    if view.now - view.slow_since < patience.slowdown_for or not progress.step_seconds or not progress.baseline_step_seconds:
        return None
    if progress.iteration_at is None or view.now - progress.iteration_at >= hang_patience(view, patience):
        return None
    text = (
        f"an iteration takes {progress.step_seconds:.3g} s, {progress.step_seconds / progress.baseline_step_seconds:.1f} times "
        f"this attempt's usual {progress.baseline_step_seconds:.3g} s, for {in_words(view.now - view.slow_since)}"
    )
    return Symptom(
        kind=SymptomKind.SLOWDOWN,
        onset=view.slow_since,
        detected_at=view.now,
        summary=text,
        signals=(Signal(source=SignalSource.LOG, at=view.slow_since, text=text),),
    )


def is_slow(progress: Progress, patience: WatchSection) -> bool:
    """Whether the recent step time is over the baseline by `slowdown_factor`; without both there is nothing to compare."""
    if not progress.step_seconds or not progress.baseline_step_seconds:
        return False
    return progress.step_seconds >= progress.baseline_step_seconds * patience.slowdown_factor


def bad_numbers(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(g) The loss has been NaN or infinite for several iterations in a row."""
    bad = view.bad_loss_iterations
    if not view.is_running or len(bad) < BAD_LOSSES_IN_A_ROW or view.bad_loss_since is None:
        return None
    text = f"the loss is NaN or infinite since iteration {bad[0]}, {len(bad)} reported iterations in a row"
    return Symptom(
        kind=SymptomKind.BAD_NUMBERS,
        onset=view.bad_loss_since,
        detected_at=view.now,
        summary=text,
        signals=(Signal(source=SignalSource.LOG, at=view.bad_loss_since, text=text),),
    )


DETECTORS: tuple[Detector, ...] = (
    # How the job ended comes before what was read on the way; a lost node explains a silence that is otherwise a hang.
    ended_badly,
    requeued_after_a_fault,
    node_lost,
    fatal_line,
    bad_numbers,
    hang,
    checkpoint_overdue,
    slowed_down,
)
NEEDS_SECOND_LOOK = (SymptomKind.HANG,)


def judge(
    view: AttemptView,
    patience: WatchSection,
    *,
    known: tuple[SymptomKind, ...] = (),
    known_onset: datetime | None = None,
    detectors: tuple[Detector, ...] = DETECTORS,
) -> Judged:
    """The first detector that speaks, unless its symptom is already known.

    A kind that needs a second look comes back as a suspicion first, and as a verdict when it is found again, with the same
    onset, `second_look` later.
    """
    suspicion: Symptom | None = None
    for detector in detectors:
        symptom = detector(view, patience)
        if symptom is None or is_known(symptom, known, known_onset):
            continue
        if symptom.kind not in NEEDS_SECOND_LOOK:
            return Judged(symptom, None)
        earlier = view.suspicion
        if earlier is None or earlier.kind is not symptom.kind or earlier.onset != symptom.onset:
            suspicion = suspicion or symptom
        elif view.now - earlier.detected_at >= patience.second_look:
            return Judged(symptom, None)
        else:
            suspicion = suspicion or earlier
    return Judged(None, suspicion)


def is_known(symptom: Symptom, known: tuple[SymptomKind, ...], known_onset: datetime | None) -> bool:
    """True when it is a symptom reported before, with nothing in between: it began no later than that one.

    Progress moves the onset of every later symptom past the old one's, so that no separate record of progress is needed."""
    return symptom.kind in known and known_onset is not None and symptom.onset <= known_onset


def _last_sign_of_life(view: AttemptView) -> datetime | None:
    progress = view.progress
    signs = [view.started_at, progress.iteration_at, progress.checkpoint_at, progress.phase_since, view.paused_at]
    if view.started_at is None and progress.iteration_at is None:
        return None
    # An older attempt's checkpoint is no sign of this one's life; the start is then the later time anyway.
    return max(sign for sign in signs if sign is not None)


def _usual_checkpoint_interval(view: AttemptView) -> timedelta | None:
    seconds = view.progress.checkpoint_interval_seconds
    # Two intervals are the least that can be called usual; they need three checkpoints.
    return timedelta(seconds=seconds) if seconds and view.checkpoint_count >= 3 else None


def _training_time_since_checkpoint(progress: Progress) -> timedelta | None:
    """What the iterations since the newest checkpoint took, by the usual step time; None where the numbers do not tell."""
    if progress.iteration is None or progress.checkpoint_iteration is None or progress.step_seconds is None:
        return None
    steps = progress.iteration - progress.checkpoint_iteration
    return timedelta(seconds=steps * progress.step_seconds) if steps >= 0 else None  # a checkpoint may be counted in other units


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
