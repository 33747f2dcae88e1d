"""What a job outlived: a kernel line after which it stepped on or ended well, an exception that somebody caught. Pure; case.py asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from activities.diagnosis.causality import IS_SPECIFIC, NAMES_ITS_CAUSE
from activities.diagnosis.causes import cause_of
from activities.diagnosis.going_on import PROGRESS_AFTER
from activities.diagnosis.pace import Mark
from activities.diagnosis.reading import Observation
from activities.diagnosis.tracebacks import Printed, printed_by
from activities.gpu.bursts import BACK
from activities.gpu.findings import Clock, KernelFinding
from activities.records import Domain, SignalSource, SymptomKind

_MISTAKES = frozenset({"xid_13", "xid_31"})
_KILLED_FOR_MEMORY = frozenset({"oom_cgroup", "oom_global", "oom_kill_summary"})
_RECOVERY = "xid_154"


class Fate(StrEnum):
    """What becomes of a kernel line in one judgement."""

    COUNTS = "counts"  # it may be what happened
    NOTICE = "notice"  # it ended no job, and still condemns a device: worth telling
    PASSED = "passed"  # noise, for this job


@dataclass(frozen=True, slots=True)
class Living:
    """A job of which nobody has said that it ended badly, as its own log and Slurm show it."""

    marks: Sequence[Mark]
    runs: bool  # Slurm says so
    ended_well: bool  # Slurm says so
    keeps_pace: bool  # enough steps, and none slower than before
    in_trouble: bool  # an error stands in its log with no step after it
    troubles: frozenset[str]  # causes its log has words of


def fate_of(finding: KernelFinding, item: Observation, job: Living) -> Fate:
    """What a primary kernel finding means for such a job. `item` is the same finding as an observation."""
    is_device = finding.gpu is not None or finding.domain in (Domain.HARDWARE, Domain.NETWORK)  # a stall that is over left nothing broken
    condemned = item.isolate and is_device and (finding.confidence >= IS_SPECIFIC or _RECOVERY in (finding.event, *finding.others))
    cause = cause_of(finding.cause)
    slows = cause is not None and cause.symptom is SymptomKind.SLOWDOWN
    went_on = job.keeps_pace if slows else _stepped_after(finding, job.marks)
    if job.ended_well or (went_on and not job.in_trouble):
        return Fate.NOTICE if condemned else Fate.PASSED
    if (job.runs or job.marks) and finding.cause not in job.troubles and _is_passing(item, runs=job.runs):
        return Fate.PASSED
    # An Xid 109 may be a monitor's: before the job's next step no log can show that it goes on, and a hang is found by its silence.
    unsure = finding.confidence < IS_SPECIFIC and not condemned and not slows
    return Fate.PASSED if unsure and job.runs and not job.in_trouble else Fate.COUNTS


def is_stall_over(finding: KernelFinding, marks: Sequence[Mark]) -> bool:
    """True for something that stood still in the kernel while the job's steps show that it went on."""
    cause = cause_of(finding.cause)
    return cause is not None and cause.symptom is SymptomKind.HANG and _stepped_after(finding, marks)


def _is_passing(item: Observation, *, runs: bool) -> bool:
    """True for a kernel line that a job may well outlive: an Xid of a program's mistake (13, 31), one that says Nonfatal, a file server
    that came back; and, where Slurm says that the job runs, a process killed for memory, which may be anybody's."""
    return not item.isolate and (
        item.signature in _MISTAKES
        or item.signature.endswith(BACK)
        or (item.signature.startswith("xid_") and "nonfatal" in item.text.lower())
        or (runs and item.signature in _KILLED_FOR_MEMORY)
    )


def _stepped_after(finding: KernelFinding, marks: Sequence[Mark]) -> bool:
    """True when the log's own stamps show steps before and after the line: a stamp outside of the log is another clock's or zone's."""
    timed = [mark.at for mark in marks if mark.at is not None and mark.iteration is not None]
    if len(timed) <= PROGRESS_AFTER or finding.clock_seconds is None or finding.clock in (None, Clock.UPTIME):
        return False
    # kernel.py reads stamps that name no year as of a leap year.
    seconds = [(at.replace(year=2000) if finding.clock is Clock.YEARLESS else at).timestamp() for at in timed]
    return min(seconds) <= finding.clock_seconds and sum(second > finding.clock_seconds for second in seconds) >= PROGRESS_AFTER


def was_caught(item: Observation) -> bool:
    """True for an exception in the log whose traceback was printed by whoever caught it."""
    if item.source is not SignalSource.LOG:
        return False
    by = printed_by(item.own_context)
    if item.weight < IS_SPECIFIC:
        return by in (Printed.BY_THE_PROGRAM, Printed.BY_A_LIBRARY)
    # A line that names its fault counts whoever printed it; clients of the network alone are used to trying again.
    cause = cause_of(item.cause or "")
    return by is Printed.BY_A_LIBRARY and item.weight < NAMES_ITS_CAUSE and cause is not None and cause.domain is Domain.NETWORK
