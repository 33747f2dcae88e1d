"""What a job writes outside its log: looked for when the log is silent, before that silence is called a hang.

Names and times only; nothing is opened. Bounded, and only under the allowed roots. Called by `reading.py`, on its threads.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from activities.logs.paths import LogRoots, PathRefused, expand_output_pattern
from activities.records import Job, WrittenBeside

MOST_ENTRIES = 20_000
"""Of one tree: large jobs write two files a rank into a checkpoint. Beyond that nothing is found, and nothing is claimed."""

DEPTH_OF_CHECKPOINTS = 4
DEPTH_BESIDE_LOG = 2
"""`logs/rank_3.log` and `outputs/today/train.log` lie at most so deep below where a job writes its output."""


class LookBeside:
    """Knows where one job may write."""

    def __init__(self, log: Path | None, roots: LogRoots, *, checkpoints: Path | None, working_directory: Path | None) -> None:
        """`log` itself is not counted; `checkpoints` is the directory the job named."""
        self._log = log
        self._roots = roots
        self._checkpoints = checkpoints
        self._directories = tuple(dict.fromkeys(path for path in (log.parent if log else None, working_directory) if path is not None))

    def newest(self, now: datetime, *, others: Sequence[Job] = ()) -> WrittenBeside | None:
        """The file that was written last. None where there is none, or nothing may be looked at.

        Args:
            now: a time beyond it, of a file server whose clock is ahead, counts as this.
            others: other jobs, whose logs may lie in the same directory.
        """
        found: list[tuple[float, bool, str]] = []
        if self._checkpoints is not None:
            found += [(at, True, path) for at, path in self._newest_below(self._checkpoints, DEPTH_OF_CHECKPOINTS, None, ())]
        owner, but = self._owner(), _logs_of(others)
        for directory in self._directories if owner is not None else ():
            found += [(at, False, path) for at, path in self._newest_below(directory, DEPTH_BESIDE_LOG, owner, but)]
        if not found:
            return None
        written, is_checkpoint, path = max(found)
        return WrittenBeside(at=min(datetime.fromtimestamp(written, UTC), now), path=path, is_checkpoint=is_checkpoint)

    def _owner(self) -> int | None:
        """Whose files count beside the log: directories are shared."""
        with suppress(OSError):
            return os.stat(self._log or "").st_uid
        return None

    def _newest_below(self, directory: Path, depth: int, owner: int | None, but: Collection[str]) -> list[tuple[float, str]]:
        """At most one file with the time of its last change."""
        try:
            real = self._roots.check(directory)
        except (OSError, PathRefused):
            return []
        own = (str(self._log), os.path.realpath(self._log)) if self._log is not None else ()
        files = list(islice(_files_below(str(real), depth), MOST_ENTRIES + 1))
        if len(files) > MOST_ENTRIES:
            return []
        told = [(file.st_mtime, path) for path, file in files if owner is None or file.st_uid == owner]
        return [max(left)] if (left := [each for each in told if each[1] not in own and each[1] not in but]) else []


def _files_below(directory: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    pending = [(directory, depth)]
    while pending:
        here, left = pending.pop()
        with suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                with suppress(OSError):  # deleted since
                    if entry.is_dir(follow_symlinks=False):
                        pending += [(entry.path, left - 1)] if left > 1 else []
                    elif entry.is_file(follow_symlinks=False):
                        yield entry.path, entry.stat(follow_symlinks=False)


def _logs_of(jobs: Sequence[Job]) -> frozenset[str]:
    told = (expand_output_pattern(path or "", job) for job in jobs for path in {job.stdout_path, job.stderr_path or job.stdout_path})
    return frozenset(path for path in told if path is not None)
