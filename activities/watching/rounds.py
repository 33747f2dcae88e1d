"""One ticker for all watches of a worker: reads their disks on a bounded pool of threads, hands out Slurm's newest snapshot.

A watch waits on its `Post` and costs nothing while nothing happens: no timer, task or thread of its own. A file system
that hangs takes a thread and the watch it belongs to, never the others. Called by `activities/detect.py`.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import Self

import structlog

from activities.beat import LONGEST_GAP
from activities.records import Node
from activities.slurm.feed import Feed, Snapshot
from activities.watching.reading import DiskReader, Reading

log = structlog.get_logger()

THREADS = 8
POSTS_A_THREAD = 1000  # so many idle logs are looked at in 20 ms; four threads for them fought for the GIL and took twice as long
# in all. Where a file system is slow, the next round's thread joins in.
READINGS_A_ROUND = 8  # a watch that catches up with a huge log shares its thread: 8 MiB, then the next watch


class Post:
    """One watch's place in the rounds."""

    def __init__(self, rounds: "Rounds") -> None:
        self._rounds = rounds
        self.reader: DiskReader | None = None
        self.being_read = threading.Lock()
        self.restless = False
        """True: wake at every round."""
        self.last_woken = 0.0
        self.readings: deque[Reading] = deque()
        self._news = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        return self._rounds.snapshot

    @property
    def lost_nodes(self) -> Mapping[str, Node]:
        return self._rounds.lost_nodes

    async def wait(self) -> None:
        """Returns when there is a snapshot, or a reading that cannot wait for one, or after `wake_every`."""
        await self._news.wait()
        self._news.clear()
        if self._error is not None:
            raise RuntimeError("reading or looking failed inside this worker; Temporal starts the watch again") from self._error

    def wake(self, error: BaseException | None = None) -> None:
        self._error = error or self._error
        self._news.set()

    async def __aenter__(self) -> Self:
        self._rounds.join(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._rounds.leave(self)


class Rounds:
    """Goes round while there is a watch, and rests when there is none."""

    def __init__(self, feed: Feed, *, interval: timedelta, threads: int = THREADS, wake_every: timedelta = LONGEST_GAP) -> None:
        """`interval`: from one reading of a log to the next. `wake_every`: a watch is woken though nothing is new: it heartbeats,
        and time itself passes."""
        self._feed = feed
        self._interval = interval.total_seconds()
        self._wake_every = wake_every.total_seconds()
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._sweeping = 0
        self._posts: set[Post] = set()
        self._changed: deque[tuple[Post, Reading | Exception]] = deque()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.snapshot: Snapshot | None = None
        self.lost_nodes: Mapping[str, Node] = MappingProxyType({})

    def post(self) -> Post:
        return Post(self)

    def nudge(self) -> None:
        """Asks for a fresh look at Slurm."""
        self._feed.nudge()

    def join(self, post: Post) -> None:
        self._posts.add(post)
        post.wake()
        if not self._tasks:
            self._tasks = (asyncio.create_task(self._go_round()), asyncio.create_task(self._look()))
            for task in self._tasks:
                task.add_done_callback(self._ended)

    def leave(self, post: Post) -> None:
        self._posts.discard(post)
        if self._posts:
            return
        for task in self._tasks:
            task.cancel()
        self._tasks = ()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A ticker that died must not leave watches that wait for ever: they fail, and Temporal starts them again.
        if task.cancelled() or task not in self._tasks:
            return
        error = task.exception()
        if error is not None:
            log.error("watch_rounds_ended", error=repr(error))
            for other in self._tasks:
                other.cancel()
            self._tasks = ()
            for post in self._posts:
                post.wake(error)

    async def _look(self) -> None:
        number = 0
        while True:
            snapshot = await self._feed.next(number)
            number = snapshot.number
            self.snapshot = snapshot
            self.lost_nodes = MappingProxyType({name: node for name, node in snapshot.nodes.items() if node.is_lost})
            for post in self._posts:
                self._wake(post)

    async def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            due = deque(post for post in self._posts if post.reader is not None and not post.being_read.locked())
            wanted = min(self._threads - self._sweeping, -(-len(due) // POSTS_A_THREAD))
            for _ in range(wanted):
                self._sweep_on_a_thread(loop, due)
            for post in self._posts:
                if post.restless or started - post.last_woken >= self._wake_every:
                    self._wake(post)
            await asyncio.sleep(max(self._interval - (loop.time() - started), self._interval / 10))

    def _wake(self, post: Post) -> None:
        post.last_woken = asyncio.get_running_loop().time()
        post.wake()

    def _sweep_on_a_thread(self, loop: asyncio.AbstractEventLoop, due: deque[Post]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="watch-reading")
        self._sweeping += 1
        loop.run_in_executor(self._pool, self._sweep, loop, due).add_done_callback(self._swept)

    def _swept(self, _: "asyncio.Future[None]") -> None:
        self._sweeping -= 1

    def _sweep(self, loop: asyncio.AbstractEventLoop, due: deque[Post]) -> None:
        """On a thread: takes posts from the common queue until it is empty. A post that hangs is passed over by the others."""
        while True:
            try:
                post = due.popleft()
            except IndexError:
                return
            reader = post.reader
            # Rounds overlap where a file system is slow: a post may stand in two queues, and another thread is at it.
            if reader is None or not post.being_read.acquire(blocking=False):
                continue
            try:
                for _ in range(READINGS_A_ROUND):
                    reading = reader.read()
                    if reading is not None:
                        self._hand_over(loop, post, reading)
                    if reading is None or reading.caught_up:
                        break
            except Exception as error:  # noqa: BLE001 - handed to the watch it belongs to; the others are still to be read
                post.reader = None
                self._hand_over(loop, post, error)
            finally:
                post.being_read.release()

    def _hand_over(self, loop: asyncio.AbstractEventLoop, post: Post, news: Reading | Exception) -> None:
        self._changed.append((post, news))
        with suppress(RuntimeError):  # the loop has closed: the worker is going, and the cursor keeps the place
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._changed:
            post, news = self._changed.popleft()
            if isinstance(news, Exception):
                post.wake(news)
            else:
                post.readings.append(news)
                if post.restless or not news.can_wait:
                    self._wake(post)  # the others are woken by the next snapshot: judging 1,000 jobs at each of their steps is costly
