"""A user's or the operator's own regular expression for an iteration line: compiled or refused, and what it costs measured.

Called by the reading of comments and of the configuration (to warn) and by the progress reader (to use it).
"""

import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from activities.scanning.linear import PatternNotUsable, linear

LONGEST_PATTERN = 500
LONGEST_LINE = 4096  # bytes of a line that are looked at; an iteration line is shorter

_SLICE_BYTES = 16 << 10  # between two looks at the clock
_HITS_A_SLICE = 128  # lines that hit; where more do, the first of each slice tell enough

# Processor time that one reader may spend on its pattern. The automaton takes 0.001 to 0.01 µs a byte, a hit about 20 µs.
_SECONDS_AT_FIRST = 0.2
_SECONDS_A_BYTE = 0.25e-6
_SECONDS_A_HIT = 50e-6


class ProgressPatternRefused(ValueError):
    """A progress pattern that will not be used; the message says which, why and the fix, `why` the last two."""

    def __init__(self, pattern: str, why: str) -> None:
        shown = repr(pattern) if len(pattern) <= LONGEST_PATTERN else f"{pattern[:40]!r}…"
        super().__init__(f"progress pattern {shown}: {why}")
        self.why = why


def compiled_progress_pattern(pattern: str) -> Any:
    """Compiles `pattern`, which must have a group named `iteration` (and may have `step_seconds` and `loss`).

    Raises:
        ProgressPatternRefused: too long, not a regular expression, without that group, or true of any line.
    """
    compiled, refused = _compiled_or_why_not(pattern)
    if refused is not None:
        raise ProgressPatternRefused(pattern, refused)
    return compiled


@lru_cache(maxsize=1024)
def _compiled_or_why_not(pattern: str) -> tuple[Any, str | None]:
    """Both answers are remembered: a refusal costs as much as a pattern, and a comment is read again and again."""
    if len(pattern) > LONGEST_PATTERN:
        return None, f"has {len(pattern)} characters; use at most {LONGEST_PATTERN}"
    try:
        compiled = linear(pattern)
    except PatternNotUsable as refusal:
        return None, str(refusal)
    if "iteration" not in compiled.groupindex:
        return None, "has no group named iteration; write the number as (?P<iteration>\\d+)"
    if compiled.search(b"") is not None:
        return None, "matches an empty line, so every line; write what stands beside the number, and \\d+ for it"
    return compiled, None


class UserPattern:
    """One reader's use of a progress pattern, and what it has cost. Not for two threads at once.

    No line, and no pattern, is slow for ever in RE2; many lines of a pattern that was made to be slow still are. The processor
    time is measured, and a pattern that takes too much is set aside: `set_aside` then says so.
    """

    def __init__(self, pattern: str) -> None:
        """Raises `ProgressPatternRefused`."""
        self._compiled = compiled_progress_pattern(pattern)
        self._pattern = pattern
        self._used = 0.0
        self._allowed = _SECONDS_AT_FIRST
        self.set_aside: str | None = None

    def lines_in(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Start and end of the lines of `data` (split on \\n or \\r) that hit, in order, until the pattern is set aside."""
        data = data.replace(b"\r", b"\n")  # as long as before: a progress bar's line is a line
        start = 0
        while start < len(data) and self.set_aside is None:
            end = following = start + _SLICE_BYTES
            if end < len(data):
                following = data.rfind(b"\n", start, end) + 1
                # Of a line that fills the slice only the slice is looked at.
                end, following = (following, following) if following else (end, data.find(b"\n", end) + 1 or len(data))
            for hit in self._lines_in_slice(data[start:end]):
                yield start + hit[0], start + hit[1]
            start = following

    def _lines_in_slice(self, part: bytes) -> Iterator[tuple[int, int]]:
        position, hits = 0, 0
        self._allowed += len(part) * _SECONDS_A_BYTE
        while position < len(part) and hits < _HITS_A_SLICE and self.set_aside is None:
            match = self._timed_search(part, position)
            if match is None:
                return
            start = part.rfind(b"\n", 0, match.start()) + 1
            end = part.find(b"\n", match.start())
            end = len(part) if end < 0 else end
            position = end + 1
            if match.end() - start <= LONGEST_LINE:
                hits += 1
                self._allowed += _SECONDS_A_HIT
                yield start, end

    def search(self, text: str) -> dict[str, str | None] | None:
        """The named groups of the first match in one line; None: none, or the pattern is set aside."""
        if self.set_aside is not None:
            return None
        match = self._timed_search(text[:LONGEST_LINE])
        return None if match is None else match.groupdict()

    def _timed_search(self, text: str | bytes, position: int = 0) -> Any:
        before = time.thread_time()
        match = self._compiled.search(text, position)
        self._used += time.thread_time() - before
        if self._used > self._allowed:
            self.set_aside = (
                f"progress pattern {self._pattern!r}: took {self._used:.1f} s of processor and is no longer used, the built-in ones are; "
                "use fewer repeats of repeats"
            )
        return match
