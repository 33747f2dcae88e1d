"""Following one growing log: complete lines, each exactly once, through rotation, truncation and whatever jobs write.

No file stays open between reads: opening again is what makes NFS tell the truth about a file's size, and thousands of
watches share one worker's file descriptors. Called by the watch; ordinary trouble is a text, never raised.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
        opened_anew: the cursor is of an attempt that is over: whatever file is there at the first read, Slurm opened for this one.
    """

    def __init__(self, path: Path, roots: LogRoots, cursor: FileCursor | None = None, *, opened_anew: bool = False) -> None:
        self._path = path
        self._path_text = str(path)  # asked for once a second
        self._roots = roots
        self._cursor = cursor if cursor is not None and cursor.path == str(path) else FileCursor(path=str(path))
        self._seen: tuple[int, int, int, int] | None = None
        self._idle_stats = 0
        self._opened_anew = opened_anew
        self._former_is_at_hand = False
        self._found_at: Path | None = None  # where a renamed file was last found: its directory need not be searched at each read

    @property
    def is_blind(self) -> bool:
        """True while the job may write to a file that cannot be read any more: it kept the one it had opened, another stands in its
        place, and nobody has written to that. Its silence then says nothing."""
        return self._cursor.unwritten_bytes is not None and not self._former_is_at_hand

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
            return self._read_without_name(max(limit_bytes, LINE_BYTES + 1), unfinished)
        except PathRefused as refused:
            return Chunk(error=str(refused))
        except OSError as trouble:
            return Chunk(error=f"{self._path}: {trouble.strerror or trouble}; make it readable for the user Backstay runs as")

    def _is_unchanged(self) -> bool:
        """Cheap answer for a quiet log; true at most a few times in a row."""
        status = os.stat(self._path_text)
        if self._former_is_at_hand:
            return False  # what is new stands in another file
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if seen != self._seen or self._idle_stats >= _IDLE_STATS:
            self._seen, self._idle_stats = None, 0
            return False
        self._idle_stats += 1
        return True

    def _read(self, limit: int, unfinished: bool) -> Chunk:
        with self._roots.open(self._path) as file:
            status = os.fstat(file.fileno())
            opened_anew, self._opened_anew = self._opened_anew, False
            skipped, rotated, truncated = 0, False, False
            if not self._cursor.inode:
                skipped = self._begin(file, status)
            # The device number is not compared: for NFS each machine makes up its own.
            elif status.st_ino != self._cursor.inode:
                rest = self._lines_of(self._cursor, limit, unfinished=True)
                if rest is not None and (rest[0].data or rest[0].more):
                    chunk, self._cursor = rest
                    self._opened_anew = opened_anew
                    return replace(chunk, more=True)
                rotated = self._take_up(file, status, opened_anew=opened_anew)
            elif not goes_on_from(file, self._cursor):
                self._cursor, truncated = self._start_over(status), True
            chunk, self._cursor = self._lines_from(file, self._cursor, limit, unfinished)
            # Only a file read to its end may be called unchanged by its size and time next.
            self._seen = None if chunk.more else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if self._cursor.unwritten_bytes is not None and not chunk.more:
                chunk = self._with_former(chunk, status, limit, unfinished)
            return replace(chunk, rotated=rotated, truncated=truncated, skipped_bytes=chunk.skipped_bytes + skipped)

    def _begin(self, file: BinaryIO, status: os.stat_result) -> int:
        """First sight. Of a huge file only the end is read, from a line's start on; returns the bytes left out."""
        self._cursor = self._at_start_of(status)
        start = status.st_size - FIRST_SIGHT_BYTES
        if start <= 0:
            return 0
        # Begin one byte early and skip to the next line end: the first line handed out is a whole one.
        self._cursor = moved_to(self._cursor, file, start - 1).model_copy(update={"in_long_line": True})
        return start

    def _at_start_of(self, status: os.stat_result) -> FileCursor:
        real = os.path.realpath(self._path_text)
        return FileCursor(
            path=self._path_text,
            device=status.st_dev,
            inode=status.st_ino,
            real_path="" if real == self._path_text else real,
        )

    def _start_over(self, status: os.stat_result) -> FileCursor:
        """In a file that was emptied. One that took another's place may be a third by now, under the number of the second."""
        emptied, fresh = self._cursor, self._at_start_of(status)
        if emptied.unwritten_bytes is None:
            return fresh
        return fresh.model_copy(update={"former": emptied.former, "unwritten_bytes": status.st_size})

    def _take_up(self, file: BinaryIO, status: os.stat_result, *, opened_anew: bool) -> bool:
        """Another file stands under the name. Goes on in it; True where it is read from its beginning.

        Who had opened the former one writes on into that, until he opens this one: a file that only took the other's place says nothing
        by its silence, nor by what stood in it at first sight (`sed -i` copies)."""
        former, fresh = self._cursor, self._at_start_of(status)
        is_copy = former.offset_bytes > 0 and status.st_size >= former.offset_bytes and _is_same_content(file, former)
        if is_copy:  # or the same file, whose file system was mounted anew
            fresh = moved_to(fresh, file, former.offset_bytes).model_copy(update={"in_long_line": former.in_long_line})
        if not opened_anew:
            # What stood here before the former one was given up when that was written to; where it never was, it still counts.
            kept = former.former if former.former is not None and former.unwritten_bytes is not None else former
            kept = kept.model_copy(update={"former": None, "unwritten_bytes": None})
            fresh = fresh.model_copy(update={"former": kept, "unwritten_bytes": status.st_size})
        self._cursor = fresh
        return not is_copy

    def _with_former(self, chunk: Chunk, status: os.stat_result, limit: int, unfinished: bool) -> Chunk:
        """`chunk` of a file that took another's place, and what the job meanwhile wrote to the one before."""
        cursor = self._cursor
        is_written = cursor.unwritten_bytes is None or status.st_size > cursor.unwritten_bytes
        found = self._lines_of(cursor.former, limit, unfinished or is_written) if cursor.former is not None else None
        rest, former = found if found is not None else (Chunk(), cursor.former)
        if is_written and not rest.more:
            self._cursor, self._former_is_at_hand = cursor.model_copy(update={"former": None, "unwritten_bytes": None}), False
        else:
            self._cursor, self._former_is_at_hand = cursor.model_copy(update={"former": former}), found is not None
        return replace(
            chunk,
            data=rest.data + chunk.data,  # the former's last lines are older
            cut_lines=rest.cut_lines + chunk.cut_lines,
            skipped_bytes=rest.skipped_bytes + chunk.skipped_bytes,
            more=rest.more,
        )

    def _read_without_name(self, limit: int, unfinished: bool) -> Chunk:
        """The log was renamed, or deleted, and no other took its place: who writes it does not notice."""
        cursor = self._cursor
        if (found := self._lines_of(cursor, limit, unfinished)) is not None:
            chunk, self._cursor = found
            return chunk
        if cursor.former is not None and (found := self._lines_of(cursor.former, limit, unfinished)) is not None:
            chunk, former = found
            self._cursor = cursor.model_copy(update={"former": former})
            return chunk
        return Chunk(missing=True, error=f"{self._path}: no such file (yet)")

    def _lines_of(self, cursor: FileCursor, limit: int, unfinished: bool) -> tuple[Chunk, FileCursor] | None:
        """The next lines of a file that lost its name to another, and where they end; None where it cannot be found any more. A renamed
        one lies beside its old name, under NFS also as `.nfs...`."""
        if not cursor.head_bytes:
            return None  # nothing was read of it: by its inode alone another file could pass for it
        for path in (*([self._found_at] if self._found_at is not None else []), *_renamed(cursor)):
            try:
                with self._roots.open(path) as file:
                    if goes_on_from(file, cursor):
                        self._found_at = path
                        return self._lines_from(file, cursor, limit, unfinished)
            except (OSError, PathRefused):
                continue  # as good as gone
        return None

    def _lines_from(self, file: BinaryIO, cursor: FileCursor, limit: int, unfinished: bool) -> tuple[Chunk, FileCursor]:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        offset = cursor.offset_bytes
        block = _pread(descriptor, offset, limit)
        lines = _complete_lines(block, cursor.in_long_line)
        at_end = offset + len(block) >= size and len(block) < limit
        data, consumed, in_long_line = lines.data, lines.consumed, lines.in_long_line
        if unfinished and at_end and consumed < len(block):
            data += block[consumed:] + b"\n"
            consumed = len(block)
        if consumed:
            cursor = moved_to(cursor, file, offset + consumed).model_copy(update={"in_long_line": in_long_line})
        if b"\0" in data:
            data = _NULS.sub(b"\n", data)
        chunk = Chunk(data=plain_bytes(data), cut_lines=lines.cut, skipped_bytes=lines.skipped, more=not at_end)
        return chunk, cursor


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


def _renamed(cursor: FileCursor) -> Iterator[Path]:
    """Where the cursor's file may be found now: where its name led when it was a link, and under other names beside either."""
    if cursor.real_path:
        yield Path(cursor.real_path)
    for directory in dict.fromkeys(os.path.dirname(path) for path in (cursor.path, cursor.real_path) if path):
        try:
            with os.scandir(directory) as entries:
                found = [entry.path for entry in islice(entries, _SIBLINGS) if entry.inode() == cursor.inode]
        except OSError:
            continue
        yield from (Path(path) for path in found if path != cursor.path)


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
