"""Prints what one worker costs that watches 1,000 jobs with a real Temporal: CPU share of one core, memory, Slurm queries.

Run it: `python -m tests.bench.watching [--jobs 1000] [--listing squeue]`. Worker, log writer and Temporal are processes of their
own; CPU time is what the kernel gave them (proc(5)), so that other work on the machine hardly changes the figures.
"""

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.client import Client

from activities.configuration import Configuration
from tests.bench.measuring import Cost, cost_of, machine
from tests.bench.thousand import Files
from workers.client import connect
from workers.embedded.temporal import EmbeddedTemporal

CLUSTER = "bench"
STARTED_WITHIN = 900  # seconds, for all jobs; half a minute on an idle machine
SAMPLE = 50  # histories looked at
MEGABYTE = 1024 * 1024


@contextlib.contextmanager
def process(role: str, files: Files, *arguments: str) -> Iterator[int]:
    """One of the processes of `thousand.py` while open; its process ID."""
    with (files.directory / f"{role}.out").open("w") as output:
        argv = [sys.executable, "-m", "tests.bench.thousand", role, str(files.directory), str(files.jobs), *arguments]
        started = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
    try:
        yield started.pid
    finally:
        started.terminate()
        started.wait()


async def all_watched(client: Client, jobs: int) -> None:
    """Returns once the worker has the watch of every job in its hands."""
    at_once = asyncio.Semaphore(20)
    unwatched: set[str] = set()
    known: set[str] = set()

    async def look(name: str) -> None:
        async with at_once:
            described = await client.get_workflow_handle(name).describe()
        if any(
            pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED for pending in described.raw_description.pending_activities
        ):
            unwatched.discard(name)

    async with asyncio.timeout(STARTED_WITHIN):
        while len(known) < jobs or unwatched:
            await asyncio.sleep(2)
            fresh = {workflow.id async for workflow in client.list_workflows("WorkflowType = 'TrainingJob'")} - known
            known |= fresh
            unwatched |= fresh
            await asyncio.gather(*(look(name) for name in list(unwatched)))


async def histories(client: Client) -> dict[str, list[str]]:
    """The events in the histories of a sample of the jobs, by workflow ID."""
    found: dict[str, list[str]] = {}
    async for workflow in client.list_workflows("WorkflowType = 'TrainingJob'", limit=SAMPLE):
        events = (await client.get_workflow_handle(workflow.id).fetch_history()).events
        found[workflow.id] = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower() for event in events]
    return found


def in_words(name: str, before: Cost, after: Cost, seconds: float) -> str:
    share = (after.cpu_seconds - before.cpu_seconds) / seconds
    children = (after.children_seconds - before.children_seconds) / seconds
    commands = f", commands it ran {children:5.1%}" if children else ""
    return f"  {name:<18}{share:6.1%} of one core, {after.resident_bytes / MEGABYTE:5.0f} MB resident{commands}"


@dataclass(frozen=True)
class Load:
    """What is watched, and how long it is measured. Times in seconds."""

    jobs: int
    step: float
    measured: float
    warm_up: float
    listing: str


async def bench(load: Load, directory: Path) -> str:
    """Runs it all and returns the figures in words."""
    files = Files(directory, load.jobs)
    files.prepare()
    async with EmbeddedTemporal(directory / "temporal.db") as server:
        configuration = Configuration.model_validate(
            {
                "cluster": {"name": CLUSTER},
                "logs": {"roots": [files.runs]},
                "evidence": {"directory": directory / "evidence"},
                "temporal": {"address": server.address},
            }
        )
        (directory / "backstay.json").write_text(configuration.model_dump_json())
        client = await connect(configuration)
        with process("write", files, str(load.step)), process("work", files, load.listing) as worker:
            began = time.monotonic()
            await all_watched(client, load.jobs)
            print(f"{load.jobs} watches started within {time.monotonic() - began:.0f} s of the worker's start", flush=True)
            await asyncio.sleep(load.warm_up)
            assert server.pid is not None
            events = await histories(client)
            polls, log_bytes, at = files.polls.stat().st_size, _log_bytes(files), time.monotonic()
            before = {pid: cost_of(pid) for pid in (worker, server.pid)}
            await asyncio.sleep(load.measured)
            took = time.monotonic() - at
            after = {pid: cost_of(pid) for pid in (worker, server.pid)}
            asked, grown = files.polls.stat().st_size - polls, _log_bytes(files) - log_bytes
            now = await histories(client)
            added = Counter(event for name in events.keys() & now.keys() for event in now[name][len(events[name]) :])
    return "\n".join(
        (
            f"{load.jobs} jobs, an iteration line every {load.step:g} to {2 * load.step:g} s each, {grown / took / 1024:.0f} KB/s of logs;",
            f"listing: {load.listing}; measured for {took:.0f} s after a warm-up of {load.warm_up:.0f} s",
            in_words("worker", before[worker], after[worker], took),
            in_words("Temporal server", before[server.pid], after[server.pid], took),
            f"  one listing of jobs every {took / asked:.1f} s for all jobs together" if asked else "  no listing of jobs",
            f"  {added.total()} events added to the histories of {len(events)} jobs looked at {dict(added) if added else ''}".rstrip(),
        )
    )


def _log_bytes(files: Files) -> int:
    return sum(files.log(number).stat().st_size for number in range(1, files.jobs + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs watched (default %(default)s)")
    parser.add_argument("--step-seconds", type=float, default=5.0, help="shortest time of an iteration (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure (default %(default)s)")
    parser.add_argument("--warm-up", type=float, default=30.0, help="wait before, once all are watched (default %(default)s)")
    parser.add_argument(
        "--listing",
        choices=("simulated", "squeue"),
        default="simulated",
        help="where jobs come from: in memory, or Slurm's JSON to be parsed (default %(default)s)",
    )
    told = parser.parse_args(arguments)
    load = Load(told.jobs, told.step_seconds, told.seconds, told.warm_up, told.listing)
    print(machine(), flush=True)
    directory = Path(tempfile.mkdtemp(prefix="backstay-bench-"))
    (directory / "runs").mkdir()
    try:
        print(asyncio.run(bench(load, directory)))
    except Exception:
        print(f"the processes' output is kept in {directory}")
        raise
    shutil.rmtree(directory, ignore_errors=True)
    print(machine())


if __name__ == "__main__":
    main()
