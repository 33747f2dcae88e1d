"""`backstay breaker`: what the command line asks of the cluster, and the guard rails in words."""

from typing import Any

import pytest

from activities.records import (
    Breaker,
    BreakerReset,
    BreakerTrip,
    ClusterState,
    LedgerEntry,
    LedgerScope,
    NodeClearance,
    SignalSource,
    StoppedUser,
)
from tests.builders import NOON, after, an_implication
from workers.commands.breaker import Act, Order, in_words, order_of
from workers.commands.errors import BadUsage

WHO: dict[str, Any] = {"actor": "kim", "reason": "switch maintenance"}


@pytest.mark.parametrize(
    ("act", "node", "order"),
    [
        (Act.SHOW, None, None),
        (Act.TRIP, None, Order("trip_breaker", BreakerTrip(**WHO))),
        (Act.RESET, None, Order("reset_breaker", BreakerReset(**WHO))),
        (Act.CLEAR, "node-002", Order("clear_node", NodeClearance(node="node-002", **WHO))),
    ],
)
def test_each_act_is_one_update_in_the_name_of_who_asks(act: Act, node: str | None, order: Order | None) -> None:
    assert order_of(act, node, **WHO) == order


@pytest.mark.parametrize(
    ("act", "node", "reason", "mend"),
    [
        (Act.TRIP, None, "", "--reason"),
        (Act.CLEAR, None, "", "clear NODE"),
        (Act.RESET, "node-002", "", "breaker clear node-002"),
    ],
    ids=["a trip without a reason", "a clearance without a node", "a reset with a node"],
)
def test_what_cannot_be_meant_is_a_usage_error_with_the_mend(act: Act, node: str | None, reason: str, mend: str) -> None:
    with pytest.raises(BadUsage, match=mend):
        order_of(act, node, actor="kim", reason=reason)


def test_a_breaker_tripped_by_hand_names_the_person_and_a_storm_names_none() -> None:
    by_hand = ClusterState(breaker=Breaker(tripped_at=NOON, tripped_by="kim", reason="switch maintenance"))
    by_storm = ClusterState(breaker=Breaker(tripped_at=NOON, reason="5 jobs failed within 10 min"))
    assert "tripped by kim since" in next(iter(in_words("alpha", by_hand)))
    assert "tripped since" in next(iter(in_words("alpha", by_storm)))


def test_an_excluded_node_stands_with_its_end_and_with_how_it_leaves_sooner() -> None:
    entry = LedgerEntry(node="node-002", implicated_at=NOON, job_id="41", cause="ecc_uncorrectable", excluded_until=after(3600))
    *_, listed, how = in_words("alpha", ClusterState(entries=(entry,)))
    assert "node-002: excluded until" in listed
    assert "breaker clear NODE" in how


def test_each_excluded_node_says_for_whose_jobs_and_by_which_sources() -> None:
    common: dict[str, Any] = {
        "implicated_at": NOON,
        "job_id": "17",
        "user": "alice",
        "cause": "node_failure",
        "excluded_until": after(3600),
    }
    printed = an_implication("node-002", said="the message names node-002\x1b[2J")
    by_slurm = an_implication("node-003", source=SignalSource.NODE, job_id="", user="", said="Slurm says DOWN: Not responding")
    entries = (
        LedgerEntry(node="node-002", scope=LedgerScope.JOB, sources=(printed,), **common),
        LedgerEntry(node="node-003", sources=(an_implication("node-003"), by_slurm), **common),
    )
    told = "\n".join(in_words("alpha", ClusterState(entries=entries)))
    assert "for job 17 only, as no second source implicates it: node_failure in job 17 of alice" in told
    assert "by the output of job 17 of alice: the message names node-002" in told
    assert "for every job: node_failure in job 17 of alice" in told
    assert "by Slurm's own state of the node" in told
    assert "Slurm says DOWN: Not responding" in told
    assert "\x1b" not in told


def test_a_breaker_tripped_for_one_user_says_for_whom_and_why() -> None:
    stop = StoppedUser(user="alice", at=NOON, reason="9 jobs of alice failed within 10 min")
    first, why, *_ = in_words("alpha", ClusterState(breaker=Breaker(users=(stop,))))
    assert "tripped for the jobs of alice only" in first
    assert "9 jobs of alice failed" in why
    assert "breaker reset" in why
