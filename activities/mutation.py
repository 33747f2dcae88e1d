"""What a change of Slurm is asked with and what it answers: the vocabulary between `reschedule.py` and `workflows/recovery.py`."""

from datetime import datetime

from pydantic import Field

from activities.records import Job, Record


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
