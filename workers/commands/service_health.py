"""How the cluster's service stands: who polls for its work, whether its workflow runs, whether the breaker is tripped.

Asked by `jobs`, which tells what is wrong above its table, and by `doctor`, which tells all of it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from activities.records import Breaker, ClusterState
from workers.commands.lookup import QUERY_PATIENCE, discovery_troubles
from workers.commands.words import clock

POLLS_WITHIN = timedelta(seconds=100)
"""A worker asks for work at least every 70 s (the SDK's long poll); the server lists one for five minutes after its last question."""

ANSWER_WITHIN = timedelta(seconds=10)

_SILENT = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.FAILED_PRECONDITION)
"""How the server says that no worker answered a query (see `lookup.queried`)."""


@dataclass(frozen=True)
class Poller:
    """One worker at the task queue, as the server saw it last."""

    identity: str
    last_poll: datetime
    build_id: str = ""

    def is_alive(self, now: datetime) -> bool:
        return now - self.last_poll <= POLLS_WITHIN


@dataclass(frozen=True)
class Pollers:
    """Who asks for work of the cluster; workflows and activities are two queues of one name, and a worker must poll both."""

    workflows: tuple[Poller, ...] = ()
    activities: tuple[Poller, ...] = ()

    def alive(self, now: datetime) -> tuple[str, ...]:
        """The identities of those that poll both queues."""
        both = {each.identity for each in self.workflows if each.is_alive(now)} & {
            each.identity for each in self.activities if each.is_alive(now)
        }
        return tuple(sorted(both))

    @property
    def last_poll(self) -> datetime | None:
        """The last poll for activities, which is where watching is done; None where the server knows of none."""
        return max((each.last_poll for each in self.activities), default=None)


async def pollers_of(client: Client, task_queue: str) -> Pollers:
    """Who polls the task queue now. Raises `RPCError`."""

    async def of(kind: TaskQueueType.ValueType) -> tuple[Poller, ...]:
        request = DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=task_queue), task_queue_type=kind, report_pollers=True
        )
        return _read((await client.workflow_service.describe_task_queue(request, timeout=ANSWER_WITHIN)).pollers)

    workflows, activities = await asyncio.gather(of(TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW), of(TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY))
    return Pollers(workflows, activities)


def _read(pollers: Iterable[PollerInfo]) -> tuple[Poller, ...]:
    return tuple(Poller(each.identity, each.last_access_time.ToDatetime(tzinfo=UTC), each.deployment_options.build_id) for each in pollers)


async def breaker_of(client: Client, cluster: str) -> Breaker | None:
    """The cluster's breaker by its workflow's own word; None where no worker answers for it, or it has no workflow.

    Raises `RPCError` where the server gives no answer."""
    handle = client.get_workflow_handle(cluster_workflow_id(cluster))
    try:
        state: ClusterState = await handle.query("state", result_type=ClusterState, rpc_timeout=QUERY_PATIENCE)
    except WorkflowQueryFailedError:
        return None
    except RPCError as error:
        if error.status in (*_SILENT, RPCStatusCode.NOT_FOUND, RPCStatusCode.RESOURCE_EXHAUSTED):
            return None
        raise
    return state.breaker


def no_worker(pollers: Pollers, task_queue: str, now: datetime) -> str | None:
    """The sentence where nobody works for the cluster; None where somebody does. Pure."""
    if pollers.alive(now):
        return None
    last = pollers.last_poll
    since = f"; the last one asked for work {ago(now - last)} ago" if last else ""
    return f"no worker runs for task queue {task_queue}{since}, so no job is watched now; start `backstay up` or `backstay worker`"


def tripped(breaker: Breaker | None) -> str | None:
    """The sentence where the breaker is tripped. Pure."""
    if breaker is None or not breaker.holds_somebody:
        return None
    if breaker.tripped_at is None:
        whom = ", ".join(f"{stop.user} ({stop.reason})" for stop in breaker.users)
        return f"nothing is done to the jobs of {whom}; once you know the cause: backstay breaker reset --reason WHY"
    by = f" by {breaker.tripped_by}" if breaker.tripped_by else ""
    return (
        f"the breaker has been tripped{by} since {clock(breaker.tripped_at)} UTC ({breaker.reason}), so nothing is done to any job; once "
        "you know the cause: backstay breaker reset --reason WHY"
    )


async def cluster_troubles(client: Client, configuration: Configuration) -> tuple[str, ...]:
    """Why the list of jobs does not say all: nobody watches, new jobs are not seen, or nothing is done to any of them."""
    cluster, queue = configuration.cluster.name, configuration.task_queue
    pollers, troubles = await asyncio.gather(pollers_of(client, queue), discovery_troubles(client, cluster))
    if nobody := no_worker(pollers, queue, datetime.now(UTC)):
        return (nobody,)
    said = tripped(await breaker_of(client, cluster))
    return (*troubles, *((said,) if said else ()))


def ago(length: timedelta) -> str:
    """`40 s`, `12 min`."""
    seconds = max(0, int(length.total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
