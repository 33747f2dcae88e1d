"""What one watch reads from disk: its log from where it stopped, and its checkpoint directory. Runs on threads.

A `DiskReader` belongs to one watch and is read by one thread at a time; it returns what is new as frozen `Reading`s and
judges nothing. Called by `rounds.py`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from activities.checkpoints import CheckpointMark
from activities.logs.follow import LogFollower, was_last_written_before
from activities.logs.paths import LogRoots
from activities.logs.progress import ProgressReader
from activities.records import FileCursor, Job, WrittenBeside
from activities.watching.beside import LookBeside
from activities.watching.checkpoint_look import CheckpointLook
from activities.watching.pieces import FatalLines, Piece, PieceReader

log = structlog.get_logger()

READ_BYTES = 1024 * 1024  # bounds how long the event loop folds one piece: about 0.1 s if every line is an iteration
LONGEST_PAUSE = timedelta(seconds=30)  # between two readings of a live log; a longer one was our absence, or a stuck file system's
MISSING_PATIENCE = timedelta(minutes=2)  # NFS caches the absence of a file for up to a minute (nfs(5), acdirmax)
BINARY_SHARE = 0.3
LOOK_BESIDE_EVERY = timedelta(seconds=30)
_REPLACED = (
    "was replaced by another file, to which nothing has been written since: the job may still write to the one it had opened, so "
    "hangs and missing checkpoints are not seen; rotate logs with copytruncate, or name a log that is not rotated: log=/path"
)
_CONTROL = bytes(set(range(32)) - {9, 10, 11, 12, 13, 27})


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
    looked_beside: bool = False
    beside: WrittenBeside | None = None

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
    working_directory: Path | None = None
    attempt_started_at: datetime | None = None
    may_hold_older_attempts: bool = False  # a restarted job may append; what was there before is not this attempt's
    cursor_is_older_attempts: bool = False
    iteration: int | None = None  # that this attempt is known to have reached


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
        self._pieces = PieceReader(progress, engine, highest=origin.iteration)
        self._clock = clock
        self._follower = (
            LogFollower(origin.path, roots, origin.cursor, opened_anew=origin.cursor_is_older_attempts) if origin.path is not None else None
        )
        self._first_round = True
        self._was_missing = False
        self._was_readable = True
        self._is_anothers: bool | None = None
        self._is_text: bool | None = None
        self._checkpoint = CheckpointLook(origin.checkpoints, roots, every=checkpoint_look)
        self._beside = LookBeside(origin.path, roots, checkpoints=origin.checkpoints, working_directory=origin.working_directory)
        self._last: tuple[bool, bool, str | None] | None = None
        self._broken = False
        self.looked_at: datetime | None = None
        self.job_has_ended = False
        """Set by the watch: the last line is then taken without a line end ..."""
        self.has_read_the_end = False
        """... and this says that it was."""
        self.looks_beside = False
        """Set by the watch while the log's silence looks like a hang: what else the job writes is then looked at ..."""
        self.other_jobs: Sequence[Job] = ()
        """... but for the logs of these."""
        self._looked_beside_at: datetime | None = None

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
        checkpoint = self._checkpoint.newer(now)
        ended = self.job_has_ended
        piece, readable, caught_up, blind = self._read_log(now, ended)
        blind = " · ".join(text for text in (self._warning, self._pieces.set_aside, blind, self._checkpoint.blind) if text) or None
        looked_beside, beside = self._look_beside(now) if self.looks_beside and caught_up else (False, None)
        self.looked_at = now
        told_the_end, self.has_read_the_end = self.has_read_the_end, ended and caught_up
        state = (readable, caught_up, blind)
        if piece is None and checkpoint is None and not looked_beside and state == self._last and told_the_end == self.has_read_the_end:
            return None
        self._last = state
        file = self._follower.cursor if self._follower is not None else self._origin.cursor
        return Reading(now, readable, caught_up, blind, file, piece, checkpoint, self._checkpoint.blind is None, looked_beside, beside)

    def _look_beside(self, now: datetime) -> tuple[bool, WrittenBeside | None]:
        """Whether it was looked, which need not be done each second, and what the job wrote last outside its log."""
        if self._looked_beside_at is not None and now - self._looked_beside_at < LOOK_BESIDE_EVERY:
            return False, None
        self._looked_beside_at = now
        return True, self._beside.newest(now, others=self.other_jobs)

    def _read_log(self, now: datetime, ended: bool) -> tuple[Piece | None, bool, bool, str | None]:
        if self._follower is None:
            return None, False, True, "no log file is known for this job; name it in the job's comment: log=/path"
        status = self._status() if self._first_round else None
        output_at = self._age_of_first_lines(status, now) if self._first_round else now
        if self._is_anothers is None:
            self._is_anothers = self._is_an_earlier_jobs(status)
        chunk = self._follower.read(READ_BYTES, unfinished=ended)
        if chunk.missing:
            self._was_missing, self._was_readable = self._first_round, False
            return None, False, True, self._missing(now)
        if chunk.error is not None:
            self._was_readable = False
            return None, False, True, chunk.error
        if chunk.truncated or chunk.rotated:
            self._first_round, self._is_text = False, None
        if chunk.data and self._is_text is None:
            self._is_text = not _looks_binary(chunk.data)
        if self._is_text is False:
            return None, False, True, f"{self.path} does not look like a text log; name the log in the job's comment: log=/path"
        # What was not there a moment ago was written since; what was not seen a moment ago, nobody knows when.
        appeared, self._was_missing = self._was_missing, False
        saw, self._was_readable = self._was_readable and not self._first_round, not self._follower.is_blind
        is_live = (appeared or saw) and self.looked_at is not None and now - self.looked_at < LONGEST_PAUSE
        older = self._first_round and self._origin.may_hold_older_attempts
        passes_over = self._first_round and (self._is_anothers or (older and self._origin.cursor_is_older_attempts))
        self._first_round = self._first_round and chunk.more
        piece = None
        if chunk.data and not passes_over:
            piece = self._pieces.read(chunk.data, output_at, now, with_fatal=not older, is_live=is_live)
        if self._follower.is_blind:
            return piece, False, not chunk.more, f"{self.path} {_REPLACED}"
        return piece, True, not chunk.more, None

    def _status(self) -> os.stat_result | None:
        """What the file system tells of the log; None where it tells nothing: the read that follows says what is wrong."""
        try:
            return os.stat(self._origin.path or "")
        except OSError:
            return None

    def _is_an_earlier_jobs(self, status: os.stat_result | None) -> bool:
        """True for the log that an earlier job left under this one's name, and that this one has not begun to write yet. Its fatal line
        would end a healthy job, and its iterations would count as this one's."""
        if self._origin.cursor is not None or status is None:
            return False
        return was_last_written_before(status, self._origin.attempt_started_at)  # Slurm tells starts in whole seconds, rounded down

    def _age_of_first_lines(self, status: os.stat_result | None, now: datetime) -> datetime:
        """Lines found at the first look are as old as the file says, but not older than the attempt."""
        if status is None:
            return now
        written_at = datetime.fromtimestamp(status.st_mtime, tz=UTC)
        floor = self._origin.attempt_started_at or written_at
        return min(now, max(written_at, floor))

    def _missing(self, now: datetime) -> str | None:
        started = self._origin.attempt_started_at
        if started is not None and now - started < MISSING_PATIENCE:
            return None
        return f"no log at {self.path}; mount its file system here, or name the log in the job's comment: log=/path"


def _looks_binary(data: bytes) -> bool:
    # Leading NULs are a log that was truncated under a writer that does not append; they say nothing.
    sample = data.lstrip(b"\0")[:4096]
    return len(sample) - len(sample.translate(None, _CONTROL)) > BINARY_SHARE * max(len(sample), 1)
