"""How evidence is shown in a diagnosis: bounded, each line once. Pure."""

from collections.abc import Sequence

from activities.diagnosis.reading import Observation
from activities.records import SignalSource

_LINES_SHOWN = 12


def shown_lines(items: Sequence[Observation]) -> tuple[str, ...]:
    """The lines a diagnosis rests on: each text once, with the number of its first line, its source where that is not the job's log,
    the time as its own clock printed it where no year makes a moment of it, and how many more say the same."""
    alike: dict[tuple[SignalSource, str], list[Observation]] = {}
    for item in items:
        alike.setdefault((item.source, item.text), []).append(item)
    return tuple(_shown(same[0], len({(item.log, item.line) for item in same}) - 1) for same in alike.values())[:_LINES_SHOWN]


def _shown(first: Observation, more: int) -> str:
    source = "" if first.source is SignalSource.LOG and first.line is not None else first.source.value
    place = " ".join(part for part in (source, "" if first.line is None else str(first.line), first.stamp) if part)
    return f"{place}: {first.text}" + (f" (and {more} more lines alike)" if more else "")


def short(ranks: Sequence[int]) -> str:
    """At most eight ranks, and that there are more."""
    return ", ".join(str(rank) for rank in ranks[:8]) + (" ..." if len(ranks) > 8 else "")
