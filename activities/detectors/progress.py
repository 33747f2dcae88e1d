"""Detectors of a training that does not go on as usual: a hang, an overdue checkpoint, slow steps, bad numbers.

Usual is what this attempt has shown itself: its step time, its longest gap between lines, its checkpoint interval.
"""

from datetime import datetime, timedelta

from activities.configuration import WatchSection
from activities.detectors.view import AttemptView, in_words, node_signals
from activities.records import Phase, Progress, Signal, SignalSource, Symptom, SymptomKind

BAD_LOSSES_IN_A_ROW = 3  # one NaN is a spike that training often survives (skipped step, loss scale); three are not
GAP_MARGIN = 1.5  # a pause this attempt has survived once may come again, somewhat longer


def hang(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(c) Allocated, readable, known to step, and no sign of life for longer than this attempt, in this phase, ever needs."""
    if not view.is_running or not view.log_readable or unseen(view, patience) is not None:
        return None
    progress = view.progress
    since = _last_sign_of_life(view)
    if since is None:
        return None
    allowed = hang_patience(view, patience)
    silent = view.now - since
    if silent < allowed:
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


def unseen(view: AttemptView, patience: WatchSection) -> str | None:
    """Why no silence of this attempt can be told from a hang, in words; None where it can. Blind is not hung.

    Silence says something only of what was heard before: iteration lines of this attempt, a habit of checkpoints, or the steps of the
    attempt before. And it is no silence while the job is seen to write.
    """
    progress = view.progress
    if progress.iteration_at is None:
        if _usual_checkpoint_interval(view) is None and (view.checkpoint_count or not view.earlier_attempts_stepped):
            return "no iteration line is recognised"
        lines = "no iteration line is recognised"
    else:
        lines = f"no iteration line is recognised since {progress.iteration_at:%Y-%m-%d %H:%M:%S} UTC"
    allowed = hang_patience(view, patience)
    since = _last_sign_of_life(view) or view.now
    if _went_on_without_lines(view, allowed):
        return f"{lines}, though a checkpoint came since"
    if view.last_output_at is not None and view.last_output_at > since and view.now - view.last_output_at < allowed <= view.now - since:
        return f"{lines}, though the log goes on in other words"
    beside = view.beside
    if beside is not None and _has_short_habit(view, allowed) and view.now - beside.at < allowed <= view.now - since:
        return f"{lines}, though the job writes {beside.path}"
    return None


def _went_on_without_lines(view: AttemptView, allowed: timedelta) -> bool:
    """A checkpoint came so long after the last line that the job stepped in silence; how often checkpoints come is not known yet."""
    saved, told = view.progress.checkpoint_at, view.progress.iteration_at
    return saved is not None and told is not None and saved - told >= allowed and _usual_checkpoint_interval(view) is None


def _has_short_habit(view: AttemptView, allowed: timedelta) -> bool:
    """The lines came for a shorter time than their absence is to prove something: perhaps the job only begins with them, and tells the
    rest elsewhere."""
    first, last = view.stepping_since, view.progress.iteration_at
    return first is None or last is None or last - first < allowed


def hang_patience(view: AttemptView, patience: WatchSection) -> timedelta:
    """How long the attempt may go without an iteration line, from its own pace and its phase."""
    progress = view.progress
    own = timedelta(seconds=patience.hang_steps * (progress.step_seconds or 0.0))
    block = view.block or timedelta(0)
    if progress.iteration_at is None:
        pace = patience.startup_patience
    elif view.line_gap is None:
        # One line tells nothing of how often lines come, and the first steps also compile kernels. As long as it took to the first
        # one, or to a buffer full of them, it may take again.
        to_the_first = progress.iteration_at - (view.started_at or progress.iteration_at)
        pace = max(patience.startup_patience, own, to_the_first * GAP_MARGIN, block * GAP_MARGIN)
    else:
        pace = max(patience.hang_floor, own, view.line_gap * GAP_MARGIN, block * GAP_MARGIN)
    usual_checkpoint = _usual_checkpoint_interval(view)
    if usual_checkpoint is not None and progress.checkpoint_at is not None and _came_last(progress.checkpoint_at, progress):
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


def _came_last(checkpoint_at: datetime, progress: Progress) -> bool:
    return progress.iteration_at is None or checkpoint_at > progress.iteration_at


def checkpoint_overdue(view: AttemptView, patience: WatchSection) -> Symptom | None:
    """(e) Iterations go on and no checkpoint came for `checkpoint_overdue_factor` times the usual interval."""
    progress = view.progress
    usual = _usual_checkpoint_interval(view)
    if not view.is_running or usual is None or progress.checkpoint_at is None or progress.iteration_at is None:
        return None
    if not view.log_readable or not view.checkpoints_readable:
        return None  # it may have been written, and told, where we do not see it
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
    if not view.is_running or not view.log_readable or view.slow_since is None or progress.phase is not Phase.TRAINING:
        return None
    if view.now - view.slow_since < patience.slowdown_for or not progress.step_seconds or not progress.baseline_step_seconds:
        return None
    if progress.iteration_at is None or view.now - progress.iteration_at >= hang_patience(view, patience):
        return None
    text = (
        f"an iteration takes {progress.step_seconds:.3g} s, {progress.step_seconds / progress.baseline_step_seconds:.1f} times "
        f"this attempt's usual {progress.baseline_step_seconds:.3g} s, for {in_words(view.now - view.slow_since)}"
    )
    return _told_by_the_log(SymptomKind.SLOWDOWN, view.slow_since, text, view)


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
    return _told_by_the_log(SymptomKind.BAD_NUMBERS, view.bad_loss_since, text, view)


def _told_by_the_log(kind: SymptomKind, since: datetime, text: str, view: AttemptView) -> Symptom:
    signal = Signal(source=SignalSource.LOG, at=since, text=text)
    return Symptom(kind=kind, onset=since, detected_at=view.now, summary=text, signals=(signal,))


def _last_sign_of_life(view: AttemptView) -> datetime | None:
    progress = view.progress
    # Shards of a checkpoint that is not complete yet: it is being written.
    saving = view.beside.at if view.beside is not None and view.beside.is_checkpoint else None
    signs = [view.started_at, progress.iteration_at, progress.checkpoint_at, progress.phase_since, view.paused_at, saving]
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
