"""NCCL flight-recorder dumps: which rank did not come to the collective the others wait in, or that nobody can be told apart.

Dumps come from the job's own directory: pickle is read by a loader that knows containers and plain values only. The steps are
numbered as in the facts they rest on (PyTorch FlightRecorder.hpp, torch/distributed/flight_recorder)."""

import io
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from activities.outside_text import json_value

LARGEST_DUMP_BYTES = 256 << 20
MOST_DUMPS = 20_000


MOST_TOLD = 8
"""Refusals told one by one; a thousand ranks whose dumps broke alike are one thing to mend."""

_TEMP_FILE = "the files that the job's TORCH_NCCL_DEBUG_INFO_TEMP_FILE names, `nccl_trace_rank_<rank>` by default"


class DumpUnreadable(ValueError):
    """A file that is no dump, or asks for more than plain values; the message names the file, what was wrong and the mend."""


class Finding(StrEnum):
    """What the dumps of one hang say."""

    NO_DUMP = "no_dump"  # a member left no dump: it died, or its host is gone
    NEVER_CAME = "never_came"  # a rank is behind in calling collectives: stuck on the host
    NEVER_STARTED = "never_started"  # called, but its GPU did not start what the others started
    MISMATCH = "mismatch"  # ranks are in different collectives
    ALL_ALIKE = "all_alike"  # everyone is in the same collective: what is between them
    NOTHING = "nothing"  # no collective is open


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective as one rank recorded it."""

    group: str
    sequence: int
    name: str
    state: str
    created_ns: int
    shape: str
    is_p2p: bool


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's recording."""

    rank: int
    groups: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]
    status: Mapping[str, tuple[int, int, int]]  # last enqueued, started, completed
    entries: tuple[Entry, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Analysis:
    """The conclusion: what, in which group, about which ranks."""

    finding: Finding
    group: str = ""
    ranks: tuple[int, ...] = ()
    operation: str = ""
    sequence: int | None = None
    because: str = ""


# ------------------------------------------------------------------------------------------------------------ loading


class _PlainUnpickler(pickle.Unpickler):
    """Containers, text, numbers, booleans and None: a pickle that names any class or function is refused before it runs."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}; a flight-recorder dump holds plain values only")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside of itself")


# What the pickle machine raises on bytes that are no pickle (CPython documents these as possible besides UnpicklingError).
_BROKEN = (
    pickle.UnpicklingError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


def _opened(path: Path) -> BinaryIO:
    return path.open("rb")


def load(path: Path, opener: Callable[[Path], BinaryIO] = _opened) -> Dump:
    """One dump, pickle or JSON; the rank is the number at the end of the file's name.

    Args:
        path: the file.
        opener: opens it; a live job's dumps are opened under the allowed roots only.
    Raises:
        DumpUnreadable: too large, not a dump, or a pickle that wants to run something.
        OSError: it cannot be opened or read.
    """
    if path.is_dir():
        raise DumpUnreadable(f"{path}: holds no dump that can be read here; name the directory of {_TEMP_FILE}")
    rank = _rank_of(path)
    if rank is None:
        raise DumpUnreadable(f"{path}: no rank number at the end of the name; dumps are {_TEMP_FILE}")
    with opener(path) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        data = _all_of(file, size) if size <= LARGEST_DUMP_BYTES else b""
    if size > LARGEST_DUMP_BYTES:
        raise DumpUnreadable(
            f"{path}: larger than {LARGEST_DUMP_BYTES >> 20} MiB; have fewer collectives recorded (TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
    return parse(data, rank=rank, name=str(path))


def _all_of(file: BinaryIO, size: int) -> bytes:
    """So many bytes, or all there are: an unbuffered file may give fewer at once than were asked for."""
    pieces: list[bytes] = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _rank_of(path: Path) -> int | None:
    """The rank that the name ends in."""
    found = re.search(r"(\d{1,9})(?:\.(?:json|pkl|pickle))?$", path.name)
    return int(found[1]) if found else None


def parse(data: bytes, *, rank: int, name: str) -> Dump:
    """A dump from its bytes."""
    try:
        content = json_value(data) if data[:1] in (b"{", b" ", b"\n") else _PlainUnpickler(io.BytesIO(data)).load()
    except _BROKEN as wrong:
        raise DumpUnreadable(f"{name}: not a flight-recorder dump: {wrong or type(wrong).__name__}; dumps are {_TEMP_FILE}") from wrong
    if not isinstance(content, Mapping) or not isinstance(content.get("entries", []), list | tuple):
        raise DumpUnreadable(f"{name}: not a flight-recorder dump: no `entries`; dumps are {_TEMP_FILE}")
    groups: dict[str, tuple[int, ...]] = {}
    names: dict[str, str] = {}
    for key, value in _items(content.get("pg_config")):
        groups[str(key)] = _ranks_of(value.get("ranks"))
        names[str(key)] = str(value.get("desc") or value.get("name") or key)
    status = {
        str(key): (
            _whole(value.get("last_enqueued_collective")),
            _whole(value.get("last_started_collective")),
            _whole(value.get("last_completed_collective")),
        )
        for key, value in _items(content.get("pg_status"))
    }
    entries = tuple(_entry(item) for item in content.get("entries", []) if isinstance(item, Mapping))
    for item in entries:
        if item.group not in status and not item.is_p2p:
            enqueued, started, completed = status.get(item.group, (-1, -1, -1))
            status[item.group] = (
                max(enqueued, item.sequence),
                max(started, item.sequence if item.state in ("started", "completed") else -1),
                max(completed, item.sequence if item.state == "completed" else -1),
            )
    return Dump(rank, groups, names, status, entries)


def _items(value: Any) -> Iterable[tuple[Any, Mapping[str, Any]]]:
    return ((key, item) for key, item in value.items() if isinstance(item, Mapping)) if isinstance(value, Mapping) else ()


def _ranks_of(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return tuple(int(number) for number in re.findall(r"\d+", value))
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list | tuple) else ()


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _entry(item: Mapping[str, Any]) -> Entry:
    group = item.get("pg_id")
    if group is None:
        process_group = item.get("process_group")
        group = process_group[0] if isinstance(process_group, list | tuple) and process_group else "0"
    return Entry(
        group=str(group),
        sequence=_whole(item.get("collective_seq_id")),
        name=str(item.get("profiling_name", ""))[:120],
        state=str(item.get("state", ""))[:20],
        created_ns=_whole(item.get("time_created_ns")),
        shape=f"{item.get('input_sizes')} {item.get('input_dtypes')}"[:200],
        is_p2p=bool(item.get("is_p2p")),
    )


# ---------------------------------------------------------------------------------------------------------- analysing


def analyse(dumps: Sequence[Dump]) -> Analysis:
    """The rank to look at, from the dumps of one hang. Where several groups hang, the one stuck first decides (8): ranks waiting
    in another group are its victims."""
    by_rank = {dump.rank: dump for dump in dumps}
    found: list[tuple[int, Analysis]] = []
    for group in sorted({group for dump in dumps for group in dump.status}):
        analysis = _of_group(group, by_rank)
        if analysis.finding is not Finding.NOTHING:
            found.append((_stuck_since(group, dumps), analysis))
    return min(found, key=lambda item: item[0])[1] if found else Analysis(Finding.NOTHING)


def _stuck_since(group: str, dumps: Sequence[Dump]) -> int:
    times = [
        item.created_ns
        for dump in dumps
        for item in dump.entries
        if item.group == group and item.state != "completed" and item.created_ns > 0
    ]
    return min(times, default=1 << 62)


def _of_group(group: str, by_rank: Mapping[int, Dump]) -> Analysis:
    status = {rank: dump.status[group] for rank, dump in by_rank.items() if group in dump.status}  # (2)
    if not status or (all(enqueued <= completed for enqueued, _, completed in status.values()) and len(set(status.values())) == 1):
        return Analysis(Finding.NOTHING)
    name = next((dump.names[group] for dump in by_rank.values() if group in dump.names), group)
    members = next((dump.groups[group] for dump in by_rank.values() if dump.groups.get(group)), tuple(status))
    highest = max(enqueued for enqueued, _, _ in status.values())
    open_entries = {
        rank: item
        for rank, dump in by_rank.items()
        for item in dump.entries
        if item.group == group and item.sequence == highest and not item.is_p2p and item.state != "completed"
    }
    operation = next((item.name for item in open_entries.values()), "")
    silent = tuple(sorted(set(members) - set(by_rank)))
    unsaid = [rank for rank in members if rank in by_rank and not by_rank[rank].status]
    if silent and len(silent) * 2 <= len(members):  # (3)
        return Analysis(Finding.NO_DUMP, name, silent, operation, highest, "these ranks left no dump")
    different = _different(open_entries)
    if different:  # (7)
        return Analysis(Finding.MISMATCH, name, different, operation, highest, "ranks are in different collectives of the same number")
    behind = tuple(sorted(rank for rank, (enqueued, _, _) in status.items() if enqueued < highest))
    if behind:  # (4)
        return Analysis(Finding.NEVER_CAME, name, behind, operation, highest, f"the others called collective {highest}, these did not")
    top = max(started for _, started, _ in status.values())
    late = tuple(sorted(rank for rank, (_, started, _) in status.items() if started < top))
    if late and len(late) < len(status):  # (5)
        return Analysis(Finding.NEVER_STARTED, name, late, operation, highest, "their GPUs did not start what the others' GPUs did")
    if all(enqueued <= completed for enqueued, _, completed in status.values()) or unsaid:
        return Analysis(Finding.NOTHING)  # a member of whom nothing is known may be the one
    return Analysis(Finding.ALL_ALIKE, name, (), operation, highest, "every rank is in the same collective")  # (6)


def _different(entries: Mapping[int, Entry]) -> tuple[int, ...]:
    """Ranks in the minority where names or shapes at one sequence number differ; shapes of gathers may differ by design."""
    names = {rank: item.name for rank, item in entries.items()}
    if len(set(names.values())) <= 1:
        reduces = all("all_reduce" in name or "broadcast" in name for name in names.values())
        names = {rank: item.shape for rank, item in entries.items()} if reduces else names
    if len(set(names.values())) <= 1:
        return ()
    counts: dict[str, int] = {}
    for name in names.values():
        counts[name] = counts.get(name, 0) + 1
    usual = max(counts, key=lambda name: counts[name])
    return tuple(sorted(rank for rank, name in names.items() if name != usual))


def read_all(paths: Sequence[Path], opener: Callable[[Path], BinaryIO] | None = None) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """The dumps, and why some cannot be read. Of those a dump remains that says nothing: a rank whose dump we cannot read is none that
    left no dump, and must not be blamed for it."""
    dumps: list[Dump] = []
    silent: list[Dump] = []
    refused: list[str] = []
    for path in paths[:MOST_DUMPS]:
        try:
            dumps.append(load(path, opener or _opened))
        except (DumpUnreadable, OSError) as why:
            refused.append(f"{path}: cannot be read: {why.strerror}" if isinstance(why, OSError) else str(why))
            if (rank := _rank_of(path)) is not None:
                silent.append(Dump(rank, {}, {}, {}))
    told = [f"flight-recorder dump not used: {why}" for why in refused[:MOST_TOLD]]
    if len(refused) > MOST_TOLD:
        told.append(f"{len(refused) - MOST_TOLD} more flight-recorder dumps not used, the last one: {refused[-1]}")
    if len(paths) > MOST_DUMPS:
        told.append(f"{len(paths) - MOST_DUMPS} flight-recorder dumps beyond the first {MOST_DUMPS} not read; name one hang's dumps only")
    return (*silent, *dumps), tuple(told)
