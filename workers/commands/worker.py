"""`backstay worker`: watches jobs and acts on them, against a Temporal server that runs elsewhere."""

import asyncio

from activities.configuration import Configuration
from workers.client import connect
from workers.commands.logging import serving
from workers.commands.options import ConfigOption, open_configuration, run
from workers.commands.stopping import stop_on_signals
from workers.worker import run_worker


def worker(config: ConfigOption = None) -> None:
    """Run a worker until SIGINT or SIGTERM. Start as many as you like, on machines that reach Slurm and the logs."""
    with serving():
        run(_work(open_configuration(config)))


async def _work(configuration: Configuration) -> None:
    client = await connect(configuration)
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await run_worker(configuration, client, stop=stop)
