"""`backstay failopen`: release every job that Backstay holds. Needs Slurm only; Temporal may be gone for good.

A hold of ours is told by its mark in AdminComment, so nobody else's hold is touched. Check, act, verify, job by job.
"""

from collections.abc import Sequence
from enum import StrEnum

import typer

from activities.mutation import carries_our_mark
from activities.records import Job, JobState, Record
from activities.slurm.scheduler import JobUnknown, Scheduler, SchedulerRefused
from workers.commands.errors import ExitCode
from workers.commands.options import ConfigOption, JsonOption, open_configuration, run
from workers.commands.terminal import print_json, tell
from workers.reaching import scheduler_of


class Ending(StrEnum):
    RELEASED = "released"
    NOT_NEEDED = "not_needed"
    REFUSED = "refused"


class Release(Record):
    """What became of one held job."""

    job_id: str
    ending: Ending
    detail: str


def failopen(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Release every job that Backstay holds, without Temporal. For when Backstay is being switched off or is broken."""
    releases = run(release_all(scheduler_of(open_configuration(config))))
    if as_json:
        print_json([release.model_dump(mode="json") for release in releases])
    elif not releases:
        tell("No job is held by Backstay.")
    else:
        for release in releases:
            tell(f"job {release.job_id}: {release.ending.value.replace('_', ' ')}; {release.detail}")
    if any(release.ending is Ending.REFUSED for release in releases):
        raise typer.Exit(ExitCode.BAD)


async def release_all(scheduler: Scheduler) -> Sequence[Release]:
    """Release every job that carries our mark and is held, and say what became of each."""
    return [
        _not_yet(job) if job.is_ending else await _release(scheduler, job.job_id)
        for job in await scheduler.jobs()
        if is_held_by_us(job) or (job.is_ending and carries_our_mark(job))
    ]


def is_held_by_us(job: Job) -> bool:
    """Held, waiting, and marked as ours."""
    return job.is_held and job.state is JobState.PENDING and carries_our_mark(job)


def _not_yet(job: Job) -> Release:
    """Requeued in a hold, a job is COMPLETING first, as long as its last processes take, and shows no hold until then."""
    detail = "its last attempt is still being cleaned up, and a hold may follow; run `backstay failopen` again in a moment"
    return Release(job_id=job.job_id, ending=Ending.REFUSED, detail=detail)


async def _release(scheduler: Scheduler, job_id: str) -> Release:
    try:
        if not is_held_by_us(await scheduler.job(job_id)):
            return Release(job_id=job_id, ending=Ending.NOT_NEEDED, detail="no longer held by us when looked at again")
        await scheduler.release(job_id)
        after = await scheduler.job(job_id)
        if not after.is_held:
            await scheduler.set_admin_comment(job_id, "")  # or a hold that its user makes later would pass for ours
    except JobUnknown:
        return Release(job_id=job_id, ending=Ending.NOT_NEEDED, detail="Slurm no longer knows it")
    except SchedulerRefused as refusal:
        return Release(job_id=job_id, ending=Ending.REFUSED, detail=f"{refusal}; try `scontrol release {job_id}` as root or SlurmUser")
    if after.is_held:
        return Release(job_id=job_id, ending=Ending.REFUSED, detail=f"still held ({after.reason}); try `scontrol release {job_id}`")
    return Release(job_id=job_id, ending=Ending.RELEASED, detail=f"now {after.state.value} ({after.reason or 'no reason given'})")
