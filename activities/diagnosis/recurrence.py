"""Whether a fault follows a node rather than the program: this trouble met work there before, and not elsewhere. Pure.

The history is what jobs told of themselves, so it is weighed by user: one whose jobs fail in many places says
nothing of any of them, and what other users' jobs printed places no fault that this job did not see there itself.
`scheduler_facts.py` asks.
"""

from collections.abc import Mapping
from datetime import datetime

from activities.diagnosis.causes import cause_of
from activities.records import NodeFault, NodeHistory

UNPLACED_BEFORE = 2
"""Earlier faults that a node needs where neither they nor this one were seen on a node: two attempts share one node by chance too
easily, three seldom do."""


def follows(
    history: NodeHistory,
    node: str,
    cause: str,
    *,
    seen_here: bool,
    rank: int | None = None,
    booted: Mapping[str, datetime] | None = None,
) -> bool:
    """Whether this trouble follows `node`.

    Args:
        history: of the attempt that failed.
        node: one of its nodes.
        cause: what the fault is called; its near kin in causes.yaml (`same_as`) are the same trouble.
        seen_here: whether this attempt's own evidence places the fault on `node`. Otherwise only this user's own
            earlier jobs count, and `node` must be the only one that all of them had.
        rank: the rank that failed first, where known.
        booted: when nodes booted, where known: what was before that is judged afresh.
    """
    booted_at = (booted or {}).get(node)
    trouble = _trouble(cause)
    same = [
        fault
        for fault in history.faults
        if _trouble(fault.cause) == trouble
        and not _is_this_attempt(fault, history)
        and (fault.user or fault.job_id == history.job_id)  # a user that is not known is nobody else
    ]
    for user in sorted({fault.user for fault in same}):
        if user != history.user and not seen_here:
            continue
        own = [fault for fault in same if fault.user == user]
        here = [
            fault
            for fault in own
            if node in fault.nodes
            and not (booted_at is not None and fault.at < booted_at)
            and (user != history.user or _is_another_trial(fault, history, rank))
        ]
        elsewhere = sum(node not in fault.nodes for fault in own) + sum(
            other.times for other in history.elsewhere if other.user == user and _trouble(other.cause) == trouble
        )
        if here and len(here) > 2 * elsewhere and _is_singled_out(node, here, seen_here=seen_here, history=history):
            return True
    return False


def _is_singled_out(node: str, here: list[NodeFault], *, seen_here: bool, history: NodeHistory) -> bool:
    """Whether these faults and this one leave this node and no other."""
    if seen_here and any(fault.was_seen for fault in here):
        return True
    common = set(history.nodes).intersection(*(fault.nodes for fault in here))
    if common != {node}:
        return False
    return seen_here or any(fault.was_seen for fault in here) or len(here) >= UNPLACED_BEFORE


def _is_this_attempt(fault: NodeFault, history: NodeHistory) -> bool:
    return fault.job_id == history.job_id and fault.restart_count == history.restart_count


def _is_another_trial(fault: NodeFault, history: NodeHistory, rank: int | None) -> bool:
    """Whether an earlier fault of the same user would have come elsewhere, had it been the program's: the same ranks
    of the same job on the same nodes fail alike wherever they are, and rank 0 does what no other rank does."""
    if fault.rank == 0 and rank == 0:
        return False
    same_place = bool(fault.placement) and fault.placement == history.placement
    return not (same_place and (fault.job_id == history.job_id or fault.node_count <= 1))


def _trouble(cause: str) -> str:
    row = cause_of(cause)
    return row.same_as or row.slug if row is not None else cause
