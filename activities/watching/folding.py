"""How one more piece of log, or one more checkpoint, changes what is remembered of an attempt: a cursor in, a cursor out. Pure.

Called by `attempt.py`. What the remembered comes to, the detectors say.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

from activities.checkpoints import CheckpointMark
from activities.configuration import WatchSection
from activities.detectors.progress import is_slow
from activities.logs.progress import MarkKind, ProgressMark, advance
from activities.records import Cursor, FatalLine, Phase, Progress
from activities.watching.pieces import Piece

KEPT_CHECKPOINT_TIMES = 16
KEPT_BAD_LOSSES = 50


def with_piece(known: Cursor, piece: Piece, patience: WatchSection, *, started_at: datetime | None) -> Cursor:
    """`started_at`: the attempt's start, where it is known; checkpoints from before it are an older attempt's."""
    before = known.progress
    progress = advance(before, piece.marks, piece.output_at) if piece.marks else before
    if piece.may_be_older and progress.phase is Phase.TRAINING:
        # Whoever made those steps, this attempt may still be starting.
        progress = progress.model_copy(update={"phase": Phase.STARTING})
    now = known.model_copy(update={"last_output_at": piece.output_at, "progress": progress})
    if progress.checkpoint_iteration != before.checkpoint_iteration and progress.checkpoint_at is not None:
        now = _with_checkpoint_time(now, progress.checkpoint_at, started_at)
    steps = [mark for mark in piece.marks if mark.kind is MarkKind.ITERATION and mark.iteration is not None]
    iterations = [mark.iteration for mark in steps if mark.iteration is not None]
    resumed = any(mark.kind is MarkKind.RESUMED for mark in piece.marks)
    told = piece.output_at if piece.told_to_end else (None if steps or resumed else known.told_to_end_at)
    moved = progress.iteration_at is not None and progress.iteration_at != before.iteration_at and not piece.may_be_older
    slow_since = (known.slow_since or piece.output_at) if is_slow(progress, patience) else None
    return now.model_copy(
        update={
            "told_to_end_at": told,
            "fatal": _fatal_after(known.fatal, piece.fatal if told is None else None, iterations, resumed=resumed),
            "unconfirmed_fatal": _fatal_after(
                known.unconfirmed_fatal, piece.fatal if told is not None else None, iterations, resumed=resumed
            ),
            "line_gap_seconds": _longest_gap(known.line_gap_seconds, before, progress, piece, iterations),
            "stepping_since": known.stepping_since or (piece.output_at if moved else None),
            "block_seconds": _block_after(known.block_seconds, progress, piece, moved=moved),
            "slow_since": slow_since if steps else known.slow_since,
            **_losses_after(now, [mark for mark in piece.marks if mark.kind is MarkKind.ITERATION]),
        }
    )


def with_checkpoint(known: Cursor, seen: CheckpointMark, *, at: datetime, started_at: datetime | None) -> Cursor:
    """A checkpoint seen on disk `at` this moment; one that is not newer changes nothing."""
    if seen.iteration <= (known.progress.checkpoint_iteration or -1):
        return known
    written_at = min(seen.written_at, at)
    progress = known.progress.model_copy(update={"checkpoint_iteration": seen.iteration, "checkpoint_at": written_at})
    return _with_checkpoint_time(known.model_copy(update={"progress": progress}), written_at, started_at)


def _with_checkpoint_time(known: Cursor, at: datetime, started_at: datetime | None) -> Cursor:
    if started_at is not None and at < started_at:
        return known  # an older attempt's; the usual interval is this attempt's own
    times = (*known.checkpoint_times, at)[-KEPT_CHECKPOINT_TIMES:]
    gaps = [gap for later, earlier in pairwise(reversed(times)) if (gap := (later - earlier).total_seconds()) > 0]
    progress = known.progress
    # Our own times, once there are as many: the log's clock and the disk's must not be mixed in one interval.
    if gaps and len(times) >= len(progress.checkpoint_times):
        progress = progress.model_copy(update={"checkpoint_interval_seconds": median(gaps)})
    return known.model_copy(update={"checkpoint_times": times, "progress": progress})


def _longest_gap(longest: float | None, before: Progress, progress: Progress, piece: Piece, iterations: Sequence[int]) -> float | None:
    """Longest time between two iteration lines, in seconds: within the piece told by the pace, up to the piece by when it was read."""
    if piece.may_be_older:
        return longest
    per_step = progress.step_seconds or 0.0
    gaps = [longest or 0.0]
    if piece.is_live and iterations:
        # What a block took that came at once was kept back in a buffer, and the next will be.
        gaps.append((iterations[-1] - iterations[0]) * per_step)
    gaps += [(later - earlier) * per_step for earlier, later in pairwise(iterations) if later > earlier]
    if (
        piece.is_live
        and iterations
        and before.iteration_at is not None
        and before.iteration is not None
        and max(iterations) > before.iteration
    ):
        gaps.append((piece.output_at - before.iteration_at).total_seconds())
    return max(gaps) or None


def _block_after(known: float | None, progress: Progress, piece: Piece, *, moved: bool) -> float | None:
    """Lines found in a log tell nothing of how they came: one by one, or a buffer's worth at once. Those seen to come do."""
    if piece.is_live:
        return None if moved else known
    return piece.steps_a_buffer * (progress.step_seconds or 0.0) or known


def _losses_after(known: Cursor, marks: Sequence[ProgressMark]) -> dict[str, object]:
    bad, since = known.bad_loss_iterations, known.bad_loss_since
    for mark in marks:
        if mark.loss is None:
            continue
        if math.isfinite(mark.loss):
            bad, since = (), None
            continue
        # A line that names no iteration (Hugging Face's dictionary) counts as the one after the last; ranks that repeat one count once.
        iteration = mark.iteration if mark.iteration is not None else (bad[-1] + 1 if bad else known.progress.iteration or 0)
        if iteration not in bad:
            bad, since = (*bad, iteration), since or known.last_output_at
    # The first is kept: it is where the numbers went bad.
    return {"bad_loss_iterations": bad[:1] + bad[1:][-KEPT_BAD_LOSSES:], "bad_loss_since": since}


def _fatal_after(fatal: FatalLine | None, new: FatalLine | None, iterations: Sequence[int], *, resumed: bool) -> FatalLine | None:
    """The first fatal line not refuted yet: by two iterations that follow it and go on, or by a resume inside the job."""
    if fatal is None:
        return new
    following = set(iterations)
    beyond = fatal.beyond
    counted = {iteration for iteration in following if beyond is None or iteration > beyond}
    if beyond is not None and following and not counted and min(following) < beyond / 2:
        # Far behind: a bar of the next epoch. Held back is what came last before the line; a burst of the whole bar proves nothing yet.
        counted = following if len(following) <= 2 and max(following) < beyond / 2 else set()
        beyond = max(following)
    elif counted:
        beyond = max(counted)
    after = fatal.iterations_after + min(len(counted), 2)
    if after >= 2 or resumed:
        return new
    if new is not None and new.is_certain and not fatal.is_certain:
        return new.model_copy(update={"at": fatal.at})
    return fatal.model_copy(update={"iterations_after": after, "beyond": beyond})
