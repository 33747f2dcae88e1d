"""First cause, not loudest: which of many observations began it. Pure.

1. A fault followed by real progress did not end the job. 2. Teardown and cascades never win while a primary stands.
3. What names its cause beats what only shows it; among equals the earliest wins, with room for clocks of different ranks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from activities.diagnosis.causes import cause_of
from activities.diagnosis.going_on import Steps
from activities.diagnosis.pace import Mark
from activities.diagnosis.reading import Observation
from activities.diagnosis.signatures import Role
from activities.diagnosis.tracebacks import Printed, printed_by
from activities.records import Domain, SignalSource, SymptomKind

CLOCK_SKEW = timedelta(seconds=2)  # between nodes kept by NTP, with room for buffered output
NAMES_ITS_CAUSE = 0.9
IS_SPECIFIC = 0.7

ENDS_A_WAIT = frozenset({"time_limit"})
_A_WAIT = timedelta(minutes=1)
_DEATHS = frozenset({"segfault", "sigill"})
_OF_THE_END = re.compile(r"Signal|Interrupt|SIGTERM|Terminated")  # exceptions that a signal raises

# What a GPU's sickness looks like from inside the program; kernel and GPU evidence names it better.
SEEN_FROM_INSIDE = frozenset(
    {
        "ecc_uncorrectable",
        "xid_74_nvlink_fatal",
        "nvlink_contained_error",
        "gpu_fell_off_bus",
        "cuda_unknown_error_gpu",
        "gpu_not_clean_at_start",
        "illegal_memory_access_app_bug",
        "gpu_reset_required_xid_95",
        "python_exception_rank_logic",
        "faulty_gpu_oom_at_init",
        "segfault_rank",
        "fabric_manager_not_running",
    }
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The primary, what was explained away, and other faults that stand on their own."""

    primary: Observation | None
    supporters: tuple[Observation, ...]
    cascades: int
    is_fallback: bool
    recovered: tuple[Observation, ...]


def choose(observations: Sequence[Observation], steps: Steps) -> Verdict:
    """The first cause among `observations`."""
    events = [item for item in observations if item.role in (Role.PRIMARY, Role.CASCADE)]
    standing = [item for item in events if not steps.went_on_after(item)]
    recovered = tuple(item for item in events if steps.went_on_after(item))
    primaries = _without_passing([item for item in standing if item.role is Role.PRIMARY])
    cascades = [item for item in standing if item.role is Role.CASCADE]
    primaries = _without_aftermath(_without_the_end_of_a_wait(_without_seen_from_inside(primaries)), steps.marks)
    first_told = min((item for item in cascades if item.cause), key=_when, default=None)
    if first_told is not None:
        # An exception after somebody noticed a dead peer is one more that noticed.
        primaries = [
            item for item in primaries if item.weight >= IS_SPECIFIC or item.source is not SignalSource.LOG or _before(item, first_told)
        ]
    chosen = _first(primaries)
    fallback = False
    if chosen is None:
        chosen, fallback = _first([item for item in cascades if item.cause]), True
    if chosen is None:
        return Verdict(None, (), len(cascades), False, recovered)
    supporters = tuple(
        item
        for item in (events if chosen.source is not SignalSource.LOG else standing)
        if item.cause == chosen.cause and item is not chosen
    )
    others = len([item for item in standing if item is not chosen and item.cause != chosen.cause])
    return Verdict(chosen, supporters, others, fallback, recovered)


def _without_passing(primaries: list[Observation]) -> list[Observation]:
    """What the driver calls non-fatal, and asks nobody to look at, never goes before an error of the job's own."""
    passing = [item for item in primaries if item.source is SignalSource.KERNEL and not item.isolate and is_nonfatal(item)]
    others = [item for item in primaries if item not in passing]
    return others if any(item.source is SignalSource.LOG for item in others) else primaries


def is_nonfatal(item: Observation) -> bool:
    """By the line's own word (NVLink 5: Xid 144-150 say it)."""
    return "nonfatal" in item.text.lower().replace("-", "")


