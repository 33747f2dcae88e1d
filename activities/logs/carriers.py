"""Logs that something carried: JSON that a container runtime, a collector or a structured logger wraps lines in, taken off again.

`plain_bytes` is what everyone reads logs through (the diagnosis, progress, following). Line breaks stay where they are: a message of
several lines is parted by carriage returns. What a carrier writes before a line is prefixes.py's business."""

import json
import math
import re
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic_core import from_json

from activities.logs.prefixes import strip_ansi_bytes

_PLACES = 4  # of a block where a few lines are looked at: which lines are wrapped shows everywhere
_LINES_A_PLACE = 4
_LONGEST_LINE = 64 << 10  # docker parts lines at 16 KiB; a longer one is left as it is

# What may stand before the JSON: carriers nest. Times, labels, CRI's stream, a compose service, a pod, syslog's program.
_BEFORE = rb"[^\n\r{]{0,200}?(?:[\d\]:|FPZ] ?|[|:] {0,4})"
_WRAPPED = re.compile(rb"(?P<before>" + _BEFORE + rb")??(?P<json>\{ ?\"[^\n\r]{2,65536}\})[ \r]*$")
# docker's own writing of most lines, nothing escaped in them: one in ten of the cost.
_DOCKERS = re.compile(
    rb'\{"log":"(?P<text>[^"\\\n]*)(?:\\n)?","stream":"(?:stdout|stderr)","time":"(?P<at>\d{4}-\d\d-\d\dT\d\d:[\d:.]{5,20}Z)"\}$'
)
# One member of laid-out JSON (`aws logs filter-log-events`): its string is the line, everything around it is not.
_LAID_OUT = re.compile(rb'(?m)^ {2,40}"message": (?P<text>"(?:[^"\\\n]|\\.)*"),?\r?$')
_AROUND = re.compile(
    rb"(?m)^ {0,40}(?:[\[\]{}]{1,2},?|"
    rb'"(?:events|logStreamName|timestamp|ingestionTime|eventId|searchedLogStreams|nextToken)": .{0,300})\r?$'
)

# A service without a number (compose's container_name), stern's pod and container: a table's first columns, were not every line so.
_COLUMNS = (
    re.compile(rb"(?m)^(?P<name>[A-Za-z][\w.-]{0,62}) {1,60}\| ?"),
    re.compile(rb"(?m)^(?P<name>[a-z0-9][a-z0-9-]{0,252}-[a-z0-9]{1,63}) (?!rank)[a-z][a-z0-9-]{0,62} "),
)
_FEWEST_IN_COLUMNS = 3

# docker and Fluent Bit, python-json-logger and most, zap and pino, journald, structlog, Google Cloud, Loki, OpenTelemetry, GELF.
_TEXTS = ("log", "message", "msg", "MESSAGE", "event", "textPayload", "line", "body", "short_message", "full_message")
_TIMES = ("time", "timestamp", "@timestamp", "asctime", "ts", "date", "__REALTIME_TIMESTAMP", "created")
_HOSTS = ("hostname", "host", "_HOSTNAME", "node")
_TRACEBACKS = ("exception", "exc_info", "traceback", "stack_trace", "stack", "exc_text")
_RANKS = ("rank", "global_rank")
# Numbers of the logger itself, which say nothing of the training.
_ABOUT_THE_LOGGER = frozenset(
    ("lineno", "process", "thread", "pid", "tid", "levelno", "msecs", "relativeCreated", "PRIORITY", "ingestionTime", "v", *_RANKS, *_TIMES)
)
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?$")
_HOST = re.compile(r"[A-Za-z][\w.-]{0,252}$")
T = TypeVar("T")
_SECONDS = (1e9, 4e9)  # 2001 to 2096


def plain_bytes(data: bytes) -> bytes:
    """Complete lines as the job printed them: without colours, a byte order mark and JSON around them. As fast as reading where there
    is none; the wrapper's time goes before the line, its host where a pod's name would stand."""
    data = _without_columns(strip_ansi_bytes(data.removeprefix(b"\xef\xbb\xbf")))
    for _ in range(3):  # structlog in docker's JSON in a collector's
        lines = _some_lines(data)
        if any(_line_of(line) != line for line in lines):
            unwrapped = b"\n".join([_line_of(line) for line in data.split(b"\n")])
        elif any(map(_LAID_OUT.match, lines)):
            unwrapped = _AROUND.sub(b"", _LAID_OUT.sub(lambda found: _string(found["text"]), data))
        else:
            return data
        if unwrapped == data:
            return data
        data = strip_ansi_bytes(unwrapped)  # JSON escapes colours
    return data


