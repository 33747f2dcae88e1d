"""On a real Temporal server: a watch whose worker stops is gone on with by another worker, where the first left off."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.records import Cursor, WatchEnd, WatchRequest, WatchResult
from activities.slurm.simulated_programs import runs_for
from tests.watching.world import World
from workers.embedded.temporal import EmbeddedTemporal
from workers.handover import Handover

QUEUE = "handover"


@workflow.defn
class OneWatch:
    @workflow.run
    async def run(self, request: WatchRequest) -> WatchResult:
        result: WatchResult = await workflow.execute_activity(
            "watch_attempt",
            request,
            result_type=WatchResult,
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=timedelta(seconds=3),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)),
        )
        return result


def a_worker(client: Client, world: World) -> Worker:
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[OneWatch],
        activities=[world.detect.watch_attempt],
        interceptors=[Handover()],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_heartbeat_throttle_interval=timedelta(milliseconds=100),
        default_heartbeat_throttle_interval=timedelta(milliseconds=100),
    )


async def details_of(handle: WorkflowHandle[OneWatch, WatchResult]) -> Cursor | None:
    """The heartbeat details as the server keeps them, which the Temporal UI shows."""
    description = await handle.describe()
    for pending in description.raw_description.pending_activities:
        if pending.HasField("heartbeat_details"):
            (cursor,) = await pydantic_data_converter.decode(pending.heartbeat_details.payloads, [Cursor])
            return cursor if isinstance(cursor, Cursor) else None
    return None


async def until_kept(handle: WorkflowHandle[OneWatch, WatchResult], condition: Callable[[Cursor], bool]) -> Cursor:
    while True:
        cursor = await details_of(handle)
        if cursor is not None and condition(cursor):
            return cursor
        await asyncio.sleep(0.05)


async def test_another_worker_goes_on_where_the_first_left_off(world: World, tmp_path: Path) -> None:
    await world.submit(runs_for(60))
    world.steps(1, 50)
    async with EmbeddedTemporal(tmp_path / "temporal.db") as server:
        client = await Client.connect(server.address, data_converter=pydantic_data_converter)
        handle = await client.start_workflow(OneWatch.run, await world.request(), id="handover", task_queue=QUEUE)
        async with a_worker(client, world):
            left = await until_kept(handle, lambda cursor: cursor.progress.iteration == 50)
        assert left.files[0].offset_bytes == world.log.stat().st_size
        world.steps(51, 52)
        async with a_worker(client, world):
            kept = await until_kept(handle, lambda cursor: cursor.progress.iteration == 52)
            assert (kept.progress.first_iteration, kept.progress.steps_seen) == (1, 52)  # nothing read twice, nothing missed
            world.pass_time(70)
            result = await handle.result()
        assert result.kind is WatchEnd.ENDED_WELL
        events = [event.event_type async for event in handle.fetch_history_events()]
        assert len(events) < 15  # a healthy job writes nothing to history, whatever its worker does
