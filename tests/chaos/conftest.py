"""The sites of the end-to-end tests serve here, too; every test of this directory is marked `e2e` and `slurm`."""

from pathlib import Path

import pytest

from tests.e2e.conftest import make_site, temporal_server

__all__ = ["make_site", "temporal_server"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.slurm)
