"""Which pieces of a log are worth keeping, and how they are read: by offset, in bounded memory, whatever the log's size.

Pure but for reading the stream it is given. Called by `capture.py` alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from activities.redaction import KEY_BYTES, redact_part

SEARCHED_BYTES = 8 << 20
"""How much of a log's end is searched for the lines a symptom rests on: they were just printed."""

MOST_PLACES = 4
"""Most places shown with the lines around them."""

MOST_SECRETS = 20_000
"""Most secrets taken out of one copy. A log made of nothing else costs a worker some 20 µs each, and tells nothing."""

_COPY_BYTES = 1 << 20


class Window(NamedTuple):
    """A range of the log: `start` to `end` in bytes. `what` tells a reader which part it is."""

    start: int
    end: int
    what: str


def windows_of(size: int, places: Sequence[int], room: int) -> list[Window]:
    """The ranges to show within `room` bytes: all of a short log; else what surrounds `places` (offsets), the end and the beginning."""
    if size <= room:
        return [Window(0, size, "whole")]
    # The end tells how it died, the beginning with what it was started; half of the room belongs to the first cause where it is known.
    tail, head = room * 35 // 100, room * 15 // 100
    between = sorted({place for place in places if head <= place < size - tail})[:MOST_PLACES]
    if not between:
        return [Window(size - room * 75 // 100, size, "its end"), Window(0, room * 25 // 100, "its beginning")]
    each = room // 2 // len(between)
    around = [Window(max(0, place - each // 2), min(size, place + each // 2), f"around byte {place}") for place in between]
    return [*around, Window(size - tail, size, "its end"), Window(0, head, "its beginning")]


def redacted_window(stream: BinaryIO, window: Window, size: int) -> bytes:
    """The window's bytes without secrets, and without the lines that its bounds cut.

    Read with what stands around it: a key or a token of which the window holds a part is known by the whole.
    """
    data, start, end = _read_around(stream, window.start, window.end, size)
    if window.start > 0:
        start = _after_cut_line(data, start, end)
    if window.end < size:
        end = _before_cut_line(data, start, end)
    return redact_part(data, start, end).data


def _read_around(stream: BinaryIO, start: int, end: int, size: int) -> tuple[bytes, int, int]:
    """The bytes from before `start` to behind `end`, and where both lie in them."""
    first, last = max(0, start - KEY_BYTES), min(size, end + KEY_BYTES)
    data = _read_at(stream, first, last - first)
    return data, min(start - first, len(data)), min(end - first, len(data))


def _after_cut_line(data: bytes, start: int, end: int) -> int:
    cut = data.find(b"\n", max(0, start - 1), end)
    if cut < 0 or cut > (start + end) // 2:
        cut = data.find(b" ", max(0, start - 1), end)  # one endless line: at least no word is cut
        return start if cut < 0 else cut + 1
    return cut + 1


def _before_cut_line(data: bytes, start: int, end: int) -> int:
    if data[end - 1 : end] == b"\n":
        return end
    cut = data.rfind(b"\n", start, end)
    if cut < (start + end) // 2:
        cut = data.rfind(b" ", start, end)
    return end if cut < 0 else cut + 1


def places_of(stream: BinaryIO, size: int, texts: Iterable[str]) -> list[int]:
    """Offsets of the lines that a symptom rests on, as far as they stand in the log's end."""
    wanted = [needle for text in texts if (needle := text.strip().encode()[:200])]
    if not wanted:
        return []
    start = max(0, size - SEARCHED_BYTES)
    end = _read_at(stream, start, size - start)
    return [start + at for needle in wanted if (at := end.find(needle)) >= 0]


def bounded_copy(stream: BinaryIO, size: int, limit: int) -> Iterator[bytes]:
    """The log, redacted, in at most about `limit` bytes: of a longer one a quarter from the beginning and the rest from the end."""
    if size <= limit:
        yield from _redacted(stream, 0, size, size)
        return
    head = limit // 4
    yield from _redacted(stream, 0, head, size)
    yield f"\n[{size - limit} bytes left out]\n".encode()
    yield from _redacted(stream, size - (limit - head), size, size)


def _redacted(stream: BinaryIO, start: int, end: int, size: int) -> Iterator[bytes]:
    """In blocks that end with a line where one ends, without the lines that `start` and `end` cut."""
    is_cut = start > 0
    secrets = 0
    while start < end:
        if secrets > MOST_SECRETS:
            yield f"\n[{end - start} bytes left out: more than {MOST_SECRETS} secrets stand before them]\n".encode()
            return
        data, first, last = _read_around(stream, start, min(end, start + _COPY_BYTES), size)
        if last <= first:
            return  # truncated meanwhile
        begins = _after_cut_line(data, first, last) if is_cut else first
        is_cut = False
        reached = start + last - first
        ends = last if reached >= size else _before_cut_line(data, begins, last)
        redacted = redact_part(data, begins, ends)
        secrets += redacted.secrets
        yield redacted.data
        start = reached if reached >= end else start + ends - first


def _read_at(stream: BinaryIO, offset: int, length: int) -> bytes:
    """Exactly `length` bytes from `offset`, fewer only at the end: an unbuffered stream may read short."""
    stream.seek(offset)
    pieces: list[bytes] = []
    while length > 0 and (piece := stream.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
