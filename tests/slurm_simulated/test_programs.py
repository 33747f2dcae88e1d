"""Jobs of the simulated cluster that are real processes of this machine, as in the demo without Slurm."""

import asyncio
import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.records import Job, JobState
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import LocalProcess
from activities.slurm.simulated_state import Request
from workers.demo.script import TRAIN

SHOW = """
import os, time
for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_ARRAY_TASK_ID"):
    print(f"{name}={os.environ.get(name)}", flush=True)
time.sleep(60)
"""


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    quick = timedelta(milliseconds=10)
    cluster = SimulatedCluster(4, requeue_delay=timedelta(seconds=1), completing_time=quick, kill_wait=timedelta(seconds=2))
    yield cluster
    cluster.stop()


def python(code: str) -> LocalProcess:
    return LocalProcess([sys.executable, "-c", code])


async def job_in(cluster: SimulatedCluster, job_id: str, state: JobState, restart_count: int = 0) -> Job:
    async with asyncio.timeout(60):
        while True:
            job = await cluster.job(job_id)
            if job.state is state and not job.is_ending and job.restart_count == restart_count:
                return job
            await asyncio.sleep(0.02)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def text_in(path: Path, words: str) -> str:
    async with asyncio.timeout(60):
        while True:
            if words in (seen := _read(path)):
                return seen
            await asyncio.sleep(0.02)


async def test_a_process_learns_what_sbatch_tells_a_script(cluster: SimulatedCluster, tmp_path: Path) -> None:
    request = Request(node_count=2, tasks_per_node=2, stdout="%x-%A.out", name="show", working_directory=str(tmp_path))
    job_id = cluster.submit(python(SHOW), request=request)
    seen = await text_in(tmp_path / f"show-{job_id}.out", "ARRAY_TASK")
    assert f"SLURM_JOB_ID={job_id}\nSLURM_RESTART_COUNT=None\nSLURM_JOB_NODELIST=node-001,node-002\nSLURM_NTASKS=4\n" in seen


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", (7, None)), ("import os; os.kill(os.getpid(), 9)", (0, 9))])
async def test_its_exit_is_the_jobs_exit(cluster: SimulatedCluster, code: str, expected: tuple[int, int | None]) -> None:
    job = await job_in(cluster, cluster.submit(python(code)), JobState.FAILED)
    assert (job.exit_code, job.exit_signal) == expected


@pytest.mark.parametrize("append", [False, True])
async def test_a_requeue_ends_it_and_the_next_attempt_starts_with_the_log_slurm_would_leave(
    cluster: SimulatedCluster, tmp_path: Path, append: bool
) -> None:
    log = tmp_path / "log"
    job_id = cluster.submit(python(SHOW), request=Request(stdout=str(log), append=append))
    await text_in(log, "SLURM_RESTART_COUNT=None")
    await cluster.requeue(job_id)
    await job_in(cluster, job_id, JobState.RUNNING, restart_count=1)
    seen = await text_in(log, "SLURM_RESTART_COUNT=1")
    assert ("SLURM_RESTART_COUNT=None" in seen) is append


async def test_a_process_that_ignores_sigterm_is_killed_after_kill_wait(cluster: SimulatedCluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    deaf = python("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)")
    job_id = cluster.submit(deaf, request=Request(stdout=str(log)))
    await text_in(log, "deaf")
    await cluster.cancel(job_id)
    assert (await cluster.job(job_id)).is_ending
    await job_in(cluster, job_id, JobState.CANCELLED)


@pytest.mark.parametrize("request_", [Request(stdout="/no/such/directory/log"), Request(working_directory="/no/such/directory")])
async def test_a_job_that_cannot_start_fails_and_leaves_the_cluster_working(cluster: SimulatedCluster, request_: Request) -> None:
    job = await job_in(cluster, cluster.submit(python("pass"), request=request_), JobState.FAILED)
    assert (job.exit_code, job.exit_signal) == (0, 53)
    await job_in(cluster, cluster.submit(), JobState.RUNNING)


async def test_the_demos_training_breaks_on_one_node_and_resumes_off_it(cluster: SimulatedCluster, tmp_path: Path) -> None:
    log, fault = tmp_path / "log", tmp_path / "fault.json"
    fault.write_text(json.dumps({"kind": "crash", "node": "node-002", "at_iteration": 13}))
    speed = ("--step-seconds", "0.01", "--checkpoint-every", "5", "--checkpoint-seconds", "0", "--iterations", "30")
    argv = [sys.executable, str(TRAIN), "--checkpoints", str(tmp_path / "checkpoints"), "--fault-file", str(fault), *speed]
    job_id = cluster.submit(LocalProcess(argv), request=Request(node_count=2, tasks_per_node=2, stdout=str(log)))
    await job_in(cluster, job_id, JobState.FAILED)
    assert "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered" in log.read_text()
    await cluster.requeue(job_id)
    await cluster.set_excluded_nodes(job_id, ["node-002"])
    await cluster.start_now(job_id)
    job = await job_in(cluster, job_id, JobState.COMPLETED, restart_count=1)
    assert job.nodes == ("node-001", "node-003")
    assert "at iteration 10" in log.read_text()
    assert (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "30"
