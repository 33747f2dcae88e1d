"""The taking apart of one log's lines that hit: signatures, phases, launcher tables, who runs where. Bounded whatever the size.

reader.py hands the lines over; what comes of them is a `Reading`: facts in the order they stand, no judgement."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from activities.diagnosis import placements
from activities.diagnosis.reading import Failure, Observation, PhaseLine, Reading
from activities.diagnosis.signatures import Role, Signature
from activities.diagnosis.speakers import about, is_messenger, writer_of
from activities.diagnosis.tracebacks import Printed, printed_by, unusual_end
from activities.logs.prefixes import Prefixed, parse_prefix
from activities.redaction import redact_start
from activities.scanning import scan
from activities.scanning.scan import LineHits

FIRST_KEPT = 400  # hits of one signature kept with their text; beyond that they are counted
LONGEST_TEXT = 600
LONGEST_NUMBER = 6  # digits; what is longer is no rank, size or exit code: ranks that said nothing are counted up to the highest one
CONTEXT_BYTES = 24 << 10  # what stands before an exception: a traceback
CONTEXTS_KEPT = 24
FAILURES_KEPT = 100_000  # rows of launchers' tables, one a rank
TASKS_A_LINE = 4096  # of srun's `tasks 0-7,9`
PLACEMENTS_KEPT = 20_000  # lines that say where a rank is: each communicator of each rank prints one

# Structure that is no event: launcher tables, communicator sizes, addresses.
STRUCTURE = {
    "_host": r"\bhost +: \S",
    "_rank": r"\brank +: \d+ \(local_rank: \d+\)",
    "_exitcode": r"\bexitcode +: -?\d+",
    "_time": r"\btime +: \d{4}-\d\d-\d\d_",
    "_root_cause": r"Root Cause \(first observed failure\)",
    "_nranks": r"(?i)\bnranks \d+|world[ _]size(?:\D{0,4}| \.{2,60} )\d+|\bnum_processes[=:]\s?\d+"
    r"|Starting with \d+ processes|MEMBER: \d+/\d+",
    "_elastic_failed": r"failed \(exitcode: -?\d+\) local_rank: \d+",
    "_elastic_sigterm": r"Sending process \d+ closing signal SIG",
    "_placed": placements.PATTERN,
    "_wall": r"Message from syslogd@\S+ at ",
    "_ended": r"PID \d+ RUNNING AT \S",
    "_bootstrap": r"Bootstrap : Using \S+:[\d.]+<",
    "_srun_tasks": r"error: [\w.\[\],-]+: tasks? [\d,-]+: ",
    # Read for its prefix alone: which node a rank prints from.
    "_traceback": r"Traceback \(most recent call last\)",
}

_NRANKS = re.compile(r"n[rR]anks (\d{1,6})(?!\d)")
# Of the job: a data-parallel, local or elastic group's "world size" is not (torch elastic prints group_world_size, Megatron its groups').
_WORLD = re.compile(
    r"(?i)(?:(?<!parallel[ _-])(?<!local[ _])(?<!group[ _])(?<!role[ _])(?<!node[ _])world[ _]size(?:\D{0,4}| \.{2,60} )"
    r"|num_processes[=:]\s?|Starting with (?=\d+ processes)|MEMBER: \d+/)(\d{1,6})(?!\d)"
)
_TABLE = re.compile(r"(time|host|rank|exitcode) +: (\S+)(?: \(local_rank: (\d{1,6})\))?")
_NO_HOST = re.compile(r"localhost\b|127\.")  # what each host calls itself
_WALL = re.compile(r"Message from syslogd@([\w.-]+) at ")
_LINES_OF_A_WALL = 3  # syslogd names its host in one line and the message is in the next ones
_RUNNING_AT = re.compile(r"RUNNING AT ([\w.-]+)")
_BOOTSTRAP = re.compile(r"Using \S+?:([\d.]+)<")
_OF_ITS_OWN = re.compile(r"Aborted|Segmentation fault|Bus error|Illegal instruction|Floating point exception")  # nobody sent it
_SRUN_TASKS = re.compile(r"error: ([\w.-]+): tasks? ([\d,-]+): ")
_BRACKETED = re.compile(r"^\s?\[([^\]\n]{1,120})\]")  # a script's own tag, a node's name somewhere in it
_TAGGED = re.compile(r"^(?:\s?\[[^\]\n]{1,80}\]){1,3} ([A-Za-z][\w.-]{0,80}): ")  # a monitor's tag, then whom it tells of
_FIRST_WORD = re.compile(r"^[\[( ]{0,3}([A-Za-z][\w.-]{0,80}?)[\]): ]")


class LogLines:
    """What is remembered while one log is read."""

    def __init__(
        self,
        name: str,
        reading: Reading,
        near: datetime | None,
        signatures: Mapping[str, Signature],
        extracts: Mapping[str, Any],
    ) -> None:
        self.name, self.reading, self.near = name, reading, near
        self.signatures, self.extracts = signatures, extracts
        self.base = reading.bytes
        self.failure: Failure | None = None
        self.failed_at: datetime | None = None  # of the row that begins
        self.in_root_cause = False
        self.ignored_exceptions = 0
        self.ignored_until = 0
        self.contexts = 0
        self.wall: tuple[int, str] = (-1, "")
        self.sigterms: dict[str, int] = {}
        # Where the latest counts, or every row: phases, and launcher tables of thousands of ranks.
        self.unbounded = {row.id for row in signatures.values() if row.role is Role.PROGRESS} | {
            "_time",
            "_host",
            "_rank",
            "_exitcode",
            "_placed",
        }

    def take(self, block: bytes, hit: LineHits, *, offset: int, line: int) -> None:
        names, start, end = hit.ids, hit.start, hit.end
        counts = self.reading.counts
        if all(counts.get(name, 0) > FIRST_KEPT for name in names) and not any(name in self.unbounded for name in names):
            for name in names:
                counts[name] += 1
            return
        rows = [self.signatures[i] for i in names if i in self.signatures]
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        structure = [i for i in names if i.startswith("_")]
        raw = block[start : min(end, start + scan.LINE_WINDOW_BYTES)].decode(errors="replace")
        prefixed = parse_prefix(raw, near=self.near)
        as_carried, raw = raw, raw[prefixed.carried :]
        if self.near is None and prefixed.at is not None:
            self.near = prefixed.at
        if prefixed.node is None or _NO_HOST.match(prefixed.node):
            unstamped = prefixed.text if prefixed.at is not None and prefixed.rank is None else raw
            node = self._node_of(unstamped) or self._carriers_node(prefixed) or (self.wall[1] if line <= self.wall[0] else None)
            prefixed = replace(prefixed, node=node)
        if "_wall" in names and (found := _WALL.search(raw)):
            self.wall = (line + _LINES_OF_A_WALL, found[1])
        is_of_others, prefixed = is_messenger(prefixed.text), about(prefixed)
        if writer := writer_of(prefixed.text):
            self.reading.shown_nodes.add(writer)
        placed = self.reading.placements
        if prefixed.task is not None:
            placed.labelled(prefixed.task, prefixed.node)
            if prefixed.rank is not None and prefixed.rank != prefixed.task:
                placed.ranked(prefixed.rank, prefixed.task)
        if prefixed.node:
            self.reading.shown_nodes.add(prefixed.node)
            if not is_of_others:
                self.reading.printing_nodes.setdefault(self.name, set()).add(prefixed.node)
            if prefixed.rank is not None and (prefixed.task is None or prefixed.rank != prefixed.task):
                self.reading.rank_nodes.setdefault(prefixed.rank, prefixed.node)
        if structure:
            self._structure(structure, raw, prefixed, self.base + offset + start)
        if "_traceback" in names:
            self._unusual_end(block, end, as_carried, offset=offset, line=line)
        if rows:
            context = self._context(rows, block, start)
            if any(row.id == "nvrm_line" for row in rows) and len(self.reading.kernel_lines) < FIRST_KEPT:
                self.reading.kernel_lines.append((as_carried if prefixed.carrier is None else raw)[:2000])
            self._observe(rows, raw, prefixed, context=context, position=self.base + offset + start, line=line)

    def _unusual_end(self, block: bytes, end: int, header: str, *, offset: int, line: int) -> None:
        """An exception whose class no row of the table names."""
        row = self.signatures.get("python_exception")
        after = block[end + 1 : end + CONTEXT_BYTES]
        if row is None or not (found := unusual_end(parse_prefix(header), after.decode(errors="replace"))):
            return
        start = end + 1 + found[0]
        self.reading.counts[row.id] = self.reading.counts.get(row.id, 0) + 1
        prefixed = about(parse_prefix(found[1], near=self.near))
        self._observe(
            [row],
            found[1].rstrip(),
            prefixed,
            context=self._context([row], block, start),
            position=self.base + offset + start,
            line=line + scan.line_breaks(block, end, start),
        )

    def _node_of(self, raw: str) -> str | None:
        """The node a line begins with, where the job's own list leaves no doubt."""
        if self.reading.known_nodes and (found := _FIRST_WORD.match(raw)) and found[1] in self.reading.known_nodes:
            return found[1]
        if self.reading.known_nodes and (found := _TAGGED.match(raw)) and found[1] in self.reading.known_nodes:
            return found[1]
        if self.reading.known_nodes and (found := _BRACKETED.match(raw)):
            named = self.reading.known_nodes.intersection(re.split(r"[\s,:|/]+", found[1]))
            if len(named) == 1:
                return next(iter(named))
        return None

    def _carriers_node(self, prefixed: Prefixed) -> str | None:
        """What carried the line names a service, a pod or a log server as often as a node: only the job's own list can tell."""
        named = prefixed.carrier
        if named is None:
            return None
        return next((name for name in (named, named.split(".")[0]) if name in self.reading.known_nodes), None)

    def _context(self, rows: Sequence[Signature], block: bytes, start: int) -> str:
        if self.contexts >= CONTEXTS_KEPT or not any(row.role is Role.PRIMARY for row in rows):
            return ""
        self.contexts += 1
        return block[max(0, start - CONTEXT_BYTES) : start].decode(errors="replace")

    def _observe(self, rows: Sequence[Signature], raw: str, prefixed: Prefixed, *, context: str, position: int, line: int) -> None:
        text, at, rank, node = prefixed.text, prefixed.at, prefixed.rank, prefixed.node
        hidden = any(row.role is Role.BENIGN for row in rows) and not _ended_by_it(rows, prefixed, context)
        if any(row.id == "exception_ignored" for row in rows):
            # Python prints the traceback of an exception it discarded right after saying so; the traceback is not an event.
            self.ignored_exceptions += 1
            self.ignored_until = line + 60
        if not hidden and self.ignored_exceptions and line <= self.ignored_until and any(row.id == "python_exception" for row in rows):
            self.ignored_exceptions -= 1
            hidden = True
        events = [row for row in rows if row.role in (Role.PRIMARY, Role.CASCADE)]
        if any(row.role in (Role.CASCADE, Role.TEARDOWN) for row in rows):
            # An exception class that a launcher or a peer raises is told by its own row.
            events = [row for row in events if row.id != "python_exception"]
        if events and hidden:
            events = []
        # One line is one event: its most telling row. A wrapped exception is told by what it wraps.
        best = max(events, key=lambda row: (row.role is Role.PRIMARY and row.id != "python_exception", row.weight), default=None)
        kept = [row for row in rows if row.role not in (Role.PRIMARY, Role.CASCADE)] + ([best] if best else [])
        for row in kept:
            if row.role is Role.PROGRESS:
                if row.phase:
                    phases = self.reading.phases
                    if len(phases) >= 2 and phases[-1].turn is phases[-2].turn is row.phase:
                        phases.pop()  # of a phase that says the same again and again, its first and its latest line
                    phases.append(PhaseLine(position, row.phase, text[:200]))
                continue
            groups = self._groups(row.id, raw)
            about = groups.get("about")
            # What the line is about, else who printed it, else whom it names.
            told = (int(about) if about else None, rank, int(groups["rank"]) if "rank" in groups else None)
            where = next((number for number in told if number is not None), None)
            if where is not None:
                self.reading.ranks.setdefault(row.id, set()).add(where)
            if node:
                self.reading.nodes.setdefault(row.id, set()).add(node)
            if self.reading.counts[row.id] > FIRST_KEPT:
                continue
            self.reading.observations.append(
                Observation(
                    signature=row.id,
                    role=row.role,
                    weight=row.weight,
                    text=redact_start(text.strip(), LONGEST_TEXT),
                    cause=row.cause,
                    line=line,
                    position=position,
                    at=at,
                    rank=where,
                    node=None if about else node,
                    gpu=groups.get("gpu"),
                    named_node=groups.get("node"),
                    groups=groups,
                    context=context if row.role is Role.PRIMARY else "",
                    log=self.name,
                    task=prefixed.task,
                    label=prefixed.rank,
                )
            )

    def _groups(self, signature: str, text: str) -> dict[str, str]:
        pattern = self.extracts.get(signature)
        found = pattern.search(text[:4000]) if pattern else None
        if found is None:
            return {}
        # `node2` is another way to say `node`: alternatives of one pattern cannot share a name.
        groups = {name.rstrip("0123456789"): value for name, value in found.groupdict().items() if value}
        return {name: value for name, value in groups.items() if name not in ("rank", "about") or _is_number(value)}

    def _structure(self, ids: Sequence[str], raw: str, prefixed: Prefixed, position: int) -> None:
        reading, node = self.reading, prefixed.node
        for name in ids:
            match name:
                case "_root_cause":
                    self._close_failure()
                    self.in_root_cause = True
                case "_time" | "_host" | "_rank" | "_exitcode":
                    self._table_row(raw, prefixed.task, position)
                case "_nranks":
                    for pattern in (_NRANKS, _WORLD):
                        size = int(found[1]) if (found := pattern.search(raw)) else 0
                        if size == 0:
                            continue
                        reading.world_size = max(reading.world_size or 0, size)
                        if pattern is _WORLD:
                            reading.told_world = max(reading.told_world or 0, size)
                case "_elastic_sigterm" | "_elastic_failed":
                    agent = node or "-"
                    self.sigterms[agent] = self.sigterms.get(agent, 0) + 1
                    reading.local_world = max(reading.local_world, self.sigterms[agent] if self.sigterms[agent] <= 16 else 0)
                case "_bootstrap":
                    if node and (found := _BOOTSTRAP.search(raw)):
                        reading.address_nodes.setdefault(found[1], node)
                case "_ended":
                    if found := _RUNNING_AT.search(raw):
                        reading.ended_on.add(found[1])
                case "_placed":
                    if reading.counts["_placed"] <= PLACEMENTS_KEPT:
                        reading.placements.take(raw, node, prefixed.task)
                case "_srun_tasks":
                    if found := _SRUN_TASKS.search(raw):
                        if "Exited with exit code" in raw:
                            reading.exited_on.add(found[1])
                        elif _OF_ITS_OWN.match(raw, found.end()):
                            reading.crashed_on.add(found[1])
                        for task in _numbers(found[2]):
                            reading.placements.labelled(task, found[1])
                case _:
                    continue

    def _table_row(self, raw: str, task: int | None, position: int) -> None:
        if not (found := _TABLE.search(raw)):
            return
        key, value, local = found.groups()
        if key == "time":
            self._close_failure()
            self.failed_at = _moment_of(value)
        elif key == "host":
            self._close_failure()
            host = None if _NO_HOST.match(value) else value.split("(")[0]
            self.failure = Failure(host=host, is_root_cause=self.in_root_cause, position=position, at=self.failed_at)
            self.in_root_cause = False  # one row; another agent's table may follow
        elif self.failure is not None and key == "rank" and _is_number(value):
            self.failure.rank, self.failure.local_rank = int(value), int(local) if local else None
            if task is not None:
                self.reading.placements.ranked(self.failure.rank, task)
        elif self.failure is not None and key == "exitcode" and _is_number(value.removeprefix("-")):
            self.failure.exitcode = int(value)

    def _close_failure(self) -> None:
        if self.failure is not None and len(self.reading.failures) < FAILURES_KEPT:
            self.reading.failures.append(self.failure)
            if self.failure.rank is not None and self.failure.host:
                self.reading.rank_nodes.setdefault(self.failure.rank, self.failure.host)
        self.failure = None

    def take_tail(self, tail: bytes) -> None:
        """The last time printed; a log whose heartbeats go on while its steps do not is told by it."""
        for raw in reversed(tail.decode(errors="replace").splitlines()[-100:]):
            if (at := parse_prefix(raw[:2000], near=self.near).at) is not None:
                self.reading.last_at = max(at, self.reading.last_at or at)
                return

    def finish(self) -> None:
        self._close_failure()


def _ended_by_it(rows: Sequence[Signature], prefixed: Prefixed, context: str) -> bool:
    """True for an exception in words of a logger that tries again, which Python printed from the outermost frame: it ended the process."""
    if {row.id for row in rows if row.role is Role.BENIGN} != {"logger_retry"} or not any(row.id == "python_exception" for row in rows):
        return False
    own = (line.text for raw in context.splitlines() if (line := parse_prefix(raw)).rank == prefixed.rank)
    return printed_by("\n".join(own)) is Printed.BY_THE_END


def _moment_of(text: str) -> datetime | None:
    """`2026-07-01_10:12:03`, the host's own time."""
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= LONGEST_NUMBER


def _numbers(text: str) -> list[int]:
    """`0-7,9` as numbers, bounded."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if _is_number(first) and (not last or _is_number(last)):
            numbers.extend(range(int(first), int(last or first) + 1)[: TASKS_A_LINE - len(numbers)])
    return numbers
