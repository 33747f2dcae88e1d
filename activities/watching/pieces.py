"""What one stretch of a live log says: steps, the first fatal line that steps do not refute, and that Slurm ends the job.

Bytes in, a frozen `Piece` out; opens nothing and judges nothing. Called by `reading.py`, on its threads.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from activities.diagnosis import signals
from activities.diagnosis.causes import cause_of
from activities.logs.progress import MarkKind, ProgressMark, ProgressReader
from activities.records import Domain, FatalLine, SymptomKind
from activities.redaction import redact

ENDED_FROM_OUTSIDE = frozenset({"requeued_by_slurm", "preempted", "time_limit", "pod_deleted"})
"""Signatures (diagnosis/signatures.yaml) of an end that somebody asked for; what dies after it is no cause."""

BUFFER_BYTES = 8192
"""What Python and the C library keep back at most of an output that is no terminal: 8,188 bytes of whole lines at once, measured."""

_ENDING_SYMPTOMS = (SymptomKind.CRASH, SymptomKind.HANG, SymptomKind.NODE_FAULT)
# slurmstepd's word (slurmstepd/req.c) for the whole job; `*** STEP` is also said when srun ends the other tasks of a failed one.
_JOB_CANCELLED = re.compile(rb"[*]{3} JOB \S+ ON \S+ CANCELLED AT [^\r\n]*")


class FatalLines(Protocol):
    """The part of the diagnosis engine that a live log is followed with."""

    def fatal_lines(self, data: bytes) -> Sequence[signals.FatalLine]:
        """The fatal lines of `data`, in order."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one stretch of log said. `fatal` is its first fatal line behind which the iterations did not go on twice; `told_to_end`: Slurm,
    or who speaks for it, said in the log that it ends the job. `is_live`: read as it was written; what was found after an
    absence of ours tells nothing of the time between its lines. `may_be_older`: of an earlier attempt. `steps_a_buffer`: how far
    the iterations of its last buffer's worth of bytes are apart."""

    output_at: datetime
    marks: tuple[ProgressMark, ...] = ()
    fatal: FatalLine | None = None
    told_to_end: bool = False
    is_live: bool = True
    may_be_older: bool = False
    steps_a_buffer: int = 0


class PieceReader:
    """Reads one log's stretches in their order."""

    def __init__(self, progress: Callable[[], ProgressReader], engine: FatalLines | None, *, highest: int | None = None) -> None:
        """`progress` makes readers with the job's pattern; without an engine no line is fatal. `highest`: iteration that an earlier
        reader of the same attempt had seen."""
        self._progress = progress()
        self._progress_again = progress()  # reads stretches a second time; the first one's memory is of the log in order
        self._engine = engine
        self._highest = highest  # iteration seen so far, since the job last began anew

    @property
    def set_aside(self) -> str | None:
        """Why the job's own progress pattern is no longer used."""
        return self._progress.set_aside or self._progress_again.set_aside

    def read(self, data: bytes, output_at: datetime, now: datetime, *, with_fatal: bool, is_live: bool) -> Piece:
        """
        Args:
            data: lines; only a job that has ended may leave the last one without its end.
            output_at: when they were written, as well as can be told.
            now: when they were read.
            with_fatal: False where they may be an older attempt's.
            is_live: see `Piece`.
        """
        marks = self._progress.read(data)
        found = self._engine.fatal_lines(data) if with_fatal and self._engine is not None else ()
        told_to_end = any(line.signature in ENDED_FROM_OUTSIDE for line in found) or bool(_says_cancelled(data))
        ending = [line for line in found if _ends_a_job(line)]
        fatal = self._first_fatal(data, ending, marks, output_at, now) if ending else None
        _, self._highest = _goings_on(marks, self._highest)
        return Piece(output_at, marks, fatal, told_to_end, is_live, not with_fatal, 0 if is_live else self._steps_a_buffer(data, marks))

    def _steps_a_buffer(self, data: bytes, marks: Sequence[ProgressMark]) -> int:
        if len(data) > BUFFER_BYTES:
            marks = self._progress_again.read(data[_line_start(data, len(data) - BUFFER_BYTES) :])
        steps = [mark.iteration for mark in marks if _is_step(mark) and mark.iteration is not None]
        return max(0, steps[-1] - steps[0]) if steps else 0

    def _first_fatal(
        self, data: bytes, found: Sequence[signals.FatalLine], marks: Sequence[ProgressMark], output_at: datetime, now: datetime
    ) -> FatalLine | None:
        """`found`: the lines of `data` that end a job."""
        after, highest = 0, self._highest
        if any(_is_step(mark) or mark.kind is MarkKind.RESUMED for mark in marks):
            # One iteration may still come from ranks that had finished the step; two that go on say that training does.
            told = self._progress_again.read(data)
            going_on, highest = _goings_on(told, highest)
            last_but_one, last = [None, None, *(len(told) - at for at in going_on)][-2:]
            data = data[self._line_with_marks(data, last_but_one) :]
            found = self._ending_lines(data)
            rest = data[self._line_with_marks(data, last) :]
            after = 1 if rest != data and not self._ending_lines(rest) else 0
        if not found:
            return None
        first = next((line for line in found if _is_certain(line)), found[0])
        # Not the line's own time: one printed without a zone may be hours off (activities/logs/prefixes.py).
        return FatalLine(
            at=output_at,
            read_at=now,
            text=redact(first.text)[:400],  # it stands in heartbeats and in the history
            rank=first.rank,
            node=first.node,
            iterations_after=after,
            beyond=highest,
            is_certain=_is_certain(first),
        )

    def _line_with_marks(self, data: bytes, count: int | None) -> int:
        """Offset of the last line from which so many marks follow; 0 for None."""
        return 0 if count is None else last_line_from_which(data, lambda rest: len(self._progress_again.read(rest)) >= count)

    def _ending_lines(self, data: bytes) -> list[signals.FatalLine]:
        return [line for line in self._engine.fatal_lines(data) if _ends_a_job(line)] if self._engine is not None else []


