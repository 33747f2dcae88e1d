"""`backstay up` and the commands around it on real Slurm: decide by command, with and without a worker, across a restart."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from workers.demo.script import batch_script
from workers.embedded.private_slurm import PrivateSlurm
from workers.embedded.temporal import EmbeddedTemporal, answers, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slurm]


class Site:
    """A configured site: its directory, its Slurm, its ports."""

    def __init__(self, directory: Path, slurm: PrivateSlurm) -> None:
        self.directory, self.slurm = directory, slurm
        self.port, self.ui_port = free_port(), free_port()
        self.configuration = directory / "backstay.yaml"
        self.configuration.write_text(
            json.dumps(  # JSON is YAML
                {
                    "cluster": {"name": "alpha", "scheduler": {"slurm_conf": str(slurm.slurm_conf)}},
                    "watch": {"poll_interval": "1s", "log_interval": "0.3s"},
                    "logs": {"roots": [str(directory)]},
                    "evidence": {"directory": str(directory / "evidence")},
                    "policy": {"mode": "approve", "limits": {"excluded_fraction": 0.5}},
                    "temporal": {
                        "address": f"127.0.0.1:{self.port}",
                        "ui_port": self.ui_port,
                        "database": str(directory / "temporal.db"),
                    },
                    "worker": {"heartbeat_timeout": "10s"},
                }
            )
        )

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "workers.commands.main"]

    async def backstay(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        process = await asyncio.create_subprocess_exec(
            *self.command, *arguments, "-c", str(self.configuration), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), errors.decode()

    async def job(self, wanted: Callable[[Any], bool]) -> Any:
        """The one job's row, once it is as wanted."""
        while True:
            code, out, _ = await self.backstay("jobs", "--json")
            rows = json.loads(out) if code == 0 else []
            if rows and wanted(rows[0]):
                return rows[0]

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """`backstay up`, ended by SIGTERM as systemd does; it must end well."""
        with (self.directory / "up.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*self.command, "up", "-c", str(self.configuration), stdout=log, stderr=log)
        try:
            while not await answers(f"127.0.0.1:{self.port}"):
                assert process.returncode is None, (self.directory / "up.log").read_text()
            yield
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert not await answers(f"127.0.0.1:{self.port}")

    async def submit_a_job_that_will_break(self) -> str:
        fault = self.directory / "fault.json"
        fault.write_text(json.dumps({"kind": "crash", "node": "node-002", "at_iteration": 60}))
        checkpoints = self.directory / "checkpoints"
        arguments = ["--checkpoints", str(checkpoints), "--iterations", "100000", "--step-seconds", "0.2", "--checkpoint-every", "8"]
        script = batch_script(
            [*arguments, "--fault-file", str(fault)],
            output=self.directory / "train.log",
            comment=f"backstay:checkpoints={checkpoints}",
            append=True,
            python=sys.executable,
        )
        return await self.slurm.submit_text(script)


async def test_a_recommendation_is_approved_by_command_after_a_restart_of_everything(tmp_path: Path, idle_slurm: PrivateSlurm) -> None:
    site = Site(tmp_path, idle_slurm)
    async with site.up():
        job_id = await site.submit_a_job_that_will_break()
        row = await site.job(lambda found: found["digest"])
        assert row["needs_approval"]
        code, _, said = await site.backstay("approve", job_id, "--digest", "000000000000")
        assert (code, "is not the pending" in said) == (1, True)
        code, _, said = await site.backstay("approve", "4711")
        assert (code, "no job 4711 is known" in said) == (1, True)

    # Temporal alone: what it holds can be read, nothing can be decided, and nobody waits long to be told.
    async with EmbeddedTemporal(tmp_path / "temporal.db", port=site.port):
        code, out, _ = await site.backstay("show", job_id, "--json")
        document = json.loads(out)
        assert (code, document["state"]) == (0, "awaiting_decision")
        assert any("no worker answers" in warning for warning in document["warnings"])
        assert (await site.backstay("approve", job_id))[0] == 3
        assert (await site.backstay("breaker"))[0] == 3

    async with site.up():
        await site.job(lambda found: found["digest"] == row["digest"])  # the worker is there again
        code, out, said = await site.backstay("approve", job_id, "--actor", "bob", "--reason", "go on")
        assert (code, out) == (0, f"job {job_id}: approved by bob, recommendation {row['digest']}\n"), said
        code, _, said = await site.backstay("reject", job_id, "--digest", row["digest"])
        assert (code, said.count("\n")) == (1, 1)
        await site.job(lambda found: found["state"] == "watching" and found["attempt"] == 1)
        [incident] = json.loads((await site.backstay("show", job_id, "--json"))[1])["incidents"]
        assert (incident["outcome"]["state"], incident["decision"]["actor"]) == ("recovered", "bob")
        facts = [json.loads(line) for line in (await site.backstay("audit", job_id, "--json"))[1].splitlines()]
        assert [fact["name"] for fact in facts].count("requeue_job_completed") == 1
        assert {fact["run_id"] for fact in facts} == {facts[0]["run_id"], facts[-1]["run_id"]}
        code, out, _ = await site.backstay("breaker", "--json")
        assert (code, [entry["node"] for entry in json.loads(out)["entries"]]) == (0, ["node-002"])
