"""The watch on real Slurm: what it says of a crash, a lost node, somebody's requeue and a controller that goes away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.configuration import SchedulerSection, WatchSection
from activities.detect import Detect
from activities.diagnosis.engine import Engine
from activities.logs.paths import LogRoots
from activities.records import Attempt, Cursor, JobKey, JobState, SymptomKind, WatchEnd, WatchRequest, WatchResult
from activities.slurm.commands import CommandScheduler
from activities.slurm.feed import Feed
from workers.embedded.private_slurm import PrivateSlurm

pytestmark = pytest.mark.slurm

LINE = " iteration $i/ 1000 | elapsed time per iteration (ms): 100.0 | lm loss: 2.5E+00 |"
STEPS = f'for i in $(seq 1 {{last}}); do echo "{LINE}"; sleep 0.1; done'
FATAL = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Site:
    """A private Slurm and one watch on one of its jobs."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm = slurm
        self.scheduler = CommandScheduler(slurm.transport, SchedulerSection())
        self.feed = Feed(self.scheduler, timedelta(seconds=1))
        watch = WatchSection(log_interval=timedelta(milliseconds=200), node_not_responding_for=timedelta(seconds=5))
        self.detect = Detect(
            feed=self.feed,
            roots=LogRoots([slurm.directory]),
            watch=watch,
            engine=Engine(),
            heartbeat_every=timedelta(milliseconds=200),
        )
        self.last = Cursor(restart_count=-1)

    async def submit(self, script: str, *arguments: str) -> str:
        job_id = await self.slurm.submit_text(script, f"--output={self.slurm.directory}/%x-%j.out", *arguments)
        await self.slurm.wait_state(job_id, "RUNNING")
        return job_id

    async def watching(self, job_id: str) -> "asyncio.Task[WatchResult]":
        job = await self.scheduler.job(job_id)
        assert job.submitted_at is not None
        key = JobKey(cluster="private", job_id=job_id, submitted_at=job.submitted_at)
        request = WatchRequest(attempt=Attempt(key=key, nodes=job.nodes, started_at=job.started_at))
        environment = ActivityEnvironment()
        environment.on_heartbeat = self._heard
        run = environment.run(self.detect.watch_attempt, request)

        async def result() -> WatchResult:
            return await run

        return asyncio.create_task(result())

    def _heard(self, cursor: Cursor) -> None:
        self.last = cursor

    async def until(self, condition: Callable[[Cursor], bool]) -> None:
        while not condition(self.last):  # noqa: ASYNC110 - the condition is a heartbeat of the watch
            await asyncio.sleep(0.05)


@pytest.fixture
async def site(idle_slurm: PrivateSlurm) -> AsyncIterator[Site]:
    site = Site(idle_slurm)
    yield site
    await site.feed.close()


async def test_a_crash_is_told_with_its_line(site: Site) -> None:
    job_id = await site.submit(f"{STEPS.format(last=40)}; echo '{FATAL}'; exit 1")
    result = await (await site.watching(job_id))
    assert result.symptom is not None
    assert (result.symptom.kind, result.progress.iteration) == (SymptomKind.CRASH, 40)
    assert any(FATAL in signal.text for signal in result.symptom.signals)
    assert result.job is not None
    assert result.job.state is JobState.FAILED
    assert (result.symptom.detected_at - result.symptom.onset).total_seconds() < 30


async def test_a_job_that_crashed_and_does_not_end_is_a_crash(site: Site) -> None:
    job_id = await site.submit(f"{STEPS.format(last=40)}; echo '{FATAL}'; sleep 600")
    result = await (await site.watching(job_id))
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH
    assert result.job is not None
    assert result.job.state is JobState.RUNNING


async def test_a_lost_node_is_a_node_fault_though_slurm_requeues_the_job_at_once(site: Site) -> None:
    job_id = await site.submit(STEPS.format(last=5000), "--nodes=2", "--nodelist=node-[002-003]")
    watching = await site.watching(job_id)
    await site.until(lambda cursor: (cursor.progress.iteration or 0) > 5)
    await site.slurm.kill_node("node-003")
    result = await watching
    await site.slurm.restart_node("node-003")
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.NODE_FAULT
    assert "node-003" in result.symptom.summary


async def test_a_requeue_by_a_person_is_no_incident(site: Site) -> None:
    job_id = await site.submit(STEPS.format(last=5000))
    watching = await site.watching(job_id)
    await site.until(lambda cursor: (cursor.progress.iteration or 0) > 5)
    await site.slurm.run("scontrol", "requeue", job_id)
    result = await watching
    assert (result.kind, result.symptom) == (WatchEnd.REQUEUED, None)
    assert result.job is not None
    assert result.job.restart_count == 1


async def test_a_cancelled_job_ends_without_an_incident(site: Site) -> None:
    job_id = await site.submit(STEPS.format(last=5000))
    watching = await site.watching(job_id)
    await site.until(lambda cursor: (cursor.progress.iteration or 0) > 5)
    await site.slurm.run("scancel", job_id)
    result = await watching
    assert (result.kind, result.symptom) == (WatchEnd.ENDED_WELL, None)
    assert result.job is not None
    assert result.job.state is JobState.CANCELLED


async def test_a_batch_script_that_exits_0_over_a_failed_step_is_a_crash(site: Site) -> None:
    job_id = await site.submit("sleep 3; srun bash -c 'exit 7'; exit 0")
    result = await (await site.watching(job_id))
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH


async def test_a_controller_that_goes_away_is_waited_for(site: Site) -> None:
    job_id = await site.submit(f"{STEPS.format(last=150)}")
    watching = await site.watching(job_id)
    await site.until(lambda cursor: (cursor.progress.iteration or 0) > 5)
    await site.slurm.stop_controller()
    await site.until(lambda cursor: cursor.blind is not None)
    assert not watching.done()
    await site.slurm.start_controller()
    await site.until(lambda cursor: cursor.blind is None)
    assert (await watching).kind is WatchEnd.ENDED_WELL
