"""Whether a job went on after a line of its log, or only seems to: what ranks had printed before may arrive behind another's error. Pure.

Each rank writes through buffers of its own, so that steps of the others stand below a traceback, below even the launcher's word of the
process that ended. Case.py makes one `Steps` for a reading; causality.py and its kin ask it."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate, islice

from activities.diagnosis.pace import Mark
from activities.diagnosis.reading import Observation, Reading
from activities.diagnosis.signatures import Role, Turn
from activities.records import SignalSource

PROGRESS_AFTER = 3  # marks after a fault: other ranks may print one or two while they die
MOST_HELD_BACK = 256  # steps: Python holds back 8 KiB of a file's output (io.DEFAULT_BUFFER_SIZE), some hundred lines
_SAME_CLOCK = timedelta(minutes=30)  # stamps of one log further apart than that may be of two zones
_AT_ITS_END = 0.99  # of what a bar counts: the next one begins anew

FAILED_EXIT = re.compile(r"ChildFailedError|exitcode: -?[1-9]|[Ee]xited with exit code [1-9]|return code = -?[1-9]")
BAD_END = re.compile(rf"{FAILED_EXIT.pattern}|: tasks? [\d,-]+: (?:Killed|Aborted)|MPI_ABORT was invoked on rank")

_Number = tuple[float, int]  # epoch, where lines name one, and step
_NONE: _Number = (-1.0, -1)


def tells_of_a_bad_end(item: Observation) -> bool:
    """A launcher's word of a process that ended badly."""
    return item.role is Role.TEARDOWN and BAD_END.search(item.text) is not None


@dataclass(slots=True)
class _Log:
    """The steps of one log, in their order, and how far they had come: at each, and at most from each on."""

    marks: list[Mark] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    so_far: list[dict[bool, _Number]] = field(default_factory=list)  # by whether lines name an epoch; of the marks before each
    ends: list[int] = field(default_factory=list)  # where a launcher tells of a bad end


class Steps:
    """The steps of one reading."""

    def __init__(self, reading: Reading) -> None:
        self.marks: Sequence[Mark] = reading.marks
        self._resumes = [told.position for told in reading.phases if told.turn is Turn.TRAINING_BEGINS]
        self._logs: dict[str, _Log] = {}
        for mark in reading.marks:
            if mark.iteration is not None or mark.loss is not None:
                self._logs.setdefault(mark.log, _Log()).marks.append(mark)
        for log in self._logs.values():
            log.positions = [mark.position for mark in log.marks]
            log.so_far = list(accumulate(log.marks, _further, initial=_nothing_yet()))
        for item in reading.observations:
            if tells_of_a_bad_end(item) and item.log in self._logs:
                self._logs[item.log].ends.append(item.position)
        self._known: dict[tuple[str, int, int | None], bool] = {}

    def went_on_after(self, item: Observation) -> bool:
        """True when the job went on stepping after this line of its log: the same rank did, or the step number goes on beyond what was
        seen before the line, or stamps say so; in another log, whose lines no order joins to this one's, by the stamps alone."""
        if item.source is not SignalSource.LOG:
            return False
        key = (item.log, item.position, item.label)
        if key not in self._known:
            self._known[key] = self._in_its_log(item) or self._in_others(item)
        return self._known[key]

    def may_be_held_back(self, item: Observation) -> bool:
        """True where all that follows a line may have been printed before it: few steps, and nobody who began anew."""
        log = self._logs.get(item.log)
        if item.source is not SignalSource.LOG or log is None:
            return False
        after = log.marks[bisect_right(log.positions, item.position) :]
        distinct = {_number(mark) for mark in islice(after, 64 * MOST_HELD_BACK)}
        return len(distinct) <= MOST_HELD_BACK and not self._resumed(item.position, log)

    def _in_its_log(self, item: Observation) -> bool:
        log = self._logs.get(item.log)
        if log is None:
            return False
        first = bisect_right(log.positions, item.position)
        before = log.marks[first - 1] if first else None
        goes_on = _GoingOn(item, before, log.so_far[first])
        told_at = next((end for end in log.ends if end >= item.position), None)
        last = len(log.marks) if told_at is None else bisect_right(log.positions, told_at)
        if _is_progress(mark for mark in islice(log.marks, first, last) if goes_on.by(mark)):
            return True
        anew = self._resumed(item.position if told_at is None else told_at, log)
        if anew is not None and _is_progress(islice(log.marks, bisect_right(log.positions, anew), None)):
            return True
        if told_at is None:
            return False
        # A process had ended: what stands below was held back where it begins with what was seen, unless it is more than can be.
        later = [mark for mark in islice(log.marks, last, None) if goes_on.by(mark)]
        if last < len(log.marks) and goes_on.takes_up(log.marks[last]) and _is_progress(later):
            return True
        beyond = {_number(mark) for mark in later}
        return len(beyond) > MOST_HELD_BACK or _is_progress(mark for mark in later if goes_on.is_later(mark))

    def _in_others(self, item: Observation) -> bool:
        if item.at is None:
            return False
        others = (mark for name, log in self._logs.items() if name != item.log for mark in log.marks)
        return _is_progress(mark for mark in others if mark.at is not None and mark.at > item.at)

    def _resumed(self, after: int, log: _Log) -> int | None:
        """Where the job says that it begins anew, behind `after` and before this log's last step."""
        return next((at for at in self._resumes if after < at < log.positions[-1]), None)


class _GoingOn:
    """Which steps behind a line show that the job goes on."""

    def __init__(self, item: Observation, before: Mark | None, so_far: dict[bool, _Number]) -> None:
        self._item, self._so_far = item, so_far
        apart = item.at - before.at if item.at is not None and before is not None and before.at is not None else None
        self._stamps_agree = apart is not None and -timedelta(seconds=2) <= apart < _SAME_CLOCK
        self._begins_anew = before is not None and (before.share_done or 0.0) >= _AT_ITS_END

    def by(self, mark: Mark) -> bool:
        if mark.rank is not None and mark.rank == self._item.label:
            return True
        if self._stamps_agree and mark.at is not None:
            return self.is_later(mark)
        number = _number(mark)
        best = self._so_far.get(mark.epoch is not None)
        return number is None or best is None or number > best or (self._begins_anew and mark.epoch is None)

    def takes_up(self, mark: Mark) -> bool:
        """Behind the last step seen before, with none of those again."""
        number, best = _number(mark), self._so_far.get(mark.epoch is not None)
        return number is not None and best is not None and number > best

    def is_later(self, mark: Mark) -> bool:
        """By stamps of one clock."""
        return self._stamps_agree and mark.at is not None and self._item.at is not None and mark.at > self._item.at


def _is_progress(steps: Iterable[Mark]) -> bool:
    """Enough of them, and not one and the same that several ranks print."""
    seen: set[object] = set()
    for count, mark in enumerate(steps, start=1):
        seen.add((mark.epoch, mark.iteration) if mark.iteration is not None else (mark.loss, mark.at))
        if count >= PROGRESS_AFTER and len(seen) > 1:
            return True
    return False


def _number(mark: Mark) -> _Number | None:
    if mark.iteration is None and mark.epoch is None:
        return None
    return (mark.epoch if mark.epoch is not None else 0.0, mark.iteration if mark.iteration is not None else -1)


def _nothing_yet() -> dict[bool, _Number]:
    return {}


def _further(so_far: dict[bool, _Number], mark: Mark) -> dict[bool, _Number]:
    number, named = _number(mark), mark.epoch is not None
    return so_far if number is None or number <= so_far.get(named, _NONE) else {**so_far, named: number}
