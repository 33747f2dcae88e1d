"""The node ledger: who implicated which node, whether a second source agrees, and which jobs are kept off it
for that. Pure.

What a job prints is written by its user, so it keeps that job off a node and no other. Slurm's own state of
the node, what is read on the node itself, or a job of another user must agree before others are kept off.
`guard_rails.py` and `guarding.py` ask.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from activities.records import (
    ActionRequest,
    Attribution,
    ClusterState,
    Implication,
    LedgerEntry,
    LedgerScope,
    Node,
    NodeFlag,
    NodeState,
    SignalSource,
)

KEPT = 500
"""Most entries for one job each, and most implications: a Temporal payload stays far under its 2 MB however
many jobs fail."""

LONGEST_SAID = 200

_BEYOND_THE_JOB = (SignalSource.NODE, SignalSource.KERNEL, SignalSource.GPU)
"""What no user can write: Slurm's state of a node, its own kernel log, readings of its devices."""

_SLURMS_OWN_DRAINS = (
    "prolog error",
    "epilog error",
    "low ",
    "gres/",
    "duplicate jobid",
    "node unexpectedly rebooted",
    "not responding",
    "nhc",
)
"""How the reasons begin that Slurm writes when it drains a node by itself (slurmctld/node_mgr.c, proc_req.c),
and those of health checks (HealthCheckProgram). Not `Kill task failed`: a job can leave an unkillable process
on any node. A person's drain need not be for a fault, and one of ours only repeats what we thought."""


def slurms_word(node: Node, now: datetime) -> Implication | None:
    """What Slurm itself says against a node at this look; None where it says nothing, or does not know (a
    controller just started)."""
    if node.state is NodeState.UNKNOWN:
        return None
    drained = NodeFlag.DRAIN in node.flags and node.reason.lower().startswith(_SLURMS_OWN_DRAINS)
    if not node.is_lost and not drained:
        return None
    words = "+".join([node.state.value, *(flag.value for flag in node.flags)])
    said = f"Slurm says {words}{f': {node.reason}' if node.reason else ''}"
    return Implication(node=node.name, at=now, source=SignalSource.NODE, said=said[:LONGEST_SAID])


def implications_of(attribution: Attribution, *, at_least: float, job_id: str, user: str, at: datetime) -> tuple[Implication, ...]:
    """What one fault says against nodes: the job's own word, and beside it whatever else its suspects were
    seen by."""
    return tuple(
        Implication(node=suspect.node, at=at, source=source, job_id=job_id, user=user, said="; ".join(suspect.because)[:LONGEST_SAID])
        for suspect in attribution.suspects
        if suspect.node is not None and suspect.confidence >= at_least
        for source in dict.fromkeys((SignalSource.LOG, *suspect.seen_by))
    )


def agree(sources: Iterable[Implication]) -> bool:
    """Whether these are more than one user's word: one of them is beyond any job's reach, or jobs of two
    users say the same. A user that is not known is nobody else."""
    told = tuple(sources)
    return any(one.source in _BEYOND_THE_JOB for one in told) or len({one.user for one in told if one.user}) > 1


def with_implications(state: ClusterState, fresh: Iterable[Implication]) -> ClusterState:
    """The state after sources spoke against nodes. One word a source, user and node is kept, the newest:
    repeating it adds nothing."""
    kept = {_who(one): one for one in state.implications}
    for one in fresh:
        kept.pop(_who(one), None)  # to its end: the oldest leave first
        kept[_who(one)] = one
    implications = tuple(kept.values())[-KEPT:]
    return state if implications == state.implications else state.model_copy(update={"implications": implications})


def corroborated(state: ClusterState, names: Iterable[str], nodes: Sequence[Node], now: datetime) -> tuple[str, ...]:
    """Those of these nodes against which more than one user's word stands."""
    return tuple(name for name in names if agree(_against(name, state, nodes, now)))


def live_implications(state: ClusterState, now: datetime, ttl: timedelta, nodes: Sequence[Node]) -> tuple[Implication, ...]:
    """Those younger than `ttl` and not older than the node's boot: what was mended is judged afresh."""
    booted = {node.name: node.booted_at for node in nodes}
    return tuple(
        one for one in state.implications if one.at > now - ttl and not ((boot := booted.get(one.node)) is not None and boot > one.at)
    )


