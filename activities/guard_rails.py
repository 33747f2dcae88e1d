"""What only the whole cluster can know: the share of nodes excluded, actions per window, the breaker, and how its memory changes. Pure.

`workflows/cluster.py` holds a `ClusterState` and asks these functions through the activities of `guarding.py`; `policy_guards.py` asks
for the share. Each takes a state and gives back an answer or the next state, and running one twice changes nothing more. Which jobs an
entry of the ledger keeps off a node is `ledger.py`'s, when faults are a storm is `storms.py`'s.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import floor

from activities.configuration import Limits
from activities.ledger import entered
from activities.placement import out_of_service
from activities.records import (
    ActionRequest,
    ActionTaken,
    Breaker,
    ClusterState,
    LedgerEntry,
    Node,
    Permission,
    RecentIncident,
    StoppedUser,
)
from activities.storms import causes_of, storms_in

KEPT = 1000
"""Most incidents and most actions a state holds; a Temporal payload stays far under its 2 MB however fast jobs fail."""


def weigh(request: ActionRequest, state: ClusterState, limits: Limits, now: datetime, nodes: Sequence[Node] = ()) -> Permission:
    """Whether a job may be acted on now. Asked again for an incident already granted, it grants again (the asker may have died
    between the answer and the act).

    Args:
        request: whose action, and which nodes its next attempt would be kept off.
        state: the cluster's memory. Its ledger should be what `live_exclusions` left.
        limits: the operator's bounds.
        now: the time, UTC.
        nodes: a look at the cluster's nodes; those out of service already cost no share. Empty where there was none: all count.
    """
    if any(action.incident_id == request.incident_id for action in state.actions):
        return Permission(granted=True, why="granted before, for this incident")
    if why := _held_by_the_breaker(request.user, state.breaker):
        return Permission(granted=False, why=why)
    recent = [action for action in state.actions if action.at > now - limits.window]
    if why := _window_is_full(request.user, recent, limits):
        return Permission(granted=False, why=why)
    lost = out_of_service(nodes)
    excluded = _excluded_in(state, request, now) - lost
    would_be = excluded | (set(request.suspects or request.exclude_nodes) - set(request.user_excluded) - lost)
    allowed = most_excluded(limits, request.partition_nodes)
    grows = len(would_be) > len(excluded)
    if grows and len(would_be) > 1 and request.partition_nodes == 0:
        return Permission(granted=False, why="the size of the partition is not known, so its share cannot be counted")
    if grows and len(would_be) > allowed:
        why = (
            f"{len(would_be)} of {request.partition_nodes} nodes of partition {request.partition or '(all)'} would be excluded by Backstay "
            f"at once ({', '.join(sorted(would_be))}), policy.limits.excluded_fraction {limits.excluded_fraction:g} allows {allowed}"
        )
        return Permission(granted=False, why=why)
    return Permission(
        granted=True, why=f"{len(would_be)} of at most {allowed} nodes excluded by Backstay, {len(recent)} actions in the window"
    )


def _held_by_the_breaker(user: str, breaker: Breaker) -> str:
    if breaker.tripped_at is not None:
        by = f" by {breaker.tripped_by}" if breaker.tripped_by else ""
        return (
            f"the breaker is tripped since {_clock(breaker.tripped_at)}{by}: {breaker.reason}; "
            "a person resets it with `backstay breaker reset`"
        )
    if (stop := breaker.stopped(user)) is not None:
        return (
            f"the breaker is tripped for the jobs of {user} since {_clock(stop.at)}: {stop.reason}; "
            "a person resets it with `backstay breaker reset`"
        )
    return ""


def _window_is_full(user: str, recent: Sequence[ActionTaken], limits: Limits) -> str:
    """Why no more may be done for this user now; empty where it may. When the window is full, a user who has had less than an equal share
    of it still gets one: the restarts of one user's jobs must not hold another's."""
    if len(recent) < limits.actions_per_window:
        return ""
    by_user = Counter(action.user for action in recent)
    share = limits.actions_per_window // len(by_user.keys() | {user})
    if user and by_user[user] < max(1, share):
        return ""
    free_at = sorted(action.at for action in recent)[-limits.actions_per_window] + limits.window
    own = f", {by_user[user]} of them for {user}" if user else ""
    return (
        f"{len(recent)} actions in the last {_span(limits.window)}{own}, policy.limits.actions_per_window allows "
        f"{limits.actions_per_window}; the next may be made at {_clock(free_at)}"
    )


def most_excluded(limits: Limits, partition_nodes: int) -> int:
    """How many nodes of a partition may be excluded at once. One always may be, or small clusters could never recover."""
    return max(1, floor(limits.excluded_fraction * partition_nodes + 1e-9))  # 0.29 of 100 is 29, whatever binary fractions say


def with_incident(
    state: ClusterState, incident: RecentIncident, limits: Limits, *, running: Mapping[str, int] | None = None
) -> ClusterState:
    """The state after one more fault became known. Trips the breaker when it completes a storm: so many different jobs, of several
    users, failing within `breaker_window` of it for causes that are not their own. Many jobs failing together point at fabric, storage
    or scheduler; excluding their nodes one after the other would be blame by coincidence. A storm of one user's jobs alone trips it for
    that user.

    Args:
        state: the cluster's memory.
        incident: the fault.
        limits: the operator's bounds.
        running: how many watched jobs of each user ran of late; None: not known, and then `breaker_jobs` alone counts.
    """
    if any(_same(incident, known) for known in state.recent_incidents):
        return state
    since = incident.at - limits.breaker_window
    kept = tuple(known for known in state.recent_incidents if known.at > since)
    incidents = (*kept, incident)[-KEPT:]
    breaker = state.breaker
    reset_at = breaker.reset_at
    counted = [known for known in incidents if reset_at is None or known.at > reset_at]  # what a person has seen does not trip it again
    for storm in storms_in(counted, limits, running) if breaker.tripped_at is None else ():
        whose = f"{storm.jobs} jobs" if storm.user is None else f"{storm.jobs} jobs of {storm.user}"
        causes = causes_of(counted, storm.user)
        reason = f"{whose} failed within {_span(limits.breaker_window)} ({causes}), which points at what they share"
        if storm.user is None:
            breaker = Breaker(tripped_at=incident.at, reason=reason, users=breaker.users)
        elif breaker.stopped(storm.user) is None:
            stop = StoppedUser(user=storm.user, at=incident.at, reason=reason)
            breaker = breaker.model_copy(update={"users": (*breaker.users, stop)})
    return state.model_copy(update={"recent_incidents": incidents, "breaker": breaker})


def with_action(state: ClusterState, request: ActionRequest, limits: Limits, now: datetime, nodes: Sequence[Node] = ()) -> ClusterState:
    """The state after an action was granted: counted once per incident, its suspects entered in the ledger until `exclusion_ttl` from now.

    `nodes` gives each entry the boot time it was implicated under, and Slurm's own word on it."""
    if any(action.incident_id == request.incident_id for action in state.actions):
        return state
    state = entered(state, request, now + limits.exclusion_ttl, now, nodes)
    still_counted = tuple(action for action in state.actions if action.at > now - max(limits.window, timedelta(days=1)))
    taken = ActionTaken(at=now, job_id=request.job_id, incident_id=request.incident_id, user=request.user)
    return state.model_copy(update={"actions": (*still_counted, taken)[-KEPT:]})


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
    if not state.breaker.holds_somebody:
        return state
    reason = state.breaker.reason or "; ".join(stop.reason for stop in state.breaker.users)
    return state.model_copy(update={"breaker": Breaker(reset_at=now, reset_by=by, reason=reason)})


