"""What only the whole cluster can know: the node ledger, the share of nodes excluded, actions per window, the breaker. Pure.

`workflows/cluster.py` holds a `ClusterState` and asks these functions through the activities of `guarding.py`; `policy_guards.py` asks
for the share. Each takes a state and gives back an answer or the next state, and running one twice changes nothing more.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import floor

from activities.configuration import Limits
from activities.records import (
    ActionRequest,
    ActionTaken,
    Breaker,
    ClusterState,
    Domain,
    LedgerEntry,
    Node,
    Permission,
    RecentIncident,
)

KEPT = 1000
"""Most incidents and most actions a state holds; a Temporal payload stays far under its 2 MB however fast jobs fail."""

_NO_STORM_DOMAINS = frozenset({Domain.APPLICATION, Domain.USER, Domain.NONE})
"""A bad program, however often submitted (a job array!), says nothing of the fabric, the storage or the scheduler."""

_NO_STORM_CAUSES = frozenset({"preempted", "preempted_requeued", "time_limit", "pod_deleted"})
"""Acts of the platform: many at once are its ordinary business."""


def weigh(request: ActionRequest, state: ClusterState, limits: Limits, now: datetime) -> Permission:
    """Whether a job may be acted on now. Asked again for an incident already granted, it grants again (the asker may have died
    between the answer and the act).

    Args:
        request: whose action, and which nodes its next attempt would be kept off.
        state: the cluster's memory. Its ledger should be what `live_exclusions` left.
        limits: the operator's bounds.
        now: the time, UTC.
    """
    if any(action.incident_id == request.incident_id for action in state.actions):
        return Permission(granted=True, why="granted before, for this incident")
    if state.breaker.tripped_at is not None:
        by = f" by {state.breaker.tripped_by}" if state.breaker.tripped_by else ""
        since = f"the breaker is tripped since {_clock(state.breaker.tripped_at)}{by}"
        why = f"{since}: {state.breaker.reason}; a person resets it with `backstay breaker reset`"
        return Permission(granted=False, why=why)
    recent = [action for action in state.actions if action.at > now - limits.window]
    if len(recent) >= limits.actions_per_window:
        free_at = sorted(action.at for action in recent)[-limits.actions_per_window] + limits.window
        why = (
            f"{len(recent)} actions in the last {_span(limits.window)}, policy.limits.actions_per_window allows "
            f"{limits.actions_per_window}; the next may be made at {_clock(free_at)}"
        )
        return Permission(granted=False, why=why)
    excluded = _excluded_in(state, request.partition, now)
    would_be = set(excluded) | set(request.suspects or request.exclude_nodes)
    allowed = most_excluded(limits, request.partition_nodes)
    grows = len(would_be) > len(excluded)
    if grows and len(would_be) > 1 and request.partition_nodes == 0:
        return Permission(granted=False, why="the size of the partition is not known, so its share cannot be counted")
    if grows and len(would_be) > allowed:
        why = (
            f"{len(would_be)} of {request.partition_nodes} nodes of partition {request.partition or '(all)'} would be excluded at once "
            f"({', '.join(sorted(would_be))}), policy.limits.excluded_fraction {limits.excluded_fraction:g} allows {allowed}"
        )
        return Permission(granted=False, why=why)
    return Permission(granted=True, why=f"{len(would_be)} of at most {allowed} nodes excluded, {len(recent)} actions in the window")


def most_excluded(limits: Limits, partition_nodes: int) -> int:
    """How many nodes of a partition may be excluded at once. One always may be, or small clusters could never recover."""
    return max(1, floor(limits.excluded_fraction * partition_nodes + 1e-9))  # 0.29 of 100 is 29, whatever binary fractions say


def with_incident(state: ClusterState, incident: RecentIncident, limits: Limits) -> ClusterState:
    """The state after one more fault became known. Trips the breaker when it completes a storm: at least `breaker_jobs` different jobs,
    failing within `breaker_window` of it for causes that are not their own. Many jobs failing together point at fabric, storage or
    scheduler; excluding their nodes one after the other would be blame by coincidence."""
    if any(_same(incident, known) for known in state.recent_incidents):
        return state
    since = incident.at - limits.breaker_window
    kept = tuple(known for known in state.recent_incidents if known.at > since)
    incidents = (*kept, incident)[-KEPT:]
    breaker = state.breaker
    reset_at = breaker.reset_at
    counted = [known for known in incidents if reset_at is None or known.at > reset_at]  # what a person has seen does not trip it again
    if breaker.tripped_at is None and (jobs := _independent_jobs(counted)) >= limits.breaker_jobs:
        reason = f"{jobs} jobs failed within {_span(limits.breaker_window)} ({_causes(counted)}), which points at what they share"
        breaker = Breaker(tripped_at=incident.at, reason=reason)
    return state.model_copy(update={"recent_incidents": incidents, "breaker": breaker})


def with_action(state: ClusterState, request: ActionRequest, limits: Limits, now: datetime, nodes: Sequence[Node] = ()) -> ClusterState:
    """The state after an action was granted: counted once per incident, its suspects entered in the ledger until `exclusion_ttl` from now.

    `nodes` gives each entry the boot time it was implicated under."""
    if any(action.incident_id == request.incident_id for action in state.actions):
        return state
    booted = {node.name: node.booted_at for node in nodes}
    new = {
        node: LedgerEntry(
            node=node,
            implicated_at=now,
            job_id=request.job_id,
            cause=request.cause,
            because=request.because,
            excluded_until=now + limits.exclusion_ttl,
            booted_at=booted.get(node),
            partition=request.partition,
        )
        for node in request.suspects
    }
    kept = tuple(entry for entry in state.entries if entry.node not in new)
    still_counted = tuple(action for action in state.actions if action.at > now - max(limits.window, timedelta(days=1)))
    actions = (*still_counted, ActionTaken(at=now, job_id=request.job_id, incident_id=request.incident_id))[-KEPT:]
    return state.model_copy(update={"entries": (*kept, *new.values()), "actions": actions})


def live_exclusions(state: ClusterState, now: datetime, nodes: Sequence[Node]) -> tuple[LedgerEntry, ...]:
    """The ledger's entries that still hold: not expired, not rebooted since (that is how hardware is replaced and reset), and still of this
    cluster. With no look at the nodes (`nodes` empty) only time clears."""
    by_name = {node.name: node for node in nodes}

    def holds(entry: LedgerEntry) -> bool:
        if entry.excluded_until is not None and entry.excluded_until <= now:
            return False
        if not by_name:
            return True
        node = by_name.get(entry.node)
        return node is not None and not (node.booted_at is not None and node.booted_at > entry.implicated_at)

    return tuple(entry for entry in state.entries if holds(entry))


def reset_breaker(state: ClusterState, *, by: str, now: datetime) -> ClusterState:
    """The state after a person looked and let actions go on. Faults before this moment no longer count towards a storm."""
    if state.breaker.tripped_at is None:
        return state
    return state.model_copy(update={"breaker": Breaker(reset_at=now, reset_by=by, reason=state.breaker.reason)})


def trip_breaker(state: ClusterState, *, by: str, reason: str, now: datetime) -> ClusterState:
    """The state after a person stopped all actions by hand."""
    if state.breaker.tripped_at is not None:
        return state
    return state.model_copy(update={"breaker": Breaker(tripped_at=now, tripped_by=by, reason=reason)})


def without_node(state: ClusterState, node: str) -> ClusterState:
    """The state after a person took one node off the ledger: mended without a reboot, or blamed wrongly."""
    return state.model_copy(update={"entries": tuple(entry for entry in state.entries if entry.node != node)})


# ------------------------------------------------------------------------------------------------ counting


def _excluded_in(state: ClusterState, partition: str, now: datetime) -> tuple[str, ...]:
    wanted = {name for name in partition.split(",") if name}
    return tuple(
        sorted(
            {
                entry.node
                for entry in state.entries
                if (entry.excluded_until is None or entry.excluded_until > now)
                and (not wanted or not entry.partition or wanted & set(entry.partition.split(",")))
            }
        )
    )


def _same(one: RecentIncident, other: RecentIncident) -> bool:
    return one.job_id == other.job_id and one.at == other.at


def _independent_jobs(incidents: Iterable[RecentIncident]) -> int:
    """Different jobs whose failures need a common explanation. Jobs traced to the same node have one already: together they count once."""
    by_job = {
        incident.job_id: incident
        for incident in incidents
        if incident.domain not in _NO_STORM_DOMAINS and incident.cause not in _NO_STORM_CAUSES
    }
    unexplained = sum(1 for incident in by_job.values() if not incident.suspects)
    return unexplained + len({frozenset(incident.suspects) for incident in by_job.values() if incident.suspects})


def _causes(incidents: Iterable[RecentIncident]) -> str:
    return ", ".join(sorted({incident.cause for incident in incidents if incident.domain not in _NO_STORM_DOMAINS}))


def _clock(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def _span(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"
