"""Which pieces of a log are worth keeping, and how they are read: by offset, in bounded memory, whatever the log's size.

Pure but for reading the stream it is given. Called by `capture.py` alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from activities.redaction import Redactor

SEARCHED_BYTES = 8 << 20
"""How much of a log's end is searched for the lines a symptom rests on: they were just printed."""

MOST_PLACES = 4
"""Most places shown with the lines around them."""

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


def read_window(stream: BinaryIO, window: Window) -> bytes:
    """The window's bytes, without the line that its start cuts: half of a token might not be known for one."""
    lead = min(window.start, 1)
    data = _read_at(stream, window.start - lead, window.end - window.start + lead)
    if not lead:
        return data
    cut = data.find(b"\n")
    if cut < 0 or cut > len(data) // 2:
        cut = max(data.find(b" "), 0)  # one endless line: at least no word is cut
    return data[cut + 1 :]


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
        yield from _redacted(stream, 0, size)
        return
    head = limit // 4
    yield from _redacted(stream, 0, head)
    yield f"\n[{size - limit} bytes left out]\n".encode()
    yield from _redacted(stream, size - (limit - head), size)


def _redacted(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    redactor = Redactor()
    rest = b""
    while start < end and (data := _read_at(stream, start, min(_COPY_BYTES, end - start))):
        start += len(data)
        data = rest + data
        cut = data.rfind(b"\n") + 1 if start < end else len(data)
        if not cut and len(data) > 4 * _COPY_BYTES:
            cut = len(data)  # an endless line is handed on in pieces rather than held
        rest = data[cut:]
        yield redactor.feed(data[:cut]).data
    yield redactor.feed(rest).data


def _read_at(stream: BinaryIO, offset: int, length: int) -> bytes:
    """Exactly `length` bytes from `offset`, fewer only at the end: an unbuffered stream may read short."""
    stream.seek(offset)
    pieces: list[bytes] = []
    while length > 0 and (piece := stream.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
