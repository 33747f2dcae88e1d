"""The one door to a scheduler: the protocol, what it may answer, and its errors.

Implementations: `commands.py` (squeue, scontrol), `simulated.py`; REST is to come. Each method is
one question or one mutation; none waits, retries or decides. Callers: the steps and the feed.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Protocol

from pydantic import Field

from activities.records import Job, Node, Record


class SchedulerError(Exception):
    """Any answer that is not the one asked for. The message names the place and the mend."""


class SchedulerUnreachable(SchedulerError):
    """No answer: slurmctld is down, a timeout, ssh refused. Nothing is known; ask again later."""


class SchedulerUnreadable(SchedulerError):
    """An answer came that cannot be understood (version drift, an error inside a success). Nothing is known."""


class SchedulerRefused(SchedulerError):
    """Slurm said no, and will say so again until something changes."""


class JobUnknown(SchedulerRefused):
    """Invalid job id: Slurm never had it or has forgotten it (`MinJobAge`)."""


class JobPending(SchedulerRefused):
    """The job already waits to run (`ESLURM_JOB_PENDING`)."""


class JobNotPending(SchedulerRefused):
    """The update is only possible while the job waits (`ESLURM_JOB_NOT_PENDING`)."""


class JobFinished(SchedulerRefused):
    """Job/step already completing or completed (`ESLURM_ALREADY_DONE`): the mutation came too late."""


class RequeueDisabled(SchedulerRefused):
    """The user said `--no-requeue` (`ESLURM_DISABLED`)."""


class NotABatchJob(SchedulerRefused):
    """srun/salloc allocations cannot be requeued (`ESLURM_BATCH_ONLY`)."""


class NodeNameInvalid(SchedulerRefused):
    """An update named a node the cluster does not have; nothing was changed."""


class PermissionDenied(SchedulerRefused):
    """The credential may not do that (`ESLURM_USER_ID_MISSING`, `ESLURM_ACCESS_DENIED`)."""


REQUEUED_HELD = "job_requeued_in_held_state"
"""Reason of a job that waits because it was requeued with `hold`, as scontrol prints it; a person's hold alone is JobHeldUser or -Admin."""


class SchedulerSettings(Record):
    """What the cluster's own configuration means for us. None: could not be told."""

    version: str = ""
    cluster_name: str = ""
    min_job_age: timedelta | None = Field(default=None, description="how long slurmctld remembers an ended job")
    requeue_delay: timedelta | None = Field(default=None, description="how long a requeued job is not eligible")
    job_requeue: bool | None = Field(default=None, description="JobRequeue: requeue permitted by default")
    slurm_user: str = ""
    accounting: bool | None = Field(default=None, description="whether sacct can answer")
    controller_start: str = Field(
        default="", description="when slurmctld says that it started, as it prints it: another text is another start; empty: not told"
    )


class Scheduler(Protocol):
    """Every method raises `SchedulerUnreachable` or `SchedulerUnreadable` when there is no answer to trust."""

    async def settings(self) -> SchedulerSettings:
        """The cluster's configuration (`scontrol show config`)."""

    async def jobs(self) -> Sequence[Job]:
        """Every job the controller remembers, ended ones too: one `squeue`, whatever the number of jobs."""

    async def job(self, job_id: str) -> Job:
        """One job, now. Raises `JobUnknown`. A het job is answered by its leader, an array needs the task (`A_T`)."""

    async def nodes(self) -> Sequence[Node]:
        """Every node of the cluster."""

    async def batch_script(self, job_id: str) -> str:
        """The job's script as submitted. Raises `JobUnknown`, `NotABatchJob`, `PermissionDenied`."""

    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        """End what runs and put the job back in the queue; with `hold`, not eligible until released.

        Raises `JobUnknown`, `JobPending`, `RequeueDisabled`, `NotABatchJob`, `PermissionDenied`."""

    async def permit_requeue(self, job_id: str) -> None:
        """`Requeue=1`, against the user's `--no-requeue`: only where policy says so."""

    async def set_excluded_nodes(self, job_id: str, nodes: Collection[str]) -> None:
        """Replaces `ExcNodeList` (pending jobs only). Raises `NodeNameInvalid`, `JobNotPending`."""

    async def start_now(self, job_id: str) -> None:
        """`StartTime=now`: gives back the requeue delay. Lost without an error unless the job is PENDING."""

    async def hold(self, job_id: str) -> None:
        """Keep a pending job from starting."""

    async def release(self, job_id: str) -> None:
        """Let a held job start."""

    async def set_admin_comment(self, job_id: str, comment: str) -> None:
        """Writes `AdminComment`, where we mark a hold as ours. Raises `PermissionDenied`."""

    async def cancel(self, job_id: str) -> None:
        """End the job for good."""

    async def drain(self, node: str, reason: str) -> None:
        """No new work on the node. `reason` begins with our prefix (`backstay: `)."""

    async def resume(self, node: str) -> None:
        """Undo a drain of ours; the caller has checked that the reason is ours."""
