"""One poll for all: every watch of a worker shares one squeue and one node query per interval, whatever their number.

Called by `watch_attempt`, discovery and verification through `next()`. The feed never dies of a scheduler's error: it
keeps the last good snapshot, says since when nothing is known, and goes on asking.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Protocol

import structlog

from activities.records import Job, Node
from activities.slurm.scheduler import SchedulerError

_LOG = structlog.get_logger(__name__)
_NUDGE_INTERVAL = timedelta(seconds=1)  # however often nudged: a controller is not asked more than once in this time
_LONGEST_BACKOFF = timedelta(seconds=15)


class Listing(Protocol):
    """The part of a `Scheduler` that the feed asks."""

    async def jobs(self) -> Sequence[Job]: ...

    async def nodes(self) -> Sequence[Node]: ...


@dataclass(frozen=True)
class Snapshot:
    """What one poll saw. While unreachable, `jobs` and `nodes` are those of the last poll that was answered.

    `taken_at` is the time of the answer they come from; `number` counts polls, answered or not, from 1.
    """

    number: int
    taken_at: datetime
    jobs: Mapping[str, Job] = field(default_factory=lambda: MappingProxyType({}))
    nodes: Mapping[str, Node] = field(default_factory=lambda: MappingProxyType({}))
    unreachable_since: datetime | None = None
    error: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether this poll was answered."""
        return self.unreachable_since is None


class Feed:
    """Polls a scheduler for any number of subscribers.

    Polling begins with the first `next()` and goes on until `close()`.

    Args:
        scheduler: asked once for its jobs and once for its nodes per poll.
        interval: between the starts of two polls; errors stretch it, up to a minute.
        clock: now, in UTC.
    """

    def __init__(self, scheduler: Listing, interval: timedelta, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._scheduler = scheduler
        self._interval = interval
        self._clock = clock
        self._latest: Snapshot | None = None
        self._arrived = asyncio.Condition()
        self._nudged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self.polls = 0

    @property
    def latest(self) -> Snapshot | None:
        """The newest snapshot, or None before the first."""
        return self._latest

    async def next(self, after: int = 0) -> Snapshot:
        """Waits for a snapshot whose number is greater than `after`, and returns the newest."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll_forever(), name="slurm-feed")
        async with self._arrived:
            while self._latest is None or self._latest.number <= after:
                await self._arrived.wait()
            return self._latest

    def nudge(self) -> None:
        """Poll now: something was changed. At most one poll a second comes of it."""
        self._nudged.set()

    async def close(self) -> None:
        """Stops polling. A later `next()` begins again."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _poll_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._nudged.clear()  # a nudge during the poll asks for another: what was changed may not have been seen
            snapshot = await self._poll()
            async with self._arrived:
                self._latest = snapshot
                self._arrived.notify_all()
            await self._pause(began)

    async def _poll(self) -> Snapshot:
        self.polls += 1
        previous = self._latest
        try:
            jobs = await self._scheduler.jobs()  # one after the other: a controller in trouble gets one question, not two
            nodes = await self._scheduler.nodes()
        except SchedulerError as error:
            return self._unanswered(previous, str(error))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in one poll, all watches live on the next
            return self._unanswered(previous, f"{type(error).__name__}: {error}")
        now = self._clock()
        if previous is not None and previous.unreachable_since is not None:
            _LOG.info("scheduler_answered_again", silent_for=str(now - previous.unreachable_since))
        self._failures = 0
        return Snapshot(
            number=self.polls,
            taken_at=now,
            jobs=MappingProxyType({job.job_id: job for job in jobs}),
            nodes=MappingProxyType({node.name: node for node in nodes}),
        )

    def _unanswered(self, previous: Snapshot | None, error: str) -> Snapshot:
        now = self._clock()
        self._failures += 1
        if previous is None or previous.unreachable_since is None:
            _LOG.warning("scheduler_unreachable", error=error)
        return Snapshot(
            number=self.polls,
            taken_at=previous.taken_at if previous else now,
            jobs=previous.jobs if previous else MappingProxyType({}),
            nodes=previous.nodes if previous else MappingProxyType({}),
            unreachable_since=(previous.unreachable_since if previous else None) or now,
            error=error,
        )

    async def _pause(self, began: float) -> None:
        """Until the next poll is due, or a nudge brings it forward to a second after this one began."""
        loop = asyncio.get_running_loop()
        wait = self._interval
        if self._failures > 1:
            wait = max(self._interval, min(self._interval * 2 ** min(self._failures - 1, 10), _LONGEST_BACKOFF))
        due = began + wait.total_seconds()
        earliest = began + min(_NUDGE_INTERVAL, wait).total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._nudged.wait()
        await asyncio.sleep(max(0.0, earliest - loop.time()))
