"""`backstay` as processes for tests of what a service writes and how it ends: started, awaited by its log, signalled, read."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
BACKSTAY = (sys.executable, "-m", "workers.commands.main")


def a_site(directory: Path, **sections: Any) -> Path:
    """A configuration file of a cluster whose Slurm is not there: what is tested is the service around it."""
    (directory / "no-slurm").mkdir(parents=True, exist_ok=True)
    configuration = {
        "cluster": {"name": "alpha", "scheduler": {"bin_directory": str(directory / "no-slurm")}},
        "watch": {"poll_interval": "1s"},
        "logs": {"roots": [str(directory)]},
        "evidence": {"directory": str(directory / "evidence")},
        "worker": {"heartbeat_timeout": "4s"},
        **sections,
    }
    path = directory / "backstay.yaml"
    path.write_text(json.dumps(configuration))  # JSON is YAML
    return path


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what would point a command at another site."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BACKSTAY_", "SLURM_"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY), **changes}


async def told(*arguments: str, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that ends by itself."""
    process = await asyncio.create_subprocess_exec(
        *prefix,
        *BACKSTAY,
        *arguments,
        cwd=REPOSITORY,
        env=env or environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    written, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, written.decode(), errors.decode()


class Service:
    """A `backstay` process that runs until it is stopped; both of its outputs are one log, as under systemd."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process, self.log = process, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def lines(self) -> list[dict[str, Any]]:
        """Its log. Fails where a line is no JSON object."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def events(self) -> list[str]:
        return [str(line["event"]) for line in self.lines()]

    async def until(self, condition: Callable[[str], bool]) -> None:
        """Until the log's text meets the condition; the process must live as long."""
        while not condition(self.log.read_text()):
            assert self.process.returncode is None, self.log.read_text()
            await asyncio.sleep(0.05)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code after the signal."""
        self.process.send_signal(number)
        return await self.process.wait()

    def server_pid(self) -> int:
        """The process of its embedded Temporal server."""
        [pid] = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[:1] or [""]
        return int(pid)


@asynccontextmanager
async def service(*arguments: str, log: Path, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None) -> AsyncIterator[Service]:
    """A service, from the moment it works; killed at the end where the test has not stopped it."""
    with log.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(
            *prefix, *BACKSTAY, *arguments, cwd=REPOSITORY, env=env or environment(), stdout=stream, stderr=stream
        )
    running = Service(process, log)
    try:
        await running.until(lambda text: '"worker_started"' in text)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
