"""Asking the Cluster workflow: a workflow cannot send an Update to another, so these activities carry the question.

Called by `workflows/judging.py`; the answers come from `workflows/cluster.py`, named here by its contract only
(imports point from workflows to activities, never back).
"""

import asyncio
from datetime import timedelta

from pydantic import AwareDatetime, Field
from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from activities.beat import beating
from activities.records import ActionRequest, Attribution, ClusterView, Domain, NodeHistory, Permission, Record

AT_ONCE = 1
"""Questions in flight from one worker. Temporal takes ten Updates of one workflow at a time and refuses the eleventh, and the cluster
answers one after the other anyhow (300 tasks of an array that failed together kept each other out for minutes). So in a storm they wait
here: the reset of the breaker finds room, and the cluster's workflow a moment to continue as new."""

HISTORY_PATIENCE = timedelta(seconds=10)
"""How long the memory of nodes may take to answer: a diagnosis without it is better than idle nodes."""


def cluster_workflow_id(cluster: str) -> str:
    """The ID of a cluster's one workflow."""
    return f"cluster/{cluster}"


class IncidentReport(Record):
    """One diagnosed fault, for the ledger and for storm detection. Reported twice, it counts once (by incident)."""

    cluster: str
    job_id: str
    incident_id: str
    cause: str
    domain: Domain
    at: AwareDatetime
    attribution: Attribution = Attribution()
    user: str = Field(default="", description="whose job it is; empty: not known")
    nodes: tuple[str, ...] | None = Field(
        default=None, description="nodes of the attempt that failed; None: reported by a version that did not tell"
    )
    restart_count: int | None = Field(default=None, description="which attempt failed; None: not told")
    seen_on: str | None = Field(default=None, description="node where the fault was seen first, whether or not it is suspected")
    rank: int | None = Field(default=None, description="the rank that failed first")


class HistoryQuestion(Record):
    """Asked of the memory of nodes before a fault is diagnosed."""

    cluster: str
    job_id: str
    user: str = Field(default="", description="whose job it is; empty: not known")
    restart_count: int = 0
    nodes: tuple[str, ...] = Field(default=(), description="nodes of the attempt that failed")
    at: AwareDatetime


class PermissionRequest(Record):
    cluster: str
    action: ActionRequest


class ClusterDesk:
    """Carries questions to the cluster's workflow. Raises `temporalio.service.RPCError` while it cannot be reached; Temporal retries."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(AT_ONCE)

    @activity.defn
    @beating
    async def report_incident(self, report: IncidentReport) -> ClusterView:
        """Tells the cluster of a fault; answers which nodes it holds excluded and whether its breaker has tripped."""
        handle = self._client.get_workflow_handle(cluster_workflow_id(report.cluster))
        async with self._turns:
            view: ClusterView = await handle.execute_update(
                "report_incident", report, result_type=ClusterView, id=f"report-{report.incident_id}"
            )
        return view

    @activity.defn
    @beating
    async def permit_action(self, request: PermissionRequest) -> Permission:
        """Asks the guard rails. Granted once, an incident's action stays granted: asking again changes nothing."""
        handle = self._client.get_workflow_handle(cluster_workflow_id(request.cluster))
        async with self._turns:
            permission: Permission = await handle.execute_update("permit_action", request.action, result_type=Permission)
        return permission

    @activity.defn
    @beating
    async def node_history(self, question: HistoryQuestion) -> NodeHistory:
        """What the cluster remembers of the nodes of an attempt that failed. Silence is an answer, and holds no
        diagnosis up: then `unknown` says why."""
        handle = self._client.get_workflow_handle(cluster_workflow_id(question.cluster))
        try:
            asked = handle.query("node_history", question, result_type=NodeHistory, rpc_timeout=HISTORY_PATIENCE)
            history: NodeHistory = await asked
        except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError) as silence:
            return NodeHistory(nodes=question.nodes, unknown=f"the cluster's workflow does not answer: {silence}"[:300])
        return history
