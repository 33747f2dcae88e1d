"""Numbers without end, and values of the wrong kind, in what logs, schedulers and GPUs tell: a verdict or none, never a traceback."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.diagnosis.casefile import read_case, signals_of
from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.diagnosis.signatures import built_in
from activities.records import Action
from tests.builders import a_recommendation
from workers.commands.shapes import judgement_document

CASES = sorted((Path(__file__).parents[1] / "cases" / "dev").glob("*.yaml"))[::40]
NUMBERS = ["9" * 5000, "9" * 25, "0" * 5000 + "1", "\u0663" * 30, "\u00b2", "9" * 4000 + "." + "9" * 400, "-1", "1e999"]
VALUES: list[Any] = [float("nan"), float("inf"), 2**64 - 1, -(2**63), 1e308, True, None, "", [], {}, [[]], {"a": {"b": [1]}}, *NUMBERS]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(())


def judges(engine: Engine, signals: Signals) -> bytes:
    """The judgement as programs read it: orjson writes nothing that JSON's readers could not take."""
    return orjson.dumps(judgement_document(engine.judge(signals), a_recommendation(action=Action.HOLD)))


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_the_lines_of_every_signature_with_another_number_in_each_place(engine: Engine, number: str) -> None:
    lines = [line for row in built_in() for line in (row.positive, row.negative)]
    for part in range(0, len(lines), 40):
        text = "\n".join(re.sub(r"\d+", lambda _: number, line) for line in lines[part : part + 40])
        assert judges(engine, Signals(logs=(LogSource(data=text.encode()),)))


def _changed(value: Any, draw: Any) -> Any:
    """Now and then another value in its place; numbers within texts, too."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(VALUES))
    match value:
        case Mapping():
            return {key: _changed(inner, draw) for key, inner in value.items()}
        case list():
            return [_changed(inner, draw) for inner in value[:20]]
        case str() if draw(st.integers(0, 9)) == 0:
            number = draw(st.sampled_from(NUMBERS))
            return re.sub(r"\d+", lambda _: number, value)
        case _:
            return value


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
@settings(max_examples=10)
@given(data=st.data())
def test_cases_with_values_of_the_wrong_kind(engine: Engine, path: Path, data: st.DataObject) -> None:
    _, document = read_case(path)
    changed = _changed(document["signals"], data.draw)
    if isinstance(changed, Mapping):
        assert judges(engine, signals_of(changed))


def test_keys_that_yaml_makes_numbers_or_nothing_of(engine: Engine) -> None:
    loose: dict[str, Any] = {
        "scheduler": {1: "x", None: "y", "9" * 5000: 1, "state": "FAILED"},
        "gpu": {1.5: {"xid": 79}},
        "ranks": {"\u00b2": "n", 3: "m"},
    }
    assert signals_of(loose).rank_to_node == {3: "m"}
    assert judges(engine, signals_of(loose))
