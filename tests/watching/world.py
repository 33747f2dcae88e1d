"""A small world for watches: a simulated cluster whose clock stands still until moved, a job, its log and its checkpoints."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.testing import ActivityEnvironment

from activities.configuration import PolicySection, WatchSection
from activities.detect import Detect
from activities.diagnosis.signals import FatalLine
from activities.logs.paths import LogRoots
from activities.records import Attempt, Change, ChangeRequest, Cursor, Job, JobKey, OptIn, WatchRequest, WatchResult
from activities.slurm.clock import ManualClock
from activities.slurm.feed import Feed
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import Program, runs_for
from activities.slurm.simulated_state import Request

Answer = TypeVar("Answer")
TICK = timedelta(milliseconds=10)
FATAL_MARK = b"CUDA error"


class FewSignatures:
    """An engine that knows three lines: a broken GPU's, any exception's, and a slow one."""

    def fatal_lines(self, data: bytes) -> Sequence[FatalLine]:
        return [line for text in data.splitlines() if (line := _found(text)) is not None]


def _found(text: bytes) -> FatalLine | None:
    if FATAL_MARK in text:
        return a_fatal_line(text, "ecc_uncorrectable", "ecc_uncorrectable")
    if b"Exception:" in text:
        return a_fatal_line(text, "python_exception", "python_exception_rank_logic")
    if b"throttl" in text:
        return a_fatal_line(text, "thermal", "thermal_throttling")
    return None


def a_fatal_line(text: bytes, signature: str, cause: str) -> FatalLine:
    return FatalLine(text=text.decode(), signature=signature, cause=cause, is_primary=True)


def step(number: int, *, seconds: float = 1.0) -> str:
    """An iteration line as Megatron prints it."""
    return f" iteration {number:8d}/ 1000000 | elapsed time per iteration (ms): {seconds * 1000:.1f} | lm loss: 2.5E+00 |"


class World:
    """One cluster, one job. Time passes by `pass_time` only; everything else happens as it is called."""

    def __init__(self, directory: Path, *, patience: WatchSection | None = None, policy: PolicySection | None = None) -> None:
        self.directory = directory
        self.log = directory / "train.log"
        self.checkpoints = directory / "checkpoints"
        self.clock = ManualClock()
        self.cluster = SimulatedCluster(4, clock=self.clock)
        self.feed = Feed(self.cluster, TICK, self.clock.now)
        self.patience = patience or WatchSection(log_interval=TICK, poll_interval=TICK)
        self.detect = Detect(
            feed=self.feed,
            roots=LogRoots([directory]),
            watch=self.patience,
            policy=policy,
            engine=FewSignatures(),
            clock=self.clock.now,
            heartbeat_every=TICK,
        )
        self.heartbeats: list[Cursor] = []
        self.job_id = ""

    async def submit(self, program: Program | None = None, *, log: str | None = None, **changes: Any) -> Job:
        """A job of two nodes that writes to `self.log`; its output is written by the test."""
        request = Request(node_count=2, stdout=log or str(self.log), working_directory=str(self.directory), append=True)
        self.job_id = self.cluster.submit(program or runs_for(None), request=request, **changes)
        return await self.job()

    async def job(self) -> Job:
        return await self.cluster.job(self.job_id)

    async def attempt(self) -> Attempt:
        job = await self.job()
        key = JobKey(cluster="simulated", job_id=job.job_id, submitted_at=job.submitted_at or self.clock.now())
        return Attempt(key=key, restart_count=job.restart_count, nodes=job.nodes, started_at=job.started_at)

    async def request(self, **changes: Any) -> WatchRequest:
        return WatchRequest(**{"attempt": await self.attempt(), **changes})

    def write(self, *lines: str) -> None:
        with self.log.open("a") as log:
            log.writelines(f"{line}\n" for line in lines)

    def steps(self, first: int, last: int, *, seconds: float = 1.0) -> None:
        self.write(*(step(number, seconds=seconds) for number in range(first, last + 1)))

    def pass_time(self, seconds: float) -> datetime:
        return self.clock.advance(seconds)

    @property
    def last(self) -> Cursor:
        return self.heartbeats[-1] if self.heartbeats else Cursor(restart_count=-1)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what a watch does by itself; pytest's time limit ends a wait in vain."""
        while not condition():  # noqa: ASYNC110 - the condition is the heartbeat of an activity, not an event of ours
            await asyncio.sleep(0.005)

    async def seen(self, iteration: int) -> None:
        await self.until(lambda: self.last.progress.iteration == iteration)

    async def some_looks(self, count: int = 3) -> None:
        """Until the watch has heartbeat some more times: what it was going to conclude by now, it would have."""
        before = len(self.heartbeats)
        await self.until(lambda: len(self.heartbeats) >= before + count)

    def environment(self, heartbeat: Cursor | None = None) -> ActivityEnvironment:
        environment = ActivityEnvironment()
        if heartbeat is not None:
            # As the converter gives them back where no type is known.
            environment.info = replace(environment.info, heartbeat_details=[heartbeat.model_dump(mode="json")])
        environment.on_heartbeat = lambda *details: self.heartbeats.append(details[0])
        return environment

    def watching(self, request: WatchRequest, *, heartbeat: Cursor | None = None) -> "asyncio.Task[WatchResult]":
        return asyncio.create_task(_run(self.environment(heartbeat).run(self.detect.watch_attempt, request)))

    async def watched(self, program: Program | None = None) -> "asyncio.Task[WatchResult]":
        """A job that has made five steps, and the watch that has seen them."""
        await self.submit(program)
        self.steps(1, 5)
        watching = self.watching(await self.request())
        await self.seen(5)
        return watching

    def waiting_for_change(self, request: ChangeRequest) -> "asyncio.Task[Change]":
        return asyncio.create_task(_run(self.environment().run(self.detect.watch_for_change, request)))

    def opt_in(self, **changes: Any) -> OptIn:
        return OptIn(**{"opted_in": True, **changes})


async def _run(awaitable: Awaitable[Answer]) -> Answer:
    return await awaitable


@asynccontextmanager
async def a_world(directory: Path, **changes: Any) -> AsyncIterator[World]:
    world = World(directory, **changes)
    try:
        yield world
    finally:
        await world.feed.close()
