"""`backstay demo` from end to end: it ends by itself, with exit code 0 only because the job recovered."""

import os
import subprocess
import sys

import pytest

from workers.embedded.slurm_programs import why_not


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers.commands.main", "demo", *options], capture_output=True, text=True, timeout=240, check=False
    )


def assert_recovered(told: subprocess.CompletedProcess[str]) -> None:
    assert told.returncode == 0, told.stdout + told.stderr
    lines = told.stdout.splitlines()
    in_order = (
        "Backstay watches",
        "breaks",
        "Backstay sees it",
        "it recommends",
        "scontrol requeue",
        "RECOVERED",
        "MILESTONE",
        "Temporal UI",
    )
    found = [next(number for number, line in enumerate(lines) if words in line) for words in in_order]
    assert found == sorted(found)
    assert "not reached" not in told.stdout


@pytest.mark.e2e
def test_it_recovers_on_the_simulated_cluster_and_says_so() -> None:
    told = demo("--simulated")
    assert_recovered(told)
    assert "a simulated Slurm of 4 nodes (as asked)" in told.stdout


@pytest.mark.e2e
@pytest.mark.slurm
def test_it_recovers_on_a_private_real_slurm() -> None:
    if reason := why_not():
        if os.environ.get("BACKSTAY_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    told = demo()
    assert_recovered(told)
    assert "a private real Slurm of 4 nodes" in told.stdout
