"""The repeated look at a job's checkpoint directory: cheap while nothing changes there, and honest where it cannot be read.

Called by `reading.py`, on its threads. What a complete checkpoint is, `activities/checkpoints.py` knows.
"""

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from activities.checkpoints import CheckpointMark, CheckpointsUnreadable, newest_checkpoint
from activities.logs.paths import LogRoots, PathRefused

CHECKPOINT_SCAN = timedelta(seconds=15)  # trackers are rewritten in place and shards appear below: not every change moves the mtime
_TRACKERS = ("latest_checkpointed_iteration.txt", "latest")


class CheckpointLook:
    """Remembers the newest checkpoint it has told of."""

    def __init__(self, directory: Path | None, roots: LogRoots, *, every: timedelta) -> None:
        """`directory` is None where the job named none: then nothing is ever seen. `every`: how often at most it is looked at."""
        self._directory = directory
        self._roots = roots
        self._every = every
        # Text, because these are looked at a million times a day: making paths of them took longer than looking.
        self._clues = () if directory is None else tuple(map(str, _clues_of(directory)))
        self._newest: CheckpointMark | None = None
        self._signature: tuple[int, ...] = ()
        self._looked_at: datetime | None = None
        self._scanned_at: datetime | None = None
        self.blind: str | None = None
        """Why the directory cannot be read, with the mend; None when it can."""

    def newer(self, now: datetime) -> CheckpointMark | None:
        """The newest complete checkpoint, where it was not told before."""
        if self._directory is None or (self._looked_at is not None and now - self._looked_at < self._every):
            return None
        self._looked_at = now
        signature = _mtimes(self._clues)
        if signature == self._signature and self._scanned_at is not None and now - self._scanned_at < CHECKPOINT_SCAN:
            return None
        self._signature, self._scanned_at = signature, now
        try:
            newest = newest_checkpoint(self._directory, self._roots, known=self._newest)
        except (CheckpointsUnreadable, PathRefused) as refused:
            self.blind = str(refused)
            return None
        self.blind = None
        if newest is None or newest == self._newest:
            return None
        self._newest = newest
        return newest


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
