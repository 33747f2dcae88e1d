"""The site that most tests of mutations start from."""

import pytest

from tests.reschedule.site import Site


@pytest.fixture
def site() -> Site:
    return Site().submit()
