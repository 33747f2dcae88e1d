"""Fixtures every test may use: a Temporal server and the private Slurm. Where Slurm cannot run, its tests are skipped with the
reason and the mend; with BACKSTAY_REQUIRE_SLURM=1 (continuous integration) they fail instead."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.e2e.server import Server
from workers.embedded.private_slurm import PrivateSlurm
from workers.embedded.slurm_programs import why_not

# How long an example takes, or is made, says how busy the machine is: hypothesis fails a test over 0.2 s, and that is no fault of ours.
BUSY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in each run, so that one fails for what was changed. Whoever wants to find more draws others:
# `pytest --hypothesis-profile=search --hypothesis-seed=N`.
settings.register_profile("same-each-time", BUSY_MACHINE, derandomize=True)
settings.register_profile("search", BUSY_MACHINE, max_examples=1000)
settings.load_profile("same-each-time")


HERE = Path(__file__).parent
SLOW_ROOMS = ("bench", "cases", "chaos", "commands", "contract", "demo", "e2e", "slurm_simulated", "workflows")
"""Their tests start programs, judge whole logs, or turn a workflow's clock."""

SLOW_FIXTURES = frozenset({"private_slurm", "idle_slurm", "server", "client", "env"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks `fast` what neither starts a program nor works for long: `./deploy/test -m fast` is for the minute between two edits."""
    for item in items:
        room = item.path.relative_to(HERE).parts[0]
        slow = room in SLOW_ROOMS or SLOW_FIXTURES & set(getattr(item, "fixturenames", ()))
        if not slow and not any(item.get_closest_marker(name) for name in ("slurm", "e2e", "slow")):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(scope="session")
def private_slurm() -> Iterator[PrivateSlurm]:
    """Four idle nodes, shared by the whole test session. Most tests want `idle_slurm`."""
    if reason := why_not():
        if os.environ.get("BACKSTAY_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    slurm = PrivateSlurm()
    _in_a_loop_of_its_own(slurm.start)
    yield slurm
    _in_a_loop_of_its_own(slurm.stop)


@pytest.fixture
async def idle_slurm(private_slurm: PrivateSlurm) -> AsyncIterator[PrivateSlurm]:
    """The private Slurm with a clean table: no job, every node idle, before and after the test."""
    await private_slurm.clear()
    yield private_slurm
    await private_slurm.clear()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Temporal server with a database of its own, for all tests of one file."""
    server = Server(tmp_path_factory.mktemp("temporal") / "temporal.db")
    server.start_now()
    yield server
    server.close()


@pytest.fixture
async def client(server: Server) -> Client:
    return await Client.connect(server.address, data_converter=pydantic_data_converter)


def _in_a_loop_of_its_own(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it in another thread: the session outlives every test's loop, and this thread's loop belongs to the tests."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(function())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
