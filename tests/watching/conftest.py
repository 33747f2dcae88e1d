"""The world of the watch's tests, as a fixture."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.watching.world import World, a_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    shared = tmp_path / "shared"
    shared.mkdir()
    async with a_world(shared) as world:
        yield world
