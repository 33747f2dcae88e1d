"""How far Backstay may go for one job: what the operator says, what the job asks for, and the bound between them."""

import pytest

from activities.configuration import PolicySection, WatchSection
from activities.modes import mode_for, mode_now
from activities.records import Mode
from tests.builders import a_job, an_opt_in

OBSERVE, APPROVE, AUTO = Mode


@pytest.mark.parametrize(
    ("operator", "highest", "wish", "holds"),
    [
        (OBSERVE, APPROVE, None, OBSERVE),
        (OBSERVE, APPROVE, OBSERVE, OBSERVE),
        (OBSERVE, APPROVE, APPROVE, APPROVE),
        (OBSERVE, APPROVE, AUTO, APPROVE),
        (OBSERVE, OBSERVE, AUTO, OBSERVE),
        (OBSERVE, AUTO, AUTO, AUTO),
        (AUTO, APPROVE, None, AUTO),
        (AUTO, APPROVE, AUTO, AUTO),
        (AUTO, APPROVE, OBSERVE, OBSERVE),
        (APPROVE, OBSERVE, AUTO, APPROVE),
    ],
)
def test_a_job_may_ask_for_less_and_for_more_up_to_the_bound(operator: Mode, highest: Mode, wish: Mode | None, holds: Mode) -> None:
    mode, warning = mode_for(an_opt_in(mode=wish), PolicySection(mode=operator, highest_mode=highest))
    assert mode is holds
    assert (warning is not None) == (wish is not None and holds is not wish)


def test_a_wish_that_is_cut_is_told_with_the_key_to_change() -> None:
    _, warning = mode_for(an_opt_in(mode=AUTO), PolicySection())
    assert warning == "the comment asks for mode auto, policy.highest_mode allows approve; that is what holds"


def test_a_new_installation_observes() -> None:
    assert mode_for(an_opt_in(), PolicySection()) == (OBSERVE, None)


@pytest.mark.parametrize(
    ("comment", "mode"),
    [("backstay", APPROVE), ("backstay:mode=observe", OBSERVE), ("backstay:mode=auto", APPROVE), ("mine again", OBSERVE)],
)
def test_the_mode_that_holds_now_is_that_of_the_comment_as_it_reads_now(comment: str, mode: Mode) -> None:
    assert mode_now(a_job(comment=comment), WatchSection(), PolicySection(mode=APPROVE)) is mode
