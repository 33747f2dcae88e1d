"""What one watch reads from disk: its log from where it stopped, and its checkpoint directory. Runs on threads.

A `DiskReader` belongs to one watch and is read by one thread at a time; it returns what is new as frozen `Reading`s and
judges nothing. Called by `rounds.py`.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import structlog

from activities.checkpoints import CheckpointMark, CheckpointsUnreadable, newest_checkpoint
from activities.diagnosis.causes import cause_of
from activities.logs.follow import LogFollower
from activities.logs.paths import LogRoots, PathRefused
from activities.logs.progress import MarkKind, ProgressMark, ProgressReader
from activities.records import Domain, FatalLine, FileCursor, SymptomKind
from activities.redaction import redact

log = structlog.get_logger()

READ_BYTES = 1024 * 1024  # bounds how long the event loop folds one piece: about 0.1 s if every line is an iteration
LONGEST_PAUSE = timedelta(seconds=30)  # between two readings of a live log; a longer one was our absence, or a stuck file system's
MISSING_PATIENCE = timedelta(minutes=2)  # NFS caches the absence of a file for up to a minute (nfs(5), acdirmax)
CHECKPOINT_SCAN = timedelta(seconds=15)  # trackers are rewritten in place and shards appear below: not every change moves the mtime
BINARY_SHARE = 0.3
ENDED_FROM_OUTSIDE = frozenset({"requeued_by_slurm", "preempted", "time_limit", "pod_deleted"})
"""Signatures (diagnosis/signatures.yaml) of an end that somebody asked for; what dies after it is no cause."""

_ENDING_SYMPTOMS = (SymptomKind.CRASH, SymptomKind.HANG, SymptomKind.NODE_FAULT)
# slurmstepd's word (slurmstepd/req.c) for the whole job; `*** STEP` is also said when srun ends the other tasks of a failed one.
_JOB_CANCELLED = re.compile(rb"[*]{3} JOB \S+ ON \S+ CANCELLED AT [^\r\n]*")
_CONTROL = bytes(set(range(32)) - {9, 10, 11, 12, 13, 27})
_TRACKERS = ("latest_checkpointed_iteration.txt", "latest")


class FatalLineFound(Protocol):
    """What the engine tells of a fatal line (activities/diagnosis/signals.py)."""

    @property
    def signature(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def is_primary(self) -> bool: ...
    @property
    def text(self) -> str: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def node(self) -> str | None: ...


class FatalLines(Protocol):
    """The part of the diagnosis engine that a live log is followed with."""

    def fatal_lines(self, data: bytes) -> Sequence[FatalLineFound]:
        """The fatal lines of `data`, in order."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one stretch of log said. `fatal` is its first fatal line that two iterations did not follow; `told_to_end`: Slurm,
    or who speaks for it, said in the log that it ends the job. `is_live`: read as it was written; what was found after an
    absence of ours tells nothing of the time between its lines."""

    output_at: datetime
    marks: tuple[ProgressMark, ...] = ()
    fatal: FatalLine | None = None
    told_to_end: bool = False
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the disk. Only what is new is in it; `caught_up` is False while there is more to read at once."""

    at: datetime
    readable: bool
    caught_up: bool
    blind: str | None = None
    file: FileCursor | None = None
    piece: Piece | None = None
    checkpoint: CheckpointMark | None = None
    checkpoints_readable: bool = True

    @property
    def can_wait(self) -> bool:
        """True for what every healthy log says all day, steps and checkpoints: it is early enough at the next look at Slurm."""
        piece = self.piece
        says_little = piece is None or (piece.is_live and piece.fatal is None and not piece.told_to_end)
        return self.readable and self.caught_up and says_little


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """Where an attempt writes, and how its log's beginning is to be taken."""

    path: Path | None
    cursor: FileCursor | None = None
    checkpoints: Path | None = None
    attempt_started_at: datetime | None = None
    may_hold_older_attempts: bool = False  # a restarted job may append; what was there before is not this attempt's
    cursor_is_older_attempts: bool = False


