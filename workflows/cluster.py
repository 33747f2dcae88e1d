"""What no single job can know, as durable state: discovery, the node ledger, the guard rails and their breaker.

ID `cluster/<name>`, one per Slurm cluster, started by every worker (only the first start counts). Jobs' workflows ask by
Update through `activities/cluster_desk.py`; a person trips and resets the breaker and clears nodes; the query `state` shows all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.cluster_desk import HistoryQuestion, IncidentReport
    from activities.discover import Discover, DiscoverRequest
    from activities.guarding import ActionQuestion, ClearanceOrder, Guarding, IncidentNote, ResetOrder, TripOrder, Weighed
    from activities.node_history import history_of
    from activities.records import (
        ActionRequest,
        BreakerReset,
        BreakerTrip,
        ClusterState,
        ClusterView,
        LedgerEntry,
        LedgerScope,
        NodeClearance,
        NodeHistory,
        Permission,
        Record,
    )
    from workflows.decision import LONGEST_REASON, unfit
    from workflows.visibility import nodes_in_words, one_line, plain_markdown
    from workflows.watch import AGAIN_AFTER, LONGEST_WATCH, WATCH_RETRIES

RequestT = TypeVar("RequestT")


class ClusterStart(Record):
    """The workflow's whole memory, passed on by continue-as-new."""

    cluster: str
    state: ClusterState = ClusterState()
    heartbeat_timeout: timedelta = timedelta(seconds=30)


