"""The demo's training job under a real `srun`: one process a rank, and the words srun itself adds when one breaks."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from workers.demo.script import batch_script
from workers.embedded.private_slurm import PrivateSlurm

pytestmark = pytest.mark.slurm


class Run:
    def __init__(self, slurm: PrivateSlurm, directory: Path) -> None:
        self.slurm = slurm
        self.log, self.checkpoints, self.fault_file = directory / "log", directory / "checkpoints", directory / "fault.json"

    async def submit(self, *options: str, label: bool = False, **fault: Any) -> str:
        if fault:
            self.fault_file.write_text(json.dumps(fault))
        speed = ("--step-seconds", "0.05", "--checkpoint-every", "5", "--checkpoint-seconds", "0.05", "--iterations", "20")
        arguments = ["--checkpoints", str(self.checkpoints), "--fault-file", str(self.fault_file), *speed, *options]
        return await self.slurm.submit_text(batch_script(arguments, output=self.log, label=label))

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    async def says(self, words: str) -> None:
        async with asyncio.timeout(60):
            while words not in self.text():  # noqa: ASYNC110 - another process writes the log
                await asyncio.sleep(0.05)


@pytest.fixture
def run(idle_slurm: PrivateSlurm, tmp_path: Path) -> Run:
    return Run(idle_slurm, tmp_path)


async def test_a_broken_node_ends_the_job_and_the_next_attempt_resumes_off_it(run: Run) -> None:
    job_id = await run.submit(kind="crash", node="node-002", at_iteration=13)
    await run.slurm.wait_state(job_id, "FAILED")
    text = run.text()
    assert "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered" in text
    assert "srun: error: node-002: task 2: Exited with exit code 1" in text
    assert "iteration       14/" not in text
    await run.slurm.run("scontrol", "requeue", job_id)
    await run.slurm.wait_state(job_id, "PENDING")
    # Past the second in which the first attempt was ended: slurmd refuses a launch within it (reschedule.py, PAST_THE_KILL).
    await run.slurm.run("scontrol", "update", f"JobId={job_id}", "ExcNodeList=node-002", "StartTime=now+2")
    await run.slurm.wait_state(job_id, "COMPLETED")
    text = run.text()
    assert "at iteration 10\n" in text
    assert "[after training is done]" in text
    assert "CUDA error" not in text


async def test_a_killed_rank_is_told_by_srun_alone(run: Run) -> None:
    job_id = await run.submit(kind="kill_self", node="node-002", at_iteration=3)
    await run.slurm.wait_state(job_id, "FAILED")
    assert "srun: error: node-002: task 2: Killed" in run.text()
    assert "Traceback" not in run.text()


async def test_an_application_bug_comes_with_the_label_of_the_rank_that_raised_it_first(run: Run) -> None:
    job_id = await run.submit(label=True, kind="app_bug", at_iteration=3)
    await run.slurm.wait_state(job_id, "FAILED")
    assert re.search(r"^(\d): \[rank\1\]: ValueError: sample 18732 of shard 7", run.text(), re.MULTILINE)


async def test_a_hang_leaves_the_job_running_and_silent(run: Run) -> None:
    job_id = await run.submit(kind="hang", node="node-002", at_iteration=4)
    await run.says("iteration        3/")
    await asyncio.sleep(1)  # twenty steps' time: silence can only be told by waiting
    assert "iteration        4/" not in run.text()  # a rank that starts late may still say that it did
    assert (await run.slurm.job_states())[job_id] == "RUNNING"
