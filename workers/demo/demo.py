"""The demo: a training job with checkpoints, a node that breaks under it, and Backstay bringing it back, told as it happens.

Called by `backstay demo`. It uses the same worker, workflows and activities as production; only patiences are short.
"""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client

from activities.configuration import Configuration, Limits
from activities.records import Incident, Mode, OutcomeState
from workers.demo.stage import CLUSTER, JOB_NODES, Stage
from workers.demo.story import ended, new_lines
from workers.demo.train import TRACKER
from workers.embedded.temporal import EmbeddedTemporal, port_is_free
from workers.worker import run_worker
from workflows.state import TrainingJobState

Answer = TypeVar("Answer")
Look = Callable[[str], Awaitable[TrainingJobState | None]]
"""The state of the job with this ID; None while it is not there to be asked."""

LOOK_EVERY = 0.25  # seconds between two looks at the job's state
PATIENCE = timedelta(seconds=90)  # the whole play takes about half a minute
USUAL_UI_PORT = 8233
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class DemoFailed(Exception):
    """The demo did not come to its end; the message says where it stopped."""


@dataclass
class Play:
    """One performance: where its files are, and how it is told."""

    directory: Path
    tell: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def checkpoints(self) -> Path:
        return self.runs / "checkpoints"

    @property
    def log(self) -> Path:
        return self.runs / "train.log"

    @property
    def fault_file(self) -> Path:
        return self.runs / "fault.json"

    def say(self, line: str) -> None:
        """A line with the seconds since the demo began."""
        self.tell(f"{time.monotonic() - self.began:6.1f} s  {line}")


def configuration_for(play: Play, stage: Stage, server: EmbeddedTemporal) -> Configuration:
    """What an operator would write, with patiences of seconds so that an audience does not have to wait."""
    limits = Limits(excluded_fraction=0.5)
    return Configuration.model_validate(
        {
            "cluster": {"name": CLUSTER, "scheduler": stage.section},
            "watch": {"poll_interval": "1s", "log_interval": "0.3s", "settle_quiet": "1s", "settle_longest": "5s"},
            "logs": {"roots": [play.runs]},
            "evidence": {"directory": play.directory / "evidence"},
            "policy": {"mode": Mode.OBSERVE, "highest_mode": Mode.AUTO, "limits": limits},
            "temporal": {"address": server.address, "database": server.database, "ui_port": server.ui_port},
            "worker": {"heartbeat_timeout": "10s"},
        }
    )


@asynccontextmanager
async def temporal_server(play: Play) -> AsyncIterator[EmbeddedTemporal]:
    """A server of the demo's own, its UI on the usual port where that is free."""
    ui_port = USUAL_UI_PORT if port_is_free(USUAL_UI_PORT) else None
    async with EmbeddedTemporal(play.directory / "temporal.db", ui_port=ui_port) as server:
        yield server


@asynccontextmanager
async def working(configuration: Configuration, client: Client, stage: Stage) -> AsyncIterator[asyncio.Task[None]]:
    """A worker while open, in this process."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_worker(configuration, client, stop=stop, scheduler=stage.scheduler))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait({task})  # what it died of is told by `unless_it_dies`


async def unless_it_dies(worker: asyncio.Task[None], performance: Coroutine[Any, Any, Answer]) -> Answer:
    """The performance's result. Raises what the worker died of: without one the audience would wait in vain."""
    playing = asyncio.create_task(performance)
    try:
        await asyncio.wait({playing, worker}, return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            await worker
        return await playing
    finally:
        playing.cancel()


async def perform(play: Play, stage: Stage, look: Look) -> tuple[Incident, datetime]:
    """Train, break a node, watch Backstay. Returns the incident with its outcome, and when the fault was injected.

    Raises:
        DemoFailed: something did not happen within the time the audience has.
    """
    play.runs.mkdir(parents=True, exist_ok=True)
    arguments = [
        *("--checkpoints", str(play.checkpoints)),
        *("--iterations", "100000"),
        *("--step-seconds", "0.25"),
        *("--checkpoint-every", "8"),
        *("--fault-file", str(play.fault_file)),
    ]
    job_id = await stage.submit(arguments, log=play.log, comment=f"backstay:mode=auto,checkpoints={play.checkpoints}")
    play.say(f"job {job_id} submitted: {JOB_NODES} nodes, a checkpoint every 8 iterations, opted in by its comment")
    state = await _watched(look, job_id)
    for line in new_lines(None, state):
        play.say(line)
    first = await _checkpoint_after(play, 0)
    play.say(f"training; checkpoint at iteration {first} written")
    victim = state.attempt.nodes[-1] if state.attempt.nodes else None
    fault_at = _break(play, victim)
    play.say(f"a GPU of {victim or 'a node'} breaks: uncorrectable memory error")
    return await _recovery(play, look, job_id, state), fault_at


def _break(play: Play, node: str | None) -> datetime:
    """Tells the training program to break there, for as long as it runs there. The file appears in one move."""
    draft = play.fault_file.with_suffix(".new")
    draft.write_text(json.dumps({"kind": "crash", "node": node, "message": ECC}))
    draft.replace(play.fault_file)
    return datetime.now(UTC)


async def _recovery(play: Play, look: Look, job_id: str, state: TrainingJobState) -> Incident:
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while (incident := ended(state)) is None:
                await asyncio.sleep(LOOK_EVERY)
                seen = await look(job_id)
                if seen is not None:
                    for line in new_lines(state, seen):
                        play.say(line)
                    state = seen
            return incident
    except TimeoutError:
        raise DemoFailed(f"no outcome within {PATIENCE.total_seconds():.0f} s; the job is {state.stage.value}: {state.summary}") from None


async def _watched(look: Look, job_id: str) -> TrainingJobState:
    """The job's state, once discovery has found the job and it has nodes."""
    try:
        async with asyncio.timeout(PATIENCE.total_seconds() / 2):
            while True:
                state = await look(job_id)
                if state is not None:
                    return state
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise DemoFailed(f"Backstay did not find job {job_id} within {PATIENCE.total_seconds() / 2:.0f} s") from None


async def _checkpoint_after(play: Play, iteration: int) -> int:
    """The first checkpoint on disk beyond an iteration."""
    tracker = play.checkpoints / TRACKER
    try:
        async with asyncio.timeout(PATIENCE.total_seconds() / 2):
            while True:
                if tracker.exists() and (found := int(tracker.read_text())) > iteration:
                    return found
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise DemoFailed(f"the training job wrote no checkpoint; its log is {play.log}") from None


def recovered(incident: Incident) -> bool:
    """The one ending that counts: a checkpoint newer than the one before the fault."""
    return incident.outcome.state is OutcomeState.RECOVERED


@asynccontextmanager
async def a_play(tell: Callable[[str], None]) -> AsyncIterator[Play]:
    """A performance in a directory of its own. It goes with it, but for one that failed: then its logs tell why."""
    directory = Path(tempfile.mkdtemp(prefix="backstay-demo-"))
    failed = False
    try:
        yield Play(directory, tell)
    except Exception:
        failed = True
        tell(f"logs and database are kept in {directory}")
        raise
    finally:
        if not failed:  # its end, or Ctrl-C
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
