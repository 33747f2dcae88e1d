"""Kernel log text to findings: which node, which device, when, what it means. Pure; the patterns are kernel_lines.yaml, the Xids xid.yaml.

The diagnosis engine calls it on captured kernel logs; `judge_bursts` (bursts.py) then says which line came first.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML

from activities.gpu.bursts import judge_bursts
from activities.gpu.findings import Clock, KernelFinding, Role, meaning_of
from activities.gpu.xid import XidVerdict, judge_sxid, judge_xid, parse_sxid, parse_xid, place_of
from activities.redaction import redact_start

__all__ = ["KernelFinding", "Role", "judge_bursts", "read_kernel_log"]

LINES: Final = Path(__file__).with_name("kernel_lines.yaml")
_LONGEST_LINE: Final = 1200  # characters; the kernel's own limit for one record is under 1 KiB
_LONGEST_TEXT: Final = 500
_TRACE_LINES: Final = 40
_LOOK_BACK: Final = 3


class _Pattern(NamedTuple):
    row: dict[str, Any]
    needs: str
    regex: re.Pattern[str]
    above: re.Pattern[str] | None
    below: tuple[tuple[re.Pattern[str], dict[str, Any]], ...]


class _Line(NamedTuple):
    number: int
    node: str | None
    clock: Clock | None
    seconds: float | None
    at: datetime | None
    text: str


@cache
def _patterns() -> tuple[_Pattern, ...]:
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(LINES)
    return tuple(
        _Pattern(
            row=row,
            needs=row["needs"],
            regex=re.compile(row["pattern"], re.I),
            above=re.compile(row["above"], re.I) if "above" in row else None,
            below=tuple((re.compile(change["pattern"], re.I), change) for change in row.get("below", ())),
        )
        for row in loaded["lines"]
    )


# ------------------------------------------------------------------------------------------------------- prefixes

_MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_KMSG: Final = re.compile(r"^\d{1,4},\d{1,20},(?P<micros>\d{1,20}),[^;]{0,64};")
_PRIORITY: Final = re.compile(r"^<\d{1,3}>")
_ISO: Final = re.compile(r"^\[?(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\]?:?\s+")
_SYSLOG: Final = re.compile(r"^(?P<month>[A-Z][a-z]{2})\s+(?P<day>\d{1,2})\s+(?P<time>\d\d:\d\d:\d\d)(?:\.\d{1,9})?\s+")
_CTIME: Final = re.compile(
    r"^\[?(?:[A-Z][a-z]{2})\s+(?P<month>[A-Z][a-z]{2})\s+(?P<day>\d{1,2})\s+(?P<time>\d\d:\d\d:\d\d)\s+(?P<year>\d{4})\]?\s*"
)
_UPTIME: Final = re.compile(r"^\[\s*(?P<seconds>\d{1,10}\.\d{1,9})\](?:\[\s*[TC]\d+\])?\s*")
_KERNEL: Final = re.compile(r"^(?:kernel|dmesg)(?:\[\d+\])?:\s*")
_HOST: Final = re.compile(r"^(?P<host>[A-Za-z0-9][A-Za-z0-9_.-]{0,253}):?\s+(?=\S)")
# What the kernel itself puts first; a word before one of these is the node's name, and none of these is one.
_OPENER: Final = re.compile(
    r"^(?:NVRM\b|nvidia\S*[:\s]|mlx[45]_\S*[:\s]|infiniband\s|ib_\w+|INFO:|BUG:|EDAC\s|mce:|\{\d+\}|Memory\s|Out of memory|oom-kill|"
    r"oom_reaper|nfs:|NFS:|Lustre|watchdog:|NMI\s|rcu:?\s|pcieport\s|pci\s|AER:|traps:|Kernel\s|EXT4-fs|XFS\s|blk_|nvme\s|clocksource:|mmfs|GPFS|systemd\[|chronyd\[|"
    r"python\S*\[|\S+\[\d+\]:|Call Trace|Tainted:|CPU:|RIP:|audit:|perf:|NETDEV|bnxt_en|i40e|ice\s|SXid|Xid|GPU at)",
    re.I,
)


class _Prefix(NamedTuple):
    rest: str
    clock: Clock | None
    seconds: float | None
    at: datetime | None


def _dated(found: re.Match[str], year: int | None, zone: tzinfo, clock: Clock) -> tuple[Clock, float, datetime | None] | None:
    """A stamp made of a month's name. Without a year it can be compared (in a leap year, so that Feb 29 exists) but not told."""
    month = found["month"]
    if month not in _MONTHS:
        return None
    hour, minute, second = (int(part) for part in found["time"].split(":"))
    try:
        moment = datetime(year or 2000, _MONTHS.index(month) + 1, int(found["day"]), hour, minute, min(second, 59), tzinfo=zone)
    except ValueError:
        return None
    return clock, moment.timestamp(), moment.astimezone(UTC) if year else None


