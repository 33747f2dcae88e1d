"""Why a job is not watched: what Slurm knows of it beside what the configuration asks for. Called by `show` for a job without a workflow.

"Not known" alone sends people to the wrong place: a comment that was forgotten, a partition, a job that still waits.
"""

from contextlib import suppress
from datetime import datetime

from pydantic import ValidationError
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration, OptInBy, WatchSection
from activities.discover import Discover, Discovered
from activities.optin import opted_in, read_comment
from activities.records import Job, JobState
from activities.slurm.scheduler import JobUnknown, Scheduler, SchedulerError
from workers.commands.errors import CommandFailed
from workers.commands.facts import decoded
from workers.commands.lookup import NotWatched, find_job
from workers.commands.service_health import cluster_troubles
from workers.commands.words import clock
from workers.reaching import NotReachableFromHere, scheduler_of

OPT_IN = "submit it with --comment=backstay, or `scontrol update jobid={job} comment=backstay`"


async def find_or_explain(
    client: Client, configuration: Configuration, job_id: str, scheduler: Scheduler | None = None
) -> WorkflowExecution:
    """The newest workflow of this job ID.

    Args:
        scheduler: asked where there is no workflow; default: the one that the configuration names.

    Raises:
        BadUsage: the ID cannot be one.
        CommandFailed: no workflow has it; the message says why, as far as that can be told.
    """
    try:
        return await find_job(client, configuration.cluster.name, job_id)
    except NotWatched as error:
        if error.named_wrongly:
            raise
        why = await _why(client, configuration, job_id, scheduler)
        raise CommandFailed(f"job {job_id} is not watched on cluster {configuration.cluster.name}: {why}") from error


async def _why(client: Client, configuration: Configuration, job_id: str, scheduler: Scheduler | None) -> str:
    try:
        job = await (scheduler or scheduler_of(configuration)).job(job_id)
    except JobUnknown:
        return "Slurm does not know it (any more), so it had ended before Backstay looked, or the ID is wrong; see `backstay jobs --all`"
    except (SchedulerError, NotReachableFromHere) as error:
        return f"why cannot be told, because Slurm gave no answer ({error}); see `backstay doctor`"
    troubles = await cluster_troubles(client, configuration)
    return why_not_watched(job, configuration.watch, since=await _watching_since(client, configuration.cluster.name), troubles=troubles)


def why_not_watched(job: Job, watch: WatchSection, *, since: datetime | None, troubles: tuple[str, ...] = ()) -> str:
    """The reason, in the order in which discovery decides (activities/discover.py), with the fix. Pure.

    Args:
        job: as Slurm tells it now.
        watch: the operator's choice of jobs.
        since: when discovery began to look; None where that is not known.
        troubles: what keeps discovery from looking now.
    """
    if watch.partitions and not set(job.partition.split(",")) & set(watch.partitions):
        watched = ", ".join(watch.partitions)
        return f"its partition {job.partition or '(none)'} is not among watch.partitions ({watched}); add it there"
    if (job.het_offset or 0) > 0:
        return f"it is a component of heterogeneous job {job.het_job_id}, which is followed by its leader; name that one"
    if not opted_in(job, watch).opted_in:
        return _why_not_opted_in(job, watch)
    if job.state is JobState.PENDING and job.started_at is None:
        return f"it waits for its first start ({job.reason or 'no reason told'}); it is watched once it runs"
    if job.state is JobState.PENDING:
        return "it waits to start; it is watched once it runs"
    if job.state.is_ended and not job.is_ending:
        ended = f"it ended ({job.state.value}) at {clock(job.ended_at)} UTC" if job.ended_at else f"it has ended ({job.state.value})"
        if job.started_at is None:
            return f"{ended} and never ran"
        if since is None or (job.ended_at is not None and job.ended_at < since):
            began = f", which was at {clock(since)} UTC" if since else ""
            return f"{ended}, before Backstay began to watch this cluster{began}; for what happened: backstay diagnose LOG"
        if not troubles:
            return f"{ended}, and discovery has not looked since; ask again in {watch.poll_interval.total_seconds():.0f} s"
    if troubles:
        return f"it is to be, and {troubles[0]}"
    return f"it is to be, and discovery has not looked since it started; ask again in {watch.poll_interval.total_seconds():.0f} s"


def _why_not_opted_in(job: Job, watch: WatchSection) -> str:
    said = read_comment(job.comment)
    if "backstay" in job.comment.lower():
        refused = f" ({said.warnings[0]})" if said.warnings else ""
        return f"its comment says no{refused}: {job.comment[:100]!r}; to change that: {OPT_IN.format(job=job.job_id)}"
    if watch.opt_in is OptInBy.COMMENT:
        has = f"its comment is {job.comment[:100]!r}" if job.comment else "it has no comment"
        return f"it has not opted in: {has}, and watch.opt_in is `comment`; {OPT_IN.format(job=job.job_id)}"
    if job.is_batch is not True:
        return (
            f"it is no batch job, which watch.opt_in `all` does not take; to have it watched all the same: {OPT_IN.format(job=job.job_id)}"
        )
    if watch.accounts and job.account not in watch.accounts:
        return f"its account {job.account or '(none)'} is not among watch.accounts ({', '.join(watch.accounts)}); add it there"
    return f"its user {job.user} is not among watch.users ({', '.join(watch.users)}); add it there"


async def _watching_since(client: Client, cluster: str) -> datetime | None:
    """Since when discovery looks, as its heartbeat tells; None where none runs."""
    try:
        description = await client.get_workflow_handle(cluster_workflow_id(cluster)).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    for pending in description.raw_description.pending_activities:
        if pending.activity_type.name == Discover.discover_jobs.__name__:
            for detail in decoded(pending.heartbeat_details):
                with suppress(ValidationError):
                    return Discovered.model_validate(detail).since
    return None
