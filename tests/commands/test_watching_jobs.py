"""`jobs --watch`: the list stays and is fresh until Ctrl-C, through a silence of the server; without a terminal it is refused."""

import asyncio
import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from tests.commands.test_main import backstay
from tests.e2e.server import Server
from workers.client import TemporalUnreachable
from workers.commands.refreshing import keep_fresh

AT_ONCE = timedelta(milliseconds=1)


class Looks:
    """Answers one after another; after the last the process is asked to stop, as Ctrl-C does."""

    def __init__(self, *answers: Sequence[str] | Exception) -> None:
        self._answers = iter(answers)

    async def __call__(self) -> Sequence[str]:
        answer = next(self._answers, None)
        if answer is None:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()  # a server that never answers must not hold up the end
            raise AssertionError("unreachable")
        if isinstance(answer, Exception):
            raise answer
        return answer


async def shown(*answers: Sequence[str] | Exception, width: int = 80, height: int = 24) -> str:
    """All that was written to a terminal of that size."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system=None)
    await keep_fresh(Looks(*answers), title="cluster alpha", console=console, every=AT_ONCE)
    return out.getvalue()


async def test_each_look_is_shown_and_ctrl_c_ends_it_with_the_screen_given_back() -> None:
    told = await shown(["17  train  watching"], ["17  train  diagnosing"])
    assert told.index("watching") < told.index("diagnosing")
    assert "cluster alpha, " in told
    assert "Ctrl-C ends" in told
    assert "\x1b[?1049l" in told, "the screen that was there is given back"
    assert told.rindex("\x1b[?25h") > told.rindex("\x1b[?25l"), "and the cursor"


async def test_a_silent_server_leaves_the_last_list_and_says_since_when() -> None:
    silent = TemporalUnreachable("no Temporal server answers at 127.0.0.1:7233", "start `backstay up` here")
    told = await shown(["17  train  watching"], silent, ["17  train  verifying"])
    _, _, after = told.partition("no answer since ")
    assert "start `backstay up` here" in after
    assert after.index("watching") < after.index("verifying")
    assert "no answer" not in after[after.index("verifying") :]


async def test_what_is_no_known_error_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await shown(ZeroDivisionError())


async def test_a_list_longer_than_the_screen_says_how_much_more_there_is() -> None:
    told = await shown([f"job {number}" for number in range(100)], height=10)
    assert "and 92 more lines; --user and --state narrow the list" in told
    assert "job 7" in told
    assert "job 8" not in told


async def test_a_users_words_do_nothing_to_the_screen() -> None:
    told = await shown(["17  \x1b]0;owned\x07name"])
    assert "\x1b]0" not in told


def test_without_a_terminal_it_is_refused_with_the_way_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_text("cluster: {name: alpha}\n")
    told = backstay("jobs", "--watch", "-c", str(path), directory=tmp_path)
    assert told.returncode == 2
    assert "--watch needs a terminal; a program calls `backstay jobs --json`" in told.stderr


def test_on_a_terminal_ctrl_c_ends_it_with_0(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_text(f"cluster: {{name: watched-by-nobody}}\ntemporal: {{address: '{server.address}'}}\n")
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "xterm"}
    program = [sys.executable, "-m", "workers.commands.main", "jobs", "--watch", "-c", str(path)]
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True) as process:
        os.close(theirs)
        told = _read_until(ours, b"No job of cluster watched-by-nobody is watched now.")
        process.send_signal(signal.SIGINT)
        told += _read_to_the_end(ours)
        assert process.wait(timeout=60) == 0, told.decode(errors="replace")
    assert b"Traceback" not in told
    assert b"no worker runs for task queue" in told


def _read_until(terminal: int, text: bytes) -> bytes:
    told = b""
    while text not in told:
        told += os.read(terminal, 4096)  # raises OSError (EIO) when the program ended before it said so
    return told


def _read_to_the_end(terminal: int) -> bytes:
    told = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # how Linux tells that nobody has the other end open
            piece = b""
        if not piece:
            os.close(terminal)
            return told
        told += piece
