"""The memory of faults by node: which jobs failed where, of what, for seven days. Pure.

`guarding.py` enters each reported fault; the query `node_history` of `workflows/cluster.py` answers for a failing
attempt's nodes before the diagnosis. What it means for a node is judged in `diagnosis/recurrence.py`. A fault is remembered as its job told
it: the memory itself keeps no job off any node.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import timedelta

from activities.cluster_desk import HistoryQuestion, IncidentReport
from activities.records import ClusterState, Domain, FaultsElsewhere, NodeFault, NodeHistory

REMEMBERED_FOR = timedelta(days=7)

KEPT = 300
"""Most faults in all. With `MOST_NAMES` the memory stays under 150 kB of the state, which goes through each activity of the
cluster's workflow and must stay far under the 2 MB of a Temporal payload."""

KEPT_A_NODE = 20
"""Most faults seen on one node: one that breaks every job must not push out what is known of the others."""

MOST_NAMES = 4000
"""Most node names in all faults together."""

MOST_CANDIDATES = 512
"""A fault that nobody saw on a node of so many says next to nothing of any one of them, and is not kept."""

_NO_NODES_DOING = (Domain.USER, Domain.SCHEDULER, Domain.NONE)
"""What a person has to change or wished says nothing of a node."""


def with_fault(state: ClusterState, report: IncidentReport) -> ClusterState:
    """The state after one reported fault is remembered, and what is too old or too much is forgotten.

    Args:
        state: the cluster's memory.
        report: counts once, however often it is reported. It says nothing of a node that the attempt did not have.
    """
    recent = tuple(fault for fault in state.node_faults if fault.at > report.at - REMEMBERED_FOR)
    fault = _fault_of(report)
    if fault is not None and not any(known.job_id == fault.job_id and known.at == fault.at for known in recent):
        recent = _bounded((*recent, fault))
    return state if recent == state.node_faults else state.model_copy(update={"node_faults": recent})


def history_of(state: ClusterState, question: HistoryQuestion) -> NodeHistory:
    """What is remembered of these nodes; other jobs' faults elsewhere are counted by user and cause."""
    asked = set(question.nodes)
    recent = [fault for fault in state.node_faults if fault.at > question.at - REMEMBERED_FOR]
    there = [fault for fault in recent if asked.intersection(fault.nodes)]
    elsewhere = Counter((fault.user, fault.cause) for fault in recent if asked.isdisjoint(fault.nodes))
    return NodeHistory(
        nodes=question.nodes,
        job_id=question.job_id,
        user=question.user,
        restart_count=question.restart_count,
        placement=placement_of(question.nodes),
        faults=tuple(_cut_to(asked, fault) for fault in there),
        elsewhere=tuple(FaultsElsewhere(user=whose, cause=of, times=n) for (whose, of), n in sorted(elsewhere.items())),
    )


def _cut_to(asked: set[str], fault: NodeFault) -> NodeFault:
    return fault.model_copy(update={"nodes": tuple(name for name in fault.nodes if name in asked)})


def without_faults_of(state: ClusterState, node: str) -> ClusterState:
    """The state after a person cleared a node: what was said of it before no longer counts. A fault that may have
    come from it or from others is forgotten whole, or it would weigh more on the others than it did."""
    kept = tuple(fault for fault in state.node_faults if node not in fault.nodes)
    return state if kept == state.node_faults else state.model_copy(update={"node_faults": kept})


def placement_of(nodes: Collection[str]) -> str:
    """A short hash of a set of nodes; empty for none."""
    return hashlib.sha256(",".join(sorted(nodes)).encode()).hexdigest()[:12] if nodes else ""


def _fault_of(report: IncidentReport) -> NodeFault | None:
    ran_on = report.nodes or ()
    seen = tuple(name for name in dict.fromkeys((report.seen_on, *report.attribution.nodes)) if name in ran_on)
    if report.cause == "unknown" or report.domain in _NO_NODES_DOING or not ran_on:
        return None
    if not seen and len(ran_on) > MOST_CANDIDATES:
        return None
    return NodeFault(
        at=report.at,
        job_id=report.job_id,
        user=report.user,
        cause=report.cause,
        restart_count=report.restart_count,
        rank=report.rank,
        nodes=seen or ran_on,
        was_seen=bool(seen),
        node_count=len(ran_on),
        placement=placement_of(ran_on),
    )


def _bounded(faults: Iterable[NodeFault]) -> tuple[NodeFault, ...]:
    """The newest within all bounds, oldest first."""
    kept: list[NodeFault] = []
    names = 0
    of_node: Counter[str] = Counter()
    for fault in reversed(tuple(faults)):
        if len(kept) == KEPT or names + len(fault.nodes) > MOST_NAMES:
            break
        if fault.was_seen and all(of_node[name] >= KEPT_A_NODE for name in fault.nodes):
            continue
        kept.append(fault)
        names += len(fault.nodes)
        of_node.update(fault.nodes if fault.was_seen else ())
    return tuple(reversed(kept))
