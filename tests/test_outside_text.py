"""What others wrote ends in a value or in one sentence with the fix: never in a traceback, and never in a value that breaks further in."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from activities.diagnosis.casefile import CaseUnreadable, parse_case
from activities.diagnosis.flight_recorder import DumpUnreadable
from activities.diagnosis.flight_recorder import parse as parse_dump
from activities.loading import ConfigurationError, load_configuration
from activities.optin import read_comment
from activities.outside_text import LARGEST_INTEGER, TextRefused, json_value, yaml_value
from activities.slurm.parsing import jobs_from, nodes_from
from activities.slurm.scheduler import SchedulerUnreachable, SchedulerUnreadable

DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECTS = '{"a":' * 100_000 + "1" + "}" * 100_000
DIGITS = "9" * 4300

# Values of JSON, as text, that have broken parsers or what comes behind them.
AWKWARD = [
    DEEP, DEEP[:200_000], DEEP_OBJECTS, "[" * 100_000, "[" * 300 + "]" * 300, DIGITS, f"-{DIGITS}", "9" * 20, "1e999", "-1e999", "NaN",
    "Infinity", "-Infinity", '"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\u009b31m"', "\ufeff1", "", " ", "nul", '{"a":1,"a":2}',
    "true", "null", "[]", "{}", '""', "0", "-0.0", "1.5", '"2026-99-99T99:99:99"', '"' + "x" * 100_000 + '"', "\x00", '"\x00"', "'1'",
]  # fmt: skip


def a_tree(leaves: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON text around awkward leaves."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
            | st.lists(st.tuples(st.sampled_from(["jobs", "signals", "log", "mode", "entries", "a"]), inner), max_size=3).map(
                lambda pairs: "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in pairs) + "}"
            )
        ),
        max_leaves=6,
    )


SHORT = [text for text in AWKWARD if len(text) < 10_000] + ["[" * 2000 + "]" * 2000, '{"a":' * 2000 + "1" + "}" * 2000]
TREES = a_tree(st.sampled_from(SHORT) | st.text(max_size=5).map(json.dumps))


def is_writable(value: Any) -> bool:
    """Whether the programs behind us can take it: orjson writes 64 bits and whole characters."""
    return bool(orjson.dumps(value))


@pytest.mark.parametrize("text", AWKWARD, ids=range(len(AWKWARD)))
def test_each_awkward_json_is_a_value_that_can_be_written_or_one_sentence(text: str) -> None:
    _is_a_value_or_a_sentence(text)


@given(TREES)
def test_any_json_around_them_is_too(text: str) -> None:
    _is_a_value_or_a_sentence(text)


def refusal_of(read: Callable[[], object], *kinds: type[Exception]) -> str | None:
    """What is said where one of these errors is raised, and None where none is; any other error fails the test."""
    try:
        read()
    except kinds as refusal:
        return str(refusal)
    return None


def _is_a_value_or_a_sentence(text: str) -> None:
    refused = refusal_of(lambda: is_writable(json_value(text)), TextRefused)
    assert refused is None or (";" in refused and len(refused) < 300), "the fix stands behind a semicolon"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_sentence(data: bytes) -> None:
    assert "\n" not in (refusal_of(lambda: is_writable(json_value(data)), TextRefused) or "")


def test_what_is_in_order_is_read_as_it_is() -> None:
    assert json_value(b'\xef\xbb\xbf{"a": [1, -2.5, "\\u00e9\\ud83d\\ude00", null, true]}') == {"a": [1, -2.5, "é😀", None, True]}
    assert json_value(str(LARGEST_INTEGER)) == LARGEST_INTEGER
    assert math.isnan(json_value("NaN"))
    assert json_value('"\\ud800x"') == "\ufffdx"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (f"a: 1\nb: {DIGITS}", 2, "4300 digits"),
        (f"a: 0x{'f' * 17}", 1, "64 bits at most"),
        ("a: 2001-99-99", 1, "no timestamp"),
        ("a:\n  b: !!float x", 2, "no float"),
        ('a: "\\ud800"', 1, "half of a surrogate pair"),
        ('a: "x\\0"', 1, "NUL"),
        ("&a [*a]", 1, "nests deeper"),
        (DEEP, None, "nests deeper"),
        ("\n".join(["a0: &a0 [1,1]", *(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))]), None, "with its aliases"),
        ("a: [", 1, "not valid YAML"),
        ("a: \x9b", None, "not valid YAML"),
        ("a: !!python/object:os.system {}", 1, "not valid YAML"),
    ],
)
def test_yaml_that_is_not_read_names_the_line_where_it_is_known(text: str, line: int | None, says: str) -> None:
    with pytest.raises(TextRefused, match=says) as refusal:
        yaml_value(text)
    assert line is None or refusal.value.line == line
    assert ";" in str(refusal.value) or ":" in str(refusal.value)


def test_comments_cost_nothing_and_change_nothing() -> None:
    comments = "# what an operator wrote down, line by line\n" * 25_000
    text = f"{comments}a: |\n  # no comment\n  x\n{comments}b: [1, # one\n\n  2]   # two\nc: 'x # y'\n{comments}"
    assert yaml_value(text) == {"a": "# no comment\nx\n", "b": [1, 2], "c": "x # y"}
    assert yaml_value("#" + "x" * 1_000_000) is None


@given(
    st.lists(st.sampled_from(["a: 1", "b:", "  c: 2", "# x", "  # y", "- 3", "  - 4", "", "d: |", "    e # f", "g: 'h", "  # i'", "\t# j"]))
)
def test_comments_are_told_from_text_as_ruamel_tells_them(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        expected = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        with pytest.raises(TextRefused):
            yaml_value(text)
    else:
        assert yaml_value(text) == expected


# ------------------------------------------------------------------------------------------------ who parses by it


@given(TREES)
def test_a_configuration_is_refused_with_its_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "awkward.yaml"
    path.write_text(f"cluster: {{name: a}}\npolicy: {text}\n", encoding="utf-8", errors="surrogatepass")
    refused = refusal_of(lambda: load_configuration(path, {}), ConfigurationError)
    assert refused is None or all(problem.startswith(str(path)) for problem in refused.splitlines())


def test_an_integer_of_4300_digits_in_the_policy_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_text(f"cluster: {{name: a}}\npolicy:\n  limits:\n    restarts: {DIGITS}\n")
    with pytest.raises(ConfigurationError, match=r"backstay.yaml:4: holds an integer of 4300 digits; correct it"):
        load_configuration(path, {})


@given(TREES)
def test_a_jobs_comment_costs_a_warning_at_most(text: str) -> None:
    for comment in (text, f'{{"backstay": {text}}}', f"backstay:log={text},progress={text}", f"{{backstay:{{mode:{text}}}}}"):
        assert read_comment(comment).model_dump_json()


@pytest.mark.parametrize("value", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900])
def test_a_comment_nested_as_deep_as_json_reads_is_no_error(value: str) -> None:
    assert read_comment(f'{{"backstay": {{"mode": {value}}}}}').model_dump_json()


def test_a_comment_of_a_thousand_unknown_keys_brings_a_few_warnings() -> None:
    warnings = read_comment("backstay:" + ",".join(f"k{n}=1" for n in range(2000))).warnings
    assert len(warnings) < 20
    assert "more" in warnings[-1]


@given(TREES)
def test_slurms_answer_is_unreadable_in_one_sentence(text: str) -> None:
    for document in (text, f'{{"jobs": [{text}]}}', f'{{"jobs": [{{"job_id": {text}, "comment": {text}, "start_time": {text}}}]}}'):
        data = document.encode(errors="replace")
        for read, of in ((jobs_from, data), (nodes_from, data.replace(b'"jobs"', b'"nodes"'))):
            refused = refusal_of(lambda: [each.model_dump_json() for each in read(of)], SchedulerUnreadable, SchedulerUnreachable)  # noqa: B023
            assert refused is None or len(refused) < 1000


@given(TREES)
def test_a_case_file_is_one_or_is_refused(text: str) -> None:
    for document in (text, f'{{"signals": {text}}}', f'{{"signals": {{"log": {text}, "rank_to_node": {text}, "scheduler": {text}}}}}'):
        refused = refusal_of(lambda: parse_case(document, "case.yaml"), CaseUnreadable)  # noqa: B023 - called at once
        assert refused is None or refused.startswith("case.yaml")


@given(TREES)
def test_a_flight_recorders_dump_is_one_or_is_refused(text: str) -> None:
    for document in (text, f'{{"entries": [{text}], "pg_config": {text}, "pg_status": {text}}}'):
        data = document.encode(errors="replace")
        refused = refusal_of(lambda: parse_dump(data, rank=0, name="dump_0.json"), DumpUnreadable)  # noqa: B023 - called at once
        assert refused is None or refused.startswith("dump_0.json")
