"""Starting watches on a real Temporal server: one workflow a job, whoever asks and however often; and discovery end to end."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from activities.discover import Discover, Newcomer
from activities.optin import read_comment
from activities.records import Job, JobState, Mode
from activities.slurm.clock import ManualClock
from activities.slurm.feed import Feed
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from tests.builders import NOON, a_job, after
from workers.handover import Handover
from workers.starting import first_state, start_cluster, start_watching, terms_of
from workflows.cluster import Cluster
from workflows.state import Terms, TrainingJobState
from workflows.training_job import TrainingJob

TICK = timedelta(milliseconds=10)


def a_configuration(**changes: Any) -> Configuration:
    """A cluster of its own for each test."""
    return Configuration.model_validate({"cluster": {"name": f"c{uuid.uuid4().hex[:8]}"}, **changes})


@pytest.fixture
def configuration() -> Configuration:
    return a_configuration()


def a_newcomer(job_id: str = "17", **changes: Any) -> Newcomer:
    job = a_job(job_id, **changes)
    return Newcomer(job=job, opt_in=read_comment(job.comment))


def workflow_id(configuration: Configuration, job: Job) -> str:
    assert job.submitted_at is not None
    return f"job/{configuration.cluster.name}/{job.job_id}/{int(job.submitted_at.timestamp())}"


async def description_of(client: Client, configuration: Configuration, job: Job) -> WorkflowExecutionDescription | None:
    try:
        return await client.get_workflow_handle(workflow_id(configuration, job)).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def until_watched(client: Client, configuration: Configuration, job: Job) -> WorkflowExecutionDescription:
    while (found := await description_of(client, configuration, job)) is None:  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.02)
    return found


async def until_listed(client: Client, configuration: Configuration, status: str = "Running") -> None:
    """Until the server's list shows it: that lags behind."""
    query = f"BackstayCluster = '{configuration.cluster.name}' AND ExecutionStatus = '{status}'"
    while not [found async for found in client.list_workflows(query)]:  # noqa: ASYNC110 - the server tells nobody when it is listed
        await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------------ one workflow a job


async def test_a_job_is_watched_once_however_often_it_is_asked_for(client: Client, configuration: Configuration) -> None:
    starts = await asyncio.gather(*(start_watching(client, configuration, a_newcomer()) for _ in range(5)))
    assert sorted(starts) == [False, False, False, False, True]


async def test_a_watch_can_be_found_by_job_cluster_state_and_node(client: Client, configuration: Configuration) -> None:
    newcomer = a_newcomer("17_3")
    await start_watching(client, configuration, newcomer)
    found = await until_watched(client, configuration, newcomer.job)
    attributes = {pair.key.name: pair.value for pair in found.typed_search_attributes}
    assert attributes == {
        "BackstayCluster": configuration.cluster.name, "BackstayJob": "17_3", "BackstayState": "watching",
        "BackstayNeedsApproval": False, "BackstayNodes": ["node-001", "node-002"],
    }  # fmt: skip
    assert (await found.memo())["user"] == "alice"
    summary = await found.static_summary()
    assert summary is not None
    assert {"17_3", "train", "(alice)"} == set(summary.split())


async def test_a_job_on_many_nodes_with_long_names_is_watched_all_the_same(client: Client, configuration: Configuration) -> None:
    nodes = tuple(f"ip-10-120-{number:03d}-77.us-west-2.compute.internal" for number in range(200))
    assert await start_watching(client, configuration, a_newcomer(nodes=nodes))


async def test_a_requeue_that_resets_the_submit_time_is_the_same_job(client: Client, configuration: Configuration) -> None:
    await start_watching(client, configuration, a_newcomer())
    await until_listed(client, configuration)
    requeued = a_newcomer(submitted_at=after(600), restart_count=1)
    assert not await start_watching(client, configuration, requeued)
    assert await description_of(client, configuration, requeued.job) is None


async def test_a_reused_job_id_is_a_new_job(client: Client, configuration: Configuration) -> None:
    await start_watching(client, configuration, a_newcomer())
    await until_listed(client, configuration)
    assert await start_watching(client, configuration, a_newcomer(submitted_at=after(86400), restart_count=0))


async def test_a_job_that_is_requeued_after_its_watch_was_over_is_watched_again(client: Client, configuration: Configuration) -> None:
    first = a_newcomer()
    await start_watching(client, configuration, first)
    await client.get_workflow_handle(workflow_id(configuration, first.job)).terminate()
    await until_listed(client, configuration, "Terminated")
    assert await start_watching(client, configuration, a_newcomer(submitted_at=after(600), restart_count=1))


async def test_an_ended_job_that_its_watch_is_done_with_is_not_watched_anew(client: Client, configuration: Configuration) -> None:
    """A worker that starts again finds the job as long as Slurm remembers it; its watch ended after the last requeue."""
    first = a_newcomer()
    await start_watching(client, configuration, first)
    await client.get_workflow_handle(workflow_id(configuration, first.job)).terminate()
    await until_listed(client, configuration, "Terminated")
    ended = a_newcomer(submitted_at=after(600), restart_count=1, state=JobState.CANCELLED, ended_at=after(700))
    assert not await start_watching(client, configuration, ended)


