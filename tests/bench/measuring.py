"""What the benches share: percentiles, the machine they ran on, and what a process has cost. Called by the benches only."""

import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Spread:
    """Median, 95th percentile (nearest rank) and largest of some measurements, in their own unit."""

    count: int
    median: float
    p95: float
    largest: float


def spread_of(values: Sequence[float]) -> Spread:
    """The spread of at least one measurement."""
    ordered = sorted(values)
    rank = -(-len(ordered) * 95 // 100)
    return Spread(len(ordered), statistics.median(ordered), ordered[rank - 1], ordered[-1])


def delays_table(title: str, delays: Mapping[str, Sequence[float]]) -> str:
    """A table of delays in seconds, a row each; rows without a measurement are left out."""
    lines = [f"{title:<52}{'n':>4}{'median':>9}{'p95':>9}{'longest':>9}"]
    for name, values in delays.items():
        if values:
            spread = spread_of(values)
            lines.append(f"  {name:<50}{spread.count:>4}{spread.median:>7.1f} s{spread.p95:>7.1f} s{spread.largest:>7.1f} s")
    return "\n".join(lines)


def machine() -> str:
    """The machine in a line, with its load: other work on it makes every figure worse."""
    one, five, _ = os.getloadavg()
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {sys.version.split()[0]}; load {one:.1f} now, {five:.1f} over 5 minutes"


@dataclass(frozen=True)
class Cost:
    """What a process has used since it began, and holds now."""

    cpu_seconds: float
    """User and system time of all its threads, not of its children."""
    children_seconds: float
    """The same of children that have ended and were waited for: the commands it ran."""
    resident_bytes: int


def cost_of(pid: int) -> Cost:
    """Reads it from the kernel (proc(5)); CPU time is what the process got, whatever else ran beside it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = (int(field) / _TICKS_PER_SECOND for field in fields[11:15])
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return Cost(user + system, children_user + children_system, resident)
