"""Whether a directory's file system takes what we write: its free space, and a real write. A full disk is named by its path.

Asked by `doctor`, and by the embedded server before it starts: a server on a full disk dies or stands still without a word of it.
"""

import errno
import os
import tempfile
from pathlib import Path

TRIED_BYTES = 4 * 1024 * 1024
"""Written, synced and removed again: what a new database of the embedded server takes at once (measured: 3.9 MB)."""

_IS_FULL = {
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is full for this user (quota)",
    errno.EFBIG: "takes no more from this process (ulimit -f)",
}


def free_bytes(directory: Path) -> int | None:
    """What a user may still write there, in bytes; None where it cannot be told."""
    try:
        told = os.statvfs(directory)
    except OSError:
        return None
    return told.f_bavail * told.f_frsize


def try_to_write(directory: Path, size_bytes: int = TRIED_BYTES) -> None:
    """Writes that much into a file of its own that is gone at once. Raises `OSError`: a file system may be full, read-only or broken."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as probe:
        piece = b"\0" * 65536
        for _ in range(max(1, size_bytes // len(piece))):
            probe.write(piece)
        os.fsync(probe.fileno())


def why_not_writable(directory: Path, error: OSError) -> str:
    """What the error means for this directory, with the free space: `the disk of /x is full (12 KiB free)`."""
    meaning = _IS_FULL.get(error.errno or 0)
    if meaning is None:
        return f"{directory} cannot be written: {error.strerror}"
    free = free_bytes(directory)
    return f"the disk of {directory} {meaning}" + (f" ({in_units(free)} free)" if free is not None else "")


def in_units(size_bytes: int) -> str:
    """`12 KiB`, `3.4 GiB`."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit in ("bytes", "KiB") or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
