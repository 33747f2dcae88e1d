"""Where a job could still run: pure arithmetic over one look at the job and the cluster's nodes.

Nothing in Slurm warns that an exclusion makes a job unschedulable (facts: candidates must be counted first), so the
policy counts before it recommends and `exclude_nodes` counts again before it writes.
"""

from collections.abc import Collection, Sequence

from activities.records import Job, Node, Record


class Candidates(Record):
    """How many nodes remain, against how many are needed."""

    needed: int
    left: int
    enough: bool
    in_words: str


def usable_nodes(job: Job, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Names of the nodes where Slurm could place the job now or when they free up: its partitions, its features
    (simple `a&b` lists only; anything richer is not judged and counts every node), not drained, down or reserved."""
    partitions = {name for name in job.partition.split(",") if name}
    plain = all(sign not in job.features for sign in "|[]()*!")
    features = {name for name in job.features.replace(",", "&").split("&") if name} if plain else set()
    return tuple(
        node.name
        for node in nodes
        if node.can_take_jobs and (not partitions or partitions & set(node.partitions)) and features <= set(node.features)
    )


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
    )
    if job.node_count is None:
        return Candidates(needed=0, left=len(left), enough=False, in_words="Slurm did not say how many nodes the job needs")
    if required_but_excluded:
        said = f"the job asks for {', '.join(required_but_excluded)} by name (--nodelist); excluding it could never start"
        return Candidates(needed=needed, left=len(left), enough=False, in_words=said)
    return Candidates(needed=needed, left=len(left), enough=len(left) >= needed, in_words=numbers)


def nodes_of_partition(job: Job, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Every node of the job's partitions, usable or not: what a share of excluded nodes is a share of."""
    partitions = {name for name in job.partition.split(",") if name}
    return tuple(node.name for node in nodes if not partitions or partitions & set(node.partitions))
