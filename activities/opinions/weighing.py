"""Outside opinions beside our own judgement: do they disagree, and what follows from that. Pure; called by the policy.

An opinion never changes the verdict. A disagreement lowers confidence and asks for a person; silence changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from activities.records import Action, Domain, Judgement, Opinion, Side, Verdict

DISAGREEMENT_FACTOR = 0.6
"""What one disagreeing source leaves of our confidence: enough to bring a sure diagnosis (0.95) under what rules call sure."""

SIDE_OF: Mapping[Domain, Side] = {
    Domain.HARDWARE: Side.INFRASTRUCTURE,
    Domain.NETWORK: Side.INFRASTRUCTURE,
    Domain.STORAGE: Side.INFRASTRUCTURE,
    Domain.SYSTEM_SOFTWARE: Side.INFRASTRUCTURE,
    Domain.SCHEDULER: Side.INFRASTRUCTURE,
    Domain.APPLICATION: Side.WORKLOAD,
    Domain.USER: Side.WORKLOAD,
    Domain.NONE: Side.UNKNOWN,
    Domain.UNKNOWN: Side.UNKNOWN,
}
"""Application or user, network or hardware: sources cut these differently, so only the side is compared."""


class Agreement(NamedTuple):
    """`factor` multiplies our confidence (1.0: nothing to lower); `note` names who says what, empty when nobody disagrees."""

    factor: float
    needs_approval: bool
    note: str


def agree(judgement: Judgement, opinions: Sequence[Opinion], *, action: Action | None = None) -> Agreement:
    """Weighs the opinions against what we concluded and, where given, against what we would do."""
    notes = [note for opinion in opinions if not opinion.note for note in [_disagreement(judgement, opinion, action)] if note]
    return Agreement(DISAGREEMENT_FACTOR ** len(notes), bool(notes), " and ".join(notes))


def _disagreement(judgement: Judgement, opinion: Opinion, action: Action | None) -> str:
    """In words, or empty.

    RESTART from a source that has no domain is no objection to our stop: NVIDIA's service restarts by default until its budget is spent.
    """
    ours = SIDE_OF[judgement.diagnosis.domain]
    theirs = opinion.side if opinion.side is not Side.UNKNOWN else SIDE_OF[opinion.domain]
    if Side.UNKNOWN not in (ours, theirs) and ours is not theirs:
        return f"{opinion.source} sees a fault of the {theirs}, we of the {ours}"
    if opinion.verdict is Verdict.STOP and action in (Action.RESTART, Action.RESTART_EXCLUDING):
        return f"{opinion.source} says STOP"
    if opinion.verdict is Verdict.RESTART and action is Action.STOP and theirs is Side.INFRASTRUCTURE:
        return f"{opinion.source} says RESTART"
    named = {suspect.node for suspect in opinion.suspects if suspect.node}
    suspected = set(judgement.attribution.nodes)
    if named and suspected and named.isdisjoint(suspected):
        return f"{opinion.source} suspects {', '.join(sorted(named))}"
    return ""
