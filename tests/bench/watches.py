"""What watching costs: `python -m tests.bench.watches [jobs] [log lines a second]` prints one line of figures.

Every job is a simulated one with a log of its own; the lines are written round-robin, and their writing is not counted.
Measured on two shared cores: 1,000 idle jobs 6 % of one core, with 530 iteration lines a second 24 %; 115 MB resident.
"""

import asyncio
import resource
import sys
import tempfile
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path

from temporalio.testing import ActivityEnvironment

from activities.configuration import WatchSection
from activities.detect import Detect
from activities.diagnosis.engine import Engine
from activities.logs.paths import LogRoots
from activities.records import Attempt, Job, JobKey, WatchRequest, WatchResult
from activities.slurm.feed import Feed
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import runs_for
from activities.slurm.simulated_state import Request

SETTLE_SECONDS = 10.0
MEASURE_SECONDS = 20.0
BURST_SECONDS = 0.2


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def a_request(job: Job) -> WatchRequest:
    assert job.submitted_at is not None
    key = JobKey(cluster="bench", job_id=job.job_id, submitted_at=job.submitted_at)
    return WatchRequest(attempt=Attempt(key=key, nodes=job.nodes, started_at=job.started_at))


async def _run(watch: Awaitable[WatchResult]) -> WatchResult:
    return await watch


async def measure(directory: Path, jobs: int, lines_a_second: int) -> str:
    cluster = SimulatedCluster(jobs)
    logs = [directory / f"{number}.log" for number in range(jobs)]
    for log in logs:
        cluster.submit(runs_for(None), request=Request(stdout=str(log), append=True, working_directory=str(directory)))
    feed = Feed(cluster, timedelta(seconds=5))
    detect = Detect(feed=feed, roots=LogRoots([directory]), watch=WatchSection(), engine=Engine())
    watches = [asyncio.create_task(_run(ActivityEnvironment().run(detect.watch_attempt, a_request(job)))) for job in await cluster.jobs()]
    await asyncio.sleep(SETTLE_SECONDS)

    loop = asyncio.get_running_loop()
    began, cpu_before, writing, written = loop.time(), cpu_seconds(), 0.0, 0
    while loop.time() - began < MEASURE_SECONDS:
        before = cpu_seconds()
        for _ in range(int(lines_a_second * BURST_SECONDS)):
            iteration = written // jobs + 1
            with logs[written % jobs].open("a") as file:
                file.write(f" iteration {iteration:8d}/ 1000000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |\n")
            written += 1
        writing += cpu_seconds() - before
        await asyncio.sleep(BURST_SECONDS)
    took = loop.time() - began
    share = (cpu_seconds() - cpu_before - writing) / took
    ended = sum(watch.done() for watch in watches)
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    await feed.close()
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return f"{jobs} watches, {written / took:.0f} lines/s: {share:.1%} of one core, {megabytes} MB resident, {ended} ended by mistake"


def main() -> None:
    given = [int(text) for text in sys.argv[1:3]]
    jobs, lines = (*given, *(1000, 0)[len(given) :])
    with tempfile.TemporaryDirectory() as directory:
        print(asyncio.run(measure(Path(directory), jobs, lines)))


if __name__ == "__main__":
    main()
