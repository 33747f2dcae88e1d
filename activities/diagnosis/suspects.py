"""From a rank, an address or a device to the node: by the log's own prefixes, the launcher's tables, or Slurm's distribution. Pure.

Where none of them says, nobody is named: a healthy node blamed costs more than a culprit missed."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from activities.diagnosis.causes import Blames, cause_of
from activities.diagnosis.collectives import WAITING
from activities.diagnosis.placements import Place, in_blocks, neighbour_of
from activities.diagnosis.reading import Failure, Observation, Reading
from activities.diagnosis.scheduler_facts import SchedulerFacts
from activities.records import Attribution, SignalSource, Suspect

MOST_RANKS = 1_000_000
_OF_A_TABLE = re.compile(r"\s*(?:exitcode|traceback|error_file) +: ")
_DIGITS = re.compile(r"\d+")
_ADDRESS = re.compile(r"^\d{1,3}(?:\.\d{1,3}){3}$")


class Whereabouts:
    """Answers 'on which node does it run' for one attempt."""

    def __init__(self, reading: Reading, facts: SchedulerFacts, told: Mapping[int, str]) -> None:
        self._reading, self._facts, self._told = reading, facts, told
        self._highest = max((rank for ranks in reading.ranks.values() for rank in ranks), default=-1)
        self._known = self._places()
        self._per_node = self._ranks_per_node()
        self._laid_out = self._by_slurms_counts()
        placed = reading.placements
        self._labels_tell_nodes = placed.labels_are_tasks or placed.one_task_a_node(facts.task_count, len(facts.nodes))

    def _places(self) -> dict[int, Place]:
        """Where ranks are, as stated; a statement about the rank itself goes before its place in a communicator."""
        placed, nodes = self._reading.placements, self._facts.nodes
        at_least = max(self._highest + 1, self._facts.task_count or 0, len(nodes))
        known = dict(placed.world(at_least))
        if nodes and len(known) > 1 and len(known) == max(known) + 1 and len({place.node for place in known.values()}) < len(nodes):
            known = {}  # all its ranks are on some of the job's nodes: a group, not the job
        self._communicator = max(placed.communicators) if known else None
        for rank, place in placed.ranks.items():
            if place.node is not None:
                known[rank] = place
        if not placed.labels_are_tasks:
            known |= {task: Place(task, node) for task, node in placed.task_nodes.items()}
        for rank, task in placed.task_of_rank.items() if placed.labels_are_tasks else ():
            if node := self._node_of_task(task):
                known[rank] = Place(rank, node)
        for rank, node in self._reading.rank_nodes.items():
            device = known[rank].device if rank in known else None
            local = next((row.local_rank for row in self._reading.failures if row.rank == rank and row.local_rank is not None), device)
            known[rank] = Place(rank, node, local)
        self._has_strangers = any(place.node and not self._in_job(place.node) for place in known.values())
        named = {rank: Place(rank, self._in_job(place.node), place.device) for rank, place in known.items()}
        return {rank: place for rank, place in named.items() if place.node is not None}

    def node_of_rank(self, rank: int | None, log: str | None = None) -> tuple[str | None, str]:
        """(node, how we know); (None, why not) when it cannot be known. `log`: of the line that names the rank."""
        if rank is None:
            return self._only("the only node of the job", log)
        if node := self._in_job(self._told.get(rank)):
            return node, f"rank {rank} runs on {node}, as the launcher told"
        if (place := self._known.get(rank)) is not None and place.node:
            return place.node, f"the log shows rank {rank} on {place.node}"
        if (found := self._only(f"rank {rank} runs on the only node", log))[0]:
            return found
        if (node := self._laid_out.get(rank)) is not None:
            return node, f"Slurm's {self._facts.distribution} distribution puts rank {rank} on {node}"
        if self._per_node and not in_blocks(self._known.values(), self._per_node):
            return None, f"rank {rank} cannot be mapped to a node: ranks are not laid out in blocks"
        if node := neighbour_of(rank, self._known.values(), self._per_node):
            return node, f"the log shows neighbours of rank {rank} on {node}"
        if self._per_node and rank // self._per_node < len(self._facts.nodes) and self._is_in_slurms_order(self._per_node):
            node = self._facts.nodes[rank // self._per_node]
            return node, f"Slurm's block distribution puts rank {rank} on {node}, {self._per_node} ranks a node"
        return None, f"rank {rank} cannot be mapped to a node"

    def node_of_all(self, ranks: Sequence[int]) -> str | None:
        """The one node that all of these ranks run on; None where they are on several, or one of them nobody knows where."""
        nodes = {self.node_of_rank(rank)[0] for rank in ranks}
        return next(iter(nodes)) if len(nodes) == 1 else None

    def _node_of_task(self, task: int) -> str | None:
        """The node of one of the launcher's processes, where it starts one on each node."""
        placed, nodes = self._reading.placements, self._facts.nodes
        if node := self._in_job(placed.task_nodes.get(task)):
            return node
        return nodes[task] if task < len(nodes) and placed.one_task_a_node(self._facts.task_count or len(nodes), len(nodes)) else None

    def _is_in_slurms_order(self, per_node: int) -> bool:
        """False where a rank is known to be elsewhere, or where nodes are numbered by names that sort otherwise than Slurm's list:
        torch elastic sorts what the hosts call themselves (dynamic_rendezvous.py), `n10` before `n9`."""
        nodes = self._facts.nodes
        by_name = self._has_strangers or (self._reading.counts.get("elastic_child_failed", 0) > 0 and list(nodes) != sorted(nodes))
        return not by_name and all(
            rank // per_node < len(nodes) and nodes[rank // per_node] == place.node for rank, place in self._known.items()
        )

    @property
    def nodes(self) -> frozenset[str]:
        """The job's nodes: Slurm's list, or else those that the log shows."""
        return frozenset(self._facts.nodes) or frozenset(self._reading.shown_nodes)

    def first_failed_on(self, node: str) -> int | None:
        """The rank that a launcher's table calls the first to fail on this node; None where it tells of none or of several."""
        ranks = {row.rank for row in self._reading.failures if row.is_root_cause and row.host and self.canonical(row.host) == node}
        return next(iter(ranks)) if len(ranks) == 1 else None

    def _row_of(self, item: Observation) -> Failure | None:
        """The row of a launcher's table that tells where: the one that the line stands in, else the earliest first failure of all."""
        rows = [row for row in self._reading.failures if row.host]
        if _OF_A_TABLE.match(item.text) and (above := [row for row in rows if row.position <= item.position]):
            return above[-1]
        roots = [row for row in rows if row.is_root_cause]
        return min(roots, key=lambda row: (row.at is None, row.at or datetime.min.replace(tzinfo=UTC)), default=None)

    def canonical(self, node: str | None) -> str | None:
        """The scheduler's name of a node that a log names by address or fully qualified."""
        if node is None:
            return None
        if node in self._facts.nodes:
            return node
        if not _ADDRESS.match(node) and (listed := self._facts.as_listed(node)):
            return listed
        if _ADDRESS.match(node):
            # EC2 names a node by its address, and so does Slurm there (private DNS names: ip-10-0-22-142).
            named = f"ip-{node.replace('.', '-')}"
            return self._reading.address_nodes.get(node) or (named if named in self._facts.nodes else node)
        return node

    def _in_job(self, node: str | None) -> str | None:
        """The scheduler's name of a node that the log names; None for what is none of the job's: `localhost`, a container's own
        name, an address nobody explains. Slurm could not keep such a name out, and it tells nothing of where it was."""
        named = self.canonical(node)
        return named if not self._facts.nodes or named in self._facts.nodes else None

    def _only(self, how: str, log: str | None = None) -> tuple[str | None, str]:
        """The job's only node, as Slurm tells it, or as all that is seen of the job agrees.

        Args:
            log: the log of the line that is asked for; None: no line of one log is."""
        node = self._facts.only_node
        if node:
            return node, how
        reading = self._reading
        if log is not None and self._is_of_one_process(log) and len(own := reading.printing_nodes.get(log, set())) == 1:
            node = self._in_job(next(iter(own)))
            return node, f"{node} is the only node that its log shows"
        shown = reading.shown_nodes | {failure.host for failure in reading.failures if failure.host}
        if self._facts.nodes or len(shown) != 1:
            return None, "several nodes, and no telling which"
        node = next(iter(shown))
        if any(failure.host for failure in reading.failures):
            return node, f"the launcher's table names {node} alone"
        # In a log for each process a node that stands in one says nothing of the others', and one of which only Slurm speaks says
        # nothing of who failed: others may have had no reason to be named.
        ended = reading.exited_on | reading.crashed_on
        places = [reading.printing_nodes.get(name, set()) for name in ([log] if log is not None else reading.logs)]
        if (len(reading.logs) == 1 and node in ended) or (places and all(node in place for place in places)):
            return node, f"{node} is the only node the log shows"
        return None, f"the log tells of {node}, and not that this was there"

    def _is_of_one_process(self, log: str) -> bool:
        """True for one of three and more logs that only a number tells apart: a job's output and its errors are no such logs."""
        kind = _DIGITS.sub("0", log)
        return sum(_DIGITS.sub("0", name) == kind for name in self._reading.logs) > 2

    def _ranks_per_node(self) -> int | None:
        """Ranks on each node, only where it divides evenly: Slurm's default distribution is block (srun --distribution)."""
        count, placed = len(self._facts.nodes), self._reading.placements
        tasks = self._facts.task_count if not placed.labels_are_tasks else None
        # Without the job's own word, a communicator that holds every rank known: the largest may be a group's.
        size = tasks if tasks and tasks > count else self._reading.told_world or self._communicator
        if self._facts.distribution != "block" or len(set(self._facts.tasks_of_nodes)) > 1:
            return None
        if not count or not size or size % count or size <= max(self._highest, max(self._known, default=-1)):
            return None  # the last: what the log calls its size was a group's
        return size // count

    def _by_slurms_counts(self) -> dict[int, str]:
        """Ranks where Slurm told how many each node has and they differ, or that it deals them out in turn; empty where anything
        known speaks against it."""
        facts, count = self._facts, len(self._facts.nodes)
        tasks = facts.task_count or 0
        counts = facts.tasks_of_nodes or ((tasks // count,) * count if count and tasks > count and tasks % count == 0 else ())
        highest = max(self._highest, max(self._known, default=-1))
        if (
            self._reading.placements.labels_are_tasks
            or self._has_strangers
            or not count < sum(counts) <= MOST_RANKS
            or sum(counts) <= highest
        ):
            return {}
        if facts.distribution == "cyclic":
            order = [node for turn in range(max(counts)) for node, most in zip(facts.nodes, counts, strict=True) if turn < most]
        elif facts.distribution == "block" and len(set(counts)) > 1:
            order = [node for node, most in zip(facts.nodes, counts, strict=True) for _ in range(most)]
        else:
            return {}
        laid_out = dict(enumerate(order))
        return laid_out if all(laid_out[rank] == place.node for rank, place in self._known.items()) else {}

    def locate(self, item: Observation) -> tuple[str | None, str]:
        """The node of this attempt that one observation points at. One that the job never had is nobody's: whoever can print a line can
        name any node in it."""
        if item.named_node:
            how = "the message names" if item.named_node in item.text else "what else is known points to"
            return self._of_the_jobs(item.named_node, f"{how} {item.named_node}")
        if item.source in (SignalSource.KERNEL, SignalSource.GPU, SignalSource.NODE) and item.node:
            return self._of_the_jobs(item.node, f"the {item.source} evidence is from {item.node}")
        if item.cause == "node_failure":  # where the survivors failed, and who tells of it, is not what was lost
            lost = [node for name in self._facts.lost_nodes if (node := self._in_job(name))]
            return (lost[0], f"Slurm lost {lost[0]}") if len(lost) == 1 else self._only("the only node of the job", "")
        if node := self._in_job(item.node):
            return node, f"{item.node} printed it"
        if item.task is not None and self._labels_tell_nodes and (node := self._node_of_task(item.task)):
            return node, f"task {item.task} of the launcher runs on {node}"
        if item.rank is not None:
            return self.node_of_rank(item.rank, item.log)
        if item.source is SignalSource.SCHEDULER and len(self._facts.lost_nodes) == 1:
            return self._facts.lost_nodes[0], f"Slurm lost {self._facts.lost_nodes[0]}"
        if item.source is SignalSource.SCHEDULER and len(self._facts.drained_nodes) == 1:
            return self._facts.drained_nodes[0], f"Slurm drained {self._facts.drained_nodes[0]}"
        root = self._row_of(item)
        if root is not None and item.source is not SignalSource.SCHEDULER and (node := self._in_job(root.host)):
            return node, f"the launcher saw the first failure on {root.host}"
        ends = {node for host in self._reading.ended_on if (node := self._in_job(host))}
        if "pyxis: " in item.text:
            # A task's container starts before the task can wait for another's: where one ended is where it failed.
            ends |= {node for host in self._reading.exited_on if (node := self._in_job(host))}
        if not any(self._reading.counts.get(name) for name in WAITING):
            # Nobody aborted for having waited too long: a process died of what it had met itself.
            ends |= {node for host in self._reading.crashed_on if (node := self._in_job(host))}
        if len(ends) == 1 and item.source is not SignalSource.SCHEDULER:
            return next(iter(ends)), "the launcher saw a process end badly there alone"
        return self._only("the only node of the job", item.log if item.source is SignalSource.LOG else None)

    def _of_the_jobs(self, named: str, how: str) -> tuple[str | None, str]:
        node = self._in_job(named)
        return (node, how) if node is not None else (None, f"{named} is none of the job's nodes")


def attribute(
    cause: str, confidence: float, items: list[tuple[Observation, str | None, str]], sources: tuple[str, ...], *, names_node: bool
) -> Attribution:
    """Suspects for a cause from the observations it rests on; abstains where the cause blames nobody or nobody can be named.

    Args:
        items: (observation, node, how the node is known), strongest first.
        names_node: a rule looked at the context and found that it is this node's.
    """
    row = cause_of(cause)
    if row is None or row.blames is Blames.NOBODY or (row.blames is Blames.NAMED and not names_node):
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
            seen_by=tuple(dict.fromkeys(item.source for item, _ in evidence if item.beyond_the_job)),
        )
        for node, evidence in by_node.items()
    )
    return Attribution(suspects=suspects, abstained=not suspects, sources=sources)