def _stamp(text: str, zone: tzinfo, year: int | None) -> _Prefix | None:
    """One time stamp at the start of `text`, in any of the forms syslog, journald, dmesg and /dev/kmsg write."""
    if found := _UPTIME.match(text):
        return _Prefix(text[found.end() :], Clock.UPTIME, float(found["seconds"]), None)
    if found := _ISO.match(text):
        try:
            moment = datetime.fromisoformat(found["stamp"])
        except ValueError:
            return None
        clock = Clock.UTC if moment.tzinfo else Clock.LOCAL
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        return _Prefix(text[found.end() :], clock, moment.timestamp(), moment.astimezone(UTC))
    if found := _CTIME.match(text):
        dated = _dated(found, int(found["year"]) or None, zone, Clock.LOCAL)
        return _Prefix(text[found.end() :], *dated) if dated else None
    if found := _SYSLOG.match(text):
        dated = _dated(found, year, zone, Clock.LOCAL if year else Clock.YEARLESS)
        return _Prefix(text[found.end() :], *dated) if dated else None
    if found := _KMSG.match(text):
        return _Prefix(text[found.end() :], Clock.UPTIME, int(found["micros"]) / 1e6, None)
    return None


def _read_prefix(number: int, raw: str, node: str | None, zone: tzinfo, year: int | None) -> _Line:
    """Peel stamps, the node's name, `kernel:` and the uptime off a line, in whatever order they stand."""
    text = _PRIORITY.sub("", raw, count=1)
    host: str | None = None
    clock: Clock | None = None
    seconds: float | None = None
    at: datetime | None = None
    in_kernel = False
    for _ in range(6):
        try:
            stamped = _stamp(text, zone, year)
        except (OverflowError, ValueError):  # a date outside what this machine's clock can express
            stamped = None
        if stamped is not None:
            # A wall clock says more than uptime; the first wall clock wins.
            if clock is None or clock is Clock.UPTIME:
                clock, seconds, at = stamped.clock, stamped.seconds, stamped.at
            text = stamped.rest
            continue
        if found := _KERNEL.match(text):
            text = text[found.end() :]
            in_kernel = True
            continue
        named = _HOST.match(text) if host is None and not in_kernel and not _OPENER.match(text) else None
        if named is None:
            break
        rest = text[named.end() :]
        after_syslog = clock in (Clock.YEARLESS, Clock.LOCAL) and _SYSLOG.match(raw) is not None
        if not (after_syslog or _KERNEL.match(rest) or _OPENER.match(rest) or _stamp(rest, zone, year)):
            break
        host = named["host"]
        text = rest
    return _Line(number, node or host, clock, seconds, at, text)


# --------------------------------------------------------------------------------------------------------- reading


