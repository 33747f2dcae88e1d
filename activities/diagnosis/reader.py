"""One pass over each log: blocks, matched ahead on other threads, lines counted, progress sampled. Bounded whatever the size.

The engine calls `read`; loglines.py takes the lines apart that hit."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import BinaryIO

from activities.diagnosis import pace
from activities.diagnosis.loglines import STRUCTURE, LogLines
from activities.diagnosis.reading import Reading
from activities.diagnosis.signals import LogSource
from activities.diagnosis.signatures import Signature, compiled_extracts
from activities.logs.carriers import plain_bytes
from activities.logs.prefixes import parse_prefix
from activities.logs.progress import ProgressReader
from activities.outside_text import whole_number
from activities.scanning import scan
from activities.scanning.scan import LineHits, MultiPattern

WHOLE_BYTES = 32 << 20  # what a log begins with is sampled for progress whole, in blocks of scan.READ_BYTES
WINDOW_EVERY = 16  # and after that every sixteenth block
TAIL_BLOCKS = 8  # and the last ones, which are held for it
MARKS_AT_AN_END = 2000  # progress lines taken apart of the first and the last block: where every line is one, more say nothing new
MARKS_BETWEEN = 64  # and of each other one
DENSE_PROGRESS = 4  # hits to a line, about: as many patterns may match one
PROGRESS_BYTES = 512 << 10  # of the head and of the tail: where the attempt began and how far it came
FEWEST_STEPS = 3  # that make a log one of steps
TAIL_LINES_BYTES = 16 << 10  # enough lines to find the last time that was printed
THREADS = 2  # that match; with more the interpreter's lock is what all wait for
BLOCKS_AT_ONCE = 4  # that a thread is given: handing over one by one costs as much as a tenth of matching


@dataclass(slots=True)
class _Block:
    """A piece of a log that ends with a line: its hits, each with the line breaks before it, and all its line breaks."""

    index: int
    offset: int
    data: bytes
    hits: list[tuple[int, LineHits]]
    breaks: int
    first_line: int = 0


class Reader:
    """The matchers, compiled once; `read` may be called from several threads."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self.signatures = {row.id: row for row in signatures if row.where != "scheduler"}
        self._extracts = {row.id: compiled_extracts(row.extracts) for row in signatures if row.extracts}
        self.events = MultiPattern({row.id: row.pattern for row in self.signatures.values()} | STRUCTURE, dense_hits=4000)
        self._pace = MultiPattern(pace.PATTERNS)

    def read(
        self, logs: Sequence[LogSource], *, near: datetime | None, nodes: Collection[str] = (), task_count: int | None = None
    ) -> Reading:
        """Reads every log to its end, those that tell of steps first: in a job's own two files errors stand apart from the steps before
        them, and what comes later is taken for later. `nodes` are the job's, where they are known: names at a line's beginning
        that the prefixes alone could not tell from a device are recognised by them. `task_count` is Slurm's, where it is known."""
        reading = Reading(known_nodes=frozenset(nodes))
        for log in sorted(logs, key=lambda log: not self._tells_steps(log)) if len(logs) > 1 else logs:
            self._read_one(log, reading, near)
        _settle_labels(reading, task_count, len(nodes))
        return reading

    def _tells_steps(self, log: LogSource) -> bool:
        with log.stream() as stream:
            data = plain_bytes(stream.read(PROGRESS_BYTES))
        hits = islice(self._pace.scan(data), MARKS_BETWEEN)
        texts = (parse_prefix(data[hit.start : min(hit.end, hit.start + 2000)].decode(errors="replace")).text for hit in hits)
        marks = (pace.mark_of(text, position=0, line=0, at=None, stream="") for text in texts)
        return sum(mark is not None and mark.iteration is not None for mark in marks) >= FEWEST_STEPS  # an error may name one

    def _read_one(self, log: LogSource, reading: Reading, near: datetime | None) -> None:
        lines = LogLines(log.name, reading, near, self.signatures, self._extracts)
        reading.logs.add(log.name)
        line = log.starts_at_line
        latest: deque[_Block] = deque()  # not yet sampled: the end of the log is sampled whole, and where it is shows at the end
        size = 0
        with log.stream() as stream:
            for block in self._matched(stream):
                if block.offset == 0 and len(block.data) > PROGRESS_BYTES:
                    reading.progress += ProgressReader().read(block.data[:PROGRESS_BYTES])
                block.first_line = line
                for breaks, hit in block.hits:
                    lines.take(block.data, hit, offset=block.offset, line=line + breaks)
                line += block.breaks
                size = block.offset + len(block.data)
                latest.append(block)
                if len(latest) > TAIL_BLOCKS:
                    oldest = latest.popleft()
                    if oldest.offset < WHOLE_BYTES or oldest.index % WINDOW_EVERY == 0:
                        self._take_pace(lines, oldest, most=MARKS_BETWEEN if oldest.index else MARKS_AT_AN_END)
        for block in latest:
            self._take_pace(lines, block, most=MARKS_AT_AN_END if block.index == 0 or block is latest[-1] else MARKS_BETWEEN)
        if latest:
            end = b"".join(block.data for block in list(latest)[-2:])  # the last block alone may be a line
            lines.take_tail(end[-TAIL_LINES_BYTES:])
            reading.progress += ProgressReader().read(_tail(end, PROGRESS_BYTES))
        reading.bytes += size
        reading.lines = max(reading.lines, line)
        lines.finish()

    def _matched(self, stream: BinaryIO) -> Iterator[_Block]:
        """Blocks with their hits, in order, some of them matched ahead: matching releases the GIL, so that other blocks are matched
        while Python counts lines and takes hits apart."""
        blocks = enumerate(scan.blocks(stream))
        first = next(blocks, None)
        if first is None:
            return
        yield self._block(*first)
        if len(first[1][1]) < scan.READ_BYTES:  # a small log is done before a thread has started
            yield from (self._block(*item) for item in blocks)
            return
        with ThreadPoolExecutor(THREADS, thread_name_prefix="scan") as pool:
            ahead: deque[Future[list[_Block]]] = deque()
            while items := list(islice(blocks, BLOCKS_AT_ONCE)):
                ahead.append(pool.submit(lambda items: [self._block(*item) for item in items], items))
                if len(ahead) > THREADS:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()

    def _block(self, index: int, read: tuple[int, bytes]) -> _Block:
        """One block matched, each hit with the line breaks before it. Counting them costs half of what matching does: once is enough."""
        offset, data = read[0], plain_bytes(read[1])  # a colour between a name and its number hides both (torchtitan)
        hits: list[tuple[int, LineHits]] = []
        breaks = counted = 0
        for hit in self.events.scan(data):
            breaks += scan.line_breaks(data, counted, hit.start)
            counted = hit.start
            hits.append((breaks, hit))
        return _Block(index, offset, data, hits, breaks + scan.line_breaks(data, counted, len(data)))

    def _take_pace(self, lines: LogLines, block: _Block, *, most: int) -> None:
        """Progress lines of one block, at most so many of them: of its beginning and of its end."""
        line, counted, data = block.first_line, 0, block.data
        hits = list(self._pace.scan(data, dense_hits=DENSE_PROGRESS * most))
        if len(hits) > most:
            hits = hits[: most // 2] + hits[-most // 2 :]
        for hit in hits:
            line += scan.line_breaks(data, counted, hit.start)
            counted = hit.start
            text = data[hit.start : min(hit.end, hit.start + 2000)].decode(errors="replace")
            prefixed = parse_prefix(text, near=lines.near)
            stream = f"{lines.name}:{prefixed.rank}:{prefixed.node or prefixed.carrier}"
            position = lines.base + block.offset + hit.start
            mark = pace.mark_of(prefixed.text, position=position, line=line, at=prefixed.at, stream=stream)
            if mark is not None:
                lines.reading.marks.append(replace(mark, log=lines.name, rank=prefixed.rank))


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
            reading.observations[index] = replace(item, rank=whole_number(told))
        if (rank := reading.observations[index].rank) is not None:
            reading.ranks.setdefault(item.signature, set()).add(rank)


def _tail(block: bytes, size: int) -> bytes:
    """The last lines of a block, beginning with a whole one where one begins there."""
    end = block[-size:]
    return end if len(block) <= size else end[min((at + 1 for at in (end.find(b"\n"), end.find(b"\r")) if at >= 0), default=0) :]
