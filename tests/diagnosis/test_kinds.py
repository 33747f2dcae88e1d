"""Each kind of cause is recognised from its usual wording, with the right node or none (kinds.yaml)."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from activities.diagnosis.casefile import signals_of
from activities.diagnosis.causes import causes
from activities.diagnosis.engine import Engine

KINDS: list[dict[str, Any]] = YAML(typ="safe").load((Path(__file__).parent / "kinds.yaml").read_text())


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.mark.parametrize("kind", KINDS, ids=[kind["id"] for kind in KINDS])
def test_a_kind_is_recognised_and_only_its_node_blamed(kind: dict[str, Any], engine: Engine) -> None:
    expect = kind["expect"]
    judgement = engine.judge(signals_of(kind))
    said = f"{judgement.symptom} {judgement.diagnosis.cause} {judgement.diagnosis.confidence}: {judgement.diagnosis.summary}"
    assert judgement.diagnosis.cause in [expect["cause"], *expect.get("also", [])], said
    assert {suspect.node for suspect in judgement.attribution.suspects} == set(expect["nodes"]), said
    if "symptom" in expect:
        assert judgement.symptom == expect["symptom"], said


def test_every_expected_cause_is_in_the_vocabulary() -> None:
    assert {kind["expect"]["cause"] for kind in KINDS} <= set(causes())
