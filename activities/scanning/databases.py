"""Compiled matchers kept between runs of the program, in the user's cache directory: compiling the signature table costs a second
or more of processor, reading it back some milliseconds. scan.py calls it.

Nothing depends on a kept file: one that is missing, damaged, of another version or not the user's own is compiled anew.
"""

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import hyperscan

DIRECTORY = "backstay/matchers"
WORTH_KEEPING_SECONDS = 0.03  # what compiles faster is not worth a file: single rows, a user's own expression
LARGEST_BYTES = 64 << 20
FILES_KEPT = 16  # one for each table and version of it; of the rest the ones least lately written go


def directory() -> Path | None:
    """Where the user's caches live (XDG base directory specification); None without a home."""
    told = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(told):
        return Path(told) / DIRECTORY
    home = os.environ.get("HOME", "")
    return Path(home) / ".cache" / DIRECTORY if os.path.isabs(home) else None


def kept_or_compiled(
    expressions: Sequence[bytes], flags: int, compiled: Callable[[], hyperscan.Database], *, worth_seconds: float = WORTH_KEEPING_SECONDS
) -> hyperscan.Database:
    """The database of `expressions`: read back where an earlier run kept it, else compiled and, if that was slow, kept.

    Args:
        expressions: in the order of their ids.
        flags: hyperscan's, the same for all.
        compiled: compiles them; what it raises goes through.
        worth_seconds: processor seconds of compiling from which a file is worth writing.
    """
    place = directory()
    path = place / f"{_key(expressions, flags)}.hs" if place else None
    if path is not None and (kept := _read(path)) is not None:
        return kept
    started = time.thread_time()
    database = compiled()
    if path is not None and time.thread_time() - started >= worth_seconds:
        with suppress(OSError):  # a full or read-only disk costs the next start its second, and nothing now
            _write(path, hyperscan.dumpb(database))
    return database


@cache
def _version() -> bytes:
    """Hyperscan's version and the processor features it compiles for: a home may be shared by machines of several kinds."""
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=[b"a"], ids=[0], elements=1, flags=0)
    return f"{version('hyperscan')} {database.info()!r}".encode()


def _key(expressions: Sequence[bytes], flags: int) -> str:
    digest = hashlib.sha256(_version())
    for part in (str(flags).encode(), *expressions):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:40]


def _read(path: Path) -> hyperscan.Database | None:
    """Hyperscan checks a database's sum, not its intent: only a file, in a directory, that nobody else can write is trusted."""
    try:
        if not _is_ours(os.lstat(path.parent), stat.S_IFDIR):
            return None
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not _is_ours(found, stat.S_IFREG) or found.st_size > LARGEST_BYTES:
                return None
            return hyperscan.loadb(file.read(), hyperscan.HS_MODE_BLOCK)
    except (OSError, hyperscan.error):
        return None


def _is_ours(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _write(path: Path, data: bytes) -> None:
    """All or nothing, for several processes start at once; 0600 by `mkstemp`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(os.lstat(path.parent), stat.S_IFDIR):
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        with suppress(OSError):
            os.unlink(name)
        raise
    _tidy(path.parent)


def _tidy(place: Path) -> None:
    by_age = sorted(place.glob("*.hs"), key=lambda path: path.lstat().st_mtime, reverse=True)
    for path in by_age[FILES_KEPT:]:
        path.unlink(missing_ok=True)
