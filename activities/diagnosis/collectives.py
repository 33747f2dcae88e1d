"""Who did not come: what the watchdogs of waiting ranks say about the rank they waited for, and what the job was doing. Pure.

The ranks that time out are the innocent ones; the rank that is behind, or that says nothing, is where to look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from activities.diagnosis.flight_recorder import Analysis, Finding
from activities.diagnosis.reading import Observation, Reading
from activities.diagnosis.signatures import Doing
from activities.outside_text import whole_number

WAITING = ("nccl_collective_timeout", "gloo_timeout", "store_key_timeout", "horovod_missing")
_NEARLY_DONE = 0.985  # of an epoch or of the run: where uneven shares of data show
_MOST_ABSENT = 0.5  # more ranks silent than this is a log that was cut, not a rank that stayed away


@dataclass(frozen=True, slots=True)
class Waiting:
    """The conclusion from ranks that waited in vain."""

    first: Observation
    waiting_ranks: frozenset[int]
    missing_ranks: tuple[int, ...]
    cause: str | None
    confidence: float
    because: str


class _Call(NamedTuple):
    """What one rank waits in. Each process group counts for itself: numbers of two groups say nothing of each other."""

    group: str | None
    sequence: int | None
    operation: str | None


def waiting_of(
    reading: Reading, observations: Sequence[Observation], *, phase: Doing | None, dataloader_stuck: bool, tasks: int | None = None
) -> Waiting | None:
    """What the waiting ranks' own words say; None when nobody waited.

    Args:
        tasks: how many Slurm started: where a launcher starts one rank a task, those that say nothing are counted by it.
    """
    waits = [item for item in observations if item.signature in WAITING]
    if not waits:
        return None
    first = waits[0]
    of_rank: dict[int, _Call] = {}
    named: set[int] = set()
    for item in waits:
        named |= {rank for text in item.groups.get("missing", "").replace(",", " ").split() if (rank := whole_number(text)) is not None}
        if item.rank is not None and item.rank not in of_rank:
            seq = item.groups.get("seq")
            of_rank[item.rank] = _Call(item.groups.get("group"), whole_number(seq) if seq else None, item.groups.get("op"))
    ranks = set(of_rank)
    for name in WAITING:
        ranks |= reading.ranks.get(name, set())
    missing = named or _missing(reading, ranks, of_rank, tasks or 0)
    all_wait = not missing and len(ranks) >= _size(reading, ranks, tasks or 0)
    ended = {item.rank for item in observations if item.signature == "rank_out_of_data" and item.rank is not None}
    cause, confidence, because = _cause_of(
        reading, waits, of_rank, phase=phase, dataloader_stuck=dataloader_stuck, out_of_data=ended, all_wait=all_wait
    )
    return Waiting(first, frozenset(ranks), tuple(sorted(missing)), cause, confidence, because)


def with_dumps(waiting: Waiting, analysis: Analysis) -> Waiting:
    """The same, corrected by what the flight recorders of the ranks say: they were there, the log only heard of it."""
    match analysis.finding:
        case Finding.MISMATCH:
            return replace(waiting, missing_ranks=analysis.ranks, cause="collective_mismatch", confidence=0.88, because=analysis.because)
        case Finding.NO_DUMP | Finding.NEVER_CAME | Finding.NEVER_STARTED:
            confidence = min(0.9, waiting.confidence + 0.1)
            return replace(waiting, missing_ranks=analysis.ranks, confidence=confidence, because=waiting.because or analysis.because)
        case Finding.ALL_ALIKE:
            if waiting.cause is not None:
                return waiting
            return replace(
                waiting, missing_ranks=(), because="the flight recorders show every rank in the same collective: look between them"
            )
        case Finding.NOTHING:
            return waiting


def _missing(reading: Reading, ranks: set[int], of_rank: Mapping[int, _Call], tasks: int) -> set[int]:
    sequences = {rank: call.sequence for rank, call in of_rank.items() if call.sequence is not None}
    highest: dict[str | None, int] = {}
    for rank, sequence in sequences.items():
        group = of_rank[rank].group
        highest[group] = max(sequence, highest.get(group, 0))
    behind = {rank for rank, sequence in sequences.items() if sequence < highest[of_rank[rank].group]}
    if behind and len(behind) <= max(1, len(sequences) * _MOST_ABSENT):
        return behind
    size = _size(reading, ranks, tasks)
    absent = set(range(size)) - ranks
    return absent if len(ranks) >= 2 and 0 < len(absent) <= size * _MOST_ABSENT else set()


def _size(reading: Reading, ranks: set[int], tasks: int) -> int:
    known = {rank for group in reading.ranks.values() for rank in group} | set(reading.rank_nodes)
    return max(reading.world_size or 0, max(ranks | known, default=-1) + 1, reading.local_world, tasks)


def _cause_of(
    reading: Reading,
    waits: Sequence[Observation],
    of_rank: Mapping[int, _Call],
    *,
    phase: Doing | None,
    dataloader_stuck: bool,
    out_of_data: set[int],
    all_wait: bool,
) -> tuple[str | None, float, str]:
    by_sequence: dict[tuple[str | None, int], set[str]] = {}
    for call in of_rank.values():
        if call.sequence is not None and call.operation is not None:
            by_sequence.setdefault((call.group, call.sequence), set()).add(call.operation)
    if any(len(operations) > 1 for operations in by_sequence.values()):
        return "collective_mismatch", 0.75, "ranks wait in different collectives of the same number"
    waits_for_first_id = all(item.signature == "store_key_timeout" for item in waits)
    match phase:
        case Doing.CHECKPOINT:
            return "nccl_timeout_during_checkpoint", 0.75, "a checkpoint was being saved while the others waited"
        case Doing.PREPROCESS:
            return "nccl_timeout_rank0_preprocessing", 0.75, "data was still being prepared while the others waited"
        case Doing.EVALUATION:
            if dataloader_stuck:
                return "dataloader_deadlock_eval", 0.75, "a data loader stood still during evaluation"
            return "rank_deadlock_in_eval", 0.72, "evaluation had begun and not every rank entered it"
        case Doing.TRAINING | None:
            pass
    if waits_for_first_id and 0 not in of_rank:
        return "nccl_timeout_rank0_preprocessing", 0.6, "rank 0 never came to the first collective"
    if reading.counts.get("rank_to_gpu_unknown") and not any(mark.iteration is not None for mark in reading.marks):
        return "gpu_mapping_config", 0.6, "the first collective never ended, and torch did not know which rank uses which GPU"
    if dataloader_stuck:
        return "dataloader_deadlock_eval", 0.55, "a data loader stood still"
    if out_of_data and not out_of_data & set(of_rank):
        return "uneven_data_deadlock", 0.7, "a rank that does not wait had come to the end of its data"
    share = next(
        (mark.share_done for mark in reversed(reading.marks) if mark.share_done is not None and mark.position < waits[0].position), None
    )
    if share is not None and share >= _NEARLY_DONE and of_rank and not all_wait:
        sequences = [call.sequence for call in of_rank.values() if call.sequence is not None]
        # A handful of collectives in a whole run: the ranks work alone and meet at the end.
        if sequences and max(sequences) <= 16:
            return "uneven_work_across_ranks", 0.65, "the ranks met only at the end, and not all came"
        return "uneven_data_deadlock", 0.62, "at the end of the data not every rank had a batch left"
    return None, 0.4, ""
