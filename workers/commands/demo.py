"""`backstay demo`: the main job on this machine, with nothing prepared: it breaks and is recovered, told step by step."""

import asyncio
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated

import typer
from temporalio.client import Client

from workers.client import connect
from workers.commands.errors import CommandFailed, ExitCode
from workers.commands.logging import log_to_file
from workers.commands.lookup import find_job, queried
from workers.commands.options import run
from workers.commands.stopping import stop_on_signals
from workers.commands.terminal import screen, tell
from workers.demo.demo import DemoFailed, a_play, configuration_for, perform, recovered, temporal_server, unless_it_dies, working
from workers.demo.stage import CLUSTER, PrivateSlurmError, stage
from workers.demo.story import milestone_table
from workflows.state import TrainingJobState


def demo(
    leave: Annotated[bool, typer.Option("--exit", help="End when the story has ended, also on a terminal.")] = False,
    simulated: Annotated[bool, typer.Option("--simulated", help="Use the simulated cluster even where a real Slurm can run.")] = False,
    install: Annotated[bool, typer.Option("--install", help="Install slurm-wlm and munge (apt-get, as root) if missing.")] = False,
) -> None:
    """Watch a training job break and come back: private Slurm, embedded Temporal, one broken GPU, a new checkpoint."""
    stays = sys.stdout.isatty() and not leave
    try:
        done = run(_demo(stays=stays, simulated=simulated, install=install))
    except PrivateSlurmError as error:
        raise CommandFailed(f"the private Slurm failed: {error}; try `backstay demo --simulated`") from error
    except DemoFailed as error:
        raise CommandFailed(str(error)) from error
    raise typer.Exit(ExitCode.DONE if done else ExitCode.BAD)


async def _demo(*, stays: bool, simulated: bool, install: bool) -> bool:
    """Tells the story; a stop signal ends it at any point, and every context then cleans up behind itself."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        told = asyncio.Event()
        story = asyncio.create_task(_story(simulated=simulated, install=install, stop=stop if stays else None, told=told))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({story, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not told.is_set():  # a story that has been told ends by itself now, and in good order
            story.cancel()
        try:
            return await story
        except asyncio.CancelledError:
            screen().print("Stopped.")
            return False


async def _story(*, simulated: bool, install: bool, stop: asyncio.Event | None, told: asyncio.Event) -> bool:
    """The whole story. Sets `told` at its end, then stays up until `stop` where one is given; True when the job recovered."""
    out = screen()
    async with AsyncExitStack() as open_now:
        play = await open_now.enter_async_context(a_play(tell))
        open_now.callback(log_to_file(play.directory / "worker.log").close)
        server = await open_now.enter_async_context(temporal_server(play))
        play.say(f"Temporal at {server.address}, by {server.program}")
        where = await open_now.enter_async_context(stage(simulated=simulated, install=install))
        play.say(f"the cluster is {where.title}")
        configuration = configuration_for(play, where, server)
        client = await connect(configuration)
        worker = await open_now.enter_async_context(working(configuration, client, where))
        incident, fault_at = await unless_it_dies(worker, perform(play, where, partial(_look, client)))
        out.print()
        out.print(milestone_table(incident, fault_at))
        tell(incident.outcome.summary)
        ends_now = " (it ends now; on a terminal, without --exit, it stays)" if stop is None else ""
        out.print(f"Temporal UI, with the whole history: {server.ui_url}{ends_now}")
        told.set()
        if stop is not None:
            out.print("It stays up until you press Ctrl-C.")
            await stop.wait()
        return recovered(incident)


async def _look(client: Client, job_id: str) -> TrainingJobState | None:
    """The job's state, or None while it is not there to be asked."""
    try:
        execution = await find_job(client, CLUSTER, job_id)
    except CommandFailed:
        return None
    return await queried(client.get_workflow_handle(execution.id))
