"""What a service writes: one JSON object a line whoever speaks, and nothing but the fact when it is stopped in the ordinary way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.running import REPOSITORY, a_site, environment, service, told
from workers.commands.logging import LIBRARY_SAID
from workers.commands.stopping import stop_on_signals
from workers.embedded.temporal import free_port

EVERYBODY = """
import asyncio, logging, sys, threading, warnings
import structlog
from workers.commands.logging import log_to
log_to()
structlog.get_logger().info("job_requeued", job="17", name="evil\\nname\\x1b[2J")
logging.getLogger("httpx").warning("two\\nlines")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("temporalio.activity").warning("Completing activity as failed", exc_info=True)
warnings.warn("old", DeprecationWarning)
warnings.warn("plain")
thread = threading.Thread(target=lambda: 1 / 0, name="reader")
thread.start(); thread.join()
async def main():
    async def fails(): raise RuntimeError("nobody awaits me")
    asyncio.create_task(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(main())
import gc; gc.collect()
raise KeyError("uncaught")
"""


def test_everybody_who_speaks_writes_one_json_object_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", EVERYBODY], capture_output=True, text=True, check=False, cwd=REPOSITORY, env=environment())
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == ""
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    assert "\x1b" not in done.stderr
    by_library = {line["logger"]: line for line in lines if line["event"] == LIBRARY_SAID}
    assert {"httpx", "temporalio.activity", "py.warnings", "asyncio"} <= by_library.keys()
    assert by_library["httpx"]["message"] == "two\nlines"
    assert "ZeroDivisionError" in by_library["temporalio.activity"]["exception"]
    uncaught = [line for line in lines if line["event"] == "exception_not_caught"]
    assert [line.get("thread") for line in uncaught] == ["reader", None]
    assert "KeyError" in uncaught[-1]["exception"]


def test_a_log_that_cannot_be_written_does_not_stop_the_service() -> None:
    code = (
        'import structlog\nfrom workers.commands.logging import log_to\nlog_to(open("/dev/full", "w"))\nstructlog.get_logger().info("x")\n'
    )
    code += 'import logging\nlogging.getLogger("a").error("y")\nprint("goes on")\n'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPOSITORY, env=environment())
    assert done.stdout == "goes on\n", done.stderr
    assert "Logging error" not in done.stderr


def a_service_site(directory: Path) -> str:
    section = {"address": f"127.0.0.1:{free_port()}", "ui_port": free_port(), "database": str(directory / "temporal.db")}
    return str(a_site(directory, temporal=section))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
async def test_a_routine_stop_of_up_is_one_fact_and_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    async with service("up", "-c", a_service_site(tmp_path), log=tmp_path / "up.log") as up:
        await up.until(lambda text: "scheduler_unreachable" in text)
        before, server = len(up.lines()), up.server_pid()
        assert await up.stop(number) == 0
    assert up.events()[before:] == ["worker_stopped"]
    assert not [line for line in up.lines() if "exception" in line]
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


async def test_the_sdks_lines_about_a_frozen_server_are_lines_like_every_other_and_a_stop_stays_quiet(tmp_path: Path) -> None:
    """With the server silent for longer than the heartbeat timeout, the worker's activity is lost: one line, no traceback."""
    configuration = a_service_site(tmp_path)
    async with service("up", "-c", configuration, log=tmp_path / "up.log") as up:
        await up.until(lambda text: "scheduler_unreachable" in text)  # its discovery runs
        os.kill(up.server_pid(), signal.SIGSTOP)
        try:
            await up.until(lambda text: "activity_heartbeat_manager" in text)
        finally:
            os.kill(up.server_pid(), signal.SIGCONT)
        assert (await told("jobs", "--json", "-c", configuration))[:2] == (0, "[]\n")
        assert await up.stop() == 0
    said = [line for line in up.lines() if line["event"] == LIBRARY_SAID]
    assert any(line["logger"].startswith("temporalio-sdk_core") for line in said)
    assert not [line for line in up.lines() if "exception" in line]


async def test_a_server_that_dies_ends_up_with_the_reason_as_the_last_line(tmp_path: Path) -> None:
    async with service("up", "-c", a_service_site(tmp_path), log=tmp_path / "up.log") as up:
        os.kill(up.server_pid(), signal.SIGKILL)
        assert await up.process.wait() == 3
    last = up.lines()[-1]
    assert (last["event"], last["exit_code"]) == ("service_ended", 3)
    assert "ended by itself" in last["why"]


async def test_a_worker_that_finds_no_temporal_says_so_as_a_line_of_its_log(tmp_path: Path) -> None:
    code, out, errors = await told("worker", "-c", a_service_site(tmp_path))
    last = json.loads(errors.splitlines()[-1])
    assert (code, out, last["event"], last["exit_code"]) == (3, "", "service_ended", 3)


async def test_what_was_started_with_nohup_goes_on_when_the_terminal_is_gone() -> None:
    before, stop = signal.signal(signal.SIGHUP, signal.SIG_IGN), asyncio.Event()
    try:
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            await stop.wait()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