def reviewed(state: ClusterState, nodes: Sequence[Node], now: datetime) -> ClusterState:
    """The state after a look whether second sources agree by now: entries for one job that are borne out hold
    for every job."""
    raised: dict[str, LedgerEntry] = {}
    for entry in state.entries:
        if entry.scope is not LedgerScope.JOB:
            continue
        sources = _distinct((*entry.sources, *_against(entry.node, state, nodes, now)))
        if agree(sources):
            raised[entry.node] = entry.model_copy(update={"scope": LedgerScope.CLUSTER, "sources": sources})
    if not raised:
        return state
    # What held for every job before goes on to its own end, where that is later.
    kept = tuple(
        entry
        for entry in state.entries
        if entry.node not in raised or (entry.scope is LedgerScope.CLUSTER and _ends_after(entry, raised[entry.node]))
    )
    still = {entry.node for entry in kept}
    return state.model_copy(update={"entries": (*kept, *(entry for name, entry in raised.items() if name not in still))})


def entered(state: ClusterState, request: ActionRequest, until: datetime, now: datetime, nodes: Sequence[Node]) -> ClusterState:
    """The state with the suspects of a granted action on the ledger, each for as many jobs as its sources
    bear out.

    Args:
        request: its suspects enter only where the attempt ran, as far as the asker told where: the last guard against a name that a
            job merely printed.
        until: when the entries end.
        now: the time, UTC.
        nodes: a look at the cluster's nodes; empty where there was none.
    """
    booted = {node.name: node.booted_at for node in nodes}
    names = tuple(name for name in request.suspects if request.ran_on is None or name in request.ran_on)
    said = "; ".join(request.because)[:LONGEST_SAID]
    own = (Implication(node=name, at=now, job_id=request.job_id, user=request.user, said=said) for name in names)
    known = {_who(one) for one in state.implications}
    state = with_implications(state, [one for one in own if _who(one) not in known])
    for name in names:
        sources = _distinct(_against(name, state, nodes, now))
        scope = LedgerScope.CLUSTER if agree(sources) else LedgerScope.JOB
        entry = LedgerEntry(
            node=name,
            implicated_at=now,
            job_id=request.job_id,
            cause=request.cause,
            because=request.because,
            excluded_until=until,
            booted_at=booted.get(name),
            partition=request.partition,
            user=request.user,
            scope=scope,
            sources=sources if scope is LedgerScope.CLUSTER else tuple(one for one in sources if one.user == request.user),
        )
        state = state.model_copy(update={"entries": _bounded((*_others(state, entry), entry))})
    return state


def _others(state: ClusterState, entry: LedgerEntry) -> tuple[LedgerEntry, ...]:
    """What stays beside a new entry: all of other nodes, and where it is for its job alone, other jobs' and
    the cluster's of this node."""
    replaced = [
        old
        for old in state.entries
        if old.node == entry.node and (entry.scope is LedgerScope.CLUSTER or (old.scope is LedgerScope.JOB and old.job_id == entry.job_id))
    ]
    return tuple(old for old in state.entries if old not in replaced)


def _bounded(entries: tuple[LedgerEntry, ...]) -> tuple[LedgerEntry, ...]:
    of_one_job = [entry for entry in entries if entry.scope is LedgerScope.JOB]
    surplus = of_one_job[: max(0, len(of_one_job) - KEPT)]
    return tuple(entry for entry in entries if entry not in surplus) if surplus else entries


def _against(name: str, state: ClusterState, nodes: Sequence[Node], now: datetime) -> tuple[Implication, ...]:
    """All that is said against one node by now."""
    words = (slurms_word(node, now) for node in nodes if node.name == name)
    return (*(one for one in state.implications if one.node == name), *(word for word in words if word is not None))


def _who(one: Implication) -> tuple[str, str, str]:
    return one.node, one.source, one.user or one.job_id


def _distinct(sources: Iterable[Implication]) -> tuple[Implication, ...]:
    return tuple({_who(one): one for one in sources}.values())


def _ends_after(one: LedgerEntry, other: LedgerEntry) -> bool:
    if one.excluded_until is None or other.excluded_until is None:
        return one.excluded_until is None
    return one.excluded_until > other.excluded_until
