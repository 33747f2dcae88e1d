"""What time it is, as a seam: the wall's clock in production, a clock moved by hand in tests of the simulated cluster.

Anything with `now()` will do, so that a test can also follow a time-skipping server's clock.
"""

from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The present moment, timezone-aware UTC; never goes backwards."""


class WallClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, start: datetime = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta | float) -> datetime:
        """Moves on by a duration (a bare number is seconds) and returns the new time."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise ValueError("a clock never goes back; advance() takes a positive duration")
        self._now += step
        return self._now
