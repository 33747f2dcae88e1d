"""What `jobs` tells above its table and `doctor` as checks: no worker runs, the breaker is tripped, nothing can be written."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from activities.records import Breaker, BreakerReset, BreakerTrip
from activities.slurm.simulated import SimulatedCluster
from tests.builders import NOON, after
from tests.test_worker import until_discovering
from workers.commands.checking import Check, Status
from workers.commands.service_checks import service_checks
from workers.commands.service_health import Poller, Pollers, ago, cluster_troubles, no_worker, pollers_of, tripped
from workers.worker import run_worker

BREAKER = Breaker(tripped_at=NOON, reason="5 jobs failed within 10 min")


def a_configuration(client: Client, tmp_path: Path, **worker: Any) -> Configuration:
    return Configuration.model_validate(
        {
            "cluster": {"name": f"c{uuid.uuid4().hex[:8]}"},
            "evidence": {"directory": tmp_path / "evidence"},
            "watch": {"poll_interval": "0.1s"},
            "temporal": {"address": client.service_client.config.target_host, "database": tmp_path / "temporal.db"},
            "worker": {"heartbeat_timeout": "2s", **worker},
        }
    )


@asynccontextmanager
async def a_worker(configuration: Configuration, client: Client) -> AsyncIterator[None]:
    """One that discovers."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(configuration, client, stop=stop, scheduler=SimulatedCluster(4)))
    await until_discovering(client, configuration)
    try:
        yield
    finally:
        stop.set()
        await running


async def checks_of(client: Client, configuration: Configuration) -> dict[str, Check]:
    return {check.name: check for check in await service_checks(client, configuration)}


async def test_a_working_service_is_ok_line_by_line_and_no_trouble_to_jobs(client: Client, tmp_path: Path) -> None:
    configuration = a_configuration(client, tmp_path)
    async with a_worker(configuration, client):
        found = await checks_of(client, configuration)
        assert await cluster_troubles(client, configuration) == ()
        [worker] = (await pollers_of(client, configuration.task_queue)).alive(datetime.now(UTC))
    assert list(found) == ["temporal write", "worker", "cluster workflow", "breaker"]
    assert {check.status for check in found.values()} == {Status.OK}
    assert worker in found["worker"].found
    assert "the last to ask for work did" in found["worker"].found


async def test_a_breaker_tripped_by_hand_is_told_by_both_until_it_is_reset(client: Client, tmp_path: Path) -> None:
    configuration = a_configuration(client, tmp_path)
    handle = client.get_workflow_handle(cluster_workflow_id(configuration.cluster.name))
    async with a_worker(configuration, client):
        await handle.execute_update("trip_breaker", BreakerTrip(actor="kim", reason="switch maintenance"))
        [told] = await cluster_troubles(client, configuration)
        check = (await checks_of(client, configuration))["breaker"]
        await handle.execute_update("reset_breaker", BreakerReset(actor="kim"))
        assert await cluster_troubles(client, configuration) == ()
        assert (await checks_of(client, configuration))["breaker"].status is Status.OK
    assert told.startswith("the breaker has been tripped by kim since ")
    assert "(switch maintenance), so nothing is done to any job" in told
    assert (check.status, "backstay breaker reset --reason WHY" in check.mend) == (Status.WARNING, True)


async def test_where_no_worker_ever_ran_both_say_so(client: Client, tmp_path: Path) -> None:
    configuration = a_configuration(client, tmp_path)
    [told] = await cluster_troubles(client, configuration)
    found = await checks_of(client, configuration)
    assert told == (
        f"no worker runs for task queue {configuration.task_queue}, so no job is watched now; start `backstay up` or `backstay worker`"
    )
    assert (found["worker"].status, found["cluster workflow"].status) == (Status.FAILED, Status.FAILED)
    assert "breaker" not in found, "nobody is there to be asked"
    assert found["temporal write"].status is Status.OK


async def test_doctors_own_workflow_is_ended_at_once(client: Client, tmp_path: Path) -> None:
    configuration = a_configuration(client, tmp_path)
    assert (await checks_of(client, configuration))["temporal write"].status is Status.OK
    assert (await client.count_workflows("WorkflowType = 'BackstayDoctor' AND ExecutionStatus = 'Running'")).count == 0


async def test_a_worker_of_a_version_is_told_with_its_build(client: Client, tmp_path: Path) -> None:
    name = f"backstay-{uuid.uuid4().hex[:6]}"
    configuration = a_configuration(client, tmp_path, deployment=name, build_id="1.2.3")
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(configuration, client, stop=stop, scheduler=SimulatedCluster(4)))
    while True:
        if (await pollers_of(client, configuration.task_queue)).alive(datetime.now(UTC)):
            break
        await asyncio.sleep(0.1)
    check = (await checks_of(client, configuration))["worker"]
    stop.set()
    await running
    assert (check.status, "of build 1.2.3" in check.found) == (Status.OK, True)


# ------------------------------------------------------------------------------------------------ pure


def polled(seconds: int, name: str = "1@head") -> Poller:
    return Poller(name, after(-seconds))


@pytest.mark.parametrize(
    ("pollers", "silent"),
    [
        (Pollers((polled(5),), (polled(60),)), False),
        (Pollers((polled(5),), ()), True),
        (Pollers((), (polled(5),)), True),
        (Pollers((polled(5, "1@head"),), (polled(5, "2@head"),)), True),
        (Pollers((polled(200),), (polled(200),)), True),
        (Pollers(), True),
    ],
    ids=["both queues", "workflows only", "activities only", "one queue each", "long ago", "nobody"],
)
def test_a_worker_is_one_that_polls_both_queues_of_late(pollers: Pollers, silent: bool) -> None:
    assert (no_worker(pollers, "backstay-alpha", NOON) is not None) is silent


def test_a_worker_that_died_is_told_with_when_it_last_asked() -> None:
    said = no_worker(Pollers((polled(240),), (polled(200),)), "backstay-alpha", NOON)
    assert said is not None
    assert "the last one asked for work 3 min ago, so no job is watched now" in said


def test_a_storm_and_a_person_are_told_apart() -> None:
    storm, person = tripped(BREAKER), tripped(BREAKER.model_copy(update={"tripped_by": "kim"}))
    assert storm is not None
    assert person is not None
    assert storm.startswith("the breaker has been tripped since 2026-01-05 12:00:00 UTC (5 jobs failed within 10 min)")
    assert "tripped by kim since" in person
    assert tripped(Breaker()) is None
    assert tripped(None) is None


def test_a_length_of_time_is_told_in_the_unit_people_use() -> None:
    assert [ago(timedelta(seconds=seconds)) for seconds in (-1, 7, 119, 240)] == ["0 s", "7 s", "119 s", "4 min"]
