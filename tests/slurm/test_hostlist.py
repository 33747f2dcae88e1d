"""Node expressions and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.slurm import hostlist


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("node-001", ("node-001",)),
        ("node-[001-003,7]", ("node-001", "node-002", "node-003", "node-7")),
        ("a[1-2]-[01-02],b", ("a1-01", "a1-02", "a2-01", "a2-02", "b")),
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
    ],
)
def test_an_expression_stands_for_names_in_its_order(expression: str, names: tuple[str, ...]) -> None:
    assert hostlist.expand(expression) == names


@pytest.mark.parametrize("expression", ["node-[1-", "node-[1-999999999]", "n[a-b]", "n]1["])
def test_what_is_no_expression_is_said_to_be_none(expression: str) -> None:
    with pytest.raises(hostlist.HostlistInvalid):
        hostlist.expand(expression)


@given(st.sets(st.from_regex(r"(gpu|n-a)[0-9]{1,4}", fullmatch=True), max_size=30))
def test_collecting_and_expanding_lose_nothing(names: set[str]) -> None:
    assert set(hostlist.expand(hostlist.collect(names))) == names


@pytest.mark.parametrize("text", ["-f", "a,b", "n[1-2]", "a b", "", "a;b", "ä1", "n1\n"])
def test_only_one_name_is_a_name(text: str) -> None:
    assert not hostlist.is_node_name(text)
