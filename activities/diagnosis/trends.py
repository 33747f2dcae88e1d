"""What the marks of a log say together: slower, uneven, always the same ranks, memory that grows, numbers gone wrong. Pure.

pace.py makes the marks; case.py, quiet.py and refine.py ask here."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite, isnan

from activities.diagnosis.pace import Mark

FEWEST_STEPS = 8  # fewer say nothing about a trend
_CLEARLY_SLOWER = 1.25  # more than evaluation, data or routing usually cause
_ZEROED_STEPS = 4  # fewer may be skipped steps while a loss scale settles
_OF_THE_SLOWDOWN = 0.3  # a throughput that is told as an average over the run falls by no less
_LASTING_BOUT = 6  # slow steps of a bout that is no hiccup
_BARELY_SLOWER = 1.03  # counts only where the steps are very even: ten times the usual spread


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The job became slower and stayed so."""

    early_seconds: float
    late_seconds: float
    since_line: int
    comes_and_goes: bool = False

    @property
    def factor(self) -> float:
        return self.late_seconds / self.early_seconds


def step_seconds(marks: Sequence[Mark]) -> list[tuple[int, float]]:
    """(line, seconds a step), from what the lines say or, where they do not, from their times and counts."""
    told = _told(marks)
    return told if len(told) >= FEWEST_STEPS else _timed(marks) or told


def _told(marks: Sequence[Mark]) -> list[tuple[int, float]]:
    """(line, seconds a step) as lines tell it; a bare time that only ever grows is the time since the start."""
    told = [(mark.line, mark.seconds) for mark in marks if mark.seconds is not None]
    bare = [(mark.line, mark.bare_time) for mark in marks if mark.bare_time]
    grows = all(before <= after for (_, before), (_, after) in pairwise(bare))
    return told if len(told) >= FEWEST_STEPS or len(bare) < FEWEST_STEPS or grows else bare


def trend(marks: Sequence[Mark]) -> list[tuple[int, float]]:
    """(line, cost of a step) in one unit, not always seconds: where lines tell a throughput, its inverse. For comparing only."""
    told = _told(marks)
    rated = [(mark.line, 1 / mark.rate) for mark in marks if mark.rate and mark.rate > 0 and isfinite(mark.rate)]
    if len(told) >= FEWEST_STEPS:
        # A progress bar's own rate is smoothed; a throughput beside it says more.
        return rated if len(rated) >= len(told) and _spread([value for _, value in told]) == 0 else told
    epochs = [(mark.line, mark.epoch_seconds) for mark in marks if mark.epoch_seconds]
    return rated if len(rated) >= FEWEST_STEPS else _timed(marks) or epochs


def _timed(marks: Sequence[Mark]) -> list[tuple[int, float]]:
    timed = [mark for mark in marks if mark.at is not None and mark.iteration is not None]
    found: list[tuple[int, float]] = []
    for before, after in pairwise(timed):
        if before.at and after.at and before.iteration is not None and after.iteration is not None and before.stream == after.stream:
            steps = after.iteration - before.iteration
            seconds = (after.at - before.at).total_seconds()
            if 0 < steps < 10_000 and seconds > 0:
                found.append((after.line, seconds / steps))
    return found


def slowdown_of(marks: Sequence[Mark]) -> Slowdown | None:
    """The slow-down these marks show, or None."""
    found = _slower(trend(marks))
    return None if found is not None and _does_more(marks, found) else found


