"""A thousand jobs to watch, and what writes their logs. The two processes beside which `watching.py` measures.

The worker is the shipped one; its cluster is the simulated one, or Slurm's own JSON of as many jobs, printed by stand-ins for
squeue and sinfo, so that reading a long listing is paid for as well.
"""

import asyncio
import heapq
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.configuration import Configuration, SchedulerSection
from activities.records import Job
from activities.slurm.commands import CommandScheduler
from activities.slurm.scheduler import Scheduler
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import runs_for
from activities.slurm.simulated_state import Request
from activities.slurm.transport import LocalTransport
from workers.client import connect
from workers.commands.stopping import stop_on_signals
from workers.demo.train import TRACKER, step_line
from workers.worker import run_worker

RECORDED = Path(__file__).parent.parent / "slurm" / "outputs" / "24.11"
CHECKPOINT_EVERY = 50  # iterations: every five to ten minutes
PROGRAM = """#!/bin/sh
case "$*" in *--version*) echo "slurm 24.11.5" ;; *nodes*) exec cat {nodes} ;; *) exec cat {jobs} ;; esac
"""


class Files:
    """Where everything of one bench is."""

    def __init__(self, directory: Path, jobs: int) -> None:
        self.directory = directory
        self.jobs = jobs
        self.polls = directory / "polls"
        self.runs = directory / "runs"

    def log(self, number: int) -> Path:
        return self.runs / f"{number}.log"

    def checkpoints(self, number: int) -> Path:
        return self.runs / f"{number}.checkpoints"

    def comment(self, number: int) -> str:
        return f"backstay:checkpoints={self.checkpoints(number)}"

    def prepare(self) -> None:
        """Every job has trained up to a checkpoint."""
        for number in range(1, self.jobs + 1):
            self.save(number, CHECKPOINT_EVERY)
            self.log(number).write_text(f"{step_line(CHECKPOINT_EVERY, 100_000, 1.0, nan=False)}\n")

    def save(self, number: int, iteration: int) -> None:
        directory = self.checkpoints(number)
        shard = directory / f"iter_{iteration:07d}" / "mp_rank_00" / "model_optim_rng.pt"
        shard.parent.mkdir(parents=True)
        shard.write_text("weights")
        (directory / TRACKER).write_text(str(iteration))


def simulated(files: Files) -> SimulatedCluster:
    """As many nodes as jobs, each job running for ever on one of them."""
    cluster = _CountedSimulation(files)
    for number in range(1, files.jobs + 1):
        request = Request(
            name=f"train-{number}",
            comment=files.comment(number),
            stdout=str(files.log(number)),
            append=True,
            working_directory=str(files.runs),
        )
        cluster.submit(runs_for(None), request=request)
    return cluster


def recorded(files: Files) -> CommandScheduler:
    """A running job and a node as Slurm 24.11 printed them, a thousand times over under other names."""
    jobs: dict[str, Any] = json.loads((RECORDED / "squeue.json").read_text())
    nodes: dict[str, Any] = json.loads((RECORDED / "nodes.json").read_text())
    job = next(entry for entry in jobs["jobs"] if entry["job_state"] == ["RUNNING"] and not entry["array_job_id"].get("number"))
    jobs["jobs"] = [_as_number(job, files, number) for number in range(1, files.jobs + 1)]
    nodes["nodes"] = [{**nodes["nodes"][0], "name": _node(number)} for number in range(1, files.jobs + 1)]
    listings = files.directory / "listings"
    listings.mkdir()
    (listings / "jobs.json").write_text(json.dumps(jobs, indent=1))
    (listings / "nodes.json").write_text(json.dumps(nodes, indent=1))
    for name in ("squeue", "sinfo", "scontrol"):
        (listings / name).write_text(PROGRAM.format(jobs=listings / "jobs.json", nodes=listings / "nodes.json"))
        (listings / name).chmod(0o755)
    return _CountedCommands(files, listings)


def _as_number(job: dict[str, Any], files: Files, number: int) -> dict[str, Any]:
    now = {"set": True, "infinite": False, "number": int(time.time())}
    return {
        **job,
        "job_id": number,
        "name": f"train-{number}",
        "nodes": _node(number),
        "comment": files.comment(number),
        "standard_output": str(files.log(number)),
        "submit_time": now,
        "start_time": now,
    }


def _node(number: int) -> str:
    return f"node-{number:04d}"


class _CountedSimulation(SimulatedCluster):
    def __init__(self, files: Files) -> None:
        super().__init__([_node(number) for number in range(1, files.jobs + 1)])
        self._polls = files.polls

    async def jobs(self) -> Sequence[Job]:
        _count(self._polls)
        return await super().jobs()


class _CountedCommands(CommandScheduler):
    def __init__(self, files: Files, programs: Path) -> None:
        super().__init__(LocalTransport(bin_directory=programs), SchedulerSection())
        self._polls = files.polls

    async def jobs(self) -> Sequence[Job]:
        _count(self._polls)
        return await super().jobs()


def _count(polls: Path) -> None:
    with polls.open("a") as file:
        file.write(".")


async def work(configuration: Configuration, scheduler: Scheduler) -> None:
    """The shipped worker, until SIGTERM."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await run_worker(configuration, await connect(configuration), stop=stop, scheduler=scheduler)


def write_logs(files: Files, step: timedelta) -> None:
    """Until it is killed: each job prints an iteration line every `step` to twice `step`, and now and then a checkpoint."""
    dice = random.Random(7)
    seconds = step.total_seconds()
    began = time.monotonic()
    due = [(began + dice.uniform(0, seconds), number, CHECKPOINT_EVERY) for number in range(1, files.jobs + 1)]
    heapq.heapify(due)
    pace = {number: dice.uniform(seconds, 2 * seconds) for number in range(1, files.jobs + 1)}
    while True:
        at, number, iteration = heapq.heappop(due)
        time.sleep(max(0.0, at - time.monotonic()))
        with files.log(number).open("a") as log:
            log.write(step_line(iteration + 1, 100_000, pace[number], nan=False) + "\n")
        if (iteration + 1) % CHECKPOINT_EVERY == 0:
            files.save(number, iteration + 1)
        heapq.heappush(due, (at + pace[number] * dice.uniform(0.97, 1.03), number, iteration + 1))


def main() -> None:
    role, directory, jobs, *rest = sys.argv[1:]
    files = Files(Path(directory), int(jobs))
    if role == "write":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        write_logs(files, timedelta(seconds=float(rest[0])))
    else:
        configuration = Configuration.model_validate_json((files.directory / "backstay.json").read_text())
        asyncio.run(work(configuration, recorded(files) if rest[0] == "squeue" else simulated(files)))


if __name__ == "__main__":
    main()
