"""The private Slurm itself: it must behave like a site's, and leave nothing behind."""

from pathlib import Path

import pytest

from workers.embedded.keeper import descendants
from workers.embedded.private_slurm import PrivateSlurm
from workers.embedded.slurm_programs import PrivateSlurmError, why_not

pytestmark = pytest.mark.slurm


async def test_a_job_runs_on_the_nodes_it_was_given(idle_slurm: PrivateSlurm) -> None:
    output = idle_slurm.directory / "ranks.out"
    job_id = await idle_slurm.submit_text(
        "srun bash -c 'echo $SLURM_PROCID $SLURMD_NODENAME'", "--nodes=2", "--ntasks-per-node=2", f"--output={output}"
    )
    await idle_slurm.wait_state(job_id, "COMPLETED")
    ranks = dict(line.split() for line in output.read_text().splitlines())
    assert sorted(ranks) == ["0", "1", "2", "3"]
    assert ranks["0"] == ranks["1"] != ranks["2"] == ranks["3"]


async def test_a_killed_node_goes_down_and_its_job_is_requeued(idle_slurm: PrivateSlurm) -> None:
    job_id = await idle_slurm.submit_text("sleep 600", "--nodes=1", "--nodelist=node-002")
    await idle_slurm.wait_state(job_id, "RUNNING")
    await idle_slurm.kill_node("node-002")
    await idle_slurm.wait_node("node-002", "down", "down*")
    await idle_slurm.wait_state(job_id, "PENDING")
    await idle_slurm.restart_node("node-002")
    await idle_slurm.wait_node("node-002", "idle")


async def test_the_controller_comes_back_with_its_jobs(idle_slurm: PrivateSlurm) -> None:
    job_id = await idle_slurm.submit_text("sleep 600")
    await idle_slurm.wait_state(job_id, "RUNNING")
    await idle_slurm.stop_controller()
    with pytest.raises(PrivateSlurmError, match="Unable to contact slurm controller"):
        await idle_slurm.run("squeue")
    await idle_slurm.start_controller()
    await idle_slurm.wait_state(job_id, "RUNNING")


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_stopping_leaves_no_process_and_no_file_behind() -> None:
    slurm = PrivateSlurm(nodes=1)
    await slurm.start()
    directory = slurm.directory
    marker = directory / "started"
    job_id = await slurm.submit_text(f"trap '' TERM; touch {marker}; setsid sleep 600", "--no-requeue")
    await slurm.wait_state(job_id, "RUNNING")
    await slurm.stop()
    assert not directory.exists()
    left = [pid for pid in descendants(1) if str(directory) in _environment_of(pid)]
    assert left == []


def _environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
