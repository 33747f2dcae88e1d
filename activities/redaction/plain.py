"""Text as a reader sees it: without colours, control characters and characters of no width, which must not hide a secret. Pure.

A view only: what is found in it is mapped back, so that the text itself keeps what a terminal needs.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable

from activities.redaction.span import Span

_SEQUENCES = rb"""
      \x1b\[[0-?]*[\ -/]*[@-~] | \x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)? | \x1b[\ -/]*[0-Z\\-~]  # ECMA-48: colours, titles, others
    | \\(?:x1[bB]|u001[bB]|033|e)\[[0-9;?]*[A-Za-z]                                          # the same, escaped by JSON or Python
    | \xc2[\x80-\x9f\xad] | \xcd\x8f | \xe1\xa0\x8e                                          # C1, soft hyphen, joiners
    | \xe2\x80[\x8b-\x8f\xaa-\xae] | \xe2\x81[\xa0-\xaf]                                     # no width, directions
    | \xef\xb8[\x80-\x8f] | \xef\xbb\xbf                                                     # variation, byte order
"""
_LONG = re.compile(rb"(?x)" + _SEQUENCES)  # each begins with a byte of its own, which makes Python search six times as fast
_UNSEEN = re.compile(rb"(?x)" + _SEQUENCES + rb"| [\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_CONTROL = bytes((*range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F))
"""C0 without the tab and the ends of lines."""

_ALWAYS_SEEN = bytes(set(range(256)) - {*_CONTROL, 0x5C, 0xC2, 0xCD, 0xE1, 0xE2, 0xEF})
"""All bytes but those that what is not seen begins with: to leave a log without any of them alone costs next to nothing."""


def plain(data: bytes) -> bytes | None:
    """What is seen of `data`; None where that is all of it."""
    if not data.translate(None, _ALWAYS_SEEN):
        return None
    seen = _LONG.sub(b"", data).translate(None, _CONTROL)
    return None if len(seen) == len(data) else seen


def placed(spans: Iterable[Span], data: bytes) -> list[Span]:
    """Where ranges of `plain(data)` stand in `data`: from their first character to their last, with all that hides between."""
    cuts: list[int] = []
    removed: list[int] = []
    total = 0
    for unseen in _UNSEEN.finditer(data):
        start, end = unseen.span()
        cuts.append(start - total)
        total += end - start
        removed.append(total)

    def raw(at: int) -> int:
        before = bisect_right(cuts, at)
        return at + (removed[before - 1] if before else 0)

    return [span._replace(start=raw(span.start), end=raw(span.end - 1) + 1) for span in spans if span.end > span.start]
