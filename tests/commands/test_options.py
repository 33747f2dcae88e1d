"""What the shared options accept: who decides must be somebody, and what is decided on something."""

import getpass

import pytest

from workers.commands.errors import BadUsage
from workers.commands.options import actor_or_login, digest_or_pending


def test_without_an_actor_the_login_name_decides() -> None:
    assert actor_or_login(None) == getpass.getuser()


@pytest.mark.parametrize("nobody", ["", "  "])
def test_an_empty_actor_is_refused_and_not_taken_for_the_login_name(nobody: str) -> None:
    with pytest.raises(BadUsage, match="--actor is empty"):
        actor_or_login(nobody)


def test_an_empty_digest_is_refused_and_not_taken_for_whatever_is_pending() -> None:
    assert (digest_or_pending(None), digest_or_pending("6cb9f965e856")) == ("", "6cb9f965e856")
    with pytest.raises(BadUsage, match="--digest is empty"):
        digest_or_pending("")
