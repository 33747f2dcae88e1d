"""How evidence is shown in a diagnosis: bounded, each line once. Pure."""

from collections.abc import Sequence

from activities.diagnosis.reading import Observation

_LINES_SHOWN = 12


def shown_lines(items: Sequence[Observation]) -> tuple[str, ...]:
    """The lines a diagnosis rests on, each once, with its number or its source."""
    shown = [f"{item.line}: {item.text}" if item.line is not None else f"{item.source}: {item.text}" for item in items]
    return tuple(dict.fromkeys(shown))[:_LINES_SHOWN]


def short(ranks: Sequence[int]) -> str:
    """At most eight ranks, and that there are more."""
    return ", ".join(str(rank) for rank in ranks[:8]) + (" ..." if len(ranks) > 8 else "")
