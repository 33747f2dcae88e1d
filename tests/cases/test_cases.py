"""Every recorded case through the engine and the default policy; the reach of issue 3, asserted on each set."""

from pathlib import Path

import pytest

from tests.cases import score


@pytest.fixture(scope="module", params=[score.directory(), score.HERE / "more", score.HERE / "missed"], ids=["recorded", "more", "missed"])
def place(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture(scope="module")
def scored(place: Path) -> list[score.Scored]:
    cases = score.run_all(place.glob("*.yaml"))
    assert cases, f"no cases in {place}"
    print(score.report(cases))
    return cases


@pytest.mark.parametrize(("what", "reach"), [("symptom", 0.95), ("domain", 0.95), ("cause", 0.90), ("action", 0.97)])
def test_the_share_of_right_answers_reaches_what_was_asked(scored: list[score.Scored], what: str, reach: float) -> None:
    assert score.totals(scored).shares[what] >= reach, score.report(scored)


def test_suspects_are_right_and_found(scored: list[score.Scored]) -> None:
    figures = score.totals(scored)
    assert figures.suspect_precision >= 0.95, score.report(scored)
    assert figures.suspect_recall >= 0.9, score.report(scored)


def test_benign_stays_benign(scored: list[score.Scored]) -> None:
    assert score.totals(scored).false_alarms == []


def test_no_healthy_node_is_recommended_for_exclusion(scored: list[score.Scored]) -> None:
    assert score.totals(scored).healthy_excluded == []


def test_judging_twice_gives_the_same(place: Path, scored: list[score.Scored]) -> None:
    again = score.run_all(place.glob("*.yaml"))
    assert [case.judgement for case in again] == [case.judgement for case in scored]
