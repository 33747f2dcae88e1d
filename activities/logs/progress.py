"""How far a training run has come, from its log: bytes → marks → `Progress`.

`ProgressReader` looks at all bytes once with the multi-pattern matcher and runs Python on the lines that hit; `advance` is a
pure fold over the marks. Called by the watch and by the diagnosis of recorded logs.
"""

import heapq
import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

from pydantic import AwareDatetime, Field

from activities.logs.prefixes import parse_prefix
from activities.logs.progress_rules import (
    BAR_EPOCH,
    BAR_OF_TRAINING,
    CHECKPOINT_NUMBER,
    EVALUATING,
    GLOBAL_STEP,
    NOT_SAVED,
    NOT_YET_SAVED,
    PAYLOAD,
    RULES,
    MarkKind,
    Rule,
    bar_in,
    count_in,
    loss_in,
    step_seconds_in,
)
from activities.logs.user_pattern import LONGEST_LINE, ProgressPatternRefused, UserPattern
from activities.records import Phase, Progress, Record
from activities.scanning.scan import MultiPattern

__all__ = ["MarkKind", "ProgressMark", "ProgressPatternRefused", "ProgressReader", "advance"]

_USER = "user's own"
_PYTHON = {rule.id: re.compile(rule.pattern) for rule in RULES}

_WARM_UP_STEPS = 2  # compilation, caches and the first allocations: not what a step usually takes
_BASELINE_SAMPLES = 20
_LEAST_FOR_BASELINE = 5
_RECENT_SAMPLES = 40
_CHECKPOINT_TIMES = 8
_STRAGGLING = 2  # ranks print the same iteration one after another: a number this little lower is no step back


class ProgressMark(Record):
    """What one line tells. `iteration` None: the line has no number; `at` is the line's own time, where it has one."""

    kind: MarkKind
    iteration: int | None = None
    step_seconds: float | None = None
    at: AwareDatetime | None = None
    loss: float | None = Field(default=None, description="NaN and infinity as such")


