"""One worker, two hostile patterns and fifty honest jobs that break: all fifty recover. A real Temporal server, a simulated cluster."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.configuration import Configuration
from activities.records import OutcomeState
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import Execution, Exit, Life, Running, ScriptedRun, runs_for
from activities.slurm.simulated_state import Request
from tests.e2e.server import Server
from workers.client import connect
from workers.demo.train import TRACKER, step_line, traceback_of
from workers.worker import run_worker
from workflows.state import TrainingJobState

pytestmark = pytest.mark.timeout(300)

HONEST = 50
HOSTILE = {
    "digits": (r"(?P<iteration>(?:\d|\d)+)x", f"{'1' * 60} could not save checkpoint\n"),
    "dear": (r"(?:a|b)*a(?:a|b){900}c(?P<iteration>\d+)", f"{'ab' * 1900}\n"),
}


class Training(ScriptedRun):
    """One attempt: five steps and a checkpoint as it starts. The first then dies of a port that is taken; the second takes another
    step every two seconds, and saves each."""

    def __init__(self, log: Path, checkpoints: Path, at: datetime, *, breaks: bool) -> None:
        super().__init__(Life(timedelta(seconds=8), Exit(code=1)) if breaks else Life(), at)
        self._log, self._checkpoints, self._breaks = log, checkpoints, breaks
        self._iteration = 0 if breaks else 5
        self.is_process = not breaks  # whose `poll` is asked at each look
        self._next_step = 0.0
        for _ in range(5):
            self._step()
        self._save()
        if breaks:
            self._say(traceback_of(0, "OSError: [Errno 98] Address already in use"))

    def poll(self) -> Exit | None:
        if not self._breaks and time.monotonic() >= self._next_step:
            self._next_step = time.monotonic() + 2
            self._step()
            self._save()
        return super().poll()

    def _step(self) -> None:
        self._iteration += 1
        self._say(step_line(self._iteration, 100_000, 1.0, nan=False))

    def _save(self) -> None:
        shard = self._checkpoints / f"iter_{self._iteration:07d}" / "mp_rank_00" / "model_optim_rng.pt"
        shard.parent.mkdir(parents=True)
        shard.write_text("weights")
        (self._checkpoints / TRACKER).write_text(str(self._iteration))

    def _say(self, text: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{text}\n")


@dataclass(frozen=True)
class BreaksOnce:
    """A job whose second attempt goes on from its checkpoint."""

    checkpoints: Path

    def start(self, execution: Execution, at: datetime) -> Running:
        assert execution.stdout is not None
        return Training(execution.stdout, self.checkpoints, at, breaks=execution.restart_count == 0)


def submit_hostile(cluster: SimulatedCluster, runs: Path) -> list[str]:
    """Jobs with a log of many megabytes; their IDs."""
    submitted = []
    for name, (pattern, line) in HOSTILE.items():
        log = runs / f"{name}.log"
        log.write_text(line * ((8 << 20) // len(line)))
        comment = f"backstay:mode=auto,progress={pattern}"
        submitted.append(cluster.submit(runs_for(None), request=Request(name=name, comment=comment, stdout=str(log), append=True)))
    return submitted


def submit_honest(cluster: SimulatedCluster, runs: Path) -> list[str]:
    submitted = []
    for number in range(HONEST):
        checkpoints = runs / f"checkpoints-{number}"
        comment = f"backstay:mode=auto,checkpoints={checkpoints}"
        request = Request(name=f"train-{number}", comment=comment, stdout=str(runs / f"{number}.log"), append=True)
        submitted.append(cluster.submit(BreaksOnce(checkpoints), request=request))
    return submitted


async def state_of(client: Client, workflow_id: str) -> TrainingJobState | None:
    """The workflow's own record; None while there is none, or its worker has no turn for an answer."""
    try:
        state: TrainingJobState = await client.get_workflow_handle(workflow_id).query("state", result_type=TrainingJobState)
    except (RPCError, WorkflowQueryFailedError):
        return None
    return state


def has_recovered(state: TrainingJobState | None) -> bool:
    """Whether the one incident has ended in a recovery. Fails where it has ended in anything else."""
    if state is None or not state.incidents or state.incidents[0].outcome.state is OutcomeState.IN_PROGRESS:
        return False
    assert state.incidents[0].outcome.state is OutcomeState.RECOVERED, (state.summary, state.incidents[0].outcome)
    return True


async def test_a_worker_with_two_hostile_jobs_and_fifty_honest_ones_recovers_all_honest_ones(server: Server, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    cluster = SimulatedCluster(HONEST + len(HOSTILE), requeue_delay=timedelta(seconds=2), completing_time=timedelta(seconds=0.5))
    configuration = Configuration.model_validate(
        {
            "cluster": {"name": f"c{uuid4().hex[:8]}"},
            "watch": {"poll_interval": "1s", "log_interval": "0.5s", "settle_quiet": "1s", "startup_patience": "10m"},
            "logs": {"roots": [runs]},
            "evidence": {"directory": tmp_path / "evidence"},
            "policy": {
                "mode": "auto",
                "highest_mode": "auto",
                "limits": {"breaker_jobs": 1000, "actions_per_window": 1000},  # all fail together, and here they are made to
            },
            "temporal": {"address": server.address},
        }
    )
    client = await connect(configuration)
    name = configuration.cluster.name
    hostile = submit_hostile(cluster, runs)
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(configuration, client, stop=stop, scheduler=cluster))

    async def until_all(jobs: list[str], met: Callable[[TrainingJobState | None], bool]) -> None:
        seen = [await cluster.job(job_id) for job_id in jobs]  # a requeue resets when they were submitted
        ids = [f"job/{name}/{job.job_id}/{int(job.submitted_at.timestamp())}" for job in seen if job.submitted_at is not None]
        for workflow_id in ids:
            while not met(await state_of(client, workflow_id)):
                assert not worker.done(), "the worker ended"
                await asyncio.sleep(0.2)

    await until_all(hostile, lambda state: state is not None)
    honest = submit_honest(cluster, runs)
    await until_all(honest, has_recovered)
    assert [(await cluster.job(job_id)).restart_count for job_id in honest] == [1] * HONEST
    assert [(await cluster.job(job_id)).restart_count for job_id in hostile] == [0] * len(HOSTILE)
    stop.set()
    await worker
