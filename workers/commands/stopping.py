"""SIGINT, SIGTERM and SIGHUP as an event: the first asks for a graceful end, the second ends the process at once."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP: the terminal or the login session is gone. A process started with `nohup` goes on, as it was asked to."""


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """While open, a stop signal sets the event; a second one does what it does to any program."""
    loop = asyncio.get_running_loop()

    def asked(number: signal.Signals) -> None:
        stop.set()
        # Someone who asks twice does not want to wait for the graceful end.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)

    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, asked, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