def _ends_a_job(line: signals.FatalLine) -> bool:
    """False for lines of causes that slow a job down or spoil its numbers, and of ends that Slurm was asked for."""
    cause = cause_of(line.cause)
    return line.signature not in ENDED_FROM_OUTSIDE and (cause is None or cause.symptom in _ENDING_SYMPTOMS)


def _is_certain(line: signals.FatalLine) -> bool:
    """Exceptions are caught, connections retried; what the hardware reports as lost stays lost."""
    cause = cause_of(line.cause)
    return line.is_primary and cause is not None and cause.domain is Domain.HARDWARE


def _says_cancelled(data: bytes) -> bool:
    return b" CANCELLED AT " in data and any(b"DUE TO NODE FAILURE" not in line for line in _JOB_CANCELLED.findall(data))


def last_line_from_which(data: bytes, enough: Callable[[bytes], bool]) -> int:
    """Offset of the last line of `data` from which the rest is still `enough`; 0 when not even the whole is.

    `enough` must be monotone: what holds for a rest holds for a longer one. Costs about two passes over that rest.
    """
    size = 4096
    while size < len(data) and not enough(data[_line_start(data, len(data) - size) :]):
        size *= 4
    low, high = _line_start(data, max(0, len(data) - size)), len(data)
    if not enough(data[low:]):
        return 0
    while True:
        middle = _line_start(data, (low + high) // 2)
        if middle <= low:
            # The middle lies in the first line of the range: step over that line.
            following = _next_line(data, low)
            if following is None or following >= high or not enough(data[following:]):
                return low
            low = following
        elif enough(data[middle:]):
            low = middle
        else:
            high = middle


def _line_start(data: bytes, position: int) -> int:
    return max(data.rfind(b"\n", 0, position), data.rfind(b"\r", 0, position)) + 1


def _next_line(data: bytes, start: int) -> int | None:
    ends = [end for end in (data.find(b"\n", start), data.find(b"\r", start)) if end >= 0]
    return min(ends) + 1 if ends else None


def _is_step(mark: ProgressMark) -> bool:
    return mark.kind is MarkKind.ITERATION


def _goings_on(marks: Sequence[ProgressMark], highest: int | None) -> tuple[list[int], int | None]:
    """Which marks show that training goes on, and the highest iteration then: one beyond all before it, and, twice, a resume after a
    restart inside the job. What other ranks had held back, or print once more, is behind it."""
    found: list[int] = []
    for at, mark in enumerate(marks):
        if mark.kind is MarkKind.RESUMED:
            found += [at, at]
            highest = None
        elif _is_step(mark) and mark.iteration is not None and (highest is None or mark.iteration > highest):
            found.append(at)
            highest = mark.iteration
    return found, highest
