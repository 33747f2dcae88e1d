"""Which jobs are watched, and how discovery goes on through failing starts, silent schedulers and dying workers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.configuration import WatchSection
from activities.discover import STARTS_AT_ONCE, Discover, Discovered, DiscoverRequest, Newcomer, newcomers
from activities.records import Job, JobFlag, JobState
from activities.slurm.clock import ManualClock
from activities.slurm.feed import Feed, Snapshot
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from tests.builders import NOON, a_job, after

SINCE = after(60)
TICK = timedelta(milliseconds=10)


def a_look(*jobs: Job) -> Snapshot:
    return Snapshot(number=1, taken_at=after(120), jobs={job.job_id: job for job in jobs})


def found(*jobs: Job, **watch: Any) -> list[str]:
    return [newcomer.job.job_id for newcomer in newcomers(a_look(*jobs), WatchSection(**watch), since=SINCE)]


# ------------------------------------------------------------------------------------------------ which jobs


@pytest.mark.parametrize(
    ("job", "taken"),
    [
        (a_job(), True),
        (a_job(state=JobState.SUSPENDED), True),
        (a_job(state=JobState.UNKNOWN, flags=(JobFlag.COMPLETING,)), True),
        (a_job(state=JobState.PENDING), False),
        (a_job(state=JobState.PENDING, restart_count=1), False),
        (a_job(state=JobState.FAILED, ended_at=after(90)), True),
        (a_job(state=JobState.FAILED, ended_at=after(30)), False),
        (a_job(state=JobState.CANCELLED, started_at=None, ended_at=after(90)), False),
        (a_job(submitted_at=None), False),
        (a_job(is_batch=False), True),
        (a_job(comment=""), False),
        (a_job(comment="backstay:mode=of"), True),
    ],
    ids=[
        "running", "suspended", "completing, state not told", "waits for its first start", "waits after a requeue, ours or not",
        "failed between two looks", "failed before we watched", "cancelled before it ever ran", "submit time not told",
        "srun allocation", "did not opt in", "garbled comment",
    ],
)  # fmt: skip
def test_a_job_is_taken_once_it_runs_or_ended_while_we_watched(job: Job, taken: bool) -> None:
    assert bool(found(job)) is taken


def test_array_tasks_are_jobs_of_their_own_and_the_waiting_rest_is_none() -> None:
    waiting = a_job("12", array_job_id=12, state=JobState.PENDING).model_copy(update={"job_id": "12_[4-9]"})
    assert found(a_job("12_1"), a_job("12_2"), waiting) == ["12_1", "12_2"]


def test_a_heterogeneous_job_is_followed_by_its_leader_only() -> None:
    leader, component = a_job("30", het_job_id=30, het_offset=0), a_job("30+1", het_job_id=30, het_offset=1)
    assert found(leader, component) == ["30"]


def test_only_the_listed_partitions_are_looked_at() -> None:
    jobs = (a_job("1", partition="train"), a_job("2", partition="debug"), a_job("3", partition="debug,train"))
    assert found(*jobs, partitions=("train",)) == ["1", "3"]


def test_the_operator_may_opt_whole_accounts_and_users_in_but_no_allocation_of_a_terminal() -> None:
    jobs = (
        a_job("1", comment="", account="research", user="alice"),
        a_job("2", comment="", account="other", user="alice"),
        a_job("3", comment="", account="research", user="bob"),
        a_job("4", comment="", account="research", user="alice", is_batch=False),
        a_job("5", comment="", account="research", user="alice", is_batch=None),
    )
    assert found(*jobs, opt_in="all", accounts=("research",), users=("alice",)) == ["1"]


def test_a_garbled_comment_costs_a_warning_and_nothing_else() -> None:
    [newcomer] = newcomers(a_look(a_job(comment="backstay:mode=aprove")), WatchSection(), since=SINCE)
    assert newcomer.opt_in.mode is None
    assert any("aprove" in warning for warning in newcomer.opt_in.warnings)


# ------------------------------------------------------------------------------------------------ the activity


class Site:
    """A simulated cluster, its feed, and a door that writes down which jobs are to be watched."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.cluster = SimulatedCluster(4, clock=self.clock)
        self.feed = Feed(self.cluster, TICK, self.clock.now)
        self.started: list[str] = []
        self.refusals: list[Exception] = []
        self.heartbeats: list[Discovered] = []

    async def start(self, newcomer: Newcomer) -> bool:
        if self.refusals:
            raise self.refusals.pop()
        self.started.append(newcomer.job.job_id)
        return True

    def submit(self, **changes: Any) -> str:
        return self.cluster.submit(request=Request(comment="backstay"), **changes)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - the condition is what an activity does by itself; pytest's time limit ends a wait in vain
            await asyncio.sleep(0.005)

    async def some_looks(self, count: int = 3) -> None:
        before = len(self.heartbeats)
        await self.until(lambda: len(self.heartbeats) >= before + count)

    @asynccontextmanager
    async def discovering(self, *, since: datetime | None = None) -> AsyncIterator["Site"]:
        """`since`: what the heartbeat of a worker that died says."""
        environment = ActivityEnvironment()
        details = [Discovered(since=since).model_dump(mode="json")] if since else []
        environment.info = replace(environment.info, heartbeat_details=details, heartbeat_timeout=timedelta(milliseconds=200))
        environment.on_heartbeat = lambda *details: self.heartbeats.append(details[0])
        discover = Discover(self.feed, WatchSection(poll_interval=TICK), self.start)

        async def run() -> None:
            await environment.run(discover.discover_jobs, DiscoverRequest(cluster="alpha"))

        running = asyncio.create_task(run())
        try:
            yield self
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.feed.close()


