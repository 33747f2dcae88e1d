"""Bad numbers that detection has told stay told: what the end of a log shows may lag behind, or the loss may have come back since."""

import pytest

from activities.diagnosis.casefile import signals_of
from activities.diagnosis.engine import Engine
from activities.records import Judgement, SymptomKind
from tests.builders import a_symptom

GOOD = [f"iteration {number}: lm loss: {4 - number / 100:.3f}" for number in range(1, 61)]
THREE_NANS = [f"iteration {number}: lm loss: nan" for number in range(61, 64)]
SPIKE = [f"iteration {number}: lm loss: 30.0" for number in range(61, 64)] + [
    f"iteration {number}: lm loss: 3.400" for number in range(64, 90)
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def judged(engine: Engine, lines: list[str], *, told: bool) -> Judgement:
    signals = signals_of({"log": "\n".join(lines) + "\n", "scheduler": {"state": "RUNNING"}})
    symptom = a_symptom(SymptomKind.BAD_NUMBERS, summary="the loss is NaN or infinite since iteration 61") if told else None
    return engine.judge(signals.model_copy(update={"symptom": symptom}))


def test_three_losses_in_a_row_that_detection_told_of_are_judged_as_told(engine: Engine) -> None:
    judgement = judged(engine, GOOD + THREE_NANS, told=True)
    assert (judgement.symptom, judgement.diagnosis.cause) == (SymptomKind.BAD_NUMBERS, "loss_divergence_nan")
    assert judgement.diagnosis.primary is not None
    assert "since iteration 61" in judgement.diagnosis.primary.text


def test_without_detection_a_few_bad_losses_at_the_end_of_a_long_log_are_no_verdict(engine: Engine) -> None:
    assert judged(engine, GOOD + THREE_NANS, told=False).symptom is SymptomKind.NONE


def test_a_spike_that_is_over_by_now_is_no_incident_though_it_was_told(engine: Engine) -> None:
    assert judged(engine, GOOD + SPIKE, told=True).symptom is SymptomKind.NONE
