"""The session's Temporal server: the real one, in a loop of its own thread, so that it outlives every test's loop. Used by `site.py`."""

import asyncio
import concurrent.futures
import os
import signal
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from workers.embedded.temporal import EmbeddedTemporal

Answer = TypeVar("Answer")


class Server:
    """One embedded Temporal server on a database file; `stop` and `start` leave file and ports as they are."""

    def __init__(self, database: Path) -> None:
        self._server = EmbeddedTemporal(database)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="temporal-server", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def database(self) -> Path:
        return self._server.database

    @property
    def is_running(self) -> bool:
        return self._server.is_running

    async def start(self) -> None:
        """Returns when it answers; nothing to do when it runs."""
        if not self.is_running:
            await asyncio.wrap_future(self._there(self._server.start()))

    async def stop(self) -> None:
        """Ends it in good order; workflows stand in the file."""
        await asyncio.wrap_future(self._there(self._server.stop()))

    async def kill(self) -> None:
        """SIGKILL: nothing is saved in good order, and its file has to do."""
        if self._server.pid is not None and self.is_running:
            os.kill(self._server.pid, signal.SIGKILL)
            await asyncio.wrap_future(self._there(self._server.wait()))

    def start_now(self) -> None:
        """`start` from where there is no loop."""
        self._there(self._server.start()).result(timeout=90)

    def close(self) -> None:
        """Ends server and thread for good."""
        self._there(self._server.stop()).result(timeout=60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def _there(self, work: Coroutine[Any, Any, Answer]) -> "concurrent.futures.Future[Answer]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)
