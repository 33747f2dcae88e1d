"""Following one growing log: complete lines, each exactly once, through rotation, truncation and whatever jobs write.

No file stays open between reads: opening again is what makes NFS tell the truth about a file's size, and thousands of
watches share one worker's file descriptors. Called by the watch; ordinary trouble is a text, never raised.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from activities.logs.carriers import plain_bytes
from activities.logs.paths import LogRoots, PathRefused
from activities.records import FileCursor

READ_BYTES = 8 * 1024 * 1024
LINE_BYTES = 64 * 1024  # a longer line is cut here and its rest skipped, so that memory stays bounded
FIRST_SIGHT_BYTES = 64 * 1024 * 1024  # of a log already larger than this when first seen, only this much of its end is read
_FINGERPRINT_BYTES = 1024
_SIBLINGS = 10_000  # directory entries looked at for the file a rotation renamed
_IDLE_STATS = 8  # reads answered by an unchanged stat before the file is opened again (NFS caches what stat tells)

_NULS = re.compile(rb"\0+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one read brought. `data` ends with a line end; NUL bytes have become line ends, ANSI sequences are gone."""

    data: bytes = b""
    rotated: bool = False
    truncated: bool = False
    missing: bool = False
    cut_lines: int = 0
    skipped_bytes: int = 0
    more: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Lines:
    """Complete lines found in a block, and how many of the block's bytes they used up."""

    data: bytes
    consumed: int
    in_long_line: bool
    cut: int
    skipped: int


