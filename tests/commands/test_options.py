"""What the shared options accept: who decides must be somebody."""

import getpass

import pytest

from workers.commands.errors import BadUsage
from workers.commands.options import actor_or_login


def test_without_an_actor_the_login_name_decides() -> None:
    assert actor_or_login(None) == getpass.getuser()


@pytest.mark.parametrize("nobody", ["", "  "])
def test_an_empty_actor_is_refused_and_not_taken_for_the_login_name(nobody: str) -> None:
    with pytest.raises(BadUsage, match="--actor is empty"):
        actor_or_login(nobody)