class ProgressReader:
    """Finds marks in the bytes of one log, given in order. Remembers the running progress bar's length, nothing else.

    Args:
        user_pattern: the user's own expression for iteration lines, instead of the built-in ones; its group `iteration` is the
            number, `step_seconds` and `loss` are read where it has them.
    Raises:
        ProgressPatternRefused: the pattern cannot be used; the message says why.
    """

    def __init__(self, user_pattern: str | None = None) -> None:
        self._user = UserPattern(user_pattern) if user_pattern else None
        self._matcher = _matcher(with_iterations=self._user is None)
        self.set_aside: str | None = None
        """Why the user's pattern is no longer used; the built-in ones are, from the next read on."""
        self._bar_total: int | None = None
        self._shorter_bar_ended = False

    def read(self, data: bytes) -> tuple[ProgressMark, ...]:
        """The marks in `data`, in order: complete lines, as `carriers.plain_bytes` gives them (torchtitan colours each number)."""
        marks: list[ProgressMark] = []
        for start, end, ids in self._hits(data):
            line = data[start : min(end, start + 2 * LONGEST_LINE)].decode(errors="replace")[:LONGEST_LINE]
            marks += self._marks_of(line, ids)
        if self._user is not None and self._user.set_aside is not None:
            self.set_aside, self._user, self._matcher = self._user.set_aside, None, _matcher(with_iterations=True)
        return tuple(marks)

    def _hits(self, data: bytes) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """The lines that hit, in order: each with its start, its end, and the rules it hit."""
        ours = ((hit.start, hit.end, hit.ids) for hit in self._matcher.scan(data))
        if self._user is None:
            yield from ours
            return
        users = ((start, end, (_USER,)) for start, end in self._user.lines_in(data))
        last: tuple[int, int, tuple[str, ...]] | None = None
        for hit in heapq.merge(ours, users, key=lambda hit: hit[0]):
            if last is not None and last[0] == hit[0]:
                last = (last[0], last[1], last[2] + hit[2])  # one line, hit by both
                continue
            if last is not None:
                yield last
            last = hit
        if last is not None:
            yield last

    def _marks_of(self, line: str, ids: tuple[str, ...]) -> list[ProgressMark]:
        prefixed = parse_prefix(line)
        text, at = prefixed.text, prefixed.at
        found: dict[MarkKind, ProgressMark] = {}
        for rule in map(_BY_ID.get, ids):  # in the table's order
            if rule is None or rule.kind is MarkKind.ITERATION:
                continue
            if rule.kind not in found and (match := _PYTHON[rule.id].search(text)):
                mark = _mark_of(rule, match, text, at)
                if mark is not None:
                    found[rule.kind] = mark
        if MarkKind.CHECKPOINT_SAVED in found:
            found.pop(MarkKind.CHECKPOINT_STARTED, None)  # "finished saving" also says "saving"
        if found:
            return list(found.values())
        if self._user is not None:
            iteration = self._iteration_by_user(self._user, line, text, at) if _USER in ids else None
        else:
            iteration = self._iteration(text, ids, at)
        return [iteration] if iteration is not None else []

    def _iteration_by_user(self, user: UserPattern, line: str, text: str, at: datetime | None) -> ProgressMark | None:
        """Without its prefixes first, whose numbers are no iteration's; then the line as it stands: a user may have written them."""
        groups = user.search(text) or (user.search(line) if text != line else None)
        if groups is None or not groups["iteration"]:
            return None
        number = _number(groups["iteration"])
        return ProgressMark(
            kind=MarkKind.ITERATION,
            iteration=None if number is None or not math.isfinite(number) else count_in(str(int(number))),
            step_seconds=_number(seconds) if (seconds := groups.get("step_seconds")) else step_seconds_in(text),
            loss=_number(loss) if (loss := groups.get("loss")) else loss_in(text),
            at=at,
        )

    def _iteration(self, text: str, ids: tuple[str, ...], at: datetime | None) -> ProgressMark | None:
        for rule in map(_BY_ID.get, ids):
            if rule is None or rule.kind is not MarkKind.ITERATION:
                continue
            if rule.id == "progress bar":
                return self._from_bar(text, at)
            match = _PYTHON[rule.id].search(text)
            if match is None or (rule.needs_payload and not PAYLOAD.search(text)):
                continue
            if rule.needs_payload and EVALUATING.search(text, 0, match.start()):
                return ProgressMark(kind=MarkKind.EVALUATION_STARTED, at=at)
            return _iteration_mark(_count_of(match), text, at)
        return None

    def _from_bar(self, text: str, at: datetime | None) -> ProgressMark | None:
        """A tqdm bar. Its label says what it counts; one without a label is training unless a longer one is under way."""
        bar = bar_in(text)
        if bar is None:
            return None
        done, total, label = bar.done, bar.total, bar.label
        if EVALUATING.search(label):
            return ProgressMark(kind=MarkKind.EVALUATION_ENDED if done >= total else MarkKind.EVALUATION_STARTED, at=at)
        if not BAR_OF_TRAINING.search(label):
            return None
        if not label.strip() and self._is_within_a_longer_bar(done, total):
            return ProgressMark(kind=MarkKind.EVALUATION_ENDED if done >= total else MarkKind.EVALUATION_STARTED, at=at)
        epoch = BAR_EPOCH.search(label)
        epochs_before = count_in(epoch["epoch"]) if epoch else 0
        return _iteration_mark(None if epochs_before is None else _bounded(done + epochs_before * total), text, at)

    def _is_within_a_longer_bar(self, done: int, total: int) -> bool:
        """The Hugging Face Trainer shows evaluation as a second, shorter bar without a label, inside the one of training."""
        shorter = self._bar_total is not None and total < self._bar_total
        if shorter and not (self._shorter_bar_ended and done < total):
            self._shorter_bar_ended = done >= total
            return True
        # The longest so far, or the second short one with nothing of the longer between them: that one was given up.
        self._bar_total = None if done >= total else total
        self._shorter_bar_ended = False
        return False