class LogFollower:
    """Reads one log from where a cursor says. Not for use by two tasks at once.

    Args:
        path: absolute path of the log; it need not exist yet.
        roots: the directories in which it may lie.
        cursor: where an earlier follower stopped, perhaps on another machine. Without one, reading starts at the
            beginning, or 64 MiB before the end of a larger file (`Chunk.skipped_bytes` says how much was left out).
    """

    def __init__(self, path: Path, roots: LogRoots, cursor: FileCursor | None = None) -> None:
        self._path = path
        self._path_text = str(path)  # asked for once a second
        self._roots = roots
        self._cursor = cursor if cursor is not None and cursor.path == str(path) else FileCursor(path=str(path))
        self._seen: tuple[int, int, int, int] | None = None
        self._idle_stats = 0

    @property
    def cursor(self) -> FileCursor:
        """Where the next read begins; give it to another follower to go on without a gap or a repeat."""
        return self._cursor

    def read(self, limit_bytes: int = READ_BYTES, *, unfinished: bool = False) -> Chunk:
        """The next complete lines, at most about `limit_bytes` of them (never less than one line).

        Args:
            limit_bytes: how much to read; `Chunk.more` tells that there is more already.
            unfinished: also hand out a last line without a line end, as of a job that has ended.
        """
        try:
            if self._is_unchanged() and not unfinished:
                return Chunk()
            return self._read(max(limit_bytes, LINE_BYTES + 1), unfinished)
        except FileNotFoundError:
            return Chunk(missing=True, error=f"{self._path}: no such file (yet)")
        except PathRefused as refused:
            return Chunk(error=str(refused))
        except OSError as trouble:
            return Chunk(error=f"{self._path}: {trouble.strerror or trouble}; make it readable for the user Backstay runs as")

    def _is_unchanged(self) -> bool:
        """Cheap answer for a quiet log; true at most a few times in a row."""
        status = os.stat(self._path_text)
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if seen != self._seen or self._idle_stats >= _IDLE_STATS:
            self._seen, self._idle_stats = None, 0
            return False
        self._idle_stats += 1
        return True

    def _read(self, limit: int, unfinished: bool) -> Chunk:
        with self._roots.open(self._path) as file:
            status = os.fstat(file.fileno())
            if not self._cursor.inode:
                skipped = self._begin(file, status)
                chunk = self._lines_from(file, limit, unfinished)
                return _with(chunk, skipped=skipped)
            # The device number is not compared: for NFS each machine makes up its own.
            if status.st_ino != self._cursor.inode:
                rest = self._rest_of_rotated(limit)
                if rest is not None:
                    return rest
                self._restart(status)
                return _with(self._lines_from(file, limit, unfinished), rotated=True)
            if not goes_on_from(file, self._cursor):
                self._restart(status)
                return _with(self._lines_from(file, limit, unfinished), truncated=True)
            return self._lines_from(file, limit, unfinished)

    def _begin(self, file: BinaryIO, status: os.stat_result) -> int:
        """First sight. Of a huge file only the end is read, from a line's start on; returns the bytes left out."""
        self._restart(status)
        start = status.st_size - FIRST_SIGHT_BYTES
        if start <= 0:
            return 0
        # Begin one byte early and skip to the next line end: the first line handed out is a whole one.
        self._move(file, start - 1, in_long_line=True)
        return start

    def _restart(self, status: os.stat_result) -> None:
        self._cursor = FileCursor(path=str(self._path), device=status.st_dev, inode=status.st_ino)

    def _rest_of_rotated(self, limit: int) -> Chunk | None:
        """Lines left in the file that a rotation renamed, if it is still at hand; its last line needs no line end."""
        cursor = self._cursor
        for path in _siblings_with_inode(self._path, cursor.inode):
            try:
                with self._roots.open(path) as file:
                    if os.fstat(file.fileno()).st_ino != cursor.inode or not _is_same_content(file, cursor):
                        continue
                    chunk = self._lines_from(file, limit, unfinished=True)
            except (OSError, PathRefused):
                continue  # the new file is what matters; the old one is finished where that is possible
            if chunk.data or chunk.more:
                return _with(chunk, more=True)
        return None

    def _lines_from(self, file: BinaryIO, limit: int, unfinished: bool) -> Chunk:
        descriptor = file.fileno()
        before = os.fstat(descriptor)
        offset = self._cursor.offset_bytes
        block = _pread(descriptor, offset, limit)
        lines = _complete_lines(block, self._cursor.in_long_line)
        at_end = offset + len(block) >= before.st_size and len(block) < limit
        data, consumed, in_long_line = lines.data, lines.consumed, lines.in_long_line
        if unfinished and at_end and consumed < len(block):
            data += block[consumed:] + b"\n"
            consumed = len(block)
        if consumed:
            self._move(file, offset + consumed, in_long_line)
        # Only a file read to its end may be called unchanged by its size and time next.
        self._seen = (before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns) if at_end else None
        if b"\0" in data:
            data = _NULS.sub(b"\n", data)
        return Chunk(data=plain_bytes(data), cut_lines=lines.cut, skipped_bytes=lines.skipped, more=not at_end)

    def _move(self, file: BinaryIO, offset: int, in_long_line: bool) -> None:
        self._cursor = moved_to(self._cursor, file, offset).model_copy(update={"in_long_line": in_long_line})


def cursor_at(path: Path, file: BinaryIO, offset: int) -> FileCursor:
    """What `goes_on_from` needs to find this offset of this file again."""
    status = os.fstat(file.fileno())
    return moved_to(FileCursor(path=str(path), device=status.st_dev, inode=status.st_ino), file, offset)


def moved_to(cursor: FileCursor, file: BinaryIO, offset: int) -> FileCursor:
    """The cursor at another offset of its file."""
    head = min(offset, _FINGERPRINT_BYTES)
    descriptor = file.fileno()
    return cursor.model_copy(
        update={
            "offset_bytes": offset,
            "head_bytes": head,
            "head_sha256": _fingerprint(descriptor, 0, head) if head else "",
            "tail_bytes": head,
            "tail_sha256": _fingerprint(descriptor, offset - head, head) if head else "",
        }
    )


