"""Many regular expressions over bytes in one pass, and the reading of huge inputs in bounded blocks.

Everything that looks for lines goes through here (signatures, progress marks, prefixes); Python runs only on lines that
hit. Measured on one core of a small machine: the 160 signatures at 1.2 GB/s on lines that do not hit; a million hits a second.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import hyperscan

from activities.scanning.databases import kept_or_compiled

BLOCK_BYTES = 1 << 20  # one call into the matcher; small enough to stay in the cache and to bound the hits held at once
READ_BYTES = BLOCK_BYTES - (64 << 10)  # one read of a file; with the rest of its last line still one call into the matcher
LINE_WINDOW_BYTES = 32 << 10  # a longer line is reported as the window around the match: no excerpt needs more
OVERLAP_BYTES = 4 << 10  # where a line longer than a block is cut, a match this long is still found whole
DENSE_HITS = 50_000  # hits of one block beyond which each pattern is asked for once per slice instead
DENSE_SLICE_BYTES = 32 << 10
PROBE_BYTES = 16 << 10  # of each quarter of a block that seems to be made of hits
SHORT_LINE_BYTES = 40  # up to this length on average the plain count of line breaks is the faster one

# MULTILINE: `^` and `$` mean lines, as a reader of a log expects. No DOTALL: `.` stays inside a line. No SOM (start of
# match): it costs speed, and the line's bounds are found from the end of the match.
_FLAGS = hyperscan.HS_FLAG_MULTILINE


class PatternRefused(ValueError):
    """A pattern the matcher cannot compile. `pattern_id` says which, the message says why and the mend."""

    def __init__(self, pattern_id: str, why: str) -> None:
        super().__init__(
            f"pattern '{pattern_id}': {why}; use hyperscan's syntax (no look-around, no back-references, not matching nothing)"
        )
        self.pattern_id = pattern_id
        self.why = why


@dataclass(frozen=True, slots=True)
class LineHits:
    """One line that hit: its bounds in the data (without the line break) and every pattern that matched in it."""

    start: int
    end: int
    ids: tuple[str, ...]


class MultiPattern:
    """Patterns compiled once, shared by all who read. Safe to use from several threads: each has a scratch of its own."""

    def __init__(self, patterns: Mapping[str, str | bytes], *, dense_hits: int = DENSE_HITS) -> None:
        """
        Args:
            patterns: id -> regular expression in hyperscan's syntax; case flags inline, `(?i)`.
            dense_hits: hits in one MiB beyond which only the first of each pattern in every 32 KiB is reported, so that a
                log made of hits costs no more than bounded Python.
        Raises:
            PatternRefused: naming the first pattern that does not compile.
        """
        self._ids = tuple(patterns)
        self._dense_hits = dense_hits
        self._local = threading.local()
        self._patterns = dict(patterns)
        self._every = _compile(self._patterns, _FLAGS)
        self._first: hyperscan.Database | None = None  # compiled when a log is first seen to be made of hits
        self._lock = threading.Lock()

    def scan(self, data: bytes, *, dense_hits: int | None = None) -> Iterator[LineHits]:
        """The lines of `data` (split on \\n or \\r) that hit, in order, each once with all its ids; `dense_hits` as in `__init__`."""
        if not self._ids:
            return
        limit = self._dense_hits if dense_hits is None else dense_hits
        for start, end, fresh in _blocks_of(data):
            block = data if (start, end) == (0, len(data)) else data[start:end]
            for hit in _lines_of(block, self._hits_in(block, limit)):
                # A line cut by a block's end: what lies in the overlap was reported from the block before.
                if start + hit.end > fresh or start == fresh:
                    yield LineHits(start + hit.start, start + hit.end, tuple(self._ids[i] for i in hit.numbers))

    def matches(self, data: bytes) -> bool:
        """True when anything hits; stops at the first."""
        return any(True for _ in self.scan(data))

    def _hits_in(self, block: bytes, limit: int) -> list[tuple[int, int]]:
        """Hits as (end, number), in order; where there are more than `limit`, thinned."""
        hits = self._at_most(block, limit, early=limit // 8)
        if hits is None and not self._is_dense_everywhere(block, limit):
            hits = self._at_most(block, limit)
        return self._sparse_hits_in(block) if hits is None else sorted(hits)  # the matcher orders ends within one pattern only

    def _at_most(self, block: bytes, limit: int, *, early: int | None = None) -> list[tuple[int, int]] | None:
        """Hits; None when there are more than `limit`, or more than `early` in the first eighth."""
        hits: list[tuple[int, int]] = []
        eighth = len(block) // 8

        def on_match(number: int, _start: int, end: int, _flags: int, _context: Any) -> bool | None:
            hits.append((end, number))
            return len(hits) > limit or (len(hits) == early and end <= eighth) or None

        try:
            self._every.scan(block, match_event_handler=on_match, scratch=self._scratch("every", self._every))
        except hyperscan.ScanTerminated:
            return None
        return hits

    def _is_dense_everywhere(self, block: bytes, limit: int) -> bool:
        """True when probes of all quarters say that the block has more hits than `limit`: cheaper than counting up to there."""
        quarter = len(block) // 4
        share = min(PROBE_BYTES, quarter)
        return quarter > 0 and all(
            self._at_most(block[end - share : end], limit * share // len(block)) is None for end in range(quarter, len(block) + 1, quarter)
        )

    def _sparse_hits_in(self, block: bytes) -> list[tuple[int, int]]:
        with self._lock:
            if self._first is None:
                self._first = _compile(self._patterns, _FLAGS | hyperscan.HS_FLAG_SINGLEMATCH)
            database = self._first
        scratch = self._scratch("first", database)
        hits: list[tuple[int, int]] = []
        start = 0
        while start < len(block):
            end = start + DENSE_SLICE_BYTES
            end = len(block) if end >= len(block) else (block.rfind(b"\n", start, end) + 1 or end)
            shift = start

            def on_match(number: int, _start: int, end: int, _flags: int, _context: Any, shift: int = shift) -> None:
                hits.append((shift + end, number))

            database.scan(block[start:end], match_event_handler=on_match, scratch=scratch)
            start = end
        return sorted(hits)

    def _scratch(self, name: str, database: hyperscan.Database) -> hyperscan.Scratch:
        # A scratch must not be used by two scans at once (Hyperscan manual, "Scratch space"); scans release the GIL.
        scratch: hyperscan.Scratch | None = getattr(self._local, name, None)
        if scratch is None:
            scratch = hyperscan.Scratch(database)
            setattr(self._local, name, scratch)
        return scratch


@dataclass(frozen=True, slots=True)
class _NumberedHits:
    start: int
    end: int
    numbers: tuple[int, ...]


def _lines_of(block: bytes, hits: list[tuple[int, int]]) -> Iterator[_NumberedHits]:
    """Hits, ordered by where they end, grouped by the line they end in."""
    i = 0
    while i < len(hits):
        at = hits[i][0]
        # A match may end with the line break itself (`$`, `\\s`): it belongs to the line before it.
        anchor = at - 1 if at and block[at - 1 : at] in (b"\n", b"\r") else at
        low = max(0, anchor - LINE_WINDOW_BYTES)
        start = max(block.rfind(b"\n", low, anchor), block.rfind(b"\r", low, anchor)) + 1 or low
        high = min(len(block), anchor + LINE_WINDOW_BYTES)
        end = block.find(b"\n", anchor, high)
        end = high if end < 0 else end
        carriage = block.find(b"\r", anchor, end)
        end = end if carriage < 0 else carriage
        after = bisect_left(hits, (end + 1, -1), lo=i + 1)
        # `end + 1`: a match ending with this line's own break is this line's, unless another line lies between.
        if after < len(hits) and hits[after][0] == end + 1 and block[end : end + 1] in (b"\n", b"\r"):
            after = bisect_left(hits, (end + 2, -1), lo=after)
        yield _NumberedHits(start, end, tuple(sorted({number for _, number in hits[i:after]})))
        i = after


def _blocks_of(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(start, end, fresh): blocks cut at line breaks; a block that must cut a line starts early, `fresh` is where new data begins."""
    start = fresh = 0
    size = len(data)
    while fresh < size:
        limit = fresh + BLOCK_BYTES
        if limit >= size:
            yield start, size, fresh
            return
        cut = data.rfind(b"\n", fresh, limit) + 1
        end = cut or limit
        yield start, end, fresh
        fresh = end
        start = end if cut else max(0, end - OVERLAP_BYTES)


