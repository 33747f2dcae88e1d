"""When many faults are a storm: counted by jobs and by users, as a share of what runs, with a floor."""

from typing import Any

import pytest

from activities.configuration import Limits
from activities.records import Domain, RecentIncident
from activities.storms import Storm, storms_in
from tests.builders import after

LIMITS = Limits(breaker_jobs=5, breaker_fraction=0.1)


def faults(*users: str, **changes: Any) -> list[RecentIncident]:
    """One job of each of these users fails; a name may stand there many times."""
    return [
        RecentIncident(
            **{"at": after(number), "job_id": str(number), "cause": "nccl_timeout", "domain": Domain.NETWORK, "user": user, **changes}
        )
        for number, user in enumerate(users)
    ]


def test_one_users_jobs_alone_are_that_users_storm_however_many_they_are() -> None:
    assert storms_in(faults(*["alice"] * 4), LIMITS, None) == ()
    assert storms_in(faults(*["alice"] * 40), LIMITS, None) == (Storm(40, "alice"),)


def test_a_single_failure_of_another_user_beside_them_holds_nobody_else() -> None:
    assert storms_in(faults(*["alice"] * 40, "bob"), LIMITS, None) == (Storm(40, "alice"),)


def test_jobs_of_several_users_failing_together_are_the_clusters() -> None:
    assert storms_in(faults("alice", "alice", "alice", "bob", "carol"), LIMITS, None) == (Storm(5, None),)
    assert storms_in(faults("alice", "alice", "alice", "bob"), LIMITS, None) == ()


def test_two_users_each_with_a_storm_of_their_own_are_a_storm_of_the_cluster() -> None:
    assert storms_in(faults(*["alice"] * 9, *["bob"] * 9), LIMITS, None) == (Storm(18, None),)


def test_faults_of_jobs_whose_user_nobody_told_count_in_full() -> None:
    assert storms_in(faults(*[""] * 5), LIMITS, None) == (Storm(5, None),)


@pytest.mark.parametrize(
    ("running", "failed", "storm"),
    [
        (None, 5, True),
        ({}, 5, True),
        ({f"u{number}": 10 for number in range(20)}, 19, False),
        ({f"u{number}": 10 for number in range(20)}, 20, True),
        ({f"u{number}": 1 for number in range(20)}, 5, True),
        ({**{f"u{number}": 1 for number in range(20)}, "mallory": 10_000}, 5, True),
    ],
    ids=["nobody knows what runs", "nothing runs", "under a tenth of 200", "a tenth of 200", "the floor on 20", "one user's crowd"],
)
def test_a_storm_is_a_share_of_what_runs_and_never_less_than_the_floor(running: dict[str, int] | None, failed: int, storm: bool) -> None:
    """One user's ten thousand short jobs do not raise the bar for the others: they count for at most half."""
    assert bool(storms_in(faults(*(f"u{number}" for number in range(failed))), LIMITS, running)) is storm


def test_a_users_own_storm_is_a_share_of_that_users_jobs() -> None:
    running = {"alice": 100, "bob": 20}
    assert storms_in(faults(*["alice"] * 9), LIMITS, running) == ()
    assert storms_in(faults(*["alice"] * 10), LIMITS, running) == (Storm(10, "alice"),)
    assert storms_in(faults(*["bob"] * 5), LIMITS, running) == (Storm(5, "bob"),)


def test_one_dead_node_under_jobs_of_many_users_is_one_fault() -> None:
    assert storms_in(faults(*(f"u{number}" for number in range(9)), suspects=("node-007",)), LIMITS, None) == ()