async def test_the_clusters_workflow_is_started_once_and_keeps_its_memory(client: Client, configuration: Configuration) -> None:
    await start_cluster(client, configuration)
    handle = client.get_workflow_handle(cluster_workflow_id(configuration.cluster.name))
    first = (await handle.describe()).run_id
    await start_cluster(client, configuration)
    assert (await handle.describe()).run_id == first


# ------------------------------------------------------------------------------------------------ what it starts with


def test_a_garbled_comment_and_a_wish_beyond_the_bound_stand_in_the_warnings(configuration: Configuration) -> None:
    state = first_state(a_newcomer(comment="backstay:mode=auto,chekpoints=/ckpt"), configuration)
    assert state.mode is Mode.APPROVE
    words = " · ".join(state.warnings)
    assert "chekpoints" in words
    assert "policy.highest_mode allows approve" in words


def test_an_interactive_allocation_is_watched_and_told_that_nothing_will_be_done(configuration: Configuration) -> None:
    state = first_state(a_newcomer(is_batch=False), configuration)
    assert any("Slurm cannot requeue it" in warning for warning in state.warnings)


def test_the_first_attempt_is_the_one_that_runs(configuration: Configuration) -> None:
    state = first_state(a_newcomer(restart_count=2, nodes=("node-003",), submitted_at=after(5)), configuration)
    assert (state.attempt.restart_count, state.attempt.nodes, state.attempt.started_at) == (2, ("node-003",), NOON)
    assert state.key.submitted_at == after(5)


def test_terms_come_from_the_configuration_and_only_configured_services_are_asked() -> None:
    configuration = a_configuration(
        worker={"heartbeat_timeout": "7s"},
        verify={"running_within": "1h", "stepping_within": "2m", "checkpoint_within": "3m"},
        attribution={"operator_service": {"url": "http://127.0.0.1:9", "deadline": "11s"}},
    )
    assert terms_of(configuration) == Terms(
        heartbeat_timeout=timedelta(seconds=7),
        opinions=("ask_operator_service",),
        opinion_deadline=timedelta(seconds=11),
        running_within=timedelta(hours=1),
        stepping_within=timedelta(minutes=2),
        checkpoint_within=timedelta(minutes=3),
    )
    assert terms_of(a_configuration()).opinions == ()


# ------------------------------------------------------------------------------------------------ discovery, end to end


@asynccontextmanager
async def discovering(client: Client, configuration: Configuration, cluster: SimulatedCluster, clock: ManualClock) -> AsyncIterator[None]:
    """A worker that discovers, and serves no job: the watches it starts stand as they were started."""
    feed = Feed(cluster, TICK, clock.now)

    async def start(newcomer: Newcomer) -> bool:
        jobs_stand = configuration.model_copy(update={"temporal": configuration.temporal.model_copy(update={"task_queue": "nobody"})})
        return await start_watching(client, jobs_stand, newcomer)

    discover = Discover(feed, configuration.watch, start)
    async with Worker(
        client,
        task_queue=configuration.task_queue,
        workflows=[Cluster],
        activities=[discover.discover_jobs],
        interceptors=[Handover()],
    ):
        await start_cluster(client, configuration)
        yield
    await feed.close()


async def test_discovery_starts_a_watch_for_each_eligible_job_and_a_second_worker_starts_none_again(client: Client) -> None:
    configuration = a_configuration(watch={"poll_interval": "0.01s"}, worker={"heartbeat_timeout": "2s"})
    clock = ManualClock()
    cluster = SimulatedCluster(12, clock=clock)
    opted = Request(comment="backstay")
    plain = cluster.submit(request=opted)
    array = cluster.submit(request=opted, array=(1, 2))
    het = cluster.submit(request=opted, het=(1, 1))
    terminal = cluster.submit(request=Request(comment="backstay", batch=False))
    garbled = cluster.submit(request=Request(comment="backstay:mode=aprove"))
    silent = cluster.submit(request=Request(comment=""))
    waiting = cluster.submit(request=opted, hold=True)
    crashed = cluster.submit(request=opted)
    cluster.fail_job(crashed)
    wanted = [plain, f"{array}_1", f"{array}_2", het, terminal, garbled, crashed]

    async with discovering(client, configuration, cluster, clock):
        jobs = {job_id: await cluster.job(job_id) for job_id in (*wanted, silent, waiting)}
        started = {job_id: await until_watched(client, configuration, jobs[job_id]) for job_id in wanted}
    last = cluster.submit(request=opted)
    async with discovering(client, configuration, cluster, clock):
        await until_watched(client, configuration, await cluster.job(last))
        for job_id in wanted:
            again = await until_watched(client, configuration, jobs[job_id])
            assert again.run_id == started[job_id].run_id
        for job_id in (silent, waiting):
            assert await description_of(client, configuration, jobs[job_id]) is None
    assert await description_of(client, configuration, jobs[het].model_copy(update={"job_id": f"{het}+1"})) is None
    handle = client.get_workflow_handle(workflow_id(configuration, jobs[garbled]))
    [event, *_] = [event async for event in handle.fetch_history_events()]
    payloads = event.workflow_execution_started_event_attributes.input.payloads
    [state] = await client.data_converter.decode(payloads, [TrainingJobState])
    assert any("aprove" in warning for warning in state.warnings)
    await client.get_workflow_handle(cluster_workflow_id(configuration.cluster.name)).terminate()


def test_the_watch_is_started_by_its_contract_name() -> None:
    assert TrainingJob.__temporal_workflow_definition.name == "TrainingJob"  # type: ignore[attr-defined]
