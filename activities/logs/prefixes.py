"""What stands before a log line's own text: who printed it (rank, node) and when, in the forms launchers and loggers use.

Pure, never raises. Called for lines that hit, by progress, diagnosis and suspects. A new form is a new row of a table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

LONGEST_PREFIXED = 4096  # prefixes stand at the beginning; what lies beyond is carried over unread

# CSI, OSC (ended by BEL or ST) and two-character sequences: ECMA-48. An OSC that does not end on its line is left alone.
_ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n\r]{0,512}(?:\x07|\x1b\\)|[ -/]?[0-Z\\^-~])"
_ANSI_TEXT = re.compile(_ANSI)
_ANSI_BYTES = re.compile(_ANSI.encode())
_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


def strip_ansi(text: str) -> str:
    """`text` without colours and other terminal sequences."""
    return _ANSI_TEXT.sub("", text) if "\x1b" in text else text


def strip_ansi_bytes(data: bytes) -> bytes:
    """`data` without colours and other terminal sequences; line ends stay where they are."""
    if b"\x1b" not in data:
        return data
    data = _COLOURS.sub(b"", data)  # nearly all of them, at half the cost
    return _ANSI_BYTES.sub(b"", data) if b"\x1b" in data else data


@dataclass(frozen=True, slots=True)
class Prefixed:
    """A line taken apart. None means the line does not say.

    `at` is the time as printed; one without a zone is read as UTC, so compare it with other lines of the same log only.
    `node` may be an address (Ray prints `ip=`). `task` is a launcher's bare number (srun --label): the rank too, unless the
    launcher starts one process a node and that one starts the ranks. `carrier` is what only carried the line calls its source (a
    compose service, a pod, syslog's host): a node only where the job's list has it. `carried` counts the characters of what it wrote.
    """

    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    at: datetime | None = None
    text: str = ""
    task: int | None = None
    carrier: str | None = None
    carried: int = 0


# A host name has a digit somewhere; words such as `rank3`, `gpu0`, `step10` look like one and are none.
_NO_HOST = (
    r"slurmstepd-|(?:rank|default|cuda|device|step|epoch|iter|iteration|batch|layer|stage|block|phase|task|proc|thread|ib|eth|en[ops]|nvme|mlx|sd|dp|tp"
    r"|pp|cp|ep|pg|top|loss|fp|bf|int|uint|float|utf|sha|md|python|cu|libcu|http|https|error|errno|sig|exit)-?\d+(?![\w-])"
    r"|[A-Za-z]\d{1,2}(?![\w-])|[AHVBahvb]\d00(?![\w-])"
    # A device's index has no leading zero and ends at 15: gpu3 is a device, gpu-04 and gpu16 are hosts.
    r"|(?i:gpu)-?(?:\d|1[0-5])(?![\w-]|\.\w)"
    # A class of Python's (urllib3.exceptions.NewConnectionError, S3UploadFailedError) or a source file, not a domain.
    r"|(?:[\w-]+\.)+(?:[A-Z]\w*[a-z]\w*|error|exception|timeout|py|pyx|cc|cpp|cu|cuh|h|hpp|so)(?![\w.-])"
    r"|\w*(?:Error|Exception|Warning|Interrupt)(?![\w.-])"
)
_HOST = rf"(?!{_NO_HOST})(?=[A-Za-z][A-Za-z0-9-]*\d)[A-Za-z][A-Za-z0-9-]{{1,62}}(?:\.[A-Za-z0-9-]{{1,63}}){{0,6}}(?![\w.])"
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}$")
# Where the form leaves no doubt that a host stands there, whatever it is called.
_SURELY_HOST = r"[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,6}"
_CLOCK = r"(?P<hour>[0-2]?\d):(?P<minute>[0-5]\d):(?P<second>[0-6]\d)(?:[.,](?P<fraction>\d{1,9}))?"
_DAY = r"(?P<year>(?:19|20)\d\d)[-/](?P<month>[01]?\d)[-/](?P<day>[0-3]?\d)"
_ZONE = r"(?P<zone>\s?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_STAMP = rf"{_DAY}(?:[T ]|_| - )\s?{_CLOCK}{_ZONE}"
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)"

# Before everything else: what carried the line here wrote this, not the job. Behind a time alone a logger's own text may begin, where
# a bracketed number is a process id; behind the others the line begins anew.
_MONTH = r"(?P<month_name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOUD_STREAM = r"(?:\s[A-Za-z][\w.-]{0,80}(?:/[\w.$-]{1,120}){1,6}(?=\s))"
# A program of the host itself speaks of the host; any other only runs there, or a log server took its lines.
_PROGRAM = r"(?!kernel|slurm|nvidia|nv-|dcgm|systemd)[A-Za-z][\w./-]{0,80}"
_SYSLOG_SOURCE = rf"(?P<carrier>[A-Za-z][\w.-]{{1,254}}) {_PROGRAM}\[\d+\]:(?: |$)"
_CARRIERS: tuple[tuple[str, str], ...] = (
    ("kubectl --prefix", r"\[pod/(?P<carrier>[\w.-]{1,253})(?:/[^\]\s]{0,253})?\] ?"),
    ("docker-compose", rf"(?P<carrier>{_HOST}|(?!{_NO_HOST})[A-Za-z][\w.-]{{0,80}}[_-]\d{{1,4}})\s{{1,80}}\| ?"),
    ("syslog", rf"{_MONTH}\s{{1,2}}(?P<day>[0-3]?\d) {_CLOCK} {_SYSLOG_SOURCE}"),
    # Without a process id only a program's usual spelling: `RuntimeError:` behind a host's name is no program.
    (
        "syslog, no process id",
        rf"{_MONTH}\s{{1,2}}(?P<day>[0-3]?\d) {_CLOCK} (?P<carrier>[A-Za-z][\w.-]{{1,254}}) "
        rf"(?=[a-z])(?![\w./-]*(?:\.py|[A-Z])){_PROGRAM}:(?: |$)",
    ),
    (
        "syslog, RFC 5424",
        rf"<\d{{1,3}}>1 {_STAMP} (?P<carrier>[\w.-]{{1,255}}) \S{{1,48}} \S{{1,128}} \S{{1,32}} (?:-|\[[^\]]{{0,400}}\]) ?",
    ),
    ("journalctl -o short-iso", rf"{_STAMP} {_SYSLOG_SOURCE}"),
    # Container runtimes (CRI) write which stream a line is of, and whether it is whole, behind their time; logcli the labels; aws logs
    # tail the stream's name.
    ("cri", rf"{_STAMP} std(?:out|err) [FP](?: |$)"),
    ("logcli", rf"{_STAMP} \{{(?:\w{{1,60}}=\"[^\"]{{0,200}}\"(?:, ?)?){{1,30}}\}} ?"),
    ("aws logs tail", rf"{_DAY}T{_CLOCK}(?P<zone>\+00:00){_CLOUD_STREAM} ?"),
    ("rfc 3339", rf"{_DAY}T{_CLOCK}(?P<zone>Z|[+-]\d\d:\d\d):? ?"),
    ("ts of seconds", r"(?P<epoch>1\d{9}\.\d{1,9}) "),
    ("ts", rf"{_MONTH}\s{{1,2}}(?P<day>[0-3]?\d) {_CLOCK} (?![\w.-]{{1,255}} [\w./-]{{1,80}}(?:\[\d+\])?:(?: |$))"),
)
_BARE_TIMES: tuple[tuple[str, str], ...] = (
    ("bracketed time", rf"\[{_STAMP}\] (?= {{0,5}}\d{{1,6}}:(?: |$))"),
    ("time", rf"{_STAMP} (?= {{0,5}}\d{{1,6}}:(?: |$))"),
)

# Tried in this order, again and again from the left, until none fits: prefixes nest. Each consumes what it matched.
# A row is tried only where its pattern can begin; most lines begin with none of these characters.
_CONSUMED: tuple[tuple[str, str], ...] = (
    ("torchrun", r"\[(?:rank|Rank|RANK)[ :=]{0,2}(?P<rank>\d{1,6})\]:?\s?"),  # torchrun, Lightning, DeepSpeed
    ("rank and colon", r"(?:rank|Rank|RANK)[ -]?(?P<rank>\d{1,6}):\s"),
    ("torchrun default", r"\[default(?P<local_rank>\d{1,4})\]:?"),  # torchrun --redirects/--tee with role "default"
    ("mpi", r"\[\d+,(?P<rank>\d{1,6})\]<std(?:out|err|diag)>:?\s?"),  # mpirun --tag-output
    ("ray", r"\((?:[^()\s]{1,80}(?:\([^()]{0,40}\))?\s)?pid=\d+(?:,\s?ip=(?P<node>[\w.:-]+))?\)\s?"),  # Ray's log_to_driver
    ("raylet", r"\(raylet(?:,\s?ip=(?P<node>[\w.:-]+))?\)\s?"),
    ("jax task", rf"\[task (?P<rank>\d{{1,6}})(?: rank \d+)?(?: (?P<node>{_HOST}))?\]\s?"),
    ("nccl", rf"\[?(?P<node>{_SURELY_HOST}):\d{{1,8}}:\d{{1,8}}\]? \[(?P<local_rank>\d{{1,4}})\] "),  # NCCL: host:pid:tid [cudaDev]
    ("node and local rank", rf"\[(?P<node>{_HOST}):(?P<local_rank>\d{{1,2}})\]:?\s?"),
    ("open mpi", rf"\[(?P<node>{_HOST})(?::\d{{1,8}}){{1,3}}\]:?\s?"),  # Open MPI, UCX: [host:pid], [host:pid:n:tid]
    ("bracketed node", rf"\[(?P<node>{_HOST})\]:?\s"),
    ("logger's name and a time", r"\[[A-Za-z][\w.]{0,40}\] (?=(?:19|20)\d\d[-/][01]?\d[-/])"),  # torchtitan: [titan] 2025-02-03 …
    ("pdsh", rf"(?P<node>{_HOST}): "),  # pdsh, DeepSpeed's launcher
    ("bracketed time", rf"\[{_STAMP}\][:\s]?\s?(?:\|\s|-\s)?"),
    ("time", rf"{_STAMP}(?:\]|:|,|\s?\||\s-(?=\s))?\s?"),
    ("nemo", rf"\[NeMo [A-Z] {_STAMP}(?: [\w.]+:\d+)?\]\s?"),
    ("glog", rf"\[?[IWEF](?P<year>20\d\d)?(?P<month>[01]?\d)(?P<day>[0-3]\d) {_CLOCK}\s+(?:\d+\s)?(?:[^\]\s]{{1,200}}\]\s?)?"),
    ("syslog", rf"(?P<month_name>[A-Z][a-z]{{2}})\s{{1,2}}(?P<day>[0-3]?\d) {_CLOCK} (?P<node>[\w.-]{{1,255}}) (?=[\w./-]+(?:\[\d+\])?:)"),
    ("kernel clock", r"\[\s*\d{1,10}\.\d{6}\]\s"),
    ("level and day", rf"{_LEVEL}[: ]{_STAMP}\s?"),
    ("level and short day", rf"{_LEVEL}\s(?P<month>[01]\d)-(?P<day>[0-3]\d) {_CLOCK}\s?"),  # vLLM
    ("bracketed level", rf"\[{_LEVEL}\]:?\s?(?:-\s)?"),
    ("bracketed level and rank", rf"\[{_LEVEL}:[\w.]{{1,60}}:rank(?P<rank>\d{{1,6}})\]\s?"),
    ("bracketed source", r"\[[\w./-]{1,120}\.(?:py|cc|cpp|cu|h):\d+(?::[\w<>]+)?\]\s?"),
    ("bracketed root", r"\[(?:root|__main__)\]\s?"),
)

# Only once, and only before anything but a carrier's own: a bare number says "rank" at the very beginning and nowhere else.
_OUTERMOST: tuple[tuple[str, str], ...] = (
    ("task in words", r"task (?P<rank>\d{1,6}): (?=[IWEF]\d{4} |\d|\[|Traceback|(?:\w+\.)*\w*(?:Error|Exception)\b)"),
    ("srun --label", r"[ ]{0,5}(?P<rank>\d{1,6}):(?: |$)"),
    ("bare rank", r"\[(?P<rank>\d{1,5})\]:?\s(?=\S)"),  # mpirun -prepend-rank, accelerate's tee
    ("bare rank and colon", r"\[(?P<rank>\d{1,5})\]:(?=\S)"),
)

# Looked for at the beginning of what is left and not consumed: part of the message, and still telling.
_TELLING: tuple[tuple[str, str], ...] = (
    (
        "rank in brackets",
        r"(?:\[[^\]]{0,80}\]\s?|" + _LEVEL + r":?\s){0,3}\[[^\]\n]{0,120}?\b(?i:rank)\s?[=: ]\s?(?P<rank>\d{1,6})[^\]]{0,40}\]",
    ),
    ("srun task", rf"srun: (?:error: )?(?P<node>{_SURELY_HOST}): task (?P<rank>\d{{1,6}}):"),
    ("srun node", rf"srun: (?:error: )?(?P<node>{_SURELY_HOST}): tasks? "),
    ("srun node failure", rf"srun: error: Node failure on (?P<node>{_SURELY_HOST})"),
    ("srun launch", rf"srun: error: Task launch for \S+ failed on node (?P<node>{_SURELY_HOST}):"),
    ("slurmstepd node", rf"slurmstepd-(?P<node>{_SURELY_HOST}): "),
    ("slurmstepd cancelled", rf"slurmstepd: error: \*\*\* (?:STEP|JOB) \S+ ON (?P<node>{_SURELY_HOST}) "),
    ("syslog after a time", r"(?P<node>[A-Za-z][\w.-]{1,254}) (?=kernel: )"),
)

# Torch's own logger and torchrun's tee: the rank in the job, whoever else numbered the line. `[Rank 5]` may be one of a group's.
_OF_THE_PROCESS = re.compile(r"\[rank\d+\]:")

_BEGINS_NUMBER = frozenset(" 0123456789")
_BEGINS_OUTERMOST = frozenset(" [t0123456789")
_TELLING_BEGINS = re.compile(r"\[|srun|slurmstepd|[\w.-]+ kernel: |" + _LEVEL)

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MOST_PREFIXES = 10

_MOST_CARRIERS = 4  # a pod's name, the runtime's time, a collector's

_carriers = tuple(re.compile(pattern) for _, pattern in (*_CARRIERS, *_BARE_TIMES))
_carriers_by_first = {
    "[": tuple(row for row in _carriers if row.pattern.startswith("\\[")),
    "<": tuple(row for row in _carriers if row.pattern.startswith("<")),
    "1": tuple(row for row in _carriers if row.pattern.startswith(("(?P<year>", "(?P<epoch>"))),
    "a": tuple(row for row in _carriers if row.pattern.startswith(("(?P<carrier>", "(?P<month_name>"))),
}
_CARRIER_BEGINS = re.compile(
    r"(?P<first>\[)(?:pod/|\d{4}[-/])|(?P<second><)\d|(?P<third>\d{4}[-/]|1\d{9}\.)|[A-Za-z][\w.-]{0,254}+(?:\s{1,80}+\||\s{1,2}\d)"
)
_outermost = tuple(re.compile(pattern) for _, pattern in _OUTERMOST)
_telling = tuple(re.compile(pattern) for _, pattern in _TELLING)


_consumed = tuple(re.compile(pattern) for _, pattern in _CONSUMED)
_bracketed = tuple(row for row in _consumed if row.pattern.startswith("\\["))
_bracketed_number = tuple(row for row in _bracketed if re.match(r"\\\[(?:\\d|\(\?P<year>|\\s)", row.pattern))
_round = tuple(row for row in _consumed if row.pattern.startswith("\\("))
_plain = tuple(row for row in _consumed if row.pattern.startswith("\\[?") or row not in (*_bracketed, *_round))
_dated = tuple(row for row in _plain if row.pattern.startswith("(?P<year>"))
_named = tuple(row for row in _plain if row not in _dated)
_NAMED_BEGINS = re.compile(r"[A-Za-z][\w.-]{0,254}(?::|\s{1,8}\||\s{1,2}\d)")


def _rows_for(head: str, start: int) -> tuple[re.Pattern[str], ...]:
    """The rows whose first characters fit: two dozen failed matches per line would cost more than all the rest."""
    first = head[start : start + 1]
    if first == "[":
        return _bracketed_number if head[start + 1 : start + 2] in _BEGINS_NUMBER else _bracketed
    if first == "(":
        return _round
    if first in _BEGINS_NUMBER:
        return _dated
    return _named if _NAMED_BEGINS.match(head, start) else ()


def parse_prefix(line: str, *, near: datetime | None = None) -> Prefixed:
    """Takes the prefixes off one line.

    Args:
        line: one line, with or without its line end and colours.
        near: a moment the line was printed at, within half a year: gives glog's and syslog's times, which have no
            year, the one that fits. Without it such a time is not known.
    """
    line = strip_ansi(line.rstrip("\r\n"))
    head, beyond = line[:LONGEST_PREFIXED], line[LONGEST_PREFIXED:]
    found, position = _carried(head, near)
    if head[position : position + 1] in _BEGINS_OUTERMOST:
        for pattern in _outermost:
            match = pattern.match(head, position)
            if match:
                found, position = replace(found, task=int(match["rank"])), match.end()
                break
    for _ in range(_MOST_PREFIXES):
        # Indentation belongs to the text, but may stand between two prefixes.
        start = position
        while head[start : start + 1] == " ":
            start += 1
        match = next((m for row in _rows_for(head, start) if (m := row.match(head, start))), None)
        if match is None or match.end() == position:
            break
        rank = found.rank
        found, position = _merged(found, match, near), match.end()
        if found.task is not None and not _OF_THE_PROCESS.match(match[0]):
            found = replace(found, rank=rank)
    if found.rank is None:
        found = replace(found, rank=found.task)
    for pattern in _telling if _TELLING_BEGINS.match(head, position) else ():
        match = pattern.match(head, position)
        if match:
            found = _merged(found, match, near)
            break
    return replace(found, text=head[position:] + beyond)


def _carried(head: str, near: datetime | None) -> tuple[Prefixed, int]:
    """What carriers wrote before the line, and where the line itself begins."""
    found, position = Prefixed(), 0
    for _ in range(_MOST_CARRIERS):
        begins = _CARRIER_BEGINS.match(head, position)
        if begins is None:
            break
        rows = _carriers_by_first["[" if begins["first"] else "<" if begins["second"] else "1" if begins["third"] else "a"]
        match = next((m for row in rows if (m := row.match(head, position))), None)
        if match is None:
            break
        found, position = _merged(found, match, near), match.end()
    return (replace(found, carried=position) if position else found), position


def _merged(found: Prefixed, match: re.Match[str], near: datetime | None) -> Prefixed:
    """What was found further left stands: the launcher knows better who printed than the program's own logger. An address gives
    way to a name: what Ray calls by address, NCCL calls by name on the same line."""
    groups = match.groupdict()
    rank, local_rank, node = groups.get("rank"), groups.get("local_rank"), groups.get("node")
    return Prefixed(
        rank=found.rank if found.rank is not None or rank is None else int(rank),
        local_rank=found.local_rank if found.local_rank is not None or local_rank is None else int(local_rank),
        node=node if node and (found.node is None or (_ADDRESS.match(found.node) and not _ADDRESS.match(node))) else found.node,
        at=found.at or (_time_of(groups, near) if groups.get("hour") else _time_of_seconds(groups.get("epoch"))),
        task=found.task,
        carrier=groups.get("carrier") or found.carrier,
        carried=found.carried,
    )


def _time_of_seconds(epoch: str | None) -> datetime | None:
    return datetime.fromtimestamp(float(epoch), UTC) if epoch else None


def _time_of(groups: dict[str, str | None], near: datetime | None) -> datetime | None:
    month_name, year = groups.get("month_name"), groups.get("year")
    if month_name is not None and month_name not in _MONTHS:
        return None
    month = int(groups["month"] or 0) if month_name is None else _MONTHS.index(month_name) + 1
    fraction = (groups.get("fraction") or "").ljust(6, "0")[:6]
    second = int(groups["second"] or 0)
    make: Callable[[int], datetime] = lambda in_year: (  # noqa: E731
        datetime(
            in_year,
            month,
            int(groups["day"] or 0),
            int(groups["hour"] or 0),
            int(groups["minute"] or 0),
            min(second, 59),  # a leap second
            int(fraction),
            tzinfo=_zone_of(groups.get("zone")),
        )
    )
    try:
        if year is not None:
            return make(int(year))
        if near is None:
            return None
        return min((make(in_year) for in_year in (near.year - 1, near.year, near.year + 1)), key=lambda at: abs(at - near))
    except (ValueError, OverflowError):
        return None  # 31 February: digits that only look like a date


def _zone_of(zone: str | None) -> timezone:
    zone = (zone or "").strip()
    if not zone or zone in ("Z", "UTC"):
        return UTC
    digits = zone[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if zone[0] == "-" else offset)
