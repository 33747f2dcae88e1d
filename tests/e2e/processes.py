"""`backstay` as real processes: workers that can be killed, and commands whose output is read. Used by `site.py`."""

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BACKSTAY = (sys.executable, "-m", "workers.commands.main")
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its one JSON document."""
        assert self.exit_code == 0, f"exit code {self.exit_code}: {self.err or self.out}"
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """Its JSON documents, one a line."""
        assert self.exit_code == 0, f"exit code {self.exit_code}: {self.err or self.out}"
        return [json.loads(line) for line in self.out.splitlines()]


async def backstay(*arguments: str, within: float = 60, columns: int | None = None) -> Said:
    """Runs one command to its end, in a pipe; with `columns`, as wide as a window of so many."""
    process = await asyncio.create_subprocess_exec(
        *BACKSTAY,
        *arguments,
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**_environment(), **({"COLUMNS": str(columns)} if columns else {})},
    )
    try:
        async with asyncio.timeout(within):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(f"backstay {' '.join(arguments)} did not end within {within:g} s") from None
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


class Worker:
    """One `backstay worker` process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    async def start(cls, configuration: Path, log: Path, *, within: float = 60) -> "Worker":
        """Returns when it has told that it works."""
        with log.open("ab") as stream:
            process = await asyncio.create_subprocess_exec(
                *BACKSTAY,
                "worker",
                "-c",
                str(configuration),
                cwd=REPOSITORY,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=_environment(),
                start_new_session=True,
            )
        worker = cls(process, log)
        deadline = time.monotonic() + within
        while '"worker_started"' not in await asyncio.to_thread(log.read_text):
            assert worker.is_running, f"the worker ended with {process.returncode}:\n{worker.last_words()}"
            assert time.monotonic() < deadline, f"the worker did not start within {within:g} s:\n{worker.last_words()}"
            await asyncio.sleep(0.1)
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def kill(self) -> None:
        """SIGKILL: it can tell nobody."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)  # commands of Slurm that it just ran go with it, as they would with the machine
        await self._process.wait()

    async def stop(self, *, within: float = 30) -> int:
        """SIGTERM, and its exit code once it has handed its watches over; killed when that takes too long."""
        if self.is_running:
            self._process.terminate()
        try:
            async with asyncio.timeout(within):
                return await self._process.wait()
        except TimeoutError:
            await self.kill()
            raise AssertionError(f"the worker did not stop within {within:g} s:\n{self.last_words()}") from None

    def last_words(self, lines: int = 20) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _environment() -> dict[str, str]:
    """Ours, without what would point the commands at another site, or fold their lines."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("BACKSTAY_", "BACKSTAY__", "SLURM_", "COLUMNS"))}