def was_last_written_before(status: os.stat_result, moment: datetime | None, *, clocks_differ: timedelta = timedelta(0)) -> bool:
    """True for a file that nobody has written since `moment`, by more than the file server's clock may be behind. Of an attempt's
    start: what stands there an earlier job left under this one's name."""
    return moment is not None and status.st_mtime < (moment - clocks_differ).timestamp()


def goes_on_from(file: BinaryIO, cursor: FileCursor) -> bool:
    """True when this is the file that the cursor was taken of, and all that was read of it is still in place."""
    status = os.fstat(file.fileno())
    return status.st_ino == cursor.inode and status.st_size >= cursor.offset_bytes and _is_same_content(file, cursor)


def _is_same_content(file: BinaryIO, cursor: FileCursor) -> bool:
    descriptor = file.fileno()
    if cursor.head_bytes and _fingerprint(descriptor, 0, cursor.head_bytes) != cursor.head_sha256:
        return False
    start = cursor.offset_bytes - cursor.tail_bytes
    return not cursor.tail_bytes or _fingerprint(descriptor, start, cursor.tail_bytes) == cursor.tail_sha256


def _with(chunk: Chunk, *, rotated: bool = False, truncated: bool = False, more: bool = False, skipped: int = 0) -> Chunk:
    return Chunk(
        data=chunk.data,
        rotated=chunk.rotated or rotated,
        truncated=chunk.truncated or truncated,
        cut_lines=chunk.cut_lines,
        skipped_bytes=chunk.skipped_bytes + skipped,
        more=chunk.more or more,
    )


def _complete_lines(block: bytes, in_long_line: bool) -> _Lines:
    """Splits off the complete lines of `block`, which begins at a line's start unless `in_long_line`.

    Walks in windows of one longest line each: everything before the last line end of a window is fine without being
    looked at, so an ordinary log costs one backward search per 64 KB.
    """
    start, skipped, cut = 0, 0, 0
    if in_long_line:
        start = _first_line_end(block, 0) + 1
        if not start:
            return _Lines(b"", len(block), True, 0, len(block))
        skipped = start
    pieces: list[bytes] = []
    begin = position = start
    while position < len(block):
        end = _last_line_end(block, position, position + LINE_BYTES + 1)
        if end >= 0:
            position = end + 1
            continue
        if len(block) - position <= LINE_BYTES:
            break  # an unfinished line; it is read again when it has grown
        pieces += [block[begin : position + LINE_BYTES], b"\n"]
        cut += 1
        end = _first_line_end(block, position + LINE_BYTES)
        if end < 0:
            skipped += len(block) - position - LINE_BYTES
            return _Lines(b"".join(pieces), len(block), True, cut, skipped)
        skipped += end - position - LINE_BYTES
        begin = position = end + 1
    pieces.append(block[begin:position])
    return _Lines(b"".join(pieces) if len(pieces) > 1 else pieces[0], position, False, cut, skipped)


_LINE_ENDS = (b"\n", b"\r", b"\0")  # NUL: what lies between a truncation and the next write of a process that kept its offset


def _first_line_end(block: bytes, start: int) -> int:
    found = [at for end in _LINE_ENDS if (at := block.find(end, start)) >= 0]
    return min(found, default=-1)


def _last_line_end(block: bytes, start: int, stop: int) -> int:
    """Some line end in the window, the last `\\n` if there is one; -1 if there is none of any kind."""
    for end in _LINE_ENDS:
        at = block.rfind(end, start, stop)
        if at >= 0:
            return at
    return -1


def _siblings_with_inode(path: Path, inode: int) -> list[Path]:
    try:
        with os.scandir(path.parent) as entries:
            return [Path(entry.path) for entry in islice(entries, _SIBLINGS) if entry.inode() == inode and entry.name != path.name]
    except OSError:
        return []


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0:
        piece = os.pread(descriptor, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _fingerprint(descriptor: int, offset: int, size: int) -> str:
    return hashlib.sha256(_pread(descriptor, offset, size)).hexdigest()
