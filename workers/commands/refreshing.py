"""A list that stays on the terminal and is kept fresh until Ctrl-C. It owns the screen while it is open and gives it back as it was.

Called by `jobs --watch`. A server that gives no answer for a while does not end it: the last list stays, and says since when.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from rich.console import Console
from rich.live import Live
from rich.text import Text

from workers.commands.explaining import explain
from workers.commands.stopping import stop_on_signals
from workers.commands.terminal import folded, printable

EVERY = timedelta(seconds=5)
"""Between two looks. A look asks one question a job; a thousand jobs take seconds."""

Look = Callable[[], Awaitable[Sequence[str]]]


async def keep_fresh(look: Look, *, title: str, console: Console | None = None, every: timedelta = EVERY) -> None:
    """Shows what `look` finds until SIGINT or SIGTERM, which end it in good order.

    Args:
        look: the lines to show; it may raise whatever `explain` knows, which is then shown above the lines of the look before.
        title: what is shown, for the first line.
        console: the terminal; another for tests.
    """
    stop = asyncio.Event()
    console = console or Console(highlight=False, markup=False, emoji=False)
    lines: Sequence[str] = ()
    trouble = ""
    with stop_on_signals(stop), Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text(f"{printable(title)}: looking …"), refresh=True)
        while not stop.is_set():
            try:
                looked = await _unless_stopped(look(), stop)
            except Exception as error:
                known = explain(error)
                if known is None:
                    raise
                trouble = trouble or f"no answer since {_now()}, so this is what was seen before: {known[1]}"
            else:
                if looked is None:
                    return
                lines, trouble = looked, ""
            head = f"{title}, {_now()}; every {every.total_seconds():g} s, Ctrl-C ends"
            live.update(_on_one_screen([head, *([trouble] if trouble else []), *lines], console), refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(every.total_seconds()):
                    await stop.wait()


async def _unless_stopped(look: Awaitable[Sequence[str]], stop: asyncio.Event) -> Sequence[str] | None:
    """What the look found; None when it was ended by the stop: a server that does not answer must not hold up Ctrl-C."""
    looking, stopping = asyncio.ensure_future(look), asyncio.create_task(stop.wait())
    await asyncio.wait({looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        looking.cancel()
        return None
    return await looking


def _on_one_screen(lines: Sequence[str], console: Console) -> Text:
    """The lines that fit; the last says how many do not."""
    shown = [part for line in lines for part in folded(printable(line), console.width)]
    room = console.height
    if len(shown) > room:
        shown = [*shown[: room - 1], f"and {len(shown) - room + 1} more lines; --user and --state narrow the list"]
    return Text("\n".join(shown), no_wrap=True, overflow="crop")


def _now() -> str:
    return f"{datetime.now(UTC):%H:%M:%S} UTC"
