"""One pass over the logs: signature hits, phases, progress marks, launcher tables, who runs where. Bounded whatever the size.

The engine calls `read`; what it returns is facts in the order they stand, no judgement."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import BinaryIO

from activities.diagnosis import pace, placements, scan
from activities.diagnosis.pace import Mark
from activities.diagnosis.placements import Placements
from activities.diagnosis.scan import LineHits, MultiPattern
from activities.diagnosis.signals import LogSource
from activities.diagnosis.signatures import Role, Signature
from activities.logs.prefixes import Prefixed, parse_prefix
from activities.logs.progress import ProgressMark, ProgressReader
from activities.records import SignalSource

FIRST_KEPT = 400  # hits of one signature kept with their text; beyond that they are counted
LONGEST_TEXT = 600
CONTEXT_BYTES = 24 << 10  # what stands before an exception: a traceback
CONTEXTS_KEPT = 24
WINDOW_EVERY = 16  # blocks of scan.READ_BYTES between two samples of progress, in the middle of a large log
WHOLE_BYTES = 32 << 20  # a log up to this size is sampled everywhere
PROGRESS_BYTES = 512 << 10  # of the head and of the tail: where the attempt began and how far it came
TAIL_LINES_BYTES = 16 << 10  # enough lines to find the last time that was printed
PLACEMENTS_KEPT = 20_000  # lines that say where a rank is: each communicator of each rank prints one
MARKS_A_BLOCK = 2000  # progress lines taken apart per read; where every line is one, more would say nothing new

# Structure that is no event: launcher tables, communicator sizes, addresses.
STRUCTURE = {
    "_host": r"\bhost +: \S",
    "_rank": r"\brank +: \d+ \(local_rank: \d+\)",
    "_exitcode": r"\bexitcode +: -?\d+",
    "_root_cause": r"Root Cause \(first observed failure\)",
    "_nranks": r"\bn[rR]anks \d+|world[ _]size\D{0,4}\d+|\bnum_processes[=:]\s?\d+",
    "_elastic_failed": r"failed \(exitcode: -?\d+\) local_rank: \d+",
    "_elastic_sigterm": r"Sending process \d+ closing signal SIG",
    "_placed": placements.PATTERN,
    "_bootstrap": r"Bootstrap : Using \S+:[\d.]+<",
    "_srun_tasks": r"error: [\w.\[\],-]+: tasks? [\d,-]+: ",
    # Read for its prefix alone: which node a rank prints from.
    "_traceback": r"Traceback \(most recent call last\)",
}


@dataclass(frozen=True, slots=True)
class Observation:
    """One fact that may be a cause: a line of a log, a kernel finding, a reading, a scheduler's word."""

    signature: str
    role: Role
    weight: float
    text: str
    cause: str | None = None
    source: SignalSource = SignalSource.LOG
    line: int | None = None
    position: int = 0
    at: datetime | None = None
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    named_node: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    context: str = ""
    isolate: bool = False
    log: str = ""
    task: int | None = None  # the launcher's number of the process that printed it, where that is no rank
    label: int | None = None  # the rank as the line's own prefix reads

    @property
    def own_context(self) -> str:
        """What this rank printed before it, without prefixes; another rank's lines between are left out."""
        mine = (prefixed for raw in self.context.splitlines() if (prefixed := parse_prefix(raw)).rank == self.label)
        return "\n".join(prefixed.text for prefixed in mine)


@dataclass(slots=True)
class Failure:
    """One row of a launcher's table of failed ranks."""

    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    exitcode: int | None = None
    is_root_cause: bool = False


