"""A heartbeat beside work that cannot beat by itself, so that a dead worker is noticed in seconds, not in minutes.

Used by steps that run long in a thread: capturing evidence, diagnosing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

BEAT_EVERY_SECONDS = 5.0


@asynccontextmanager
async def heartbeats(what: str) -> AsyncIterator[None]:
    """Heartbeats `what` every few seconds while the block runs."""

    async def beat() -> None:
        while True:
            activity.heartbeat(what)
            await asyncio.sleep(BEAT_EVERY_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
