"""One poll for all, and what subscribers see when the scheduler falls silent."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from activities.records import Job, Node
from activities.slurm.feed import Feed, Snapshot
from activities.slurm.scheduler import SchedulerUnreachable
from tests.builders import NOON, a_job, a_node, after

SHORT = timedelta(milliseconds=20)
LONG = timedelta(hours=1)


class Listed:
    """Lists what it is given, or fails with it."""

    def __init__(self) -> None:
        self.job_list: list[Job] = [a_job("7")]
        self.failing: Exception | None = None
        self.asked = 0
        self.is_asked = asyncio.Event()
        self.gate: asyncio.Event | None = None

    async def jobs(self) -> list[Job]:
        self.asked += 1
        self.is_asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        return self.job_list

    async def nodes(self) -> list[Node]:
        return [a_node("node-001")]


async def until(feed: Feed, seen: Callable[[Snapshot], bool]) -> Snapshot:
    async with asyncio.timeout(60):
        snapshot = await feed.next()
        while not seen(snapshot):
            snapshot = await feed.next(snapshot.number)
        return snapshot


async def test_a_thousand_subscribers_cost_one_question() -> None:
    listing = Listed()
    feed = Feed(listing, LONG)
    snapshots = await asyncio.gather(*(feed.next() for _ in range(1000)))
    assert listing.asked == feed.polls == 1
    assert len({id(snapshot) for snapshot in snapshots}) == 1
    assert snapshots[0].jobs["7"].job_id == "7"
    assert snapshots[0].nodes["node-001"].name == "node-001"
    await feed.close()


async def test_nothing_is_asked_before_somebody_listens() -> None:
    listing = Listed()
    feed = Feed(listing, SHORT)
    feed.nudge()
    assert feed.latest is None
    assert listing.asked == 0


async def test_the_next_snapshot_is_newer_than_the_one_named() -> None:
    feed = Feed(Listed(), SHORT)
    first = await feed.next()
    second = await feed.next(first.number)
    assert second.number > first.number
    assert await feed.next(0) is feed.latest
    await feed.close()


async def test_silence_keeps_the_last_good_snapshot_and_says_since_when() -> None:
    listing = Listed()
    ticks = iter(range(10_000))
    feed = Feed(listing, SHORT, clock=lambda: after(next(ticks)))
    good = await feed.next()
    listing.failing = SchedulerUnreachable("squeue: no answer")
    silent = await until(feed, lambda snapshot: not snapshot.is_good)
    later = await feed.next(silent.number)
    for snapshot in (silent, later):
        assert (snapshot.jobs, snapshot.nodes, snapshot.taken_at) == (good.jobs, good.nodes, good.taken_at)
        assert snapshot.error == "squeue: no answer"
    assert silent.unreachable_since == later.unreachable_since
    assert silent.unreachable_since is not None
    assert silent.unreachable_since > NOON
    listing.failing = None
    listing.job_list = []
    back = await until(feed, lambda snapshot: snapshot.is_good)
    assert (dict(back.jobs), back.unreachable_since, back.error) == ({}, None, None)
    await feed.close()


async def test_no_error_ends_the_feed() -> None:
    listing = Listed()
    listing.failing = ZeroDivisionError("a bug")
    feed = Feed(listing, SHORT)
    first = await feed.next()
    assert first.error == "ZeroDivisionError: a bug"
    assert dict(first.jobs) == {}
    listing.failing = None
    assert (await until(feed, lambda snapshot: snapshot.is_good)).jobs
    await feed.close()


async def test_a_nudge_brings_the_next_poll_forward() -> None:
    listing = Listed()
    feed = Feed(listing, LONG)
    first = await feed.next()
    feed.nudge()
    feed.nudge()
    async with asyncio.timeout(60):
        second = await feed.next(first.number)
    assert second.number == 2
    assert listing.asked == 2
    await feed.close()


async def test_a_nudge_during_a_poll_asks_for_another_since_the_change_may_not_have_been_seen() -> None:
    listing = Listed()
    listing.gate = asyncio.Event()
    feed = Feed(listing, LONG)
    waiting = asyncio.create_task(feed.next())
    await listing.is_asked.wait()
    feed.nudge()
    listing.gate.set()
    first = await waiting
    async with asyncio.timeout(60):
        assert (await feed.next(first.number)).number == 2
    await feed.close()


async def test_one_subscriber_that_gives_up_takes_nothing_from_the_others() -> None:
    listing = Listed()
    listing.gate = asyncio.Event()
    feed = Feed(listing, LONG)
    leaving, staying = asyncio.create_task(feed.next()), asyncio.create_task(feed.next())
    await listing.is_asked.wait()
    leaving.cancel()
    listing.gate.set()
    assert (await staying).number == 1
    await feed.close()
