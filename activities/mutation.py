"""What a change of Slurm is asked with and what it answers, and how a job shows what was done to it already. Pure.

The vocabulary between `reschedule.py`, `workflows/recovery.py` and `backstay failopen`."""

from datetime import datetime

from pydantic import Field

from activities.records import Job, JobFlag, JobState, Record

HOLD_MARK = "backstay-hold"
"""Stands in AdminComment of a job that we hold; `backstay failopen` releases what carries it."""

DRAIN_PREFIX = "backstay: "
"""Begins every drain reason of ours, so that whoever undrains a node knows where to ask."""


class MutationRequest(Record):
    """Which attempt of which job is meant. A job whose restart count is past it has been restarted by someone."""

    job_id: str
    incident_id: str
    restart_count: int = Field(description="of the attempt that failed")
    nodes: tuple[str, ...] = Field(default=(), description="nodes to exclude or drain")
    ran_on: tuple[str, ...] = Field(default=(), description="nodes of the attempt that failed")
    override_no_requeue: bool = False
    spare_nodes: int = 0
    reason: str = ""


class MutationResult(Record):
    """What was found, done and read back. Exactly one of `done`, `superseded`, `refused` tells the story."""

    step: str
    at: datetime
    done: bool = False
    detail: str = ""
    superseded: str | None = Field(default=None, description="another hand acted first; what it did")
    refused: str | None = Field(default=None, description="Slurm or a guard said no; why, with the numbers")
    by_slurm: bool = Field(default=False, description="superseded by Slurm's own requeue off a lost node; the job waits for its start")
    held: bool = Field(default=False, description="the job waits in a hold of ours and must be released")
    excluded_nodes: tuple[str, ...] = ()
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


def has_run_since(job: Job, restart_count: int) -> bool:
    """True when a later attempt than `restart_count` has begun to run, or has even ended."""
    started = job.state is not JobState.PENDING and job.state is not JobState.UNKNOWN and not job.is_ending
    return job.restart_count > restart_count and started


def carries_our_mark(job: Job) -> bool:
    """True for a job whose hold, if it is held, is ours."""
    return job.admin_comment.startswith(HOLD_MARK)
