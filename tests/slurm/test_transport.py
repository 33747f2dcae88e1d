"""Running commands on this machine."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from activities.slurm.transport import CommandTimedOut, ConfigurationMissing, LocalTransport, ProgramMissing, command_environment

SOON = timedelta(seconds=20)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_output_errors_and_code_come_back_whole() -> None:
    code = "import sys; sys.stdout.write(sys.stdin.read() * 2); sys.stderr.write('no'); sys.exit(3)"
    done = await LocalTransport().run(python(code), timeout=SOON, stdin=b"ab")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"abab", b"no")


async def test_a_missing_program_is_named_with_the_mend() -> None:
    with pytest.raises(ProgramMissing, match="squeue-of-another-world"):
        await LocalTransport().run(["squeue-of-another-world"], timeout=SOON)


async def test_a_missing_slurm_configuration_is_named_at_once_and_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationMissing, match=r"no Slurm configuration at .*nowhere\.conf: mend cluster\.scheduler\.slurm_conf"):
        await LocalTransport(slurm_conf=tmp_path / "nowhere.conf").run(python("raise SystemExit(0)"), timeout=SOON)


async def test_a_command_out_of_time_is_killed_with_its_children(tmp_path: Path) -> None:
    children = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); "
        f"open({str(tmp_path / 'part')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); "
        f"os.rename({str(tmp_path / 'part')!r}, {str(children)!r}); time.sleep(600)"
    )
    with pytest.raises(CommandTimedOut):
        await LocalTransport().run(python(code), timeout=timedelta(seconds=5))
    for pid in map(int, children.read_text().split()):
        async with asyncio.timeout(60):
            while is_running(pid):  # noqa: ASYNC110 - another process's end has no event to wait for
                await asyncio.sleep(0.01)


async def test_a_cancelled_wait_kills_the_command(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waiting = asyncio.create_task(LocalTransport().run(python(f"open({str(fifo)!r}, 'w'); import time; time.sleep(600)"), timeout=SOON))
    reader = await asyncio.to_thread(fifo.open, "rb")  # returns once the command has opened the other end
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(reader.read) == b""
    reader.close()


def test_nothing_in_our_environment_changes_what_slurm_prints() -> None:
    own = {"PATH": "/bin", "SQUEUE_STATES": "RUNNING", "SLURM_TIME_FORMAT": "relative", "SLURM_CONF": "/etc/site.conf", "LC_ALL": "de_DE"}
    environment = command_environment(own)
    assert "SQUEUE_STATES" not in environment
    assert environment["SLURM_TIME_FORMAT"] == "standard"
    assert environment["LC_ALL"] == "C"
    assert environment["SLURM_CONF"] == "/etc/site.conf", "where the cluster is must stay"
    assert command_environment(own, slurm_conf=Path("/x/slurm.conf"))["SLURM_CONF"] == "/x/slurm.conf"
