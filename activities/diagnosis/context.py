"""What a rule that refines a cause may look at, and what it answers. Pure.

refine.py and network.py hold the rules, concluding.py makes the context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from activities.diagnosis.going_on import Steps
from activities.diagnosis.reading import Observation, Reading
from activities.diagnosis.scheduler_facts import SchedulerFacts
from activities.diagnosis.signatures import Doing
from activities.diagnosis.suspects import Whereabouts


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at."""

    primary: Observation
    same: Sequence[Observation]  # further observations of the same cause
    observations: Sequence[Observation]
    reading: Reading
    steps: Steps
    facts: SchedulerFacts
    whereabouts: Whereabouts
    phase: Doing | None  # what the job was doing when the primary was printed
    stepped: bool  # it had made steps before
    steps_after: bool  # it made steps after
    training_ended: bool  # it had said that training was over

    @property
    def nodes(self) -> set[str]:
        """Nodes with this same trouble."""
        return {node for item in (self.primary, *self.same) if (node := self.whereabouts.locate(item)[0]) is not None}

    @property
    def followed(self) -> Observation | None:
        """The primary, at the node that this trouble follows: other work failed there too. Where no line says where it is from, that
        is the only one of the job's nodes with such a history."""
        cause, seen = self.primary.cause or "", self.nodes
        nodes = seen or {node for node in self.facts.nodes if self.facts.repeats(node, cause)}
        node = next(iter(nodes)) if len(nodes) == 1 else None
        repeats = self.facts.repeats(node, cause, seen_here=bool(seen), rank=self.primary.rank)
        return replace(self.primary, named_node=node) if repeats else None

    def seen(self, signature: str) -> bool:
        return self.reading.counts.get(signature, 0) > 0


@dataclass(frozen=True, slots=True)
class Refined:
    """A cause as its context shows it, how sure, and why. No reason: what the primary itself says."""

    cause: str
    confidence: float
    because: str = ""
    names_node: bool = False  # what the rule looked at condemns the node, whatever the line alone would ask for
    evidence: Observation | None = None  # a line that says where, when it is not the primary


Rule = Callable[[Context], Refined | None]