class DiskReader:
    """Reads for one watch. `read` is called from one thread at a time; `looked_at` may be read from any."""

    def __init__(
        self,
        origin: LogOrigin,
        *,
        roots: LogRoots,
        progress: Callable[[], ProgressReader],
        engine: FatalLines | None,
        checkpoint_look: timedelta,
        clock: Callable[[], datetime],
        warning: str | None = None,
    ) -> None:
        """
        Args:
            progress: makes readers with the job's pattern.
            checkpoint_look: how often at most the checkpoint directory is looked at.
            warning: told with every `blind`.
        """
        self._warning = warning
        self._origin = origin
        self._roots = roots
        self._progress = progress()
        self._progress_again = progress()  # reads stretches a second time; the first one's memory is of the log in order
        self._engine = engine
        self._clock = clock
        self._follower = LogFollower(origin.path, roots, origin.cursor) if origin.path is not None else None
        self._first_round = True
        self._is_text: bool | None = None
        self._checkpoints = origin.checkpoints
        # Text, because these are looked at a million times a day: making paths of them took longer than looking.
        self._checkpoint_clues = () if origin.checkpoints is None else tuple(map(str, _clues_of(origin.checkpoints)))
        self._checkpoint_look = checkpoint_look
        self._checkpoint: CheckpointMark | None = None
        self._checkpoint_signature: tuple[int, ...] = ()
        self._checkpoint_looked_at: datetime | None = None
        self._checkpoint_scanned_at: datetime | None = None
        self._checkpoint_blind: str | None = None
        self._last: tuple[bool, bool, str | None] | None = None
        self._broken = False
        self.looked_at: datetime | None = None
        self.job_has_ended = False
        """Set by the watch: the last line is then taken without a line end ..."""
        self.has_read_the_end = False
        """... and this says that it was."""

    @property
    def path(self) -> Path | None:
        return self._origin.path

    def read(self) -> Reading | None:
        """What is new since the last call; None when nothing is."""
        now = self._clock()
        if self._broken:
            self.looked_at, self.has_read_the_end = now, self.job_has_ended
            return None
        try:
            return self._read(now)
        except Exception as error:
            # A fault of ours in one job's log must not end its watch: Slurm still tells how the job fares.
            self._broken = True
            log.exception("log_reading_failed", path=str(self.path))
            blind = f"{self.path}: reading it failed inside Backstay ({error!r}); please report this, Slurm is still watched"
            return Reading(now, readable=False, caught_up=True, blind=blind, file=self._origin.cursor)

    def _read(self, now: datetime) -> Reading | None:
        checkpoint = self._look_for_checkpoint(now)
        ended = self.job_has_ended
        piece, readable, caught_up, blind = self._read_log(now, ended)
        blind = " · ".join(text for text in (self._warning, blind, self._checkpoint_blind) if text) or None
        self.looked_at = now
        told_the_end, self.has_read_the_end = self.has_read_the_end, ended and caught_up
        state = (readable, caught_up, blind)
        if piece is None and checkpoint is None and state == self._last and told_the_end == self.has_read_the_end:
            return None
        self._last = state
        file = self._follower.cursor if self._follower is not None else self._origin.cursor
        return Reading(now, readable, caught_up, blind, file, piece, checkpoint, self._checkpoint_blind is None)

    # ------------------------------------------------------------------------------------------------------ the log

    def _read_log(self, now: datetime, ended: bool) -> tuple[Piece | None, bool, bool, str | None]:
        if self._follower is None:
            return None, False, True, "no log file is known for this job; name it in the job's comment: log=/path"
        output_at = self._age_of_first_lines(now) if self._first_round else now
        chunk = self._follower.read(READ_BYTES, unfinished=ended)
        if chunk.missing:
            return None, False, True, self._missing(now)
        if chunk.error is not None:
            return None, False, True, chunk.error
        if chunk.truncated or chunk.rotated:
            self._first_round, self._is_text = False, None
        if chunk.data and self._is_text is None:
            self._is_text = not _looks_binary(chunk.data)
        if self._is_text is False:
            return None, False, True, f"{self.path} does not look like a text log; name the log in the job's comment: log=/path"
        is_live = not self._first_round and self.looked_at is not None and now - self.looked_at < LONGEST_PAUSE
        older = self._first_round and self._origin.may_hold_older_attempts
        self._first_round = self._first_round and chunk.more
        piece = None
        if chunk.data and not (older and self._origin.cursor_is_older_attempts):
            piece = self._understand(chunk.data, output_at, now, with_fatal=not older, is_live=is_live)
        return piece, True, not chunk.more, None

    def _age_of_first_lines(self, now: datetime) -> datetime:
        """Lines found at the first look are as old as the file says, but not older than the attempt."""
        try:
            written_at = datetime.fromtimestamp(os.stat(self._origin.path or "").st_mtime, tz=UTC)
        except OSError:
            return now  # the read that follows says what is wrong
        floor = self._origin.attempt_started_at or written_at
        return min(now, max(written_at, floor))

    def _understand(self, data: bytes, output_at: datetime, now: datetime, *, with_fatal: bool, is_live: bool) -> Piece:
        marks = self._progress.read(data)
        found = self._engine.fatal_lines(data) if with_fatal and self._engine is not None else ()
        told_to_end = any(line.signature in ENDED_FROM_OUTSIDE for line in found) or bool(_says_cancelled(data))
        return Piece(output_at, marks, self._first_fatal(data, marks, output_at, now) if found else None, told_to_end, is_live)

    def _first_fatal(self, data: bytes, marks: Sequence[ProgressMark], output_at: datetime, now: datetime) -> FatalLine | None:
        found = self._fatal_lines(data)
        after = 0
        if found and any(_is_step(mark) for mark in marks):
            # One iteration may still come from ranks that had finished the step; two say that training goes on.
            data = data[last_line_from_which(data, lambda rest: _steps(self._progress_again.read(rest)) >= 2) :]
            found = self._fatal_lines(data)
            rest = data[last_line_from_which(data, lambda rest: _steps(self._progress_again.read(rest)) >= 1) :]
            after = 1 if rest != data and not self._fatal_lines(rest) else 0
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
            is_certain=_is_certain(first),
        )

    def _fatal_lines(self, data: bytes) -> list[FatalLineFound]:
        return [line for line in self._engine.fatal_lines(data) if _ends_a_job(line)] if self._engine is not None else []

    def _missing(self, now: datetime) -> str | None:
        started = self._origin.attempt_started_at
        if started is not None and now - started < MISSING_PATIENCE:
            return None
        return f"no log at {self.path}; mount its file system here, or name the log in the job's comment: log=/path"

    # ------------------------------------------------------------------------------------------------ checkpoints

    def _look_for_checkpoint(self, now: datetime) -> CheckpointMark | None:
        directory = self._checkpoints
        if directory is None or (self._checkpoint_looked_at is not None and now - self._checkpoint_looked_at < self._checkpoint_look):
            return None
        self._checkpoint_looked_at = now
        signature = _mtimes(self._checkpoint_clues)
        scanned_at = self._checkpoint_scanned_at
        if signature == self._checkpoint_signature and scanned_at is not None and now - scanned_at < CHECKPOINT_SCAN:
            return None
        self._checkpoint_signature, self._checkpoint_scanned_at = signature, now
        try:
            newest = newest_checkpoint(directory, self._roots, known=self._checkpoint)
        except (CheckpointsUnreadable, PathRefused) as refused:
            self._checkpoint_blind = str(refused)
            return None
        self._checkpoint_blind = None
        if newest is None or newest == self._checkpoint:
            return None
        self._checkpoint = newest
        return newest


