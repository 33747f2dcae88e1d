"""The time-skipping server, from the packaged wheel: the SDK's own download needs the internet."""

import shutil
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from workers.worker import register_search_attributes


def packaged_test_server() -> str:
    found = shutil.which("temporal-test-server") or Path(sysconfig.get_path("scripts")) / "temporal-test-server"
    return str(found)


@asynccontextmanager
async def an_environment() -> AsyncIterator[WorkflowEnvironment]:
    """A server whose time is skipped, and which knows Backstay's search attributes."""
    async with await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter, test_server_existing_path=packaged_test_server()
    ) as environment:
        await register_search_attributes(environment.client)
        yield environment


@pytest.fixture
async def env() -> AsyncIterator[WorkflowEnvironment]:
    """A server of its own for each test: skipped time is global to it."""
    async with an_environment() as environment:
        yield environment