def _mark_of(rule: Rule, match: re.Match[str], text: str, at: datetime | None) -> ProgressMark | None:
    iteration = match.groupdict().get("iteration")
    if rule.kind in (MarkKind.CHECKPOINT_SAVED, MarkKind.CHECKPOINT_STARTED, MarkKind.RESUMED):
        if NOT_SAVED.search(text) or (rule.kind is MarkKind.CHECKPOINT_SAVED and NOT_YET_SAVED.search(text)):
            return None
        if iteration is None and (number := CHECKPOINT_NUMBER.search(text, match.start())):
            iteration = number["iteration"] or number["named"]
    return ProgressMark(kind=rule.kind, iteration=count_in(iteration), at=at)


def _count_of(match: re.Match[str]) -> int | None:
    """The iteration over all epochs, where the line counts within one."""
    groups: dict[str, Any] = match.groupdict()
    within = count_in(groups.get("iteration"))
    if within is None or not groups.get("total"):
        return within
    epochs_before, epoch_length = count_in(groups["epoch"]), count_in(groups["total"])
    return None if epochs_before is None or epoch_length is None else _bounded(within + epochs_before * epoch_length)


def _bounded(count: int) -> int | None:
    return count_in(str(count))


def _iteration_mark(iteration: int | None, text: str, at: datetime | None) -> ProgressMark:
    overall = GLOBAL_STEP.search(text)
    return ProgressMark(
        kind=MarkKind.ITERATION,
        iteration=count_in(overall["iteration"]) if overall else iteration,
        step_seconds=step_seconds_in(text),
        loss=loss_in(text),
        at=at,
    )


def _number(digits: str) -> float | None:
    try:
        return float(digits.replace(",", "").replace("_", ""))
    except ValueError:
        return None


_BY_ID = {rule.id: rule for rule in RULES}
_RULES_BUT_ITERATIONS = tuple(rule for rule in RULES if rule.kind is not MarkKind.ITERATION)


# The matcher reports every end of a match: `\d+` at the end of a pattern would hit once per digit, and the first is enough.
_LAST_DIGITS = re.compile(r"(\\d)(?:\+|\{1,\d+\})(\)?)$")


@lru_cache(maxsize=2)
def _matcher(*, with_iterations: bool) -> MultiPattern:
    """Compiled once for all logs; no user's expression is in it, whose compiling could take for ever."""
    rules = RULES if with_iterations else _RULES_BUT_ITERATIONS
    return MultiPattern({rule.id: _LAST_DIGITS.sub(r"\1\2", rule.pattern) for rule in rules})


# ------------------------------------------------------------------------------------------------ folding


def advance(progress: Progress, marks: Iterable[ProgressMark], now: datetime) -> Progress:
    """`progress` after `marks`, which were read at `now`. Pure.

    Step times come from the line itself where it tells them, else from the log's own clock between two iteration lines, else from
    the time between the reads that brought them. The baseline is the median of an attempt's early steps after two of warm-up.
    """
    before = progress
    unnumbered = 0
    for mark in marks:
        unnumbered += mark.kind is MarkKind.ITERATION and mark.iteration is None
        progress = _after(progress, mark, now)
    if progress.steps_seen > before.steps_seen or before.iteration_at is None:
        return progress
    # No line told a time. Lines of one read arrived together: all of them took the time since the read before.
    steps = progress.iteration - before.iteration if progress.iteration is not None and before.iteration is not None else 0
    steps = steps or unnumbered
    seconds = (now - before.iteration_at).total_seconds()
    return _with_sample(progress, seconds / steps) if steps > 0 and seconds > 0 else progress


