"""What asking any outside service has in common: the deadline, the bounds, and silence turned into an `Opinion` with a note.

Called by `attrsvc.py` and `http.py`. A service that is slow, dead or wrong costs its own deadline and nothing else.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx

from activities.outside_text import TextRefused, json_value
from activities.records import Opinion
from activities.redaction import redact

MOST_BYTES = 1 << 20
"""Longest answer read; an opinion is a few KB."""

MOST_WORDS = 400
"""Longest text of an outside service that is passed on to people and into histories."""

Pause = Callable[[float], Awaitable[None]]


class NoOpinion(Exception):
    """The service answered nothing that can be used; the message says why and what to mend."""


def a_client() -> httpx.AsyncClient:
    """The HTTP client for outside opinions. Redirects are not followed: a token goes where the operator said and nowhere else."""
    return httpx.AsyncClient(timeout=httpx.Timeout(30.0, connect=5.0), follow_redirects=False)


async def within_deadline(source: str, deadline: timedelta, ask: Callable[[], Awaitable[Opinion]]) -> Opinion:
    """The service's opinion, or one whose `note` says why there is none. Never raises but for cancellation."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(deadline.total_seconds()):
            opinion = await ask()
    except TimeoutError:
        opinion = Opinion(source=source, note=f"no answer within {deadline.total_seconds():g} s")
    except NoOpinion as error:
        opinion = Opinion(source=source, note=str(error))
    except httpx.HTTPError as error:
        opinion = Opinion(source=source, note=f"cannot be asked: {error or type(error).__name__}; check its url and that it runs")
    except httpx.InvalidURL as error:
        opinion = Opinion(source=source, note=f"cannot be asked: {error}; mend its url in the configuration")
    return opinion.model_copy(update={"took": timedelta(seconds=round(time.monotonic() - started, 3))})


async def exchange(client: httpx.AsyncClient, method: str, url: str, **request: Any) -> tuple[httpx.Response, Any]:
    """One request and its JSON answer, read in bounds; None where the answer is no JSON."""
    async with client.stream(method, url, **request) as response:
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MOST_BYTES:
                raise NoOpinion(f"answered more than {MOST_BYTES} bytes")
    try:
        return response, json_value(bytes(body))
    except TextRefused:
        return response, None


def words(text: object) -> str:
    """An outside text for people: one line, bounded, without secrets."""
    line = " ".join(redact(str(text or "")).split())
    return line if len(line) <= MOST_WORDS else f"{line[: MOST_WORDS - 1]}…"