def blocks(stream: BinaryIO, size: int = READ_BYTES) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a stream in blocks of about `size` bytes that end with a line where a line ends inside them.

    Memory stays at about two blocks, whatever the stream's size and the length of its lines.
    """
    offset = 0
    while block := stream.read(size):
        if not block.endswith(b"\n"):
            block += stream.readline(size)  # a line longer than a block is handed out in pieces rather than held
        yield offset, block
        offset += len(block)


def line_breaks(data: bytes, start: int, end: int) -> int:
    """How many `\\n` there are in `data[start:end]`."""
    size = end - start
    if size < 4096 or data.count(b"\n", start, start + 4096) * SHORT_LINE_BYTES > 4096:
        return data.count(b"\n", start, end)
    # `count` looks at one byte after the other, `replace` jumps from break to break: two to three times as fast (measured, 3.11).
    return size - len(data[start:end].replace(b"\n", b""))


def _compile(patterns: Mapping[str, str | bytes], flags: int) -> hyperscan.Database:
    if not patterns:
        return hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    expressions = [_as_bytes(pattern) for pattern in patterns.values()]

    def compiled() -> hyperscan.Database:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        try:
            database.compile(expressions=expressions, ids=list(range(len(expressions))), elements=len(expressions), flags=flags)
        except hyperscan.error as refusal:
            raise _first_refused(patterns.items(), flags, str(refusal)) from refusal
        return database

    return kept_or_compiled(expressions, flags, compiled)


def _first_refused(patterns: Iterable[tuple[str, str | bytes]], flags: int, otherwise: str) -> PatternRefused:
    for pattern_id, pattern in patterns:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(expressions=[_as_bytes(pattern)], ids=[0], elements=1, flags=flags)
        except hyperscan.error as refusal:
            return PatternRefused(pattern_id, str(refusal.args[0]) if refusal.args else "refused")
    return PatternRefused("(all together)", otherwise)


def _as_bytes(pattern: str | bytes) -> bytes:
    return pattern if isinstance(pattern, bytes) else pattern.encode()