@dataclass(slots=True)
class Reading:
    """Everything one pass found."""

    observations: list[Observation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, set[int]] = field(default_factory=dict)
    nodes: dict[str, set[str]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    phases: list[tuple[int, int, str, str]] = field(default_factory=list)  # position, line, phase, text
    failures: list[Failure] = field(default_factory=list)
    rank_nodes: dict[int, str] = field(default_factory=dict)
    placements: Placements = field(default_factory=Placements)
    address_nodes: dict[str, str] = field(default_factory=dict)
    printing_nodes: set[str] = field(default_factory=set)
    known_nodes: frozenset[str] = frozenset()
    world_size: int | None = None
    local_world: int = 0
    kernel_lines: list[str] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    last_text: str = ""
    last_at: datetime | None = None
    progress: list[ProgressMark] = field(default_factory=list)  # of the head and the tail only


class Reader:
    """The matchers, compiled once; `read` may be called from several threads."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self.signatures = {row.id: row for row in signatures if row.where != "scheduler"}
        self._extracts = {row.id: re.compile(row.extracts) for row in signatures if row.extracts}
        self.events = MultiPattern({row.id: row.pattern for row in self.signatures.values()} | STRUCTURE, dense_hits=4000)
        self._pace = MultiPattern(pace.PATTERNS, dense_hits=8000)

    def read(
        self, logs: Sequence[LogSource], *, near: datetime | None, nodes: Collection[str] = (), task_count: int | None = None
    ) -> Reading:
        """Reads every log to its end, in the order given. `nodes` are the job's, where they are known: names at a line's beginning
        that the prefixes alone could not tell from a device are recognised by them. `task_count` is Slurm's, where it is known."""
        reading = Reading(known_nodes=frozenset(nodes))
        for log in logs:
            self._read_one(log, reading, near)
        _settle_labels(reading, task_count)
        return reading

    def _read_one(self, log: LogSource, reading: Reading, near: datetime | None) -> None:
        state = _LogState(log.name, reading, near, self.signatures, self._extracts)
        line = log.starts_at_line
        previous: tuple[int, bytes, int] | None = None
        with log.stream() as stream:
            for index, (offset, block, hits) in enumerate(self._scanned(stream)):
                if index == 0:
                    reading.progress += ProgressReader().read(block[:PROGRESS_BYTES]) if len(block) > PROGRESS_BYTES else ()
                if previous is not None:
                    self._take_pace(state, *previous, sampled=index <= 1 or offset < WHOLE_BYTES or index % WINDOW_EVERY == 0)
                previous = (offset, block, line)
                line = self._take_events(state, offset, block, hits, first_line=line)
        if previous is not None:
            self._take_pace(state, *previous, sampled=True)
            reading.bytes += previous[0] + len(previous[1])
            state.take_tail(previous[1][-TAIL_LINES_BYTES:])
            reading.progress += ProgressReader().read(_tail(previous[1], PROGRESS_BYTES))
        reading.lines = max(reading.lines, line)
        state.finish()

    def _scanned(self, stream: BinaryIO) -> Iterator[tuple[int, bytes, list[LineHits]]]:
        """Blocks with their hits, one block ahead on a second thread: reading and matching release the GIL, so they go on while
        Python counts lines and takes hits apart."""
        blocks = scan.blocks(stream)

        def scanned_next() -> tuple[int, bytes, list[LineHits]] | None:
            item = next(blocks, None)
            return None if item is None else (*item, list(self.events.scan(item[1])))

        first = scanned_next()
        if first is None:
            return
        if len(first[1]) < scan.READ_BYTES:  # a small log is done before a thread has started
            yield first
            yield from iter(scanned_next, None)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="scan") as pool:
            ahead = pool.submit(scanned_next)
            yield first
            while (item := ahead.result()) is not None:
                ahead = pool.submit(scanned_next)
                yield item

    def _take_events(self, state: "_LogState", offset: int, block: bytes, hits: Sequence[LineHits], *, first_line: int) -> int:
        """Hands every hit on; returns the line number after the block. Counting lines costs as much as matching: once is enough."""
        line, counted = first_line, 0
        for hit in hits:
            line += block.count(b"\n", counted, hit.start)
            counted = hit.start
            state.take(block, hit, offset=offset, line=line)
        return line + block.count(b"\n", counted)

    def _take_pace(self, state: "_LogState", offset: int, block: bytes, first_line: int, *, sampled: bool) -> None:
        if not sampled:
            return
        line, counted = first_line, 0
        hits = list(self._pace.scan(block))
        if len(hits) > MARKS_A_BLOCK:
            hits = hits[: MARKS_A_BLOCK // 2] + hits[-MARKS_A_BLOCK // 2 :]
        for hit in hits:
            line += block.count(b"\n", counted, hit.start)
            counted = hit.start
            text = block[hit.start : min(hit.end, hit.start + 2000)].decode(errors="replace")
            prefixed = parse_prefix(text, near=state.near)
            stream = f"{state.name}:{prefixed.rank}:{prefixed.node}"
            mark = pace.mark_of(prefixed.text, position=state.base + offset + hit.start, line=line, at=prefixed.at, stream=stream)
            if mark is not None:
                state.reading.marks.append(mark)


def _settle_labels(reading: Reading, task_count: int | None) -> None:
    """Where the launcher's numbers turn out to be tasks of several ranks each (torchrun under srun --label), no rank is told by them."""
    placements = reading.placements
    if 1 < (task_count or 0) < (reading.world_size or 0):
        placements.labels_are_tasks = True
    if not placements.labels_are_tasks:
        return
    reading.ranks.clear()
    for index, item in enumerate(reading.observations):
        if item.task is not None and item.rank == item.task == item.label:
            told = item.groups.get("rank", "")
            reading.observations[index] = replace(item, rank=int(told) if told.isdigit() else None)
        if (rank := reading.observations[index].rank) is not None:
            reading.ranks.setdefault(item.signature, set()).add(rank)


_NRANKS = re.compile(r"n[rR]anks (\d+)|world[ _]size\D{0,4}(\d+)|num_processes[=:]\s?(\d+)")
_TABLE = re.compile(r"(host|rank|exitcode) +: (\S+)(?: \(local_rank: (\d+)\))?")
_BOOTSTRAP = re.compile(r"Using \S+?:([\d.]+)<")
_SRUN_TASKS = re.compile(r"error: ([\w.-]+): tasks? ([\d,-]+): ")
_BRACKETED = re.compile(r"^\s?\[([^\]\n]{1,120})\]")  # a script's own tag, a node's name somewhere in it
_FIRST_WORD = re.compile(r"^[\[( ]{0,3}([A-Za-z][\w.-]{0,80}?)[\]): ]")


def _tail(block: bytes, size: int) -> bytes:
    """The last lines of a block, beginning with a whole one."""
    return block if len(block) <= size else block[block.find(b"\n", len(block) - size) + 1 :]


class _LogState:
    """What is remembered while one log is read."""

    def __init__(
        self,
        name: str,
        reading: Reading,
        near: datetime | None,
        signatures: Mapping[str, Signature],
        extracts: Mapping[str, re.Pattern[str]],
    ) -> None:
        self.name, self.reading, self.near = name, reading, near
        self.signatures, self.extracts = signatures, extracts
        self.base = reading.bytes
        self.failure: Failure | None = None
        self.in_root_cause = False
        self.ignored_exceptions = 0
        self.ignored_until = 0
        self.contexts = 0
        self.sigterms: dict[str, int] = {}
        # Where the latest counts, or every row: phases, and launcher tables of thousands of ranks.
        self.unbounded = {row.id for row in signatures.values() if row.role is Role.PROGRESS} | {"_host", "_rank", "_exitcode", "_placed"}

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
        if self.near is None and prefixed.at is not None:
            self.near = prefixed.at
        if prefixed.node is None:
            prefixed = replace(prefixed, node=self._node_of(raw))
        placed = self.reading.placements
        if prefixed.task is not None:
            placed.labelled(prefixed.task, prefixed.node)
            if prefixed.rank is not None and prefixed.rank != prefixed.task:
                placed.ranked(prefixed.rank, prefixed.task)
        if prefixed.node:
            self.reading.printing_nodes.add(prefixed.node)
            if prefixed.rank is not None and (prefixed.task is None or prefixed.rank != prefixed.task):
                self.reading.rank_nodes.setdefault(prefixed.rank, prefixed.node)
        if structure:
            self._structure(structure, raw, prefixed)
        if rows:
            context = self._context(rows, block, start)
            self._observe(rows, raw, prefixed, context=context, position=self.base + offset + start, line=line)

    def _node_of(self, raw: str) -> str | None:
        """The node a line begins with, where the job's own list leaves no doubt."""
        if self.reading.known_nodes and (found := _FIRST_WORD.match(raw)) and found[1] in self.reading.known_nodes:
            return found[1]
        if self.reading.known_nodes and (found := _BRACKETED.match(raw)):
            named = self.reading.known_nodes.intersection(re.split(r"[\s,:|/]+", found[1]))
            if len(named) == 1:
                return next(iter(named))
        return None

    def _context(self, rows: Sequence[Signature], block: bytes, start: int) -> str:
        if self.contexts >= CONTEXTS_KEPT or not any(row.role is Role.PRIMARY for row in rows):
            return ""
        self.contexts += 1
        return block[max(0, start - CONTEXT_BYTES) : start].decode(errors="replace")

    def _observe(self, rows: Sequence[Signature], raw: str, prefixed: Prefixed, *, context: str, position: int, line: int) -> None:
        text, at, rank, node = prefixed.text, prefixed.at, prefixed.rank, prefixed.node
        hidden = any(row.role is Role.BENIGN for row in rows)
        if any(row.id == "exception_ignored" for row in rows):
            # Python prints the traceback of an exception it discarded right after saying so; the traceback is not an event.
            self.ignored_exceptions += 1
            self.ignored_until = line + 60
        if not hidden and self.ignored_exceptions and line <= self.ignored_until and any(row.id == "python_exception" for row in rows):
            self.ignored_exceptions -= 1
            hidden = True
        if any(row.id == "nvrm_line" for row in rows) and len(self.reading.kernel_lines) < FIRST_KEPT:
            self.reading.kernel_lines.append(raw[:2000])
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
                    if len(phases) >= 2 and phases[-1][2] == phases[-2][2] == row.phase:
                        phases.pop()  # of a phase that says the same again and again, its first and its latest line
                    phases.append((position, line, row.phase, text[:200]))
                continue
            groups = self._groups(row.id, raw)
            named_rank = groups.get("rank")
            about = groups.get("about", "")
            where = (
                int(about)
                if about.isdigit()
                else rank
                if rank is not None
                else int(named_rank)
                if named_rank and named_rank.isdigit()
                else None
            )
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
                    text=text.strip()[:LONGEST_TEXT],
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
        return {name.rstrip("0123456789"): value for name, value in found.groupdict().items() if value}

    def _structure(self, ids: Sequence[str], raw: str, prefixed: Prefixed) -> None:
        reading, node = self.reading, prefixed.node
        for name in ids:
            match name:
                case "_root_cause":
                    self._close_failure()
                    self.in_root_cause = True
                case "_host" | "_rank" | "_exitcode":
                    self._table_row(raw, prefixed.task)
                case "_nranks":
                    if found := _NRANKS.search(raw):
                        size = int(next(group for group in found.groups() if group))
                        if 0 < size < 1_000_000:
                            reading.world_size = max(reading.world_size or 0, size)
                case "_elastic_sigterm" | "_elastic_failed":
                    agent = node or "-"
                    self.sigterms[agent] = self.sigterms.get(agent, 0) + 1
                    reading.local_world = max(reading.local_world, self.sigterms[agent] if self.sigterms[agent] <= 16 else 0)
                case "_bootstrap":
                    if node and (found := _BOOTSTRAP.search(raw)):
                        reading.address_nodes.setdefault(found[1], node)
                case "_placed":
                    if reading.counts["_placed"] <= PLACEMENTS_KEPT:
                        reading.placements.take(raw, node, prefixed.task)
                case "_srun_tasks":
                    if found := _SRUN_TASKS.search(raw):
                        for task in _numbers(found[2]):
                            reading.placements.labelled(task, found[1])
                case _:
                    continue

    def _table_row(self, raw: str, task: int | None) -> None:
        if not (found := _TABLE.search(raw)):
            return
        key, value, local = found.groups()
        if key == "host":
            self._close_failure()
            self.failure = Failure(host=value.split("(")[0], is_root_cause=self.in_root_cause)
        elif self.failure is not None and key == "rank" and value.isdigit():
            self.failure.rank, self.failure.local_rank = int(value), int(local) if local else None
            if task is not None:
                self.reading.placements.ranked(self.failure.rank, task)
        elif self.failure is not None and key == "exitcode" and value.lstrip("-").isdigit():
            self.failure.exitcode = int(value)

    def _close_failure(self) -> None:
        if self.failure is not None:
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


def _numbers(text: str) -> list[int]:
    """`0-7,9` as numbers, bounded."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            numbers.extend(range(int(first), min(int(last) if last.isdigit() else int(first), int(first) + 4096) + 1))
    return numbers
