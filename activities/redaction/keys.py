"""Private key blocks (PEM, OpenSSH, PGP): where they stand, whole or with an end cut off, each line behind a rank's prefix or not. Pure."""

import re

from activities.redaction.span import Span

KEY_BYTES = 16 << 10
"""Longer than the longest key in use (RSA of 16,384 bits: 12.7 KB): how far a key's end is looked for."""

_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

# A line of a key: base64, a header of the block, nothing; behind `[rank0]:` or another prefix only what is long enough to be no word.
_BODY_LINE = re.compile(
    rb"[ \t>|]*(?:[A-Za-z0-9+/]+={0,2}|[A-Z][A-Za-z-]{2,30}: [^\r\n]{1,80})?[ \t]*|[^\r\n]{0,100}[\s:|>\]][A-Za-z0-9+/]{32,}={0,2}[ \t]*"
)


def keys_in(data: bytes) -> list[Span]:
    """The blocks, in order. One that began before `data` is known by its end; of one that goes on behind it, all lines like a key's."""
    if b"PRIVATE KEY" not in data:
        return []
    found: list[Span] = []
    at = 0
    while begin := _BEGIN.search(data, at):
        end = _END.search(data, begin.end(), begin.end() + KEY_BYTES)
        body_ends = _body_end(data, begin.end(), end.start() if end else begin.end() + KEY_BYTES)
        is_whole = end is not None and (body_ends >= end.start() or _is_mostly_body(data[begin.end() : end.start()]))
        at = end.end() if end is not None and is_whole else body_ends
        if at > begin.end():  # else the line only speaks of one
            found.append(Span(begin.start(), at, "private key"))
    covered = 0
    for end in _END.finditer(data):
        while covered < len(found) and found[covered].end < end.end():
            covered += 1
        if covered == len(found) or found[covered].start > end.start():
            start = _body_start(data, end.start())
            if start < end.start():
                found.insert(covered, Span(start, end.end(), "private key"))
    return found


def _body_end(data: bytes, at: int, limit: int) -> int:
    """Where the lines like a key's end, from the end of the BEGIN line on."""
    limit = min(limit, len(data))
    first = data.find(b"\n", at, limit)
    if first < 0:
        return limit if _BODY_LINE.fullmatch(data[at:limit].replace(rb"\n", b"")) else at
    if data[at:first].strip():
        return at
    kept = at
    while kept < limit:
        end = data.find(b"\n", kept + 1, limit)
        end = limit if end < 0 else end
        if not _BODY_LINE.fullmatch(data[kept + 1 : end].rstrip(b"\r")):
            return kept
        kept = end
    return kept


def _body_start(data: bytes, at: int) -> int:
    """Where the lines like a key's begin that end at `at`."""
    kept = data.rfind(b"\n", 0, at) + 1
    lowest = max(0, at - KEY_BYTES)
    while kept > lowest:
        start = data.rfind(b"\n", lowest, kept - 1) + 1 or lowest
        line = data[start : kept - 1].strip()
        if not line or not _BODY_LINE.fullmatch(line):
            break
        kept = start
    return kept


def _is_mostly_body(between: bytes) -> bool:
    lines = between.split(b"\n")
    return len(lines) == 1 or sum(1 for line in lines if _BODY_LINE.fullmatch(line.rstrip(b"\r"))) * 2 >= len(lines)
