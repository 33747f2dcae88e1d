"""One pass over each log: blocks, matched one ahead on a second thread, lines counted, progress sampled. Bounded whatever the size.

The engine calls `read`; reading.py takes the lines apart that hit."""

import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import BinaryIO

from activities.diagnosis import pace, scan
from activities.diagnosis.reading import STRUCTURE, LogLines, Reading
from activities.diagnosis.scan import LineHits, MultiPattern
from activities.diagnosis.signals import LogSource
from activities.diagnosis.signatures import Signature
from activities.logs.prefixes import parse_prefix
from activities.logs.progress import ProgressReader

WINDOW_EVERY = 16  # blocks of scan.READ_BYTES between two samples of progress, in the middle of a large log
WHOLE_BYTES = 32 << 20  # a log up to this size is sampled everywhere
PROGRESS_BYTES = 512 << 10  # of the head and of the tail: where the attempt began and how far it came
TAIL_LINES_BYTES = 16 << 10  # enough lines to find the last time that was printed
MARKS_A_BLOCK = 2000  # progress lines taken apart per read; where every line is one, more would say nothing new


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
        _settle_labels(reading, task_count, len(nodes))
        return reading

    def _read_one(self, log: LogSource, reading: Reading, near: datetime | None) -> None:
        state = LogLines(log.name, reading, near, self.signatures, self._extracts)
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

    def _take_events(self, state: LogLines, offset: int, block: bytes, hits: Sequence[LineHits], *, first_line: int) -> int:
        """Hands every hit on; returns the line number after the block. Counting lines costs as much as matching: once is enough."""
        line, counted = first_line, 0
        for hit in hits:
            line += block.count(b"\n", counted, hit.start)
            counted = hit.start
            state.take(block, hit, offset=offset, line=line)
        return line + block.count(b"\n", counted)

    def _take_pace(self, state: LogLines, offset: int, block: bytes, first_line: int, *, sampled: bool) -> None:
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


def _settle_labels(reading: Reading, task_count: int | None, node_count: int) -> None:
    """Where the launcher's numbers turn out to be tasks of several ranks each (torchrun under srun --label), no rank is told by them."""
    placements = reading.placements
    if placements.one_task_a_node(task_count, node_count) and (reading.world_size or 0) > node_count:
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


def _tail(block: bytes, size: int) -> bytes:
    """The last lines of a block, beginning with a whole one."""
    return block if len(block) <= size else block[block.find(b"\n", len(block) - size) + 1 :]
