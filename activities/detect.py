"""The step `detect`, and the observing half of `verify` and of waiting for approval: two long, heartbeating activities.

Nothing is written to history while a job is healthy; the heartbeat carries the cursor, from which another worker goes on.
What is a fault: `detectors/`. How it is watched: `watching/`. Called by `workflows/training_job.py`.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from temporalio import activity

from activities.beat import LONGEST_GAP
from activities.configuration import PolicySection, WatchSection
from activities.logs.paths import LogRoots
from activities.logs.progress import ProgressPatternRefused, ProgressReader
from activities.modes import mode_now
from activities.records import Change, ChangeRequest, Cursor, OptIn, WatchRequest, WatchResult
from activities.slurm.feed import Feed
from activities.watching.attempt import AttemptWatch
from activities.watching.changes import ChangeWatch
from activities.watching.pieces import FatalLines
from activities.watching.reading import DiskReader, LogOrigin
from activities.watching.rounds import Post, Rounds

FoundT = TypeVar("FoundT")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Detect:
    """One instance a worker: all its watches share the feed, one ticker and one pool of reading threads."""

    def __init__(
        self,
        *,
        feed: Feed,
        roots: LogRoots,
        watch: WatchSection,
        policy: PolicySection | None = None,
        engine: FatalLines | None = None,
        clock: Callable[[], datetime] = utc_now,
        heartbeat_every: timedelta = LONGEST_GAP,
    ) -> None:
        """
        Args:
            feed: the worker's one `squeue` per poll.
            roots: where logs and checkpoints may be opened.
            watch: how patient to be.
            policy: by which a fault seen now would be acted on; the heartbeat tells the mode.
            engine: tells fatal lines; without one, only Slurm and silence tell a crash.
            clock: timezone-aware UTC now; the same clock the feed stamps its snapshots with.
            heartbeat_every: how old the cursor may be that another worker goes on from; well under the heartbeat timeout.
        """
        self._feed = feed
        self._roots = roots
        self._section = watch
        self._policy = policy
        self._engine = engine
        self._clock = clock
        self._heartbeat_every = heartbeat_every
        self._rounds = Rounds(feed, interval=watch.log_interval, wake_every=min(heartbeat_every, LONGEST_GAP))

    @activity.defn
    async def watch_attempt(self, request: WatchRequest) -> WatchResult:
        """Watches one attempt until a symptom, its end, the milestone asked for, or the deadline.

        Waiting in the queue is no failure. While Slurm does not answer, or the log cannot be read, no verdict rests on
        either: `blind` of the cursor says so and the watch goes on.
        """
        watch = self._watch(request, request.cursor)
        return await self._until(watch.end, watch, request.opt_in, looks_soon=lambda: watch.needs_a_look_soon)

    @activity.defn
    async def watch_for_change(self, request: ChangeRequest) -> Change:
        """Watches a job whose recommendation waits for a person, until something supersedes it or `until` has come.

        A job that had failed when asked and still is failed is unchanged; one that slurmctld drops is forgotten.
        """
        watch = self._watch(WatchRequest(attempt=request.attempt, opt_in=request.opt_in), request.cursor)
        # A person takes minutes: nothing here needs a look between the rounds.
        return await self._until(ChangeWatch(request, watch).change, watch, request.opt_in, looks_soon=lambda: False)

    def _watch(self, request: WatchRequest, cursor: Cursor | None) -> AttemptWatch:
        return AttemptWatch(request, _cursor_to_go_on_from(cursor), self._section, began_at=self._clock())

    async def _until(
        self, verdict: Callable[[datetime], FoundT | None], watch: AttemptWatch, opt_in: OptIn, *, looks_soon: Callable[[], bool]
    ) -> FoundT:
        """Takes in what is new and heartbeats the cursor, until `verdict` has something to say."""
        heart = _Heart(self._heartbeat_every)
        async with self._rounds.post() as post:
            try:
                while True:
                    await self._take_in(watch, post, opt_in.progress_pattern)
                    now = self._clock()
                    found = verdict(now)
                    if found is not None:
                        return found
                    post.restless = looks_soon()
                    if heart.is_due():
                        activity.heartbeat(self._told(watch, now))
                    await post.wait()
            except asyncio.CancelledError:
                # The worker stops or the workflow has moved on: whoever watches next goes on from here.
                activity.heartbeat(self._told(watch, self._clock()))
                raise

    def _told(self, watch: AttemptWatch, now: datetime) -> Cursor:
        """Where the watch stands, and in which mode a fault would find it: by this worker's configuration, which may not be the one that
        the job was first seen under."""
        mode = mode_now(watch.job, self._section, self._policy) if watch.job is not None and self._policy is not None else None
        return watch.cursor(now).model_copy(update={"mode": mode})

    async def _take_in(self, watch: AttemptWatch, post: Post, user_pattern: str | None) -> None:
        if post.snapshot is not None:
            watch.see(post.snapshot, post.lost_nodes)
        while post.readings:
            if watch.take(post.readings.popleft()):
                self._rounds.nudge()
            # A long log is caught up with piece by piece, and the other watches get their turn in between. A cancellation
            # here loses nothing: the cursor is that of the last piece taken in.
            await asyncio.sleep(0)
        origin = watch.wants_reader()
        if origin is not None:
            # A user's pattern takes up to 0.2 s to compile; a restarted worker opens all its logs at once.
            if user_pattern is None:
                reader = self._open(origin, None)
            else:
                reader = await asyncio.to_thread(self._open, origin, user_pattern)
            watch.reads_by(reader)
            post.reader = reader

    def _open(self, origin: LogOrigin, user_pattern: str | None) -> DiskReader:
        pattern, refused = self._section.progress_pattern, None
        if user_pattern is not None:
            try:
                ProgressReader(user_pattern)
                pattern = user_pattern
            except ProgressPatternRefused as refusal:
                refused = f"in the job's comment: {refusal}"
        return DiskReader(
            origin,
            roots=self._roots,
            progress=partial(ProgressReader, pattern),
            engine=self._engine,
            checkpoint_look=self._section.poll_interval,
            clock=self._clock,
            warning=refused,
        )


class _Heart:
    """When the next heartbeat is due, on the wall's clock: Temporal's server measures heartbeats by that one."""

    def __init__(self, every: timedelta) -> None:
        self._every = every.total_seconds()
        self._next = 0.0

    def is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._next - 0.1 * self._every:  # watches are woken at intervals: a moment early now, not an interval late
            return False
        self._next = now + self._every
        return True


def _cursor_to_go_on_from(asked: Cursor | None) -> Cursor:
    """The last heartbeat of this activity, on whichever worker; else what the workflow passed on; else the beginning."""
    details = activity.info().heartbeat_details
    if details:
        return Cursor.model_validate(details[0])
    return asked or Cursor(restart_count=-1)
