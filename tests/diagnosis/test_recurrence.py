"""Whether a fault follows a node: by whose word, from how many trials, and what speaks against it."""

from typing import Any

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.recurrence import follows
from activities.diagnosis.signals import LogSource, Signals
from activities.node_history import placement_of
from activities.records import FaultsElsewhere, Judgement, NodeFault, NodeHistory
from tests.builders import NOON, a_job, a_node, after

HERE = ("node-002", "node-003")
SEGFAULT = "srun: error: node-002: task 1: Segmentation fault (core dumped)"
ALONE = "Fatal Python error: Segmentation fault"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def a_fault(*nodes: str, ran_on: tuple[str, ...] = ("node-001", "node-002"), **changes: Any) -> NodeFault:
    """An earlier segfault of another job of alice's; seen on `nodes`, or on none of them that anybody could tell."""
    defaults = {
        "at": NOON, "job_id": "41", "user": "alice", "cause": "segfault_rank", "restart_count": 0, "nodes": nodes or ran_on,
        "was_seen": bool(nodes), "node_count": len(ran_on), "placement": placement_of(ran_on),
    }  # fmt: skip
    return NodeFault(**{**defaults, **changes})


def a_history(*faults: NodeFault, nodes: tuple[str, ...] = HERE, **changes: Any) -> NodeHistory:
    """Of alice's job 50, which failed on `nodes`."""
    defaults = {
        "nodes": nodes, "job_id": "50", "user": "alice", "placement": placement_of(nodes),
        "faults": tuple(fault.model_copy(update={"nodes": tuple(n for n in fault.nodes if n in nodes)}) for fault in faults),
    }  # fmt: skip
    return NodeHistory(**{**defaults, **changes})


def it_follows(*faults: NodeFault, node: str = "node-002", seen: bool = True, rank: int | None = None, **history: Any) -> bool:
    return follows(a_history(*faults, **history), node, "segfault_rank", seen_here=seen, rank=rank)


def test_the_second_fault_seen_on_one_node_by_another_job_follows_it() -> None:
    assert it_follows(a_fault("node-002"))
    assert not it_follows()
    assert not it_follows(a_fault("node-001"))


def test_a_fault_that_nobody_placed_is_placed_by_the_one_node_that_the_attempts_share() -> None:
    assert it_follows(a_fault(), seen=True), "this one was seen there"
    assert it_follows(a_fault("node-002"), seen=False), "that one was"
    others = a_fault(ran_on=("node-002", "node-004"), job_id="42")
    assert it_follows(a_fault(), others, seen=False), "nobody saw any of three, and they share one node"
    assert not it_follows(a_fault(), seen=False), "two share one by chance"
    assert not it_follows(a_fault(ran_on=HERE), others, node="node-003", seen=False)


def test_what_is_met_in_many_places_is_the_programs() -> None:
    elsewhere = FaultsElsewhere(user="alice", cause="segfault_rank", times=1)
    assert not it_follows(a_fault("node-002"), elsewhere=(elsewhere,))
    assert not it_follows(a_fault("node-002"), a_fault("node-003", job_id="42"))
    assert it_follows(*(a_fault("node-002", job_id=str(number)) for number in range(3)), elsewhere=(elsewhere,))
    bobs = elsewhere.model_copy(update={"user": "bob"})
    assert it_follows(a_fault("node-002"), elsewhere=(bobs,)), "another program's places are none of this one's"


def test_the_same_ranks_on_the_same_nodes_prove_nothing() -> None:
    assert not it_follows(a_fault("node-002", job_id="50", ran_on=HERE, restart_count=3)), "its own earlier attempt there"
    assert it_follows(a_fault("node-002", job_id="50", restart_count=3)), "its own earlier attempt among other nodes"
    assert not it_follows(a_fault("node-002", rank=0), rank=0), "rank 0 does what no other does"
    assert it_follows(a_fault("node-002", rank=1), rank=0)
    alone = ("node-002",)
    assert not it_follows(a_fault("node-002", ran_on=alone), nodes=alone), "it had no other node to fail on"
    assert it_follows(a_fault("node-002", ran_on=alone, user="bob"), nodes=alone)


def test_an_earlier_report_of_this_very_attempt_is_no_second_fault() -> None:
    assert not it_follows(a_fault("node-002", job_id="50", restart_count=0))


def test_what_others_printed_places_no_fault_that_this_job_did_not_see_there() -> None:
    bobs = [a_fault("node-002", user="bob", job_id=str(number)) for number in range(5)]
    assert not it_follows(*bobs, seen=False)
    assert it_follows(*bobs, seen=True), "two users' jobs saw it there"


def test_a_user_that_is_not_known_is_nobody_else() -> None:
    nobodys = [a_fault("node-002", user="", job_id=str(number)) for number in range(5)]
    assert not it_follows(*nobodys)
    assert not it_follows(*nobodys, user="")
    assert it_follows(a_fault("node-002", user="", job_id="50", restart_count=3), user=""), "the job itself is"


def test_another_trouble_is_not_this_one_but_its_later_name_is() -> None:
    assert not it_follows(a_fault("node-002", cause="ecc_uncorrectable"))
    assert it_follows(a_fault("node-002", cause="flaky_node_segfault"))


def test_a_node_that_booted_since_is_judged_afresh() -> None:
    history = a_history(a_fault("node-002"))
    assert not follows(history, "node-002", "segfault_rank", seen_here=True, booted={"node-002": after(1)})
    assert follows(history, "node-002", "segfault_rank", seen_here=True, booted={"node-002": NOON, "node-003": after(1)})


# ------------------------------------------------------------------------------------------------ through the engine


def judged(engine: Engine, line: str, history: NodeHistory) -> Judgement:
    signals = Signals(
        logs=(LogSource(data=f"iteration 1\n{line}\n".encode()),),
        job=a_job("50", nodes=HERE, task_count=2, state="FAILED", exit_code=139),
        nodes=tuple(a_node(name) for name in HERE),
        node_history=history,
    )
    return engine.judge(signals)


def test_a_segfault_names_the_node_it_follows_and_no_node_without_history(engine: Engine) -> None:
    first = judged(engine, SEGFAULT, a_history())
    assert (first.diagnosis.cause, first.attribution.nodes) == ("segfault_rank", ())
    second = judged(engine, SEGFAULT, a_history(a_fault("node-002")))
    assert (second.diagnosis.cause, second.attribution.nodes) == ("flaky_node_segfault", ("node-002",))
    assert second.attribution.suspects[0].seen_by == (), "jobs' words only: it keeps this job off, and no other"


def test_a_segfault_that_no_line_places_is_placed_by_this_users_own_history(engine: Engine) -> None:
    judgement = judged(engine, ALONE, a_history(a_fault("node-002")))
    assert judgement.attribution.nodes == ("node-002",)
    bobs = a_history(a_fault("node-002", user="bob"))
    assert judged(engine, ALONE, bobs).attribution.nodes == ()