@workflow.defn(name="Cluster")
class Cluster:
    @workflow.init
    def __init__(self, start: ClusterStart) -> None:
        self._state = start.state
        self._heartbeat_timeout = start.heartbeat_timeout
        # Updates overlap while their activities run; one after the other, or two jobs could each take the last free share.
        self._lock = asyncio.Lock()
        self._passes_on = False

    @workflow.run
    async def run(self, start: ClusterStart) -> None:
        """Discovers jobs for good; continues as new when its history has grown."""
        discovery = workflow.start_activity_method(
            Discover.discover_jobs,
            DiscoverRequest(cluster=start.cluster),
            start_to_close_timeout=LONGEST_WATCH,
            heartbeat_timeout=start.heartbeat_timeout,
            retry_policy=WATCH_RETRIES,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=one_line(f"look for jobs of cluster {start.cluster} that opted in"),
        )
        self._show()
        await workflow.wait_condition(lambda: workflow.info().is_continue_as_new_suggested() or discovery.done())
        if discovery.done():
            # Failed for good, as far as Temporal is concerned. The ledger and the breaker must outlive that: they are kept, and it is
            # tried again.
            workflow.logger.error("discovery failed and is started again in %s: %s", AGAIN_AFTER, discovery.exception())
            await workflow.sleep(AGAIN_AFTER, summary="discovery failed; it is started again after this")
        # Under a storm from several workers there would always be one more handler, and the history would grow into its limit.
        self._passes_on = True
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(start.model_copy(update={"state": self._state}))

    @workflow.query
    def state(self) -> ClusterState:
        """The ledger, recent faults and actions, and the breaker."""
        return self._state

    @workflow.query
    def node_history(self, question: HistoryQuestion) -> NodeHistory:
        """What is remembered of a failing attempt's nodes. A query: asking changes nothing."""
        return history_of(self._state, question)

    @workflow.update
    async def report_incident(self, report: IncidentReport) -> ClusterView:
        """A job's workflow tells of a fault; it learns what is excluded and whether the breaker has tripped."""
        async with self._lock:
            weighed = await self._weigh(
                Guarding.note_incident,
                IncidentNote(state=self._state, report=report),
                f"note a fault: {report.cause} in job {report.job_id}",
            )
        return weighed.view

    @report_incident.validator
    def _is_one_report(self, report: IncidentReport) -> None:
        """What a handler cannot be called with fails this workflow's every task once it was accepted; a validator that cannot be called
        with it refuses it before."""
        self._refuse_while_passing_on()

    @workflow.update
    async def permit_action(self, request: ActionRequest) -> Permission:
        """Asked before each action. An Update, because the asker must not act before the grant is durable."""
        async with self._lock:
            weighed = await self._weigh(
                Guarding.weigh_action, ActionQuestion(state=self._state, request=request), f"weigh {_wish_in_words(request)}"
            )
        if weighed.permission is None:
            raise ApplicationError("the guard rails gave no answer", type="NoAnswer")
        return weighed.permission

    @permit_action.validator
    def _is_one_request(self, request: ActionRequest) -> None:
        """As `_is_one_report`."""
        self._refuse_while_passing_on()

    @workflow.update
    async def reset_breaker(self, reset: BreakerReset) -> ClusterView:
        """A person looked and lets actions go on."""
        async with self._lock:
            weighed = await self._weigh(
                Guarding.untrip, ResetOrder(state=self._state, reset=reset), f"reset the breaker: {reset.actor}, {reset.reason}"
            )
        return weighed.view

    @reset_breaker.validator
    def _may_reset(self, reset: BreakerReset) -> None:
        if not self._state.breaker.holds_somebody:
            raise ApplicationError("the breaker is not tripped", type="BreakerNotTripped")
        _refuse_unfit(reset.actor, reset.reason)

    @workflow.update
    async def trip_breaker(self, trip: BreakerTrip) -> ClusterView:
        """A person stops all acting on the cluster until a reset. What was permitted before goes on: half a restart helps nobody."""
        async with self._lock:
            weighed = await self._weigh(
                Guarding.trip, TripOrder(state=self._state, trip=trip), f"trip the breaker: {trip.actor}, {trip.reason}"
            )
        return weighed.view

    @trip_breaker.validator
    def _may_trip(self, trip: BreakerTrip) -> None:
        breaker = self._state.breaker
        if breaker.tripped_at is not None:
            raise ApplicationError(f"the breaker is tripped already, since {breaker.tripped_at:%Y-%m-%dT%H:%M:%SZ}", type="BreakerTripped")
        _refuse_unfit(trip.actor, trip.reason)
        if not trip.reason.strip():
            raise ApplicationError("a trip needs a reason, which every job that is held back tells; give --reason", type="UnfitOrder")

    @workflow.update
    async def clear_node(self, clearance: NodeClearance) -> ClusterView:
        """A person takes a mended node off the ledger."""
        async with self._lock:
            weighed = await self._weigh(
                Guarding.clear_node,
                ClearanceOrder(state=self._state, clearance=clearance),
                f"take {clearance.node} off the ledger: {clearance.actor}, {clearance.reason}",
            )
        return weighed.view

    @clear_node.validator
    def _may_clear(self, clearance: NodeClearance) -> None:
        _refuse_unfit(clearance.actor, clearance.reason)
        if clearance.node not in (held := [entry.node for entry in self._state.entries]):
            known = f"it holds {', '.join(held[:20])}" if held else "it holds none"
            raise ApplicationError(f"node {clearance.node[:100]} is not on the ledger; {known}", type="NodeNotHeld")

    def _refuse_while_passing_on(self) -> None:
        if self._passes_on:
            raise ApplicationError("the cluster's workflow continues as new; ask again", type="PassingOn")

    async def _weigh(self, method: Callable[[Any, RequestT], Awaitable[Weighed]], request: RequestT, summary: str) -> Weighed:
        weighed = await workflow.execute_activity_method(
            method,
            request,
            start_to_close_timeout=timedelta(seconds=60),
            heartbeat_timeout=self._heartbeat_timeout,
            retry_policy=WATCH_RETRIES,
            summary=one_line(summary).rstrip(", "),
        )
        self._state = weighed.state
        self._show()
        return weighed

    def _show(self) -> None:
        state = self._state
        by = f" by {plain_markdown(state.breaker.tripped_by)}" if state.breaker.tripped_by else ""
        breaker = f"**breaker tripped**{by}: {plain_markdown(state.breaker.reason)}" if state.breaker.tripped_at else "breaker closed"
        for stop in state.breaker.users:
            breaker += f"; **tripped for the jobs of {plain_markdown(stop.user)}**: {plain_markdown(stop.reason)}"
        excluded = ", ".join(_entry_in_words(entry) for entry in state.entries) or "none"
        workflow.set_current_details(f"{breaker}\n\nexcluded nodes: {excluded}")


def _wish_in_words(request: ActionRequest) -> str:
    """What a job asks to be allowed, as the Temporal UI tells it."""
    return f"a restart of job {request.job_id}" + (f" off {nodes_in_words(request.exclude_nodes)}" if request.exclude_nodes else "")


def _entry_in_words(entry: LedgerEntry) -> str:
    whom = "" if entry.scope is LedgerScope.CLUSTER else f"for job {entry.job_id} only, "
    return f"{entry.node} ({whom}{entry.cause}, until {entry.excluded_until})"


def _refuse_unfit(actor: str, reason: str) -> None:
    """What a person sends stays in the state for good, and is shown to others.

    Raises:
        ApplicationError: it names nobody, or is longer than a state should carry.
    """
    if problem := unfit(actor):
        raise ApplicationError(problem, type="UnfitOrder")
    if len(reason) > LONGEST_REASON:
        raise ApplicationError(f"the reason is {len(reason)} characters long; say it in {LONGEST_REASON}", type="UnfitOrder")