def read_kernel_log(
    text: str | bytes, node: str | None = None, *, zone: tzinfo = UTC, year: int | None = None
) -> tuple[KernelFinding, ...]:
    """Every line that says something, in order; also the benign ones, so that they can be counted as such.

    Args:
        text: kernel log lines of one or several nodes; each may begin with the node's name and a stamp of any usual form.
        node: the node it comes from, where the caller knows; it overrules names in the lines.
        zone: zone of stamps that name none.
        year: year of stamps that name none; without it such lines have no `at`, only `clock_seconds`.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    lines = _Lines([raw[:_LONGEST_LINE] for raw in re.split(r"\r\n|\n|\r", text)], node, zone, year)
    driver = _driver_of(lines.raw)
    return tuple(finding for index in range(len(lines.raw)) if (finding := _finding_of(lines, index, driver)) is not None)


class _Lines:
    """Lines of a log whose prefixes are peeled off only where someone looks: nearly all lines of a log say nothing."""

    def __init__(self, raw: list[str], node: str | None, zone: tzinfo, year: int | None) -> None:
        self.raw = raw
        self._how = (node, zone, year)
        self._read: dict[int, _Line] = {}

    def __getitem__(self, index: int) -> _Line:
        if index not in self._read:
            self._read[index] = _read_prefix(index + 1, self.raw[index], *self._how)
        return self._read[index]

    def around(self, start: int, stop: int) -> list[_Line]:
        return [self[index] for index in range(max(0, start), min(stop, len(self.raw)))]


def _finding_of(lines: _Lines, index: int, driver: str | None) -> KernelFinding | None:
    lowered = lines.raw[index].lower()
    hits = [pattern for pattern in _patterns() if pattern.needs in lowered]
    if not hits and "xid" not in lowered:
        return None
    line = lines[index]
    if "xid" in lowered:
        if (sxid := parse_sxid(line.text)) is not None:
            # The data lines after an SXid repeat its number without a severity; they add nothing to judge.
            before = parse_sxid(lines[index - 1].text) if index else None
            if sxid.fatal is None and before is not None and before.code == sxid.code:
                return None
            return _of_verdict(line, judge_sxid(sxid), event=f"sxid_{sxid.code}", device=sxid.switch)
        if "xid (" in lowered and (xid := parse_xid(line.text)) is not None:
            process = ", ".join(part for part in (f"pid {xid.pid}" if xid.pid else None, xid.process) if part)
            return _of_verdict(
                line,
                judge_xid(xid, driver),
                event=f"xid_{xid.code}",
                gpu=xid.gpu,
                device=xid.instance,
                place=place_of(xid),
                process=process or None,
            )
    for pattern in hits:
        if (found := pattern.regex.search(line.text)) is not None:
            return _of_row(lines, index, pattern, found.groupdict())
    return None


_LOADED: Final = re.compile(r"NVIDIA UNIX.{0,60}?Module.{0,40}?\s(\d{3}\.\d+(?:\.\d+)?)\s", re.I)


def _driver_of(lines: list[str]) -> str | None:
    """The driver version, where the log holds the line the driver prints when it is loaded, and all such lines agree."""
    versions = {found[1] for line in lines if "NVIDIA UNIX" in line and (found := _LOADED.search(line))}
    return versions.pop() if len(versions) == 1 else None


def _common(line: _Line) -> dict[str, Any]:
    return {
        "node": line.node,
        "at": line.at,
        "clock": line.clock,
        "clock_seconds": line.seconds,
        "line": line.number,
        "text": redact_start(line.text, _LONGEST_TEXT),
    }


def _of_verdict(line: _Line, verdict: XidVerdict, **names: Any) -> KernelFinding:
    return KernelFinding(
        **_common(line),
        **names,
        code=verdict.code,
        cause=verdict.cause,
        domain=verdict.domain,
        role=verdict.role,
        confidence=verdict.confidence,
        isolate=verdict.isolate,
        action=verdict.action,
        blame=verdict.blame,
        why=verdict.why,
    )


def _of_row(lines: _Lines, index: int, pattern: _Pattern, groups: Mapping[str, str | None]) -> KernelFinding:
    line = lines[index]
    gpu = groups.get("gpu")
    if gpu is None and pattern.above is not None:
        above = [found["gpu"] for earlier in lines.around(index - _LOOK_BACK, index) if (found := pattern.above.search(earlier.text))]
        gpu = above[-1] if above else None
    row = {**pattern.row, **_below(lines, index, pattern)}
    device = groups.get("device")
    return KernelFinding(
        **_common(line),
        event=row["id"],
        gpu=gpu.lower() if gpu else None,
        device=device.strip(" ,:()")[:200] or None if device else None,
        **meaning_of(row),
        blame=row.get("blame", 6),
    )


def _below(lines: _Lines, index: int, pattern: _Pattern) -> Mapping[str, Any]:
    """What the lines under this one (a call trace) say about it. A second message of the same kind ends the look."""
    if not pattern.below:
        return {}
    for later in lines.around(index + 1, index + 1 + _TRACE_LINES):
        if later.node != lines[index].node or pattern.regex.search(later.text):
            return {}
        for regex, change in pattern.below:
            if regex.search(later.text):
                return {key: value for key, value in change.items() if key != "pattern"}
    return {}
