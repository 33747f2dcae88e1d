"""Discovery and opt-in: which jobs are watched. One heartbeating activity per cluster starts a workflow per eligible job.

Called by `workflows/cluster.py`; it names the workflow `TrainingJob` by its contract only. Starting is idempotent by
workflow ID, so that two discoveries, or one that dies half-way, never watch a job twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog
from pydantic import AwareDatetime
from temporalio import activity

from activities.beat import beat_every
from activities.configuration import WatchSection
from activities.optin import opted_in
from activities.records import Job, JobState, OptIn, Record
from activities.slurm.feed import Feed, Snapshot

log = structlog.get_logger()

STARTS_AT_ONCE = 20
"""Workflow starts in flight; 2,000 took 19 s with 50 on two cores (docs/temporal.md)."""


class DiscoverRequest(Record):
    cluster: str


class Discovered(Record):
    """Heartbeat details: since when this cluster is watched, so that a crash between two workers is not missed."""

    since: AwareDatetime
    jobs_seen: int = 0
    watched: int = 0
    unreachable_since: AwareDatetime | None = None


class Newcomer(Record):
    """A job that is to be watched."""

    job: Job
    opt_in: OptIn


StartWatching = Callable[[Newcomer], Awaitable[bool]]
"""Starts the job's workflow unless one exists; True when it was started. Given by the worker, which knows the workflows."""


def newcomers(snapshot: Snapshot, watch: WatchSection, *, since: datetime) -> tuple[Newcomer, ...]:
    """The jobs of one look that opted in and are worth a watch. Pure.

    A job is taken once it runs; one that ended badly between two looks is taken too, if it ended after `since`.
    Jobs that wait for their first start are left alone: a queue is no failure.
    """
    found = []
    for job in snapshot.jobs.values():
        if watch.partitions and not set(job.partition.split(",")) & set(watch.partitions):
            continue
        if (job.het_offset or 0) > 0 or job.submitted_at is None:
            continue
        lives = job.state in (JobState.RUNNING, JobState.SUSPENDED) or job.is_ending
        ended_just_now = job.state.is_ended and job.started_at is not None and job.ended_at is not None and job.ended_at >= since
        if not (lives or ended_just_now):
            continue
        opt_in = opted_in(job, watch)
        if opt_in.opted_in:
            found.append(Newcomer(job=job, opt_in=opt_in))
    return tuple(found)


class Discover:
    """One instance a worker."""

    def __init__(self, feed: Feed, watch: WatchSection, start: StartWatching) -> None:
        self._feed = feed
        self._watch = watch
        self._start = start

    @activity.defn
    async def discover_jobs(self, request: DiscoverRequest) -> None:
        """Runs until cancelled. Writes nothing to history; its heartbeat says how many jobs it sees."""
        details = activity.info().heartbeat_details
        told = Discovered.model_validate(details[0]) if details else None
        since = told.since if told is not None else None
        known: set[tuple[str, datetime, int]] = set()
        number = 0
        while True:
            snapshot = await self._next_or_beat(number, told)
            if snapshot is None:
                continue
            number = snapshot.number
            since = since or snapshot.taken_at - 2 * self._watch.poll_interval
            if snapshot.is_good:
                # On a thread: a comment's pattern takes up to 0.2 s to compile, and each job may bring one of its own.
                found = await asyncio.to_thread(newcomers, snapshot, self._watch, since=since)
                fresh = [newcomer for newcomer in found if _identity(newcomer.job) not in known]
                # Some at a time, with a heartbeat between: a thousand starts may take longer than the heartbeat timeout.
                for first in range(0, len(fresh), STARTS_AT_ONCE):
                    some = fresh[first : first + STARTS_AT_ONCE]
                    for newcomer, settled in zip(some, await asyncio.gather(*map(self._begin, some)), strict=True):
                        if settled:
                            known.add(_identity(newcomer.job))
                    activity.heartbeat(Discovered(since=since, jobs_seen=len(snapshot.jobs), watched=len(known)))
                known &= {_identity(job) for job in snapshot.jobs.values() if job.submitted_at}
            told = Discovered(since=since, jobs_seen=len(snapshot.jobs), watched=len(known), unreachable_since=snapshot.unreachable_since)
            activity.heartbeat(told)

    async def _next_or_beat(self, number: int, told: Discovered | None) -> Snapshot | None:
        try:
            # Not wait_for: on Python 3.11 it swallows a cancellation that meets a snapshot, and the worker could never stop.
            async with asyncio.timeout(beat_every(activity.info().heartbeat_timeout).total_seconds()):
                return await self._feed.next(number)
        except TimeoutError:
            if told is not None:
                activity.heartbeat(told)  # what was last known stands until the next look
            return None

    async def _begin(self, newcomer: Newcomer) -> bool:
        """One start. A failure is logged and tried again at the next look; other jobs are not affected."""
        try:
            if await self._start(newcomer):
                log.info("watch_started", job=newcomer.job.job_id, user=newcomer.job.user, warnings=newcomer.opt_in.warnings)
        except Exception as error:  # noqa: BLE001 - whatever Temporal's client raises, the next look tries again
            log.warning("watch_not_started", job=newcomer.job.job_id, why=str(error)[:300])
            return False
        return True


def _identity(job: Job) -> tuple[str, datetime, int]:
    assert job.submitted_at is not None
    return job.job_id, job.submitted_at, job.restart_count
