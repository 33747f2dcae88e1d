"""From a rank, an address or a device to the node: by the log's own prefixes, the launcher's tables, or Slurm's distribution. Pure.

Where none of them says, nobody is named: a healthy node blamed costs more than a culprit missed."""

import re
from collections.abc import Mapping

from activities.diagnosis.causes import Blames, cause_of
from activities.diagnosis.reading import Observation, Reading
from activities.diagnosis.scheduler_facts import SchedulerFacts
from activities.records import Attribution, SignalSource, Suspect

_ADDRESS = re.compile(r"^\d{1,3}(?:\.\d{1,3}){3}$")


class Whereabouts:
    """Answers 'on which node does it run' for one attempt."""

    def __init__(self, reading: Reading, facts: SchedulerFacts, told: Mapping[int, str]) -> None:
        self._reading, self._facts, self._told = reading, facts, told

    def node_of_rank(self, rank: int | None) -> tuple[str | None, str]:
        """(node, how we know); (None, why not) when it cannot be known."""
        if rank is None:
            return self._only("the only node of the job")
        if node := self._told.get(rank):
            return node, f"rank {rank} runs on {node}, as the launcher told"
        if node := self._reading.rank_nodes.get(rank):
            return self.canonical(node), f"the log shows rank {rank} on {node}"
        if (found := self._only(f"rank {rank} runs on the only node"))[0]:
            return found
        per_node = self._ranks_per_node()
        if per_node and rank // per_node < len(self._facts.nodes):
            node = self._facts.nodes[rank // per_node]
            return node, f"Slurm's block distribution puts rank {rank} on {node}, {per_node} ranks a node"
        return None, f"rank {rank} cannot be mapped to a node"

    def canonical(self, node: str | None) -> str | None:
        """The scheduler's name of a node that a log names by address or fully qualified."""
        if node is None:
            return None
        if node in self._facts.nodes:
            return node
        short = node.split(".")[0]
        if not _ADDRESS.match(node) and short in self._facts.nodes:
            return short
        return self._reading.address_nodes.get(node, node)

    def _only(self, how: str) -> tuple[str | None, str]:
        node = self._facts.only_node
        if node:
            return node, how
        hosts = {failure.host for failure in self._reading.failures if failure.host}
        if not self._facts.nodes and len(hosts) == 1 and not (self._reading.printing_nodes - hosts):
            node = next(iter(hosts))
            return node, f"the launcher's table names {node} alone"
        if not self._facts.nodes and not hosts and len(self._reading.printing_nodes) == 1:
            node = next(iter(self._reading.printing_nodes))
            return node, f"{node} is the only node the log shows"
        return None, "several nodes, and no telling which"

    def _ranks_per_node(self) -> int | None:
        """Ranks on each node, only where it divides evenly: Slurm's default distribution is block (srun --distribution)."""
        count = len(self._facts.nodes)
        size = self._facts.task_count if self._facts.task_count and self._facts.task_count > count else self._reading.world_size
        return size // count if count and size and size % count == 0 else None

    def locate(self, item: Observation) -> tuple[str | None, str]:
        """The node one observation points at."""
        if item.named_node:
            return self.canonical(item.named_node), f"the message names {item.named_node}"
        if item.source in (SignalSource.KERNEL, SignalSource.GPU, SignalSource.NODE) and item.node:
            return self.canonical(item.node), f"the {item.source} evidence is from {item.node}"
        if item.node:
            return self.canonical(item.node), f"{item.node} printed it"
        if item.rank is not None:
            return self.node_of_rank(item.rank)
        if item.source is SignalSource.SCHEDULER and len(self._facts.lost_nodes) == 1:
            return self._facts.lost_nodes[0], f"Slurm lost {self._facts.lost_nodes[0]}"
        if item.source is SignalSource.SCHEDULER and len(self._facts.drained_nodes) == 1:
            return self._facts.drained_nodes[0], f"Slurm drained {self._facts.drained_nodes[0]}"
        root = next((failure for failure in self._reading.failures if failure.is_root_cause and failure.host), None)
        if root is not None and item.source is not SignalSource.SCHEDULER:
            return self.canonical(root.host), f"the launcher saw the first failure on {root.host}"
        return self._only("the only node of the job")


def attribute(cause: str, confidence: float, items: list[tuple[Observation, str | None, str]], sources: tuple[str, ...]) -> Attribution:
    """Suspects for a cause from the observations it rests on; abstains where the cause blames nobody or nobody can be named.

    Args:
        items: (observation, node, how the node is known), strongest first.
    """
    row = cause_of(cause)
    if row is None or row.blames is Blames.NOBODY:
        return Attribution(abstained=True, sources=sources)
    by_node: dict[str, list[tuple[Observation, str]]] = {}
    for item, node, how in items:
        if node is not None:
            by_node.setdefault(node, []).append((item, how))
    suspects = tuple(
        Suspect(
            node=node,
            gpu=next((item.gpu for item, _ in evidence if item.gpu), None),
            rank=next((item.rank for item, _ in evidence if item.rank is not None), None),
            confidence=round(min(0.98, confidence), 2),
            because=tuple(dict.fromkeys(f"{how}: {item.text[:200]}" for item, how in evidence))[:4],
        )
        for node, evidence in by_node.items()
    )
    return Attribution(suspects=suspects, abstained=not suspects, sources=sources)
