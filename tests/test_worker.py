"""The worker: what it builds, what it needs of the server, how it hands over, and how it runs under deployment versioning."""

import ast
import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesResponse
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from activities.slurm.commands import CommandScheduler
from activities.slurm.simulated import SimulatedCluster
from workers.client import SearchAttributesMissing
from workers.commands.checks import Status, worker_version
from workers.commands.errors import ExitCode
from workers.commands.explaining import explain
from workers.handover import AT_ONCE, Handover
from workers.reaching import NotReachableFromHere, scheduler_of
from workers.worker import ATTRIBUTE_TYPES, register_search_attributes, run_worker, steps_of

WORKFLOWS = Path(__file__).parents[1] / "workflows"


def a_configuration(tmp_path: Path, **changes: Any) -> Configuration:
    """A cluster of its own for each test."""
    defaults = {"cluster": {"name": f"c{uuid.uuid4().hex[:8]}"}, "evidence": {"directory": tmp_path / "evidence"}}
    return Configuration.model_validate({**defaults, **changes})


# ------------------------------------------------------------------------------------------------ what it builds


def activities_called_by_workflows() -> set[str]:
    """Every `Class.method` that a workflow names, where the class comes from `activities` and the method is an activity."""
    called = set()
    for path in WORKFLOWS.glob("*.py"):
        tree = ast.parse(path.read_text())
        classes = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("activities.")
            for alias in node.names
        }
        called |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in classes and node.attr.islower()
        }
    return called


def name_of(step: Callable[..., Any]) -> str:
    return str(getattr(step, "__temporal_activity_definition").name)


async def test_what_workflows_name_and_what_is_registered_are_the_same_each_once(client: Client, tmp_path: Path) -> None:
    registered = [name_of(step) for step in steps_of(a_configuration(tmp_path), client, SimulatedCluster(4))]
    called = activities_called_by_workflows() - {"model_validate"}
    assert called >= {"watch_attempt", "requeue_job", "verify_checkpoint", "weigh_action", "discover_jobs"}, "the search itself works"
    assert sorted(registered) == sorted(called)


def test_the_scheduler_is_the_one_the_configuration_names(tmp_path: Path) -> None:
    assert isinstance(scheduler_of(a_configuration(tmp_path)), CommandScheduler)
    simulated = a_configuration(tmp_path, cluster={"name": "alpha", "scheduler": {"kind": "simulated"}})
    with pytest.raises(NotReachableFromHere, match="set it to command"):
        scheduler_of(simulated)


# ------------------------------------------------------------------------------------------------ search attributes


class Administration:
    """The part of a client that administers a namespace; refuses as it is told."""

    namespace = "training"

    def __init__(self, known: Mapping[str, int], *, add: RPCStatusCode | None = None, listing: RPCStatusCode | None = None) -> None:
        self.operator_service = self
        self.added: dict[str, int] = {}
        self._known, self._add, self._listing = dict(known), add, listing

    async def list_search_attributes(self, request: Any) -> ListSearchAttributesResponse:
        if self._listing is not None:
            raise RPCError("not here", self._listing, b"")
        return ListSearchAttributesResponse(custom_attributes=cast(Any, self._known))

    async def add_search_attributes(self, request: AddSearchAttributesRequest) -> None:
        if self._add is not None:
            raise RPCError("not you", self._add, b"")
        self.added = dict(request.search_attributes)


async def registered(administration: Administration) -> dict[str, int]:
    await register_search_attributes(cast(Client, administration))
    return administration.added


async def test_only_the_attributes_that_are_missing_are_added() -> None:
    all_but_one = {name: kind for name, kind in ATTRIBUTE_TYPES.items() if name != "BackstayCause"}
    assert await registered(Administration({})) == ATTRIBUTE_TYPES
    assert list(await registered(Administration(all_but_one))) == ["BackstayCause"]
    assert await registered(Administration(ATTRIBUTE_TYPES)) == {}


async def test_where_we_may_not_add_them_the_missing_ones_are_named_with_their_types() -> None:
    known = {name: kind for name, kind in ATTRIBUTE_TYPES.items() if name not in ("BackstayCause", "BackstayNodes")}
    with pytest.raises(SearchAttributesMissing) as missing:
        await registered(Administration(known, add=RPCStatusCode.PERMISSION_DENIED))
    assert "namespace training lacks the search attributes BackstayCause=Keyword, BackstayNodes=KeywordList" in str(missing.value)
    assert explain(missing.value) == (ExitCode.BAD, str(missing.value)), "a person reads a sentence, no traceback"


async def test_where_we_may_not_add_them_but_all_are_there_nothing_is_asked() -> None:
    assert await registered(Administration(ATTRIBUTE_TYPES, add=RPCStatusCode.PERMISSION_DENIED)) == {}


async def test_an_attribute_of_another_type_is_named_before_a_workflow_fails_over_it() -> None:
    with pytest.raises(SearchAttributesMissing, match="by another type; Backstay needs BackstayJob=Keyword"):
        await registered(Administration({**ATTRIBUTE_TYPES, "BackstayJob": IndexedValueType.INDEXED_VALUE_TYPE_INT}))


async def test_two_workers_that_start_together_do_not_trip_over_each_other() -> None:
    already = RPCStatusCode.ALREADY_EXISTS
    assert await registered(Administration({}, add=already, listing=RPCStatusCode.UNIMPLEMENTED)) == {}


