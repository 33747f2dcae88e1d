"""When faults of many jobs at once point at what the jobs share: how many make a storm, and whose jobs the
breaker then holds. Pure.

A storm is counted by jobs and by users. One user's failing jobs hold that user's jobs and nobody else's.
`guard_rails.py` asks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

from activities.configuration import Limits
from activities.records import Domain, RecentIncident

_NO_STORM_DOMAINS = frozenset({Domain.APPLICATION, Domain.USER, Domain.NONE})
"""A bad program, however often submitted (a job array!), says nothing of the fabric, the storage or the
scheduler."""

_NO_STORM_CAUSES = frozenset({"preempted", "preempted_requeued", "time_limit", "pod_deleted"})
"""Acts of the platform: many at once are its ordinary business."""


class Storm(NamedTuple):
    """Faults that need a common explanation: how many jobs, and of which user where it is one user's
    alone."""

    jobs: int
    user: str | None


def storms_in(incidents: Iterable[RecentIncident], limits: Limits, running: Mapping[str, int] | None) -> tuple[Storm, ...]:
    """The storms that these faults make: the cluster's, or else each user's own; empty where there is none.

    Args:
        incidents: the faults of one `breaker_window` that no person has seen yet.
        limits: the operator's bounds.
        running: how many watched jobs of each user ran of late; None: not known, and then the floor alone counts (the safe side).
    """
    groups = _independent(incidents)
    enough = _threshold(limits, _evened_out(running))
    of_one = Counter(next(iter(users)) for users in groups if len(users) == 1 and "" not in users)
    of_several = len(groups) - of_one.total()
    # One user counts for at most half of a storm, however many jobs of theirs fail: it takes others' faults to hold others' jobs.
    counted = of_several + sum(min(jobs, ceil(enough / 2)) for jobs in of_one.values())
    if counted >= enough:
        return (Storm(len(groups), None),)
    own = Counter(user for users in groups for user in users if user)
    return tuple(
        Storm(jobs, user) for user, jobs in own.items() if jobs >= _threshold(limits, running.get(user, 0) if running is not None else 0)
    )


def causes_of(incidents: Iterable[RecentIncident], user: str | None) -> str:
    """The causes of a storm in words, of one user's jobs or of all."""
    counted = (incident for incident in incidents if _counts(incident) and user in (None, incident.user))
    return ", ".join(sorted({incident.cause for incident in counted}))


def _counts(incident: RecentIncident) -> bool:
    return incident.domain not in _NO_STORM_DOMAINS and incident.cause not in _NO_STORM_CAUSES


def _independent(incidents: Iterable[RecentIncident]) -> list[frozenset[str]]:
    """Whose jobs they are, one set of users for each fault that needs an explanation of its own. Jobs traced
    to the same node have one already: together they count once. A job that failed twice counts once."""
    by_job = {incident.job_id: incident for incident in incidents if _counts(incident)}
    unexplained = [frozenset({incident.user}) for incident in by_job.values() if not incident.suspects]
    explained: dict[frozenset[str], set[str]] = {}
    for incident in by_job.values():
        if incident.suspects:
            explained.setdefault(frozenset(incident.suspects), set()).add(incident.user)
    return unexplained + [frozenset(users) for users in explained.values()]


def _threshold(limits: Limits, running: int) -> int:
    return max(limits.breaker_jobs, ceil(limits.breaker_fraction * running - 1e-9))  # 0.07 of 100 is 7, whatever binary fractions say


def _evened_out(running: Mapping[str, int] | None) -> int:
    """How many jobs run, where one user counts for at most half: a thousand short jobs of one user must not
    hide a storm over others'."""
    if not running:
        return 0
    largest = max(running.values())
    others = sum(running.values()) - largest
    return others + min(largest, others) if others else largest
