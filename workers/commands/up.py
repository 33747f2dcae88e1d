"""`backstay up`: everything one cluster needs in one process tree: embedded Temporal on its database file, and a worker.

The server is the caller's own: at the configured port where that is free, else at one that is, which is remembered beside the database.
A Temporal cluster that runs elsewhere is served by `backstay worker`.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from activities.configuration import Configuration, TemporalSection
from workers.client import connect, may_be_embedded
from workers.commands.errors import BadUsage, CommandFailed, Unreachable
from workers.commands.logging import serving
from workers.commands.options import ConfigOption, open_configuration, run
from workers.commands.stopping import stop_on_signals
from workers.commands.terminal import screen
from workers.embedded.ownership import OwnerFileUnusable, Ownership, claim, is_loopback, read_ownership
from workers.embedded.temporal import DatabaseInUse, EmbeddedTemporal, EmbeddedTemporalFailed, free_port, port_is_free
from workers.sdk_runtime import sdk_runtime
from workers.worker import run_worker

log = structlog.get_logger()


def up(config: ConfigOption = None) -> None:
    """Run everything for one Slurm cluster on this machine until SIGINT or SIGTERM; start it again and it goes on."""
    with serving():
        run(_up(open_configuration(config)))


async def _up(configuration: Configuration) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with temporal_for(configuration.temporal) as server:
            _announce(configuration, server)
            client = await connect(configuration)
            await _until_stopped(run_worker(configuration, client, stop=stop), stop, server)
    _say("Stopped. Start it again with the same configuration and it goes on where it stood.")


def _announce(configuration: Configuration, server: EmbeddedTemporal) -> None:
    """Where everything is: to whoever started it on a terminal in words, and as one fact in a service's log."""
    section, ui = configuration.temporal, ui_address(configuration, server)
    if not sys.stderr.isatty():
        log.info("temporal_started", address=server.address, ui=ui, program=str(server.program), database=str(server.database))
    _say(f"Temporal: {server.address}, by {server.program}, database {server.database}")
    if server.address != f"127.0.0.1:{section.address.rpartition(':')[2]}":
        _say(f"  {section.address} is taken, so this port is used; commands with this configuration find it")
    _say(f"Temporal UI: {ui}")
    _say(f"Watching Slurm cluster {configuration.cluster.name}, mode {configuration.policy.mode.value}. Ctrl-C ends it.")


def _say(line: str) -> None:
    """To a person; a service's output is a log of one JSON object a line, and has no prose in it."""
    if sys.stdout.isatty() or sys.stderr.isatty():
        screen().print(line)


async def _until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event, server: EmbeddedTemporal) -> None:
    """Runs the worker until it is asked to stop. A Temporal server that dies under it ends it too, with the reason:
    the supervisor (systemd) then starts the whole tree again."""
    working = asyncio.create_task(work)
    serving = asyncio.create_task(server.wait())
    await asyncio.wait({working, serving}, return_when=asyncio.FIRST_COMPLETED)
    died = not server.is_running and not stop.is_set()
    stop.set()
    try:
        await working
    except Exception:
        if not died:
            raise
    serving.cancel()
    if died:
        if problem := await asyncio.to_thread(server.disk_problem):
            raise Unreachable(f"the embedded Temporal server ended by itself: {problem}")
        raise Unreachable(f"the embedded Temporal server ended by itself; see {server.log_file}, then start `backstay up` again")


def ui_address(configuration: Configuration, server: EmbeddedTemporal) -> str:
    """Where people look at workflows."""
    return configuration.temporal.ui_url or server.ui_url


@asynccontextmanager
async def temporal_for(section: TemporalSection) -> AsyncIterator[EmbeddedTemporal]:
    """The caller's own Temporal server on the configured database, while open.

    Raises:
        BadUsage: the address is not `host:port`, or the settings are those of a Temporal cluster.
        Unreachable: the address is another machine's.
        CommandFailed: it is being served already.
        EmbeddedTemporalFailed: the server cannot be started.
    """
    host, _, port = section.address.rpartition(":")
    if not host or not port.isdigit():
        raise BadUsage(f"temporal.address is {section.address!r}; write it as host:port, such as 127.0.0.1:7233")
    if not is_loopback(section.address):
        elsewhere = "run `backstay worker` for the Temporal cluster there, or mend temporal.address"
        raise Unreachable(f"`up` starts a server on 127.0.0.1 only, and temporal.address is {section.address}; {elsewhere}")
    if not may_be_embedded(section):
        elsewhere = "remove temporal.tls and api_key_file, or run `backstay worker` for the Temporal cluster that they are for"
        raise BadUsage(f"`up` starts a server of its own, which speaks plain text on this machine only; {elsewhere}")
    known = _known(section.database)
    server = EmbeddedTemporal(
        section.database,
        port=_usable(int(port), _port_of(known)),
        ui_port=_usable(section.ui_port, known.ui_port if known else None),
        namespace=section.namespace,
    )
    try:
        await server.start()
    except DatabaseInUse as error:
        raise _already_running(section.database, error) from error
    try:
        await _claim(server, section.address)
        yield server
    finally:
        await server.stop()


def _known(database: Path) -> Ownership | None:
    try:
        return read_ownership(database)
    except OwnerFileUnusable as error:
        raise CommandFailed(str(error)) from error


def _port_of(known: Ownership | None) -> int | None:
    return int(known.address.rpartition(":")[2]) if known is not None and known.address is not None else None


def _usable(configured: int, remembered: int | None) -> int:
    """The configured port, else the one used last, else any: another user's server must not keep ours from starting."""
    return next((port for port in (configured, remembered) if port is not None and port_is_free(port)), None) or free_port()


def _already_running(database: Path, error: DatabaseInUse) -> CommandFailed:
    known = _known(database)
    if known is None or known.pid is None or known.since is None:
        return CommandFailed(str(error))
    since = f"{known.since:%Y-%m-%d %H:%M:%S} UTC"
    return CommandFailed(
        f"`backstay up` is already running with this configuration (process {known.pid}, since {since}, Temporal at {known.address}); "
        f"end it with `kill {known.pid}`, or set temporal.database for another one"
    )


async def _claim(server: EmbeddedTemporal, configured: str) -> None:
    """Marks the server as ours, and remembers where it is."""
    client = await Client.connect(server.address, namespace=server.namespace, runtime=sdk_runtime())
    try:
        await claim(client, server.database, configured=configured, ui_port=server.ui_port, pid=os.getpid())
    except (OSError, RPCError) as error:
        why = (
            await asyncio.to_thread(server.disk_problem) or f"the embedded server cannot be marked as yours: {error}; see {server.log_file}"
        )
        raise EmbeddedTemporalFailed(why) from error
