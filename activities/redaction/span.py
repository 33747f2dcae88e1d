"""A range of text that holds a secret, and the mark that takes its place. Pure; the ground floor of this package."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

MARK = b"[redacted: "
"""Begins every replacement; what begins so is never redacted again."""

_MARKS = re.compile(rb"\[redacted: [^\]\n]{0,60}\]")
_NOTHING = b" \t\r\n\"'"


class Span(NamedTuple):
    """`start` to `end` in bytes."""

    start: int
    end: int
    kind: str
    order: int = 0
    """The rule's place in the table: of several that found the same secret the first one names it."""


def merged(spans: Iterable[Span], data: bytes) -> list[Span]:
    """In order, none touching another, none beginning or ending inside a mark; those that hold nothing but marks are gone."""
    marks = [mark.span() for mark in _MARKS.finditer(data)] if MARK in data else []
    starts = [start for start, _ in marks]
    joined: list[Span] = []
    for span in sorted(beside for span in spans if (beside := _beside(span, marks, starts, data)) is not None):
        last = joined[-1] if joined else None
        if last is None or span.start >= last.end:
            joined.append(span)
        else:
            first = last if last.order <= span.order else span
            joined[-1] = Span(min(last.start, span.start), max(last.end, span.end), first.kind, first.order)
    return joined


def _beside(span: Span, marks: list[tuple[int, int]], starts: list[int], data: bytes) -> Span | None:
    at = bisect_right(starts, span.start) - 1
    first = at if at >= 0 and marks[at][1] > span.start else at + 1
    last = bisect_right(starts, span.end - 1) if span.end > span.start else first
    if first >= last:
        return span
    left = data[span.start : marks[first][0]]
    for number in range(first, last - 1):
        left += data[marks[number][1] : marks[number + 1][0]]
    left += data[marks[last - 1][1] : span.end]
    if not left.strip(_NOTHING):
        return None
    return span._replace(start=min(span.start, marks[first][0]), end=max(span.end, marks[last - 1][1]))


def rendered(data: bytes, spans: Iterable[Span]) -> bytes:
    """`data` with a mark in the place of each span."""
    pieces: list[bytes] = []
    at = 0
    for span in spans:
        pieces += (data[at : span.start], MARK, span.kind.encode(), b"]")
        at = span.end
    pieces.append(data[at:])
    return b"".join(pieces)