def _ends_a_job(line: FatalLineFound) -> bool:
    """False for lines of causes that slow a job down or spoil its numbers, and of ends that Slurm was asked for."""
    cause = cause_of(line.cause)
    return line.signature not in ENDED_FROM_OUTSIDE and (cause is None or cause.symptom in _ENDING_SYMPTOMS)


def _is_certain(line: FatalLineFound) -> bool:
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


def _steps(marks: Sequence[ProgressMark]) -> int:
    # Ranks that print the same iteration are one step; a resume after a restart inside the job settles it alone.
    if any(mark.kind is MarkKind.RESUMED for mark in marks):
        return 2
    return len({mark.iteration for mark in marks if _is_step(mark)})


def _looks_binary(data: bytes) -> bool:
    # Leading NULs are a log that was truncated under a writer that does not append; they say nothing.
    sample = data.lstrip(b"\0")[:4096]
    return len(sample) - len(sample.translate(None, _CONTROL)) > BINARY_SHARE * max(len(sample), 1)


def _clues_of(checkpoints: Path) -> tuple[Path, ...]:
    return (checkpoints, *(checkpoints / tracker for tracker in _TRACKERS))


def _mtimes(paths: Sequence[str]) -> tuple[int, ...]:
    times = []
    for path in paths:
        try:
            times.append(os.stat(path).st_mtime_ns)
        except OSError:
            times.append(0)  # not there, or not for us: the scan itself says which
    return tuple(times)
