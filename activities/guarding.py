"""The cluster's judgement as activities, so that the Cluster workflow holds order and state only.

Each takes the cluster's memory and gives back its next state with the answer. The arithmetic is `guard_rails.py`, `ledger.py` and
`storms.py`; here are the looks at Slurm that they need.
"""

from collections import Counter
from collections.abc import Mapping

from pydantic import Field
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.beat import beating
from activities.cluster_desk import IncidentReport
from activities.configuration import Limits, WatchSection
from activities.guard_rails import live_exclusions, reset_breaker, trip_breaker, weigh, with_action, with_incident, without_node
from activities.ledger import corroborated, implications_of, live_implications, reviewed, with_implications
from activities.node_history import with_fault, without_faults_of
from activities.optin import opted_in
from activities.records import (
    ActionRequest,
    BreakerReset,
    BreakerTrip,
    ClusterState,
    ClusterView,
    Job,
    JobState,
    Node,
    NodeClearance,
    Permission,
    RecentIncident,
    Record,
)
from activities.slurm.clock import Clock
from activities.slurm.scheduler import Scheduler, SchedulerError


class IncidentNote(Record):
    state: ClusterState
    report: IncidentReport


class ActionQuestion(Record):
    state: ClusterState
    request: ActionRequest


class ResetOrder(Record):
    state: ClusterState
    reset: BreakerReset


class TripOrder(Record):
    state: ClusterState
    trip: BreakerTrip


class ClearanceOrder(Record):
    state: ClusterState
    clearance: NodeClearance


class Weighed(Record):
    """The next state, and whichever answer was asked for."""

    state: ClusterState
    view: ClusterView = ClusterView()
    permission: Permission | None = Field(default=None, description="the guard rails' answer, where an action was asked for")


class Guarding:
    """One instance a worker."""

    def __init__(
        self, scheduler: Scheduler, limits: Limits, *, clock: Clock, approvers: tuple[str, ...] = (), watch: WatchSection | None = None
    ) -> None:
        """
        Args:
            scheduler: looked at for node states and, in what may be a storm, for how many jobs run.
            limits: the operator's bounds.
            clock: now, in UTC.
            approvers: who may trip and reset the breaker and clear nodes; none named: anyone who can reach Temporal.
            watch: which jobs are watched; they are what a storm is a share of.
        """
        self._scheduler = scheduler
        self._limits = limits
        self._watch = watch or WatchSection()
        self._approvers = approvers
        self._clock = clock

    @activity.defn
    @beating
    async def note_incident(self, note: IncidentNote) -> Weighed:
        """Enters one fault; may trip the breaker. It is traced to the nodes that policy would blame and to no others: a vague suspicion
        explains nothing, and two jobs that share one would pass for one fault. Nor to a node that the attempt never had, whatever its
        log says. What it says against a node bears out what another user's job said before."""
        report = note.report
        attribution = report.attribution.only_on(report.nodes) if report.nodes is not None else report.attribution
        suspects = attribution.nodes_suspected(at_least=self._limits.suspect_confidence)
        incident = RecentIncident(
            at=report.at, job_id=report.job_id, cause=report.cause, domain=report.domain, suspects=suspects, user=report.user
        )
        nodes, now = await self._nodes(), self._clock.now()
        said = implications_of(attribution, at_least=self._limits.suspect_confidence, job_id=report.job_id, user=report.user, at=report.at)
        state = self._cleared(with_implications(with_fault(note.state, report), said), nodes)
        noted = with_incident(state, incident, self._limits)
        if noted.breaker != state.breaker:  # by the fewest jobs that may be a storm; how many run decides whether they are
            noted = with_incident(state, incident, self._limits, running=await self._running(noted))
        view = ClusterView(
            excluded=tuple(entry for entry in noted.entries if entry.keeps_off(report.job_id)),
            breaker=noted.breaker,
            corroborated=corroborated(noted, suspects, nodes, now),
        )
        return Weighed(state=noted, view=view)

    @activity.defn
    @beating
    async def weigh_action(self, question: ActionQuestion) -> Weighed:
        """Whether a job may be acted on now; a grant enters the ledger in the same breath."""
        nodes = await self._nodes()
        state = self._cleared(question.state, nodes)
        now = self._clock.now()
        permission = weigh(question.request, state, self._limits, now, nodes)
        if permission.granted:
            state = with_action(state, question.request, self._limits, now, nodes)
        return Weighed(state=state, permission=permission)

    @activity.defn
    @beating
    async def untrip(self, order: ResetOrder) -> Weighed:
        """Resets the breaker by a person's word."""
        self._refuse_a_stranger(order.reset.actor)
        return _told(reset_breaker(order.state, by=order.reset.actor, now=self._clock.now()))

    @activity.defn
    @beating
    async def trip(self, order: TripOrder) -> Weighed:
        """Trips the breaker by a person's word."""
        self._refuse_a_stranger(order.trip.actor)
        return _told(trip_breaker(order.state, by=order.trip.actor, reason=order.trip.reason, now=self._clock.now()))

    @activity.defn
    @beating
    async def clear_node(self, order: ClearanceOrder) -> Weighed:
        """Takes a node off the ledger by a person's word."""
        self._refuse_a_stranger(order.clearance.actor)
        node = order.clearance.node
        return _told(without_faults_of(without_node(order.state, node), node))

    def _refuse_a_stranger(self, actor: str) -> None:
        """Asked here and not by the workflow's validators: the worker's configuration says who may, and a workflow outlives many.

        Raises:
            ApplicationError: this person may not; the update fails with that sentence, and nothing changes.
        """
        if self._approvers and actor not in self._approvers:
            refusal = f"{actor} is not among policy.approvers"
            # An answer and no failure of the worker's: BENIGN keeps its traceback out of the log.
            raise ApplicationError(refusal, type="NotAnApprover", non_retryable=True, category=ApplicationErrorCategory.BENIGN)

    def _cleared(self, state: ClusterState, nodes: tuple[Node, ...]) -> ClusterState:
        """Whenever the ledger is looked at, expired entries and rebooted nodes leave it, and entries that are borne out by now hold for
        every job."""
        now = self._clock.now()
        live = state.model_copy(
            update={
                "entries": live_exclusions(state, now, nodes),
                "implications": live_implications(state, now, self._limits.exclusion_ttl, nodes),
            }
        )
        return reviewed(live, nodes, now)

    async def _running(self, state: ClusterState) -> Mapping[str, int] | None:
        """How many watched jobs of each user run, or failed within the breaker's window; None where Slurm does not say."""
        try:
            jobs = await self._scheduler.jobs()
        except SchedulerError:
            return None
        running = {job.job_id: job.user for job in jobs if self._is_watched(job)}
        return Counter({**{incident.job_id: incident.user for incident in state.recent_incidents}, **running}.values())

    def _is_watched(self, job: Job) -> bool:
        """As discovery takes them: what nobody watches reports no faults either."""
        in_partition = not self._watch.partitions or not set(job.partition.split(",")).isdisjoint(self._watch.partitions)
        return in_partition and job.state in (JobState.RUNNING, JobState.SUSPENDED) and opted_in(job, self._watch).opted_in

    async def _nodes(self) -> tuple[Node, ...]:
        """Silence of the scheduler clears nobody: with no nodes seen, only time does."""
        try:
            return tuple(await self._scheduler.nodes())
        except SchedulerError:
            return ()


def _told(state: ClusterState) -> Weighed:
    """The state with what is told of it."""
    return Weighed(state=state, view=ClusterView(excluded=state.entries, breaker=state.breaker))