def _without_seen_from_inside(primaries: list[Observation]) -> list[Observation]:
    outside = [item for item in primaries if item.source in (SignalSource.KERNEL, SignalSource.GPU) and item.weight >= 0.6]
    if not outside:
        return primaries
    # A reading that says no more than the log's own line does not silence it: the line names the cause the surer.
    inside = SEEN_FROM_INSIDE - {item.cause for item in outside}
    if any(item.isolate for item in outside):
        inside = inside | {"dataloader_bus_error_shm"}  # SIGBUS is also what a process gets for a bad page of the host's memory
    return [item for item in primaries if item.source in (SignalSource.KERNEL, SignalSource.GPU) or item.cause not in inside]


def _without_the_end_of_a_wait(primaries: list[Observation]) -> list[Observation]:
    """The time limit ends a job that stands still as it ends one that steps: what came before it, and no step after that, began it."""
    if not any(item.cause in ENDS_A_WAIT for item in primaries):
        return primaries
    ends = [item for item in primaries if item.cause in ENDS_A_WAIT and item.source is SignalSource.LOG]
    others = [item for item in primaries if item.cause not in ENDS_A_WAIT]
    return [item for item in others if _began_a_wait(item, ends)] or primaries


def _began_a_wait(item: Observation, ends: Sequence[Observation]) -> bool:
    if item.source is SignalSource.KERNEL:
        cause = cause_of(item.cause or "")
        return item.weight >= IS_SPECIFIC and cause is not None and cause.symptom is SymptomKind.HANG
    if item.source is not SignalSource.LOG or _OF_THE_END.search(item.text) or not all(_before(item, end) for end in ends):
        return False
    return item.weight >= IS_SPECIFIC or printed_by(item.own_context) is Printed.BY_THE_END


def _without_aftermath(primaries: list[Observation], marks: Sequence[Mark]) -> list[Observation]:
    """Where a process of a stepping job died of itself and nothing stepped after that, what is told a minute later and more is what its
    peers met while they waited and gave up; but what asks for a device to be looked at."""
    died = [
        item
        for item in primaries
        if item.source is SignalSource.LOG
        and item.at is not None
        and (item.signature in _DEATHS or (not _OF_THE_END.search(item.text) and printed_by(item.own_context) is Printed.BY_THE_END))
        and any(mark.position < item.position and mark.iteration is not None for mark in marks)
    ]
    first = min((item.at for item in died if item.at is not None), default=None)
    if first is None:
        return primaries

    def is_aftermath(item: Observation) -> bool:
        cause = cause_of(item.cause or "")
        concerns_a_node = cause is None or cause.domain in (Domain.HARDWARE, Domain.SCHEDULER)
        return item.source is SignalSource.LOG and not concerns_a_node and item.at is not None and item.at - first > _A_WAIT

    return [item for item in primaries if not is_aftermath(item)]


def _tier(item: Observation) -> int:
    return 0 if item.weight >= NAMES_ITS_CAUSE else 1 if item.weight >= IS_SPECIFIC else 2


def _when(item: Observation) -> tuple[int, int]:
    return (0 if item.source is not SignalSource.SCHEDULER else 1, item.position)


def _before(left: Observation, right: Observation) -> bool:
    if left.at is not None and right.at is not None and abs(left.at - right.at) > CLOCK_SKEW:
        return left.at < right.at
    if left.log != right.log:
        return True  # nothing tells
    return left.position <= right.position


def _first(items: Sequence[Observation]) -> Observation | None:
    if not items:
        return None
    tier = min(_tier(item) for item in items)
    best = [item for item in items if _tier(item) == tier]
    first = min(best, key=lambda item: (*_when(item), -item.weight))  # of two readings of one line the surer
    stamped = [(item.at, index) for index, item in enumerate(best) if item.at is not None]
    if len({item.log for item in best}) > 1 and len(stamped) == len(best):
        return best[min(stamped)[1]]  # no order joins the lines of several logs
    # Buffers are flushed out of order: a line that stands later but was printed clearly earlier is the first.
    for item in best:
        if item.at is not None and first.at is not None and first.at - item.at > CLOCK_SKEW:
            first = item
    return first
