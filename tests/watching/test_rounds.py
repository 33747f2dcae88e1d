"""One ticker for all watches: a disk that hangs holds up its own watch only, and an end that is not ours is not silent."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from activities.slurm.clock import ManualClock
from activities.slurm.feed import Feed
from activities.slurm.simulated import SimulatedCluster
from activities.watching.reading import Reading
from activities.watching.rounds import Post, Rounds
from tests.builders import NOON

TICK = timedelta(milliseconds=5)


class FakeReader:
    """Counts its reads; each brings a reading made by `read_by`."""

    def __init__(self, read_by: Callable[[], None] = lambda: None) -> None:
        self.reads = 0
        self._read_by = read_by

    def read(self) -> Reading:
        self.reads += 1
        self._read_by()
        return Reading(NOON, readable=True, caught_up=True)


def rounds(threads: int = 2) -> Rounds:
    clock = ManualClock()
    return Rounds(Feed(SimulatedCluster(1, clock=clock), TICK, clock.now), interval=TICK, threads=threads)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is awaited happens on another thread
        await asyncio.sleep(0.002)


def reads_by(post: Post, reader: FakeReader) -> FakeReader:
    post.reader = reader  # type: ignore[assignment]
    return reader


async def test_a_file_system_that_hangs_holds_up_no_other_watch() -> None:
    release = threading.Event()
    around = rounds(threads=2)
    async with around.post() as stuck, around.post() as fine:
        hanging = reads_by(stuck, FakeReader(lambda: assert_released(release)))
        healthy = reads_by(fine, FakeReader())
        await until(lambda: healthy.reads > 5)
        assert hanging.reads == 1  # not asked again while it has not answered
        await asyncio.wait_for(fine.wait(), 30)
        release.set()
        await until(lambda: hanging.reads > 2)


def assert_released(release: threading.Event) -> None:
    assert release.wait(60)


async def test_every_watch_gets_the_newest_snapshot() -> None:
    around = rounds()
    async with around.post() as first, around.post() as second:
        for post in (first, second):
            await until(lambda post=post: post.snapshot is not None)  # type: ignore[misc]
        assert first.snapshot is second.snapshot


async def test_an_error_in_a_reading_fails_its_watch_instead_of_leaving_it_waiting() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    around = rounds()
    async with around.post() as post, around.post() as other:
        reads_by(post, FakeReader(broken))
        healthy = reads_by(other, FakeReader())
        with pytest.raises(RuntimeError, match="starts the watch again"):
            await asyncio.wait_for(wait_for_ever(post.wait), 30)
        await until(lambda: healthy.reads > 3)


async def wait_for_ever(wait: Callable[[], Awaitable[None]]) -> None:
    while True:
        await wait()


async def test_the_rounds_rest_when_nobody_watches_and_begin_again() -> None:
    around = rounds()
    async with around.post() as post:
        first = reads_by(post, FakeReader())
        await until(lambda: first.reads > 1)
    reads = first.reads
    async with around.post() as post:
        second = reads_by(post, FakeReader())
        await until(lambda: second.reads > 3)
    assert first.reads <= reads + 1


class SlowReader(FakeReader):
    """Takes three rounds for one reading, and notices a second thread that reads beside the first."""

    def __init__(self) -> None:
        super().__init__(self._slowly)
        self._one = threading.Lock()
        self.met = 0

    def _slowly(self) -> None:
        if not self._one.acquire(blocking=False):
            self.met += 1
            return
        threading.Event().wait(3 * TICK.total_seconds())
        self._one.release()


async def test_no_log_is_read_by_two_threads_at_once_though_rounds_overlap() -> None:
    around = rounds(threads=4)
    async with around.post() as first, around.post() as second, around.post() as third:
        readers = [SlowReader(), SlowReader(), SlowReader()]
        for post, reader in zip((first, second, third), readers, strict=True):
            reads_by(post, reader)
        await until(lambda: all(reader.reads > 15 for reader in readers))
    assert [reader.met for reader in readers] == [0, 0, 0]