def _without_columns(data: bytes) -> bytes:
    """`data` with the source that stands in a column before every line written as a pod's, where it is one of a few."""
    lines = {line for line in _some_lines(data) if line.strip()}
    for row in _COLUMNS if len(lines) >= _FEWEST_IN_COLUMNS else ():
        names = {found["name"] for line in lines if (found := row.match(line))}
        if 0 < len(names) <= len(lines) // 2 and all(row.match(line) for line in lines):
            return row.sub(rb"[pod/\g<name>] ", data)
    return data


def _some_lines(data: bytes) -> list[bytes]:
    """A few lines from all over `data`; enough of them to meet a message among the seven lines of laid-out JSON."""
    lines: list[bytes] = []
    for place in range(_PLACES):
        start = len(data) * place // _PLACES
        if start:
            start = data.find(b"\n", start) + 1
            if not start:
                break
        for _ in range(_LINES_A_PLACE if place else 2 * _LINES_A_PLACE):
            end = data.find(b"\n", start, start + _LONGEST_LINE)
            lines.append(data[start : end if end >= 0 else start + _LONGEST_LINE])
            if end < 0:
                break
            start = end + 1
    return lines


def _line_of(line: bytes) -> bytes:
    """What one line wraps, or the line."""
    head = line[:256]
    if b"{" not in head or (b'{"' not in head and b'{ "' not in head):
        return line
    if found := _DOCKERS.match(line):
        return b"%b %b" % (found["at"], found["text"])
    return _unwrapped(found) if (found := _WRAPPED.match(line)) else line


def _unwrapped(found: re.Match[bytes]) -> bytes:
    """The line that one piece of JSON wraps, as it stands where the piece tells none."""
    try:
        record = from_json(found["json"])
    except ValueError:
        return found[0]
    if not isinstance(record, dict):
        return found[0]
    text = _first(record, _TEXTS, str)
    if text is None:
        return found[0]
    text = text.rstrip("\r\n")
    numbers = {
        name: value
        for name, value in record.items()
        if type(value) in (int, float) and name not in _ABOUT_THE_LOGGER and not name.startswith("_")
    }
    if numbers:
        text += " " + json.dumps(numbers)
    for name in _TRACEBACKS:
        if isinstance(traceback := record.get(name), str):
            text += "\n" + traceback
    before = (found["before"] or b"").decode(errors="replace") + _before(record)
    return (before + ("\r" + before).join(text.splitlines() or [""])).encode(errors="replace")


def _first(record: dict[str, Any], names: tuple[str, ...], kind: type[T]) -> T | None:
    for name in names:
        if type(value := record.get(name)) is kind:
            return value
    return None


def _before(record: dict[str, Any]) -> str:
    """The host, the time and the rank that the wrapper tells, as prefixes.py reads them."""
    host, rank = _first(record, _HOSTS, str), _first(record, _RANKS, int)
    at = next((told for name in _TIMES if name in record and (told := _time(record[name]))), None)
    before = f"{at} " if at else ""
    if host is not None and _HOST.match(host):
        before = f"[pod/{host}] {before}"
    return before if rank is None or not 0 <= rank < 10**6 else f"{before}[rank{rank}]: "


def _time(value: Any) -> str | None:
    """ISO 8601 of what a wrapper calls its time: a text, or seconds, milliseconds, microseconds or nanoseconds since 1970."""
    if isinstance(value, str) and _ISO.match(value):
        return value
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    while math.isfinite(seconds) and seconds > _SECONDS[1]:
        seconds /= 1000
    if not _SECONDS[0] < seconds < _SECONDS[1]:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _string(text: bytes) -> bytes:
    try:
        told = from_json(text)
    except ValueError:
        return text
    return "\r".join(str(told).splitlines()).encode(errors="replace")
