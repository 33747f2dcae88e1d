"""The evidence directory: one folder an incident, readable by its owner only, written once. Called by `capture.py`.

What is written is complete or absent (write beside, sync, rename), and what is there is never overwritten: a second capture may
come after a requeue has truncated the log, so the first one counts.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MANIFEST = "evidence.json"
"""What a capture writes last: a folder that has it is complete."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


class Stored(NamedTuple):
    """One file: where, what it hashes to, how large it is."""

    path: Path
    sha256: str
    size_bytes: int


def folder_name(incident_id: str) -> str:
    """A file name for an incident, whatever its ID holds: IDs that are no plain name are hashed, so that none leads elsewhere."""
    if _PLAIN.fullmatch(incident_id):
        return incident_id
    plain = re.sub(r"[^A-Za-z0-9]+", "-", incident_id).strip("-")[:60]
    return f"{plain}-{hashlib.sha256(incident_id.encode()).hexdigest()[:12]}"


class IncidentFolder:
    """One incident's files, at most `most_bytes` in all. Methods raise `OSError` where the system does."""

    def __init__(self, directory: Path, incident_id: str, most_bytes: int) -> None:
        self.path = directory / folder_name(incident_id)
        self._left = most_bytes

    @property
    def bytes_left(self) -> int:
        """How much may still be stored for this incident."""
        return self._left

    def make(self) -> None:
        """Creates the folder; logs may hold what only their owner should read."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.mkdir(exist_ok=True, mode=0o700)
        self.path.chmod(0o700)

    def read(self, name: str) -> bytes | None:
        """What was stored under `name`; None when nothing was."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def store(self, name: str, pieces: Iterable[bytes]) -> Stored:
        """Stores `pieces` under `name`, unless something is stored there: then that is the answer. The caller keeps to `bytes_left`."""
        path = self.path / name
        if not path.exists():
            beside = self.path / f".{name}.{os.getpid()}"
            beside.unlink(missing_ok=True)
            # O_EXCL and O_NOFOLLOW: nobody's link is written through.
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    for piece in pieces:
                        stream.write(piece)
                    stream.flush()
                    os.fsync(stream.fileno())
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = path.stat().st_size
        self._left = max(0, self._left - size)
        return Stored(path, digest, size)