async def test_a_real_server_knows_them_afterwards_however_often_it_is_told(client: Client) -> None:
    await register_search_attributes(client)
    await register_search_attributes(client)


# ------------------------------------------------------------------------------------------------ handing over


class EndsWith(ActivityInboundInterceptor):
    """The activity itself: ends by this exception."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        raise self._error


async def handed_over(error: BaseException, *, stopping: bool, requested: bool = False, lost: bool = False) -> BaseException:
    """How an activity that ends by `error` ends under the interceptor."""
    environment = ActivityEnvironment()
    if requested or lost:
        environment._cancellation_details.details = ActivityCancellationDetails(cancel_requested=requested, not_found=lost)
    if stopping:
        environment.worker_shutdown()
    around = Handover().intercept_activity(EndsWith(error))

    async def run() -> None:
        await around.execute_activity(cast(ExecuteActivityInput, None))

    try:
        await environment.run(run)
    except (asyncio.CancelledError, Exception) as ended:  # noqa: BLE001 - what it ended by is the answer
        return ended
    raise AssertionError("it did not end by an exception")


async def test_a_stopping_worker_fails_its_activities_so_that_another_goes_on_at_once() -> None:
    ended = await handed_over(asyncio.CancelledError(), stopping=True)
    assert isinstance(ended, ApplicationError)
    assert (ended.type, ended.non_retryable, ended.next_retry_delay) == ("WorkerStopping", False, AT_ONCE)
    assert ended.category is ApplicationErrorCategory.BENIGN, "a planned stop is no alarm in anybody's metrics"


async def test_a_cancellation_that_was_asked_for_stays_one() -> None:
    assert isinstance(await handed_over(asyncio.CancelledError(), stopping=False, requested=True), asyncio.CancelledError)
    assert isinstance(await handed_over(asyncio.CancelledError(), stopping=True, requested=True), asyncio.CancelledError)


async def test_an_activity_that_another_worker_has_by_now_ends_without_a_traceback_in_the_log() -> None:
    """The server answers a heartbeat that came too late by "not found"; that it ends so is no defect of the activity."""
    ended = await handed_over(asyncio.CancelledError(), stopping=False, lost=True)
    assert isinstance(ended, ApplicationError)
    assert (ended.type, ended.category, ended.non_retryable) == ("ActivityLost", ApplicationErrorCategory.BENIGN, False)
    assert isinstance(await handed_over(asyncio.CancelledError(), stopping=True, requested=True, lost=True), asyncio.CancelledError)


async def test_an_ordinary_failure_is_passed_on_as_it_is() -> None:
    error = OSError("disk")
    assert await handed_over(error, stopping=True) is error


# ------------------------------------------------------------------------------------------------ running


@asynccontextmanager
async def a_running_worker(configuration: Configuration, client: Client) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(configuration, client, stop=stop, scheduler=SimulatedCluster(4)))
    try:
        yield running
    finally:
        stop.set()
        await running


async def until_discovering(client: Client, configuration: Configuration) -> None:
    """Until the cluster's workflow has its discovery running on a worker, with a heartbeat."""
    handle = client.get_workflow_handle(cluster_workflow_id(configuration.cluster.name))
    while True:
        try:
            description = await handle.describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        else:
            if any(pending.HasField("heartbeat_details") for pending in description.raw_description.pending_activities):
                return
        await asyncio.sleep(0.05)


async def test_a_worker_starts_the_clusters_workflow_discovers_and_stops_when_told(client: Client, tmp_path: Path) -> None:
    configuration = a_configuration(tmp_path, worker={"heartbeat_timeout": "2s"}, watch={"poll_interval": "0.1s"})
    async with a_running_worker(configuration, client) as running:
        await until_discovering(client, configuration)
    assert running.exception() is None


async def test_versioning_is_switched_on_by_the_deployments_name(client: Client, tmp_path: Path) -> None:
    name = f"backstay-{uuid.uuid4().hex[:6]}"
    configuration = a_configuration(
        tmp_path,
        worker={"heartbeat_timeout": "2s", "deployment": name, "build_id": "1.2.3"},
        watch={"poll_interval": "0.1s"},
        temporal={"address": client.service_client.config.target_host, "database": tmp_path / "temporal.db"},
    )
    async with a_running_worker(configuration, client):
        before = await worker_version(configuration, name)
        assert before.status is not Status.OK
        assert f"--deployment-name {name} --build-id 1.2.3" in before.mend
        await make_current(client, name, "1.2.3")
        assert (await worker_version(configuration, name)).status is Status.OK
        await until_discovering(client, configuration)
        execution = WorkflowExecution(workflow_id=cluster_workflow_id(configuration.cluster.name))
        described = await client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(namespace=client.namespace, execution=execution)
        )
    version: WorkerDeploymentVersion = described.workflow_execution_info.versioning_info.deployment_version
    assert (version.deployment_name, version.build_id) == (name, "1.2.3")


async def make_current(client: Client, name: str, build_id: str) -> None:
    """`temporal worker deployment set-current-version`, once the server has seen the version poll."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=name, build_id=build_id, version=f"{name}.{build_id}"
    )
    while True:
        try:
            await client.workflow_service.set_worker_deployment_current_version(request, timeout=timedelta(seconds=60))
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION):
                raise
            await asyncio.sleep(0.1)
        else:
            return
