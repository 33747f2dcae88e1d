"""Prints how fast crashes are recovered on real Slurm and real Temporal, beside plain `scontrol requeue` on the same cluster.

Run it: `python -m tests.bench.recovery [--crashes 20] [--fast]`. Each crash is a job of its own: two nodes train, a rank prints an
uncorrectable memory error and dies, Backstay (mode auto, limits lifted, watch values as shipped) brings the job back. The
delays begin when the breaking rank wrote its line, by that rank's own clock. Plain: the batch script requeues itself at once.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.configuration import Configuration
from activities.records import Incident, OutcomeState
from tests.bench.measuring import delays_table, machine
from workers.client import connect
from workers.commands.errors import CommandFailed
from workers.commands.lookup import find_job
from workers.demo.script import batch_script
from workers.demo.story import ended
from workers.demo.train import ECC, TRACKER
from workers.embedded.private_slurm import PrivateSlurm
from workers.embedded.temporal import EmbeddedTemporal
from workers.worker import run_worker
from workflows.state import TrainingJobState

CLUSTER = "bench"
LANES = 2  # crashes under way at once; the machine is shared by daemons, jobs and worker
LOOK_EVERY = 0.25  # seconds
SPREAD_SECONDS, SPREAD_OVER_SECONDS = 1.7, 5.0  # faults fall anywhere between two polls of Slurm, not all just after one
PATIENCE = timedelta(minutes=4)  # for one crash, in all
FAST = {"poll_interval": "1s", "log_interval": "0.3s", "settle_quiet": "1s", "settle_longest": "5s"}
"""What the demo uses."""

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Run:
    """One training job's files."""

    directory: Path

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def log(self) -> Path:
        return self.directory / "train.log"

    def script(self, **options: Any) -> str:
        """Its batch script: a quarter of a second an iteration, a checkpoint every two seconds, a crash when told."""
        self.checkpoints.mkdir(parents=True)
        arguments = [
            *("--checkpoints", str(self.checkpoints)),
            *("--iterations", "100000"),
            *("--step-seconds", "0.25"),
            *("--checkpoint-every", "8"),
            *("--fault-file", str(self.directory / "fault.json")),
            *("--journal", str(self.journal)),
        ]
        return batch_script(arguments, tasks_per_node=1, output=self.log, append=True, python=sys.executable, **options)

    def break_rank(self, rank: int) -> None:
        """Has the rank die at its next iteration; the attempts that follow are spared."""
        draft = self.directory / "fault.new"
        draft.write_text(json.dumps({"kind": "crash", "rank": rank, "attempts": [0]}))
        draft.replace(self.directory / "fault.json")

    def checkpoint(self) -> int | None:
        tracker = self.checkpoints / TRACKER
        return int(tracker.read_text()) if tracker.exists() else None

    def when(self, event: str, *, attempt: int) -> float | None:
        """When the attempt did that, the last of its ranks that did; seconds since the epoch."""
        entries = [json.loads(line) for line in self.journal.read_text().splitlines()] if self.journal.exists() else []
        return max((entry["at"] for entry in entries if (entry["event"], entry["attempt"]) == (event, attempt)), default=None)


@dataclass
class Figures:
    """Delays since the fault's line was written, in seconds."""

    backstay: dict[str, list[float]] = field(
        default_factory=lambda: {
            name: [] for name in ("symptom seen", "recommendation", "Slurm action (requeue)", "new attempt running", "recovered")
        }
    )
    plain: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ("new attempt running", "new checkpoint")})
    shortfalls: list[str] = field(default_factory=list)
    causes: set[str] = field(default_factory=set)


