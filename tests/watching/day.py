"""A day of a cluster's watches in seconds: the real detection, over a simulated cluster and real files, with a clock that is moved.

`python -m tests.bench.day` runs it for 500 jobs; `test_a_day.py` for one job of each kind. One look follows the other as in
`activities/detect.py`, without its tasks and threads: a look every 28 s, as often as lines must be read to count as read live.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType

from activities.configuration import WatchSection
from activities.diagnosis.engine import Engine
from activities.logs.paths import LogRoots
from activities.logs.progress import ProgressReader
from activities.records import Attempt, Cursor, JobKey, OptIn, WatchRequest, WatchResult
from activities.slurm.clock import ManualClock
from activities.slurm.feed import Snapshot
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import runs_for
from activities.slurm.simulated_state import Request
from activities.watching.attempt import AttemptWatch
from activities.watching.reading import DiskReader
from tests.watching.healthy import NAMES_ITS_CHECKPOINTS, Job, Life

LOOK_EVERY = timedelta(seconds=28)
PATIENCE = WatchSection()  # the shipped defaults


@dataclass
class Watched:
    """One job, what it does and who watches it."""

    kind: str
    files: Job
    life: Iterator[None]
    watch: AttemptWatch
    reader: DiskReader | None = None
    result: WatchResult | None = None
    said: set[str] = field(default_factory=set)


class Day:
    """Every job runs to the end of the day, whatever becomes of it."""

    def __init__(self, directory: Path, lives: Sequence[Life]) -> None:
        self.clock = ManualClock()
        self.cluster = SimulatedCluster(len(lives), clock=self.clock)
        self._roots = LogRoots([directory])
        self._engine = Engine()
        self._number = 0
        self._lives = lives
        self._directory = directory
        self.jobs: list[Watched] = []

    async def begin(self) -> None:
        for number, life in enumerate(self._lives, start=1):
            files = Job(self._directory, number)
            asked = Request(stdout=str(files.log), append=True, working_directory=str(files.directory))
            job = await self.cluster.job(self.cluster.submit(runs_for(None), request=asked))
            assert job.submitted_at is not None
            key = JobKey(cluster="simulated", job_id=job.job_id, submitted_at=job.submitted_at)
            attempt = Attempt(key=key, nodes=job.nodes, started_at=job.started_at)
            saves = life.__name__ in NAMES_ITS_CHECKPOINTS
            opt_in = OptIn(opted_in=True, checkpoints=str(files.checkpoints) if saves else None)
            request = WatchRequest(attempt=attempt, opt_in=opt_in)
            watch = AttemptWatch(request, Cursor(restart_count=-1), PATIENCE, began_at=self.clock.now())
            self.jobs.append(Watched(life.__name__, files, life(files), watch))

    async def pass_time(self, length: timedelta) -> None:
        began = self.clock.now()
        while self.clock.now() - began < length:
            await self._look(self.clock.advance(LOOK_EVERY))

    def close(self) -> None:
        for each in self.jobs:
            each.files.close()

    async def _look(self, now: datetime) -> None:
        self._number += 1
        jobs = {job.job_id: job for job in await self.cluster.jobs()}
        nodes = {node.name: node for node in await self.cluster.nodes()}
        snapshot = Snapshot(self._number, now, MappingProxyType(jobs), MappingProxyType(nodes))
        for each in self.jobs:
            each.files.now, each.files.second = now, each.files.second + LOOK_EVERY.total_seconds()
            next(each.life, None)
            if each.result is None:
                self._look_at(each, snapshot, now)

    def _look_at(self, each: Watched, snapshot: Snapshot, now: datetime) -> None:
        each.watch.see(snapshot, {})
        if (origin := each.watch.wants_reader()) is not None:
            each.reader = DiskReader(
                origin, roots=self._roots, progress=partial(ProgressReader, None), engine=self._engine,
                checkpoint_look=PATIENCE.poll_interval, clock=self.clock.now,
            )  # fmt: skip
            each.watch.reads_by(each.reader)
        while each.reader is not None and (reading := each.reader.read()) is not None:
            each.watch.take(reading)
            if reading.caught_up:
                break
        each.result = each.watch.end(now)
        if self._number % 40 == 0 and (blind := each.watch.blind(now)) is not None:
            each.said.add(blind)
