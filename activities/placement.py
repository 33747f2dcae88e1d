"""Where a job could still run: arithmetic over one look at the job and the cluster's nodes.

Nothing in Slurm warns that an exclusion makes a job unschedulable (facts: candidates must be counted first), so the
policy counts before it recommends and `exclude_nodes` counts again before it writes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import timedelta

from activities.mutation import DRAIN_PREFIX
from activities.records import Job, Node, NodeFlag, NodeState, Record
from activities.slurm.clock import Clock
from activities.slurm.scheduler import Scheduler

REGISTRATION_PATIENCE = timedelta(seconds=30)
"""How long a count that falls short waits for nodes that have not registered yet. A slurmctld just started shows every node UNKNOWN
until it registers: three seconds on 22.05.8; a node that never does is DOWN after SlurmdTimeout, which no job should wait out."""

LOOK_AGAIN = timedelta(seconds=1)


class Candidates(Record):
    """Whether enough nodes remain; `in_words` says how many, against how many are needed."""

    enough: bool
    in_words: str


def usable_nodes(job: Job, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Names of the nodes where Slurm could place the job now or when they free up: its partitions, its features
    (simple `a&b` lists only; anything richer is not judged and counts every node), not drained, down or reserved."""
    in_partition = set(nodes_of_partition(job, nodes))
    plain = all(sign not in job.features for sign in "|[]()*!")
    features = {name for name in job.features.replace(",", "&").split("&") if name} if plain else set()
    return tuple(node.name for node in nodes if node.can_take_jobs and node.name in in_partition and features <= set(node.features))


def candidates_after_excluding(job: Job, nodes: Sequence[Node], *, excluding: Collection[str], spare_nodes: int = 0) -> Candidates:
    """Counts the nodes left for `job` after `excluding`. A node count that Slurm did not tell is unknown, and unknown is
    not enough."""
    required_but_excluded = sorted(set(job.required_nodes) & set(excluding))
    usable = usable_nodes(job, nodes)
    left = [name for name in usable if name not in set(excluding)]
    needed = (job.node_count or 0) + spare_nodes
    numbers = (
        f"{len(left)} of {len(usable)} usable nodes in partition {job.partition or '(all)'} would remain, the job needs {job.node_count}"
        + (f" and policy keeps {spare_nodes} spare" if spare_nodes else "")
        + (f"; of {len(unheard)} more Slurm does not know the state" if (unheard := unregistered_nodes(job, nodes)) else "")
    )
    if job.node_count is None:
        return Candidates(enough=False, in_words="Slurm did not say how many nodes the job needs")
    if required_but_excluded:
        said = f"the job asks for {', '.join(required_but_excluded)} by name (--nodelist); excluding it could never start"
        return Candidates(enough=False, in_words=said)
    return Candidates(enough=len(left) >= needed, in_words=numbers)


def unregistered_nodes(job: Job, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Nodes of the job's partitions whose state Slurm itself does not know: whoever counts must not take them for lost."""
    in_partition = set(nodes_of_partition(job, nodes))
    return tuple(node.name for node in nodes if node.state is NodeState.UNKNOWN and node.name in in_partition)


def out_of_service(nodes: Sequence[Node]) -> set[str]:
    """Nodes that are down, or drained by another hand than ours: to keep a job off them takes no node from anyone. A node that Backstay
    drained counts as excluded by Backstay, and one whose state Slurm does not know is not taken for lost."""
    return {
        node.name
        for node in nodes
        if node.state is not NodeState.UNKNOWN
        and (node.is_lost or (NodeFlag.DRAIN in node.flags and not node.reason.startswith(DRAIN_PREFIX)))
    }


async def looks(
    scheduler: Scheduler, look_at_job: Callable[[], Awaitable[Job]], *, clock: Clock, pause: Callable[[float], Awaitable[None]]
) -> AsyncIterator[tuple[Job, tuple[Node, ...]]]:
    """The job and the cluster's nodes, and again while nodes of its partitions have yet to register, for `REGISTRATION_PATIENCE` at most.
    The caller leaves as soon as what it sees suffices. Raises what `look_at_job` and `Scheduler.nodes` raise."""
    until = clock.now() + REGISTRATION_PATIENCE
    while True:
        job, nodes = await look_at_job(), tuple(await scheduler.nodes())
        yield job, nodes
        if not unregistered_nodes(job, nodes) or clock.now() >= until:
            return
        await pause(LOOK_AGAIN.total_seconds())


def nodes_of_partition(job: Job, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Every node of the job's partitions, usable or not: what a share of excluded nodes is a share of."""
    partitions = {name for name in job.partition.split(",") if name}
    return tuple(node.name for node in nodes if not partitions or partitions & set(node.partitions))