def trip_breaker(state: ClusterState, *, by: str, reason: str, now: datetime) -> ClusterState:
    """The state after a person stopped all actions by hand."""
    if state.breaker.tripped_at is not None:
        return state
    return state.model_copy(update={"breaker": Breaker(tripped_at=now, tripped_by=by, reason=reason, users=state.breaker.users)})


def without_node(state: ClusterState, node: str) -> ClusterState:
    """The state after a person took one node off the ledger: mended without a reboot, or blamed wrongly. What was said against it before
    no longer counts."""
    entries = tuple(entry for entry in state.entries if entry.node != node)
    return state.model_copy(update={"entries": entries, "implications": tuple(one for one in state.implications if one.node != node)})


# ------------------------------------------------------------------------------------------------ counting


def _excluded_in(state: ClusterState, request: ActionRequest, now: datetime) -> set[str]:
    """Nodes of the request's partitions that the ledger keeps its job off. Entries for other jobs alone are not counted, or what one
    user's job printed would hold another's."""
    wanted = {name for name in request.partition.split(",") if name}
    return {
        entry.node
        for entry in state.entries
        if (entry.excluded_until is None or entry.excluded_until > now)
        and (not wanted or not entry.partition or wanted & set(entry.partition.split(",")))
        and entry.keeps_off(request.job_id)
    }


def _same(one: RecentIncident, other: RecentIncident) -> bool:
    return one.job_id == other.job_id and one.at == other.at


def _clock(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def _span(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"