def _does_more(marks: Sequence[Mark], found: Slowdown) -> bool:
    """True where a throughput is told beside the time and did not fall with it: the steps became larger, no machine slower."""
    costs = [1 / mark.rate for mark in marks if mark.rate and mark.rate > 0 and isfinite(mark.rate)][1:]
    if len(costs) < FEWEST_STEPS:
        return False
    third = len(costs) // 3
    lasting = statistics.median(costs[-third:]) / statistics.median(costs[:third])
    at_times = statistics.median(sorted(costs)[-max(2, len(costs) // 10) :]) / statistics.median_low(costs)
    return max(lasting, at_times) - 1 < _OF_THE_SLOWDOWN * (found.factor - 1)


def _slower(costs: Sequence[tuple[int, float]]) -> Slowdown | None:
    steps = costs[1:]  # the first step compiles and warms up
    if len(steps) < FEWEST_STEPS:
        return None
    values = [value for _, value in steps]
    third = max(3, len(values) // 3)
    early, late = values[:third], values[-third:]
    early_median, late_median = statistics.median(early), statistics.median(late)
    if early_median <= 0:
        return None
    factor = late_median / early_median
    spread = _spread(early)
    sustained = sum(value > early_median * (1 + (factor - 1) / 2) for value in late) >= 0.8 * len(late)
    clearly = factor >= _CLEARLY_SLOWER and late_median - early_median > 4 * spread
    barely = (
        factor >= _BARELY_SLOWER and late_median - early_median > 10 * spread and min(late) > max(sorted(early)[: max(1, len(early) - 1)])
    )
    if sustained and (clearly or barely):
        limit = early_median * (1 + (factor - 1) / 2)
        since = next(line for line, value in steps if value > limit)
        return Slowdown(early_median, late_median, since)
    usual = statistics.median_low(values) if statistics.median_low(values) < 1.5 * min(values) else early_median
    slow = [value > 1.5 * usual for value in values]
    # A bout is several slow steps on end; a single one is a checkpoint, an evaluation or a cold cache.
    bouts = sum(1 for before, now, after in zip(slow, slow[1:], slow[2:], strict=False) if not before and now and after)
    bouts += len(slow) >= 2 and slow[0] and slow[1]
    # Slow at the very end may be a slow-down that stays, unless bouts have come and gone often enough, or each lasted.
    lasting = all(sum(1 for _ in bout) >= _LASTING_BOUT for is_slow, bout in groupby(slow) if is_slow)
    told_apart = bouts >= 4 or not all(slow[-2:]) or lasting
    if bouts >= 2 and 0.1 <= sum(slow) / len(slow) <= 0.85 and told_apart:
        late_value = statistics.median([value for value, is_slow in zip(values, slow, strict=True) if is_slow])
        since = next(line for (line, _), is_slow in zip(steps, slow, strict=True) if is_slow)
        return Slowdown(usual, late_value, since, comes_and_goes=True)
    return None


def slow_ranks(marks: Sequence[Mark]) -> tuple[int, ...]:
    """Ranks clearly slower than the others in the rank-by-rank figures the job prints: NVRx's relative score, threshold 0.75,
    asked of most of the lines because one bad window is noise (docs/attribution.md §1.8); of the later half, where it began midway."""
    lines = [mark.by_rank for mark in marks if mark.by_rank]
    if len(lines) < 2:
        return ()
    lines = lines[len(lines) // 2 :] if len(lines) >= FEWEST_STEPS else lines
    counts: dict[int, int] = {}
    for line in lines:
        typical = statistics.median_low([value for _, value in line])
        for rank, value in line:
            if value > 0 and typical / value < 0.75:
                counts[rank] = counts.get(rank, 0) + 1
    return tuple(sorted(rank for rank, count in counts.items() if count * 3 >= len(lines) * 2))


def times_as_slow(lines: Sequence[Mark], rank: int) -> float:
    """How many times as long as the usual rank this one takes, in the middle of the lines that name it."""
    factors = [
        value / statistics.median_low([other for _, other in line.by_rank])
        for line in lines
        for name, value in line.by_rank
        if name == rank
    ]
    return statistics.median(factors) if factors else 1.0


def host_memory_grew(marks: Sequence[Mark]) -> bool:
    """True when the host memory that the job prints only ever grew, by a fifth or more, over enough lines to be a trend."""
    values = [mark.host_memory for mark in marks if mark.host_memory is not None]
    if len(values) < 5:
        return False
    rising = sum(after >= before for before, after in pairwise(values))
    return values[-1] >= 1.2 * values[0] and rising >= 0.8 * (len(values) - 1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the losses say."""

    is_nan: bool = False
    from_the_start: bool = False
    diverged: bool = False
    spike_recovered: bool = False
    line: int | None = None
    text: str = ""


def numbers_of(marks: Sequence[Mark]) -> Numbers:
    """NaN that stays, divergence that stays, or a spike that went away."""
    losses = [(mark.line, mark.loss) for mark in marks if mark.loss is not None]
    if len(losses) < 2:
        return Numbers()
    tail = losses[-max(2, min(5, len(losses) // 4)) :]
    if silent := _zeroed_from(marks):
        return Numbers(is_nan=True, from_the_start=silent == losses[0][0], line=silent)
    bad = [isnan(value) or not isfinite(value) for _, value in losses]
    if all(isnan(value) or not isfinite(value) for _, value in tail):
        first = bad.index(True)
        return Numbers(is_nan=True, from_the_start=first <= max(1, len(losses) // 20), line=losses[first][0])
    finite = [(line, value) for (line, value), is_bad in zip(losses, bad, strict=True) if not is_bad]
    if len(finite) < 10:
        return Numbers()
    values = [value for _, value in finite]
    base = statistics.median(values[: max(5, len(values) // 4)])
    end = statistics.median(values[-5:])
    highest = max(values)
    where = values.index(highest)
    spread = max(_spread(values[: max(5, len(values) // 4)]), abs(base) * 0.01)
    if base > 0 and end > 1.8 * base and end - base > 10 * spread:
        return Numbers(diverged=True, line=finite[where][0])
    if (
        base > 0
        and highest > 1.4 * base
        and highest - base > 10 * spread
        and 3 <= where < len(values) - 5
        and end < base + (highest - base) * 0.2
    ):
        return Numbers(spike_recovered=True, line=finite[where][0])
    return Numbers()


def _zeroed_from(marks: Sequence[Mark]) -> int | None:
    """The line from which on the gradient is not a number and the loss is printed as 0 (HF's nan filter), to the end; else None."""
    both = [(mark.line, mark.loss, mark.gradient) for mark in marks if mark.loss is not None and mark.gradient is not None]
    first: int | None = None
    count = 0
    for line, loss, gradient in reversed(both):
        if loss != 0 or not isnan(gradient):
            break
        first, count = line, count + 1
    return first if count >= _ZEROED_STEPS else None


def _spread(values: Sequence[float]) -> float:
    """Median absolute deviation: not moved by one slow step."""
    middle = statistics.median(values)
    return statistics.median([abs(value - middle) for value in values])