def _after(progress: Progress, mark: ProgressMark, now: datetime) -> Progress:
    match mark.kind:
        case MarkKind.ITERATION:
            return _after_iteration(progress, mark, now)
        case MarkKind.CHECKPOINT_STARTED:
            return _in_phase(progress, Phase.CHECKPOINTING, now)
        case MarkKind.CHECKPOINT_SAVED:
            return _after_checkpoint(progress, mark, now)
        case MarkKind.RESUMED:
            known = progress.checkpoint_iteration
            # What could be loaded is complete; when it was written the log does not say.
            return progress.model_copy(update={"checkpoint_iteration": mark.iteration if known is None else known})
        case MarkKind.EVALUATION_STARTED:
            return _in_phase(progress, Phase.EVALUATING, now)
        case MarkKind.EVALUATION_ENDED:
            return _in_phase(progress, _usual_phase(progress), now) if progress.phase is Phase.EVALUATING else progress
        case MarkKind.TRAINING_ENDED:
            return _in_phase(progress, Phase.FINISHING, now)


def _in_phase(progress: Progress, phase: Phase, now: datetime) -> Progress:
    return progress if progress.phase is phase else progress.model_copy(update={"phase": phase, "phase_since": now})


def _usual_phase(progress: Progress) -> Phase:
    """After a sanity evaluation or an initial checkpoint the first step, which may compile for long, is still to come."""
    return Phase.STARTING if progress.iteration_at is None else Phase.TRAINING


def _after_iteration(progress: Progress, mark: ProgressMark, now: datetime) -> Progress:
    last = progress.iteration
    loss = progress.last_loss if mark.loss is None else mark.loss
    if mark.iteration is not None and last is not None and last - _STRAGGLING <= mark.iteration <= last:
        return progress.model_copy(update={"last_loss": loss})  # another rank, or the bar drawn again: nothing moved
    progress = _in_phase(progress, Phase.TRAINING, now)
    sample = _sample(progress, mark)
    if sample is not None:
        progress = _with_sample(progress, sample)
    numbered = mark.iteration is not None
    return progress.model_copy(
        update={
            "iteration": mark.iteration if numbered else last,
            "first_iteration": mark.iteration if progress.first_iteration is None and numbered else progress.first_iteration,
            "iteration_at": now,
            "iteration_logged_at": mark.at,
            "last_loss": loss,
        }
    )


def _sample(progress: Progress, mark: ProgressMark) -> float | None:
    """Seconds per iteration by the line itself, or by the log's own clock since the line before."""
    if mark.step_seconds is not None:
        return mark.step_seconds
    if mark.at is None or progress.iteration_logged_at is None:
        return None
    steps = 1 if mark.iteration is None or progress.iteration is None else mark.iteration - progress.iteration
    seconds = (mark.at - progress.iteration_logged_at).total_seconds()
    return seconds / steps if steps > 0 and seconds > 0 else None


def _with_sample(progress: Progress, seconds: float) -> Progress:
    seen = progress.steps_seen + 1
    recent = (*progress.step_samples, seconds)[-_RECENT_SAMPLES:]
    early = progress.early_step_samples
    if seen > _WARM_UP_STEPS and len(early) < _BASELINE_SAMPLES:
        early = (*early, seconds)
    return progress.model_copy(
        update={
            "steps_seen": seen,
            "step_samples": recent,
            "early_step_samples": early,
            "step_seconds": median(recent),
            "baseline_step_seconds": median(early) if len(early) >= _LEAST_FOR_BASELINE else None,
        }
    )


def _after_checkpoint(progress: Progress, mark: ProgressMark, now: datetime) -> Progress:
    """A complete checkpoint. Where the line has no number, the last iteration reported is at most what it holds."""
    if progress.phase is Phase.CHECKPOINTING:
        progress = _in_phase(progress, _usual_phase(progress), now)
    iteration = progress.iteration if mark.iteration is None else mark.iteration
    known = progress.checkpoint_iteration
    if iteration is not None and iteration == known:
        return progress  # each rank says so, or the scan of the disk saw it first
    times = (*progress.checkpoint_times, mark.at or now)[-_CHECKPOINT_TIMES:]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    usual = [gap for gap in gaps if gap > 0]
    return progress.model_copy(
        update={
            "checkpoint_iteration": known if iteration is None else iteration,
            "checkpoint_at": now,
            "checkpoint_times": times,
            "checkpoint_interval_seconds": median(usual) if usual else progress.checkpoint_interval_seconds,
        }
    )
