"""What a change of Slurm is asked with and what it answers, and how a job shows what was done to it already. Pure.

The vocabulary between `reschedule.py`, `workflows/recovery.py` and `backstay failopen`."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from activities.records import Job, JobFlag, JobState, Record

HOLD_MARK = "backstay-hold"
"""Stands in AdminComment of a job that we hold; `backstay failopen` releases what carries it."""

DRAIN_PREFIX = "backstay: "
"""Begins every drain reason of ours, so that whoever undrains a node knows where to ask."""


SOON = timedelta(seconds=5)
"""Slurm tells begin times in whole seconds, by its own clock: one this near is as good as now."""


class Loss(StrEnum):
    """What a slurmctld that was killed before it saved its state no longer shows when it is back, though it was read back before."""

    REQUEUE = "requeue"
    PLACEMENT = "placement"  # the exclusions, or the start time


class MutationRequest(Record):
    """Which attempt of which job is meant. A job whose restart count is past it has been restarted by someone."""

    job_id: str
    incident_id: str
    restart_count: int = Field(description="of the attempt that failed")
    nodes: tuple[str, ...] = Field(default=(), description="nodes to exclude or drain")
    ran_on: tuple[str, ...] = Field(default=(), description="nodes of the attempt that failed")
    lost_nodes: tuple[str, ...] = Field(default=(), description="those of them that Slurm called lost when the fault was seen")
    requeued: bool = Field(default=False, description="Backstay's own requeue was read back before: found again, it is no other hand's")
    excluded: tuple[str, ...] = Field(default=(), description="read back from ExcNodeList before: the job must not start without them")
    controller_start: str = Field(
        default="", description="of the slurmctld that took the placement now asked for again; while it runs, another hand undid it"
    )
    override_no_requeue: bool = False
    spare_nodes: int = 0
    reason: str = ""


class MutationResult(Record):
    """What was found, done and read back. Exactly one of `done`, `superseded`, `refused`, `lost` tells the story."""

    step: str
    at: datetime
    done: bool = False
    detail: str = ""
    superseded: str | None = Field(default=None, description="another hand acted first; what it did")
    refused: str | None = Field(default=None, description="Slurm or a guard said no; why, with the numbers")
    lost: Loss | None = Field(default=None, description="Slurm came back with older state; `detail` tells what it shows")
    by_slurm: bool = Field(default=False, description="superseded by Slurm's own requeue off a lost node; the job waits for its start")
    held: bool = Field(default=False, description="the job waits in a hold of ours and must be released")
    excluded_nodes: tuple[str, ...] = ()
    controller_start: str = Field(default="", description="of the slurmctld that was told, as it says; another start may have lost it")
    job: Job | None = None


class MutationNotSeen(Exception):
    """Slurm took the update, but reading back does not show it (yet). Temporal looks again; the check comes first."""


class RequeueNotSeen(MutationNotSeen): ...


class ExclusionNotSeen(MutationNotSeen): ...


class ExpediteNotSeen(MutationNotSeen): ...


class ReleaseNotSeen(MutationNotSeen): ...


class CancelNotSeen(MutationNotSeen): ...


def already_requeued(job: Job, request: MutationRequest) -> str | None:
    """How the job shows that its failed attempt was requeued, by whomever; None when it was not."""
    if job.restart_count > request.restart_count:
        return f"restart count went from {request.restart_count} to {job.restart_count}"
    if job.state is JobState.PENDING or {JobFlag.REQUEUED, JobFlag.REQUEUE_HOLD} & set(job.flags):
        return "the job waits in the queue"
    return None


class NotToBe(NamedTuple):
    """Why a job is not requeued: another hand's act, or a no; the other is empty."""

    superseded: str = ""
    refused: str = ""


def not_to_be_requeued(job: Job, request: MutationRequest) -> NotToBe | None:
    """Why a job that nobody has requeued yet is not requeued by us either; None where nothing speaks against it."""
    if job.state is JobState.CANCELLED:
        return NotToBe(superseded="someone cancelled the job")
    if job.state is JobState.COMPLETED and not job.derived_exit_code:
        return NotToBe(superseded="the job has completed")
    if job.is_batch is not True:
        return NotToBe(refused="not a batch job: Slurm cannot requeue srun or salloc allocations")
    if job.may_requeue is False and not request.override_no_requeue:
        return NotToBe(refused="submitted with --no-requeue, and policy.override_no_requeue is off")
    if job.may_requeue is False and job.state.is_ended:
        return NotToBe(refused="submitted with --no-requeue, and Slurm takes Requeue=1 only before a job ends; resubmit it")
    return None


def lost_since(job: Job, request: MutationRequest) -> tuple[Loss, str] | None:
    """What Slurm showed before and shows no more, and how; None: nothing. Nobody can undo a requeue, and nobody lifts an exclusion in the
    moment between two steps: slurmctld came back with older state."""
    if job.state is JobState.CANCELLED:
        return None
    if not already_requeued(job, request):
        return Loss.REQUEUE, f"Slurm shows the job {job.state} with restart count {job.restart_count} again"
    missing = sorted(set(request.excluded) - set(job.excluded_nodes))
    if missing and job.state is JobState.PENDING:
        return Loss.PLACEMENT, f"Slurm shows the waiting job without the exclusion of {', '.join(missing)}"
    return None


def has_run_since(job: Job, restart_count: int) -> bool:
    """True when a later attempt than `restart_count` has begun to run, or has even ended."""
    started = job.state is not JobState.PENDING and job.state is not JobState.UNKNOWN and not job.is_ending
    return job.restart_count > restart_count and started


def waits_for_begin_time(job: Job, now: datetime) -> bool:
    """True for a job that waits, and may not start for seconds to come, because its begin time lies ahead."""
    return job.state is JobState.PENDING and job.eligible_at is not None and job.eligible_at > now + SOON


def carries_our_mark(job: Job) -> bool:
    """True for a job whose hold, if it is held, is ours."""
    return job.admin_comment.startswith(HOLD_MARK)