async def until(look: Callable[[], Seen | None], what: str, within: timedelta = PATIENCE) -> Seen:
    """What `look` sees, once it sees something."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            while True:
                if (seen := look()) is not None:
                    return seen
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise TimeoutError(f"{what}: not within {within}") from None


async def crash_under_backstay(slurm: PrivateSlurm, client: Client, run: Run, number: int, figures: Figures) -> None:
    script = run.script(name=f"crash-{number}", comment=f"backstay:mode=auto,checkpoints={run.checkpoints}")
    job_id = await slurm.submit_text(script)
    try:
        await _watched(client, job_id)
        await until(run.checkpoint, f"first checkpoint of job {job_id}")
        await asyncio.sleep(number * SPREAD_SECONDS % SPREAD_OVER_SECONDS)
        run.break_rank(number % 2)
        incident = await _outcome(client, job_id)
    finally:
        await slurm.run("scancel", job_id)
    fault = run.when("crash", attempt=0)
    restarted = run.when("started", attempt=1)
    reached = incident.outcome.milestones
    figures.causes.add(incident.diagnosis.cause)
    if incident.outcome.state is not OutcomeState.RECOVERED or fault is None:
        figures.shortfalls.append(f"job {job_id}: {incident.outcome.state}: {incident.outcome.summary}; its log is {run.log}")
        return
    named = {
        "symptom seen": reached.detected,
        "recommendation": reached.recommended,
        "Slurm action (requeue)": reached.acted,
        "recovered": reached.recovered,
    }
    for name, at in named.items():
        if at is not None:
            figures.backstay[name].append(at.timestamp() - fault)
    if restarted is not None:  # the training's own word: Slurm's start times have no fractions
        figures.backstay["new attempt running"].append(restarted - fault)
    print(f"  job {job_id}: " + ", ".join(f"{name} {values[-1]:.1f} s" for name, values in figures.backstay.items() if values), flush=True)


async def crash_requeued_plainly(slurm: PrivateSlurm, run: Run, number: int, figures: Figures) -> None:
    script = (
        run.script(name=f"plain-{number}").replace("exec srun", "srun") + '[ $? -eq 0 ] || scontrol requeue "$SLURM_JOB_ID"\nsleep 60\n'
    )
    job_id = await slurm.submit_text(script)
    try:
        before = await until(run.checkpoint, f"first checkpoint of job {job_id}")
        run.break_rank(number % 2)
        fault = await until(lambda: run.when("crash", attempt=0), f"crash of job {job_id}")
        before = run.checkpoint() or before
        restarted = await until(lambda: run.when("started", attempt=1), f"restart of job {job_id}")
        await until(lambda: True if (run.checkpoint() or 0) > before else None, f"new checkpoint of job {job_id}")
        written = (run.checkpoints / TRACKER).stat().st_mtime
    finally:
        await slurm.run("scancel", job_id)
    figures.plain["new attempt running"].append(restarted - fault)
    figures.plain["new checkpoint"].append(written - fault)


async def _watched(client: Client, job_id: str) -> None:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while True:
            if await _state(client, job_id) is not None:
                return
            await asyncio.sleep(LOOK_EVERY)


async def _outcome(client: Client, job_id: str) -> Incident:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while True:
            state = await _state(client, job_id)
            if state is not None and (incident := ended(state)) is not None:
                return incident
            await asyncio.sleep(2 * LOOK_EVERY)


async def _state(client: Client, job_id: str) -> TrainingJobState | None:
    try:
        execution = await find_job(client, CLUSTER, job_id)
        handle: Any = client.get_workflow_handle(execution.id)
        state: TrainingJobState = await handle.query("state", result_type=TrainingJobState, rpc_timeout=timedelta(seconds=5))
    except (CommandFailed, RPCError, WorkflowQueryFailedError):  # discovery has not come by yet, or the worker is busy: asked again
        return None
    return state


def configuration_for(slurm: PrivateSlurm, server: EmbeddedTemporal, directory: Path, *, fast: bool) -> Configuration:
    """Shipped values, but for limits that twenty crashes on four nodes would rightly run into."""
    limits = {
        "excluded_fraction": 0.5,
        "exclusion_ttl": "1s",
        "actions_per_window": 10_000,
        "breaker_jobs": 10_000,
    }
    return Configuration.model_validate(
        {
            "cluster": {"name": CLUSTER, "scheduler": {"slurm_conf": slurm.slurm_conf}},
            "watch": FAST if fast else {},
            "logs": {"roots": [directory]},
            "evidence": {"directory": directory / "evidence"},
            "policy": {"highest_mode": "auto", "limits": limits},
            "temporal": {"address": server.address, "database": server.database},
        }
    )


@asynccontextmanager
async def working(configuration: Configuration, client: Client) -> AsyncIterator[None]:
    """A worker while open, in this process."""
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(configuration, client, stop=stop))
    try:
        yield
    finally:
        stop.set()
        await worker


async def in_lanes(crashes: list[Callable[[], Awaitable[None]]], lanes: int) -> None:
    """A few at a time, each begun as soon as one before it is done."""
    waiting = list(reversed(crashes))

    async def one_after_the_other() -> None:
        while waiting:
            await waiting.pop()()

    await asyncio.gather(*(one_after_the_other() for _ in range(lanes)))


async def bench(crashes: int, plain: int, lanes: int, *, fast: bool, directory: Path) -> Figures:
    """Runs all crashes, Backstay's and the plain ones side by side."""
    figures = Figures()
    async with PrivateSlurm(4) as slurm, EmbeddedTemporal(directory / "temporal.db") as server:
        configuration = configuration_for(slurm, server, directory, fast=fast)
        client = await connect(configuration)

        def crash(number: int) -> Callable[[], Awaitable[None]]:
            return lambda: crash_under_backstay(slurm, client, Run(directory / f"crash-{number}"), number, figures)

        async with working(configuration, client):
            requeued = [crash_requeued_plainly(slurm, Run(directory / f"plain-{number}"), number, figures) for number in range(plain)]
            await asyncio.gather(in_lanes([crash(number) for number in range(crashes)], lanes), *requeued)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crashes", type=int, default=20, help="crashes under Backstay (default %(default)s)")
    parser.add_argument("--plain", type=int, default=3, help="crashes requeued plainly (default %(default)s)")
    parser.add_argument("--lanes", type=int, default=LANES, help="crashes under way at once (default %(default)s)")
    parser.add_argument("--fast", action="store_true", help="the demo's watch values in place of the shipped ones")
    told = parser.parse_args()
    print(machine(), flush=True)
    directory = Path(tempfile.mkdtemp(prefix="backstay-bench-"))
    figures = asyncio.run(bench(told.crashes, told.plain, told.lanes, fast=told.fast, directory=directory))
    values = "demo's watch values" if told.fast else "shipped watch values"
    print(delays_table(f"Backstay, {values}: fault's line written →", figures.backstay))
    print(delays_table("plain scontrol requeue: fault's line written →", figures.plain))
    print(f"diagnosed as {', '.join(sorted(figures.causes))}: {ECC}")
    print(machine())
    for shortfall in figures.shortfalls:
        print(shortfall)
    if figures.shortfalls:
        sys.exit(f"{len(figures.shortfalls)} of {told.crashes} not recovered; files are kept in {directory}")
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
