"""The demo's training job as one process that plays all ranks: what it prints, how it resumes, how it breaks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from workers.demo.script import TRAIN, batch_script
from workers.demo.train import expand_nodes, world_of

FAST = ("--step-seconds", "0.01", "--checkpoint-seconds", "0", "--iterations", "20", "--checkpoint-every", "5")


class Run:
    """One attempt on node-001 and node-002, two ranks each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fault_file = directory / "fault.json"

    def fault(self, **fault: Any) -> None:
        self.fault_file.write_text(json.dumps(fault))

    def start(self, *options: str, nodes: str = "node-[001-002]", restart_count: int = 0) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "SLURM_JOB_NODELIST": nodes,
            "SLURM_NTASKS": "4",
            "SLURM_RESTART_COUNT": str(restart_count),
        }
        where = ("--checkpoints", str(self.directory / "checkpoints"), "--fault-file", str(self.fault_file))
        argv = [sys.executable, str(TRAIN), *where, *FAST, *options]
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, *options: str, nodes: str = "node-[001-002]", restart_count: int = 0) -> tuple[int, str]:
        process = self.start(*options, nodes=nodes, restart_count=restart_count)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    @property
    def checkpoint(self) -> int:
        return int((self.directory / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_healthy_run_trains_to_the_end_and_saves(run: Run) -> None:
    code, output = run.finish()
    assert code == 0
    assert " iteration       20/      20 | consumed samples:" in output
    assert "[after training is done]" in output
    assert run.checkpoint == 20


def test_a_broken_node_ends_the_run_in_its_first_ranks_name_and_another_node_resumes(run: Run) -> None:
    run.fault(kind="crash", node="node-002", at_iteration=13)
    code, output = run.finish()
    assert code == 1
    assert "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered" in output
    assert "iteration       13/" not in output
    assert run.checkpoint == 10
    code, output = run.finish(nodes="node-001,node-003", restart_count=1)
    assert code == 0
    assert "[ t 1/1, p 1/1 ] at iteration 10" in output
    assert " iteration       11/" in output
    assert " iteration       10/" not in output


def test_a_fault_may_be_limited_to_an_attempt_and_worded(run: Run) -> None:
    run.fault(kind="crash", rank=1, attempts=[0], message="RuntimeError: NCCL Error 2: unhandled system error")
    assert "[rank1]: RuntimeError: NCCL Error 2: unhandled system error" in run.finish()[1]
    assert run.finish(restart_count=1)[0] == 0


def test_the_journal_says_when_an_attempt_started_and_when_it_broke(run: Run) -> None:
    journal = run.directory / "journal"
    run.fault(kind="crash", node="node-002", at_iteration=7)
    before = time.time()
    run.finish("--journal", str(journal))
    started, broke = (json.loads(line) for line in journal.read_text().splitlines())
    assert (started["event"], broke["event"], broke["attempt"]) == ("started", "crash", 0)
    assert before < started["at"] < broke["at"] < time.time()


def test_an_application_bug_is_raised_by_every_rank_in_every_attempt(run: Run) -> None:
    run.fault(kind="app_bug", at_iteration=7)
    for attempt in (0, 1):
        code, output = run.finish(restart_count=attempt)
        assert code == 1
        assert output.count(": ValueError: sample 18732") == 4


def test_a_hang_prints_nothing_more_and_stays_alive(run: Run) -> None:
    run.fault(kind="hang", node="node-002", at_iteration=8)
    process = run.start()
    assert process.stdout is not None
    for line in process.stdout:
        if " iteration        7/" in line:
            break
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.terminate()
    assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == -signal.SIGTERM


def test_killed_by_itself_says_nothing(run: Run) -> None:
    run.fault(kind="kill_self", at_iteration=3)
    code, output = run.finish()
    assert code == -signal.SIGKILL
    assert "Traceback" not in output


def test_not_a_number_shows_in_the_loss_while_training_goes_on(run: Run) -> None:
    run.fault(kind="nan", at_iteration=15)
    code, output = run.finish()
    assert code == 0
    assert output.count("lm loss: nan") == 6


def test_slow_makes_steps_longer(run: Run) -> None:
    run.fault(kind="slow", node="node-001", factor=10, at_iteration=11)
    begin = time.monotonic()
    run.finish()
    assert time.monotonic() - begin > 10 * 10 * 0.01


def test_noise_and_evaluation_are_harmless(run: Run) -> None:
    code, output = run.finish("--noise", "--evaluate-every", "10", "--evaluate-seconds", "0")
    assert code == 0
    assert output.count(" validation loss at iteration ") == 2
    assert "word error rate" in output


def test_under_srun_a_process_plays_its_own_rank() -> None:
    world = world_of({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node-[001-002]"})
    assert (world.ranks, world.node_of(3), world.speaks) == ((3,), "node-002", False)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("node-001", ("node-001",)),
        ("node-[001-003]", ("node-001", "node-002", "node-003")),
        ("a[1,3-4],login,b[09-10]", ("a1", "a3", "a4", "login", "b09", "b10")),
    ],
)
def test_node_lists_are_expanded(expression: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(expression) == names


def test_the_batch_script_keeps_a_json_comment_and_ends_with_srun() -> None:
    script = batch_script(["--checkpoints", "/shared/my run"], comment='{"backstay": {}}', label=True, output="/logs/%j.out")
    assert """#SBATCH --comment='{"backstay": {}}'""" in script
    assert "#SBATCH --output=/logs/%j.out" in script
    assert script.rstrip().endswith("--checkpoints '/shared/my run'")
    assert "exec srun --kill-on-bad-exit=1 --label python3 -u " in script


def test_a_comment_sbatch_would_spoil_is_refused() -> None:
    with pytest.raises(ValueError, match="single quote"):
        batch_script([], comment="it's")
