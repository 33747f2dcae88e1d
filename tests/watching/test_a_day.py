"""Twenty-four hours over healthy jobs of every odd kind: no symptom, so nothing in mode auto could act on; and a hang is still one."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.records import SymptomKind
from tests.watching.day import Day
from tests.watching.healthy import KINDS, hangs_after_two_hours

UNSEEN = "progress cannot be seen; crashes only"
REPLACED = "was replaced by another file"

SAID = {
    "says_nothing": UNSEEN,
    "prints_a_traceback_it_survives": UNSEEN,
    "logs_to_files_of_its_own": UNSEEN,
    "begins_in_its_log_and_goes_on_in_its_own": UNSEEN,
    "evaluates_in_its_own_words": UNSEEN,
    "waits_at_its_start_for_data": UNSEEN,
    "waits_at_a_barrier_for_data": UNSEEN,
    "log_is_renamed_and_compressed": REPLACED,
    "log_is_replaced": REPLACED,
    "log_is_deleted": "no log at",
}
"""What is said of the kinds whose hang would not be seen, while that is so."""


@pytest.fixture
async def day(tmp_path: Path) -> AsyncIterator[Day]:
    day = Day(tmp_path, (*KINDS.values(), hangs_after_two_hours))
    await day.begin()
    yield day
    day.close()


async def test_a_day_of_healthy_jobs_of_odd_kinds_gives_nothing_to_act_on_and_the_one_that_hangs_is_found(day: Day) -> None:
    await day.pass_time(timedelta(hours=24))
    told = {each.kind: each.result for each in day.jobs if each.result is not None}
    assert {kind: result.summary for kind, result in told.items() if kind != hangs_after_two_hours.__name__} == {}
    hung = told[hangs_after_two_hours.__name__]
    assert hung.symptom is not None
    assert hung.symptom.kind is SymptomKind.HANG
    assert timedelta(hours=2) < hung.at - day.jobs[-1].watch.attempt.started_at < timedelta(hours=2, minutes=12)  # type: ignore[operator]
    for kind, words in SAID.items():
        [each] = [each for each in day.jobs if each.kind == kind]
        assert any(words in said for said in each.said), kind
    assert {job.restart_count for job in await day.cluster.jobs()} == {0}
