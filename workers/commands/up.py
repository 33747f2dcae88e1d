"""`backstay up`: everything one cluster needs in one process tree: embedded Temporal on its database file, and a worker.

Where `temporal.address` answers already, that server is used and left running; only a loopback address without an
answer gets the embedded one.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from activities.configuration import Configuration
from workers.client import connect
from workers.commands.errors import BadUsage, Unreachable
from workers.commands.logging import log_to
from workers.commands.options import ConfigOption, open_configuration, run
from workers.commands.stopping import stop_on_signals
from workers.commands.terminal import screen
from workers.embedded.temporal import EmbeddedTemporal, answers
from workers.worker import run_worker

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def up(config: ConfigOption = None) -> None:
    """Run everything for one Slurm cluster on this machine until SIGINT or SIGTERM; start it again and it goes on."""
    configuration = open_configuration(config)
    log_to()
    run(_up(configuration))


async def _up(configuration: Configuration) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with temporal_for(configuration) as server:
            say = screen().print
            if server is None:
                say(f"Temporal: {configuration.temporal.address}, which runs already and is left running")
            else:
                say(f"Temporal: {server.address}, by {server.program}, database {server.database}")
            if ui := ui_address(configuration, server):
                say(f"Temporal UI: {ui}")
            say(f"Watching Slurm cluster {configuration.cluster.name}, mode {configuration.policy.mode.value}. Ctrl-C ends it.")
            client = await connect(configuration)
            await _until_stopped(run_worker(configuration, client, stop=stop), stop, server)
    screen().print("Stopped. Start it again with the same configuration and it goes on where it stood.")


async def _until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event, server: EmbeddedTemporal | None) -> None:
    """Runs the worker until it is asked to stop. A Temporal server that dies under it ends it too, with the reason:
    the supervisor (systemd) then starts the whole tree again."""
    working = asyncio.create_task(work)
    serving = asyncio.create_task(server.wait()) if server else None
    await asyncio.wait({task for task in (working, serving) if task}, return_when=asyncio.FIRST_COMPLETED)
    died = server is not None and not server.is_running and not stop.is_set()
    stop.set()
    await working
    if serving is not None:
        serving.cancel()
    if died and server is not None:
        raise Unreachable(f"the embedded Temporal server ended by itself; see {server.log_file}, then start `backstay up` again")


def ui_address(configuration: Configuration, server: EmbeddedTemporal | None) -> str | None:
    """Where people look at workflows, as far as it is known."""
    return configuration.temporal.ui_url or (server.ui_url if server else None)


@asynccontextmanager
async def temporal_for(configuration: Configuration) -> AsyncIterator[EmbeddedTemporal | None]:
    """A Temporal server at the configured address: the one that answers there (None), or an embedded one while open.

    Raises:
        BadUsage: the address is not `host:port`.
        Unreachable: it is another machine's, and nothing answers.
        EmbeddedTemporalFailed: the embedded server cannot be started.
    """
    section = configuration.temporal
    host, _, port = section.address.rpartition(":")
    if not host or not port.isdigit():
        raise BadUsage(f"temporal.address is {section.address!r}; write it as host:port, such as 127.0.0.1:7233")
    if await answers(section.address):
        yield None
        return
    if host not in LOOPBACK:
        raise Unreachable(f"nothing answers at {section.address}; `up` starts a server on 127.0.0.1 only, so mend temporal.address")
    database = section.database
    async with EmbeddedTemporal(database, port=int(port), ui_port=section.ui_port, namespace=section.namespace) as server:
        yield server
