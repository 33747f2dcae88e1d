"""How long evidence is kept: what leaves the evidence directory, by age and by the size of all of it.

Called by `capture.py` after each capture. Only what a capture wrote is deleted: the files its manifest names, in a folder that
has one. Another's file stays, and its folder with it.
"""

import os
import re
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import structlog
from pydantic import ValidationError

from activities.evidence.files import MANIFEST
from activities.records import Evidence, utc

log = structlog.get_logger()

_WITHOUT_EXCERPT = re.compile(r"log-\d+\.txt")
"""What a capture stores and its manifest may not name: an empty log gives no excerpt."""


class _Kept(NamedTuple):
    folder: Path
    captured_at: datetime
    size_bytes: int


class Keeping:
    """The bounds of one evidence directory. Safe to share between threads: while one of them looks, the others have nothing to do."""

    def __init__(self, directory: Path, *, keep_for: timedelta, keep_bytes: int) -> None:
        self._directory = directory
        self._keep_for = keep_for
        self._keep_bytes = keep_bytes
        self._looking = Lock()

    def expire(self, now: datetime, *, sparing: Path) -> None:
        """Deletes what is too old, then the oldest until the rest fits; each deletion is logged. What cannot be deleted is logged too,
        never raised: a full directory must cost no recovery.

        Args:
            now: the time, UTC; a capture is as old as its manifest's modification time.
            sparing: the folder captured last, which stays whatever its size.
        """
        if not self._looking.acquire(blocking=False):
            return
        try:
            kept = sorted(self._captures(), key=lambda capture: capture.captured_at)
            total = sum(capture.size_bytes for capture in kept)
            for capture in kept:
                too_old = capture.captured_at + self._keep_for <= now
                if capture.folder == sparing or not (too_old or total > self._keep_bytes):
                    continue
                if _deleted(capture, bound="evidence.keep_for" if too_old else "evidence.keep_bytes"):
                    total -= capture.size_bytes
        except OSError as error:
            log.warning("evidence_directory_not_read", directory=str(self._directory), reason=error.strerror)
        finally:
            self._looking.release()

    def _captures(self) -> Iterator[_Kept]:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                try:
                    if (capture := _capture_in(entry)) is not None:
                        yield capture
                except FileNotFoundError:
                    continue  # another worker with the same directory was faster
                except OSError as error:
                    log.warning("evidence_folder_not_read", folder=entry.path, reason=error.strerror)


def _capture_in(entry: os.DirEntry[str]) -> _Kept | None:
    """None for what is no folder of ours with a manifest: one without is being written, or is not Backstay's."""
    if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
        return None
    with os.scandir(entry) as files:
        found = {file.name: file.stat(follow_symlinks=False) for file in files}
    manifest = found.get(MANIFEST)
    if manifest is None or not stat.S_ISREG(manifest.st_mode):
        return None
    total = sum(file.st_size for file in found.values() if stat.S_ISREG(file.st_mode))
    return _Kept(Path(entry.path), utc(manifest.st_mtime), total)


def _deleted(capture: _Kept, *, bound: str) -> bool:
    folder = capture.folder
    try:
        manifest = Evidence.model_validate_json((folder / MANIFEST).read_bytes())
        named = {Path(excerpt.stored_at).name for excerpt in manifest.excerpts if excerpt.stored_at}
        ours = [name for name in os.listdir(folder) if name in named or _WITHOUT_EXCERPT.fullmatch(name)]
        for name in (*ours, MANIFEST):  # the manifest last: cut short, this is begun again
            (folder / name).unlink(missing_ok=True)
        left = sorted(os.listdir(folder))
        if not left:
            folder.rmdir()
    except (OSError, ValidationError) as error:
        log.warning("evidence_not_deleted", folder=str(folder), bound=bound, reason=str(error))
        return False
    log.info(
        "evidence_deleted",
        folder=str(folder),
        bound=bound,
        captured_at=capture.captured_at.isoformat(),
        size_bytes=capture.size_bytes,
        left_as_not_ours=left,
    )
    return True
