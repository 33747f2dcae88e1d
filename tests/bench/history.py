"""Prints how many events a healthy job adds to its Temporal history while it is watched, per hour.

Run it: `python -m tests.bench.history [--minutes 3]`. A real training process trains, saves and evaluates on the simulated cluster;
polls, log readings and heartbeats come ten times as often as shipped, so that each minute holds ten minutes' worth of
occasions to write. In the middle the worker stops and another takes its place.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration, WatchSection, WorkerSection
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import LocalProcess
from activities.slurm.simulated_state import Request
from tests.bench.measuring import machine
from workers.client import connect
from workers.demo.script import TRAIN
from workers.embedded.temporal import EmbeddedTemporal
from workers.worker import run_worker

CLUSTER = "bench"
FASTER = 10  # than shipped
SETTLED = 15.0  # seconds after which the watch is under way and the count begins


def configuration_for(directory: Path, server: EmbeddedTemporal) -> Configuration:
    """As shipped, but everything that recurs does so ten times as often."""
    return Configuration.model_validate(
        {
            "cluster": {"name": CLUSTER},
            "watch": {
                "poll_interval": WatchSection().poll_interval / FASTER,
                "log_interval": WatchSection().log_interval / FASTER,
            },
            "worker": {"heartbeat_timeout": WorkerSection().heartbeat_timeout / FASTER},
            "logs": {"roots": [directory]},
            "evidence": {"directory": directory / "evidence"},
            "temporal": {"address": server.address},
        }
    )


def train(cluster: SimulatedCluster, directory: Path) -> str:
    """Submits a job that iterates, saves and evaluates, and prints harmless lines full of the word error; its ID."""
    checkpoints = directory / "checkpoints"
    arguments = [
        *("--checkpoints", str(checkpoints)),
        *("--iterations", "1000000"),
        *("--step-seconds", "0.1"),
        *("--checkpoint-every", "100"),
        *("--evaluate-every", "250"),
        "--noise",
    ]
    request = Request(
        node_count=2,
        comment=f"backstay:mode=auto,checkpoints={checkpoints}",
        stdout=str(directory / "train.log"),
        append=True,
        working_directory=str(directory),
    )
    return cluster.submit(LocalProcess([sys.executable, "-u", str(TRAIN), *arguments]), request=request)


@asynccontextmanager
async def working(configuration: Configuration, client: Client, cluster: SimulatedCluster) -> AsyncIterator[None]:
    """A worker while open."""
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(configuration, client, stop=stop, scheduler=cluster))
    try:
        yield
    finally:
        stop.set()
        await worker


async def events_of(client: Client, workflow_id: str) -> list[str]:
    """The types of all events in its history, in order."""
    events = (await client.get_workflow_handle(workflow_id).fetch_history()).events
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower() for event in events]


async def job_workflow(client: Client) -> str:
    async with asyncio.timeout(60):
        while True:
            async for workflow in client.list_workflows("WorkflowType = 'TrainingJob' AND ExecutionStatus = 'Running'"):
                return workflow.id
            await asyncio.sleep(0.5)


async def bench(minutes: float, directory: Path) -> str:
    """Watches one job that long, under one worker and then another, and returns the figures in words."""
    cluster = SimulatedCluster(2)
    async with EmbeddedTemporal(directory / "temporal.db") as server:
        configuration = configuration_for(directory, server)
        client = await connect(configuration)
        train(cluster, directory)
        try:
            async with working(configuration, client, cluster):
                names = {"job": await job_workflow(client), "cluster": cluster_workflow_id(CLUSTER)}
                await asyncio.sleep(SETTLED)
                before = {what: await events_of(client, name) for what, name in names.items()}
                await asyncio.sleep(minutes * 30)
            async with working(configuration, client, cluster):
                await asyncio.sleep(minutes * 30)
                after = {what: await events_of(client, name) for what, name in names.items()}
        finally:
            cluster.stop()
    iterations = (directory / "train.log").read_text().count("elapsed time per iteration")
    lines = [
        f"{iterations} iterations watched for {minutes:g} minutes, with as many polls and heartbeats as {FASTER * minutes:g} usual ones"
    ]
    for what in names:
        added = Counter(after[what][len(before[what]) :])
        told = f" ({', '.join(f'{count} {kind}' for kind, count in added.items())})" if added else ""
        hourly = added.total() * 60 / (FASTER * minutes)
        lines.append(f"  {what}: {len(before[what])} events until watched: {', '.join(before[what])}")
        lines.append(f"    then {added.total()} more{told}, a hand-over between two workers among it: {hourly:g} an hour")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to watch (default %(default)s)")
    told = parser.parse_args()
    print(machine(), flush=True)
    directory = Path(tempfile.mkdtemp(prefix="backstay-bench-"))
    try:
        print(asyncio.run(bench(told.minutes, directory)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
