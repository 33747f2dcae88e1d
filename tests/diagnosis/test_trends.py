"""Slower, uneven, wrong numbers: what the job's own figures say, and what they do not."""

import random
from datetime import UTC, datetime, timedelta

from activities.diagnosis.pace import Mark, mark_of
from activities.diagnosis.trends import host_memory_grew, numbers_of, slow_ranks, slowdown_of, step_seconds


def marks(*seconds: float) -> list[Mark]:
    return [
        Mark(position=n, line=n, iteration=n, seconds=value, rate=None, loss=None, gradient=None, at=None)
        for n, value in enumerate(seconds)
    ]


def losses(*values: float) -> list[Mark]:
    return [
        Mark(position=n, line=n, iteration=n, seconds=None, rate=None, loss=value, gradient=None, at=None) for n, value in enumerate(values)
    ]


def around(value: float, count: int, spread: float = 0.002, seed: int = 3) -> list[float]:
    dice = random.Random(seed)
    return [value * (1 + dice.uniform(-spread, spread)) for _ in range(count)]


def test_even_steps_are_no_slowdown() -> None:
    assert slowdown_of(marks(*around(105, 60, spread=0.01))) is None


def test_a_small_step_that_stays_is_seen_where_the_steps_are_very_even() -> None:
    found = slowdown_of(marks(*around(105.1, 30), *around(111, 30)))
    assert found is not None
    assert 1.05 < found.factor < 1.06
    assert 29 <= found.since_line <= 32


def test_one_slow_step_is_no_slowdown() -> None:
    assert slowdown_of(marks(*around(5, 20), 60.0, *around(5, 20))) is None


def test_a_first_step_that_compiles_is_no_slowdown() -> None:
    assert slowdown_of(marks(90.0, *around(5, 30))) is None


def test_a_decline_is_told_as_well_as_a_jump() -> None:
    assert slowdown_of(marks(*[5 + n * 0.2 for n in range(30)])) is not None
    assert slowdown_of(marks(*around(30, 15), *around(105, 15))) is not None


def test_ranks_slower_in_most_lines_are_named_and_one_bad_line_is_noise() -> None:
    def line(**slow: float) -> Mark:
        values = tuple((rank, slow.get(f"r{rank}", 2.6)) for rank in range(8))
        return Mark(0, 0, 1, None, None, None, None, None, by_rank=values)

    assert slow_ranks([line(r0=4.9, r1=4.9), line(r0=5.0, r1=4.8), line(r0=4.9, r1=4.9, r5=9.0)]) == (0, 1)
    assert slow_ranks([line(), line(r3=9.0), line()]) == ()


def test_bouts_that_come_and_go_are_told_even_where_the_log_ends_in_one() -> None:
    bouts = [value for _ in range(5) for value in (*around(5.0, 6), *around(11.0, 3))]
    found = slowdown_of(marks(*bouts))
    assert found is not None
    assert found.comes_and_goes


def test_two_bouts_that_each_lasted_are_told_where_the_log_ends_in_one() -> None:
    found = slowdown_of(marks(*[value for _ in range(2) for value in (*around(5.0, 12), *around(11.0, 8))]))
    assert found is not None
    assert found.comes_and_goes


def test_a_long_warm_up_and_a_pause_at_the_end_are_no_bouts() -> None:
    assert slowdown_of(marks(*around(11.0, 8), *around(5.0, 40), *around(11.0, 2))) is None


def test_megatrons_report_names_the_slow_rank_where_it_is_the_same_each_time() -> None:
    def report(rank: int, low: float) -> Mark | None:
        text = f"| MnRtt/Rank: 9811.12ms/3 | MnEtpt/Rank: {low}TF/{rank} | MxEtpt/Rank: 415.22TF/9"
        return mark_of(text, position=0, line=1, at=None, stream="")

    even = [report(rank, 405.5) for rank in range(10)]
    slow = [report(77, 233.5) for _ in range(10)]
    assert slow_ranks([mark for mark in (*even, *slow) if mark]) == (77,)
    assert slow_ranks([mark for mark in even if mark]) == ()


def test_a_spike_that_recovers_is_told_from_one_that_stays() -> None:
    calm = around(2.2, 40, spread=0.01)
    assert numbers_of(losses(*calm, 3.9, 5.1, 4.0, 2.9, *calm)).spike_recovered
    assert numbers_of(losses(*calm, *around(5.5, 20, spread=0.01))).diverged
    steady = numbers_of(losses(*calm))
    assert not steady.diverged
    assert not steady.spike_recovered


def test_nan_counts_only_where_it_stays() -> None:
    nan = float("nan")
    assert numbers_of(losses(2.0, 2.1, nan, nan, nan)).is_nan
    assert not numbers_of(losses(2.0, nan, 2.1, 2.0, 2.0, 2.0)).is_nan
    assert numbers_of(losses(nan, nan, nan)).from_the_start


def test_memory_that_only_grows_is_a_leak_and_memory_that_breathes_is_not() -> None:
    def used(*values: float) -> list[Mark]:
        return [Mark(n, n, n, None, None, None, None, None, host_memory=value) for n, value in enumerate(values)]

    assert host_memory_grew(used(61, 63, 66, 70, 75, 82, 90))
    assert not host_memory_grew(used(61, 70, 62, 71, 61, 72, 63))


def test_a_bare_time_tells_of_steps_unless_it_only_ever_grows() -> None:
    def bare(*values: float) -> list[Mark]:
        return [Mark(n, n, n, None, None, 2.0, None, None, bare_time=value) for n, value in enumerate(values)]

    assert slowdown_of(bare(*around(3.2, 20), *around(6.4, 20))) is not None
    since_the_start = [n * 3.2 for n in range(1, 41)]
    assert step_seconds(bare(*since_the_start)) == []
    assert slowdown_of(bare(*since_the_start)) is None


def test_steps_that_do_more_are_not_slower() -> None:
    def both(seconds: list[float], rates: list[float]) -> list[Mark]:
        return [Mark(n, n, n, s, r, 2.0, None, None) for n, (s, r) in enumerate(zip(seconds, rates, strict=True))]

    longer = [30 + n * 0.5 for n in range(60)]
    assert slowdown_of(both(longer, around(2000, 60, 0.02))) is None
    assert slowdown_of(both(longer, [60_000 / s for s in longer])) is not None
    averaged = [100.0] * 30 + [100 * 30 / (30 + 1.5 * n) * (30 + n) / 30 for n in range(30)]
    assert slowdown_of(both([1.0] * 30 + [1.5] * 30, averaged)) is not None, "a rate over the whole run falls late"


def test_seconds_come_from_times_where_no_line_tells_them() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    timed = [Mark(n, n, n * 10, None, None, 2.0, None, start + timedelta(seconds=50 * n)) for n in range(5)]
    assert [seconds for _, seconds in step_seconds(timed)] == [5.0] * 4