async def test_each_job_is_started_once_however_often_it_is_seen() -> None:
    site = Site()
    first = site.submit()
    async with site.discovering():
        await site.some_looks()
        second = site.submit()
        await site.some_looks()
    assert site.started == [first, second]
    assert (site.heartbeats[-1].jobs_seen, site.heartbeats[-1].watched) == (2, 2)


async def test_a_heartbeat_tells_how_far_many_starts_have_come() -> None:
    site = Site()
    site.cluster = SimulatedCluster(2 * STARTS_AT_ONCE, clock=site.clock)
    site.feed = Feed(site.cluster, TICK, site.clock.now)
    for _ in range(2 * STARTS_AT_ONCE):
        site.submit()
    go_on = asyncio.Event()

    async def start(newcomer: Newcomer) -> bool:
        if len(site.started) == STARTS_AT_ONCE:
            await go_on.wait()
        site.started.append(newcomer.job.job_id)
        return True

    site.start = start  # type: ignore[method-assign]
    async with site.discovering():
        await site.until(lambda: bool(site.heartbeats))
        assert (site.heartbeats[0].watched, len(site.started)) == (STARTS_AT_ONCE, STARTS_AT_ONCE)
        go_on.set()
        await site.until(lambda: site.heartbeats[-1].watched == 2 * STARTS_AT_ONCE)


async def test_a_start_that_fails_is_tried_again_at_the_next_look() -> None:
    site = Site()
    job_id = site.submit()
    site.refusals.append(ConnectionError("Temporal does not answer"))
    async with site.discovering():
        await site.until(lambda: site.started == [job_id])


async def test_a_requeued_job_is_asked_about_again_because_its_watch_may_be_over() -> None:
    site = Site()
    job_id = site.submit()
    async with site.discovering():
        await site.until(lambda: site.started == [job_id])
        await site.cluster.requeue(job_id)
        site.clock.advance(200)
        await site.until(lambda: site.started == [job_id, job_id])


async def test_a_crash_between_two_workers_is_not_missed() -> None:
    site = Site()
    job_id = site.submit()
    site.clock.advance(60)
    site.cluster.fail_job(job_id)
    site.clock.advance(60)
    async with site.discovering(since=after(30)):
        await site.until(lambda: site.started == [job_id])


async def test_a_crash_before_the_cluster_was_ever_watched_is_left_alone() -> None:
    site = Site()
    site.cluster.fail_job(site.submit())
    site.clock.advance(60)
    async with site.discovering():
        await site.some_looks()
    assert site.started == []


async def test_silence_of_slurm_is_told_and_waited_for() -> None:
    site = Site()
    site.cluster.down = True
    async with site.discovering():
        await site.until(lambda: bool(site.heartbeats) and site.heartbeats[-1].unreachable_since is not None)
        site.cluster.down = False
        job_id = site.submit()
        site.clock.advance(10)  # its nodes register
        await site.until(lambda: site.started == [job_id])


class NeverAnswers(SimulatedCluster):
    async def jobs(self) -> list[Job]:
        await asyncio.Event().wait()
        return []


async def test_a_look_that_hangs_still_heartbeats_so_that_the_worker_is_not_taken_for_dead() -> None:
    site = Site()
    async with site.discovering():
        await site.some_looks()
        site.feed._scheduler = NeverAnswers(4)
        await site.some_looks(5)


async def test_between_two_looks_a_heartbeat_tells_what_the_last_one_told() -> None:
    site = Site()
    site.cluster.down = True
    async with site.discovering():
        await site.until(lambda: bool(site.heartbeats) and site.heartbeats[-1].unreachable_since is not None)
        site.feed._scheduler = NeverAnswers(4)
        await site.some_looks(5)
        assert {beat.unreachable_since for beat in site.heartbeats[-3:]} == {site.heartbeats[0].unreachable_since}


class OneSnapshotAtAWish(Feed):
    """Gives its next snapshot exactly when the test says so."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster, TICK)
        self.given: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()

    async def next(self, after: int = 0) -> Snapshot:
        return await self.given


@pytest.mark.parametrize("turns", range(6), ids=lambda turns: f"{turns} turns of the loop later")
async def test_a_stop_that_meets_a_snapshot_is_not_swallowed(turns: int) -> None:
    site = Site()
    feed = OneSnapshotAtAWish(site.cluster)
    environment = ActivityEnvironment()
    discover = Discover(feed, WatchSection(), site.start)

    async def run() -> None:
        await environment.run(discover.discover_jobs, DiscoverRequest(cluster="alpha"))

    running = asyncio.create_task(run())
    await asyncio.sleep(0.01)
    given, feed.given = feed.given, asyncio.get_running_loop().create_future()
    given.set_result(a_look())
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=2)
    assert running.cancelled()
