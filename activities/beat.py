"""Heartbeats beside work that cannot beat by itself, so that a dead worker is noticed in seconds, not in minutes.

Used by every step that the workflows give a heartbeat timeout; the long watches beat by themselves, with their cursors.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import TypeVar

from temporalio import activity

SelfT = TypeVar("SelfT")
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

LONGEST_GAP = timedelta(seconds=5)
BEATS_A_TIMEOUT = 4  # one may be late and one may be lost before the server gives the work to another worker


def beat_every(heartbeat_timeout: timedelta | None) -> timedelta:
    """How often to beat under this timeout."""
    return LONGEST_GAP if not heartbeat_timeout else min(LONGEST_GAP, heartbeat_timeout / BEATS_A_TIMEOUT)


@dataclass
class Beat:
    """What the next heartbeats say; whoever tries again after a death finds the last of it."""

    says: object


@asynccontextmanager
async def heartbeats(what: object) -> AsyncIterator[Beat]:
    """Heartbeats `what` every few seconds while the block runs, or what the block says instead."""
    every = beat_every(activity.info().heartbeat_timeout).total_seconds()
    told = Beat(what)

    async def beat() -> None:
        while True:
            activity.heartbeat(told.says)
            await asyncio.sleep(every)

    beating = asyncio.create_task(beat())
    try:
        yield told
    finally:
        beating.cancel()


def beating(step: Callable[[SelfT, RequestT], Awaitable[AnswerT]]) -> Callable[[SelfT, RequestT], Awaitable[AnswerT]]:
    """A step that heartbeats its own name while it runs. Stands under `@activity.defn`."""

    @wraps(step)
    async def beats(self: SelfT, request: RequestT) -> AnswerT:
        async with heartbeats(step.__name__):
            return await step(self, request)

    return beats
