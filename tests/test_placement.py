"""Where a job could still run: the arithmetic before any exclusion is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.placement import candidates_after_excluding, nodes_of_partition, usable_nodes
from activities.records import NodeFlag, NodeState
from tests.builders import a_job, a_node, node_names

FOUR = tuple(a_node(name, state=NodeState.IDLE) for name in node_names(4))


def test_what_is_left_is_told_in_numbers() -> None:
    left = candidates_after_excluding(a_job(), FOUR, excluding=["node-001"])
    assert left.enough
    assert left.in_words == "3 of 4 usable nodes in partition train would remain, the job needs 2"


def test_one_too_few_is_not_enough_and_just_enough_is() -> None:
    assert not candidates_after_excluding(a_job(node_count=3), FOUR, excluding=["node-001", "node-002"]).enough
    assert candidates_after_excluding(a_job(node_count=3), FOUR, excluding=["node-001"]).enough


def test_spare_nodes_are_needed_as_well() -> None:
    left = candidates_after_excluding(a_job(), FOUR, excluding=["node-001"], spare_nodes=2)
    assert not left.enough
    assert "and policy keeps 2 spare" in left.in_words


def test_a_node_count_that_slurm_did_not_tell_is_not_guessed() -> None:
    left = candidates_after_excluding(a_job(node_count=None), FOUR, excluding=[])
    assert not left.enough
    assert "did not say" in left.in_words


def test_a_node_the_job_asks_for_by_name_cannot_be_excluded() -> None:
    left = candidates_after_excluding(a_job(required_nodes=("node-001",)), FOUR, excluding=["node-001"])
    assert not left.enough
    assert "--nodelist" in left.in_words


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        (a_node(state=NodeState.ALLOCATED), True),
        (a_node(state=NodeState.MIXED), True),
        (a_node(state=NodeState.DOWN), False),
        (a_node(state=NodeState.UNKNOWN), False),
        (a_node(flags=(NodeFlag.DRAIN,)), False),
        (a_node(flags=(NodeFlag.NOT_RESPONDING,)), False),
        (a_node(flags=(NodeFlag.MAINTENANCE,)), False),
        (a_node(flags=(NodeFlag.COMPLETING,)), True),
        (a_node(partitions=("debug",)), False),
        (a_node(partitions=("debug", "train")), True),
    ],
    ids=["busy", "shared", "down", "unknown", "drained", "not responding", "in maintenance", "cleaning up", "elsewhere", "in both"],
)
def test_only_nodes_that_may_take_the_job_now_or_later_count(node: object, counts: bool) -> None:
    assert bool(usable_nodes(a_job(), [node])) is counts  # type: ignore[list-item]


def test_a_job_of_two_partitions_may_run_in_either() -> None:
    nodes = [a_node("node-001", partitions=("debug",)), a_node("node-002"), a_node("node-003", partitions=("other",))]
    assert usable_nodes(a_job(partition="debug,train"), nodes) == ("node-001", "node-002")


@pytest.mark.parametrize(
    ("features", "usable"),
    [("", 2), ("h100", 1), ("h100&ib", 1), ("h100&nvl", 0), ("h100|a100", 2), ("[h100*2]", 2), ("h100,ib", 1)],
    ids=["none", "one", "both", "one that is missing", "either: not judged", "counted: not judged", "old comma"],
)
def test_simple_feature_lists_are_judged_and_richer_ones_count_every_node(features: str, usable: int) -> None:
    nodes = [a_node("node-001", features=("h100", "ib")), a_node("node-002", features=("a100", "ib"))]
    assert len(usable_nodes(a_job(features=features), nodes)) == usable


def test_a_partition_is_all_its_nodes_usable_or_not() -> None:
    nodes = [a_node("node-001", state=NodeState.DOWN), a_node("node-002", partitions=("debug",)), a_node("node-003")]
    assert nodes_of_partition(a_job(), nodes) == ("node-001", "node-003")


@given(excluding=st.sets(st.sampled_from([*node_names(6), "no-such-node"])), needed=st.integers(1, 6), spare=st.integers(0, 2))
def test_enough_means_that_so_many_nodes_really_remain(excluding: set[str], needed: int, spare: int) -> None:
    left = candidates_after_excluding(a_job(node_count=needed), FOUR, excluding=excluding, spare_nodes=spare)
    remaining = {node.name for node in FOUR} - excluding
    assert left.enough == (len(remaining) >= needed + spare)
