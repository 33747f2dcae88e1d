"""The multi-pattern scanner: lines, bounds, long lines, dense hits, threads, refusals."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.scanning import scan
from activities.scanning.scan import LineHits, MultiPattern, PatternRefused


def lines(patterns: MultiPattern, data: bytes) -> list[tuple[bytes, tuple[str, ...]]]:
    return [(data[hit.start : hit.end], hit.ids) for hit in patterns.scan(data)]


def test_a_line_is_reported_once_with_all_its_ids() -> None:
    patterns = MultiPattern({"a": "foo", "b": r"(?i)bar\d+", "c": "never"})
    data = b"nothing\nfoo BAR123 foo\n\nbar9\nlast foo"
    assert lines(patterns, data) == [(b"foo BAR123 foo", ("a", "b")), (b"bar9", ("b",)), (b"last foo", ("a",))]


def test_progress_bars_are_lines_too() -> None:
    patterns = MultiPattern({"p": r"\d+%"})
    assert lines(patterns, b"\r10%|#\r20%|##\r\nend\n") == [(b"10%|#", ("p",)), (b"20%|##", ("p",))]


def test_anchors_mean_lines() -> None:
    patterns = MultiPattern({"start": "^x", "end": "y$"})
    assert lines(patterns, b"ax\nxb\nby\nyb\n") == [(b"xb", ("start",)), (b"by", ("end",))]


def test_a_dot_stays_inside_its_line() -> None:
    assert lines(MultiPattern({"p": "a.*b"}), b"a\nb\n") == []


def test_a_match_across_blocks_of_one_endless_line_is_found_once() -> None:
    data = b"x" * (scan.BLOCK_BYTES - 3) + b"needle" + b"y" * scan.BLOCK_BYTES
    hits = list(MultiPattern({"p": "needle"}).scan(data))
    assert len(hits) == 1
    assert b"needle" in data[hits[0].start : hits[0].end]
    assert hits[0].end - hits[0].start <= 2 * scan.LINE_WINDOW_BYTES


def test_a_log_made_of_hits_is_thinned_but_no_pattern_is_lost() -> None:
    data = b"hit\n" * 1000 + b"rare\n" + b"hit\n" * 1000
    hits = list(MultiPattern({"often": "hit", "rare": "rare"}, dense_hits=10).scan(data))
    assert 1 <= len(hits) < 20
    assert {i for hit in hits for i in hit.ids} == {"often", "rare"}


def test_a_block_that_only_begins_with_many_hits_is_reported_whole() -> None:
    data = b"hit\n" * 200 + b"nothing to see\n" * 2000 + b"hit\n"
    assert len(list(MultiPattern({"often": "hit"}, dense_hits=400).scan(data))) == 201
    assert len(list(MultiPattern({"often": "hit"}, dense_hits=200).scan(data))) < 10


@pytest.mark.parametrize("line", [b"", b"x" * 10, b"x" * 300, b"x" * 20_000])
@pytest.mark.parametrize("bounds", [(0, 60_000), (17, 59_001), (100, 3000), (500, 500)])
def test_line_breaks_are_counted_alike_however_long_the_lines_are(line: bytes, bounds: tuple[int, int]) -> None:
    data = (line + b"\n") * 30_000 if len(line) < 20 else (line + b"\n") * 300
    assert scan.line_breaks(data, *bounds) == data[bounds[0] : bounds[1]].count(b"\n")


def test_no_patterns_and_no_data_are_no_hits() -> None:
    assert list(MultiPattern({}).scan(b"x")) == []
    assert list(MultiPattern({"p": "x"}).scan(b"")) == []


@pytest.mark.parametrize("bad", ["(", "(?<=a)b", "a*", r"(a)\1"])
def test_a_bad_pattern_is_refused_by_name(bad: str) -> None:
    with pytest.raises(PatternRefused) as refusal:
        MultiPattern({"good": "a", "wrong": bad})
    assert refusal.value.pattern_id == "wrong"


def test_threads_share_one_set_of_patterns() -> None:
    patterns = MultiPattern({"p": "needle"})
    data = (b"hay" * 50 + b"\n") * 2000 + b"needle\n"
    barrier = threading.Barrier(4)

    def work(_: int) -> int:
        barrier.wait()
        return sum(1 for _ in range(50) for _ in patterns.scan(data))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [50] * 4


def test_blocks_end_with_lines_and_lose_nothing() -> None:
    data = b"".join(b"line %d\n" % i for i in range(1000)) + b"z" * 500 + b"\nend"
    got = list(scan.blocks(io.BytesIO(data), size=100))
    assert b"".join(block for _, block in got) == data
    assert [offset for offset, _ in got] == [sum(len(b) for _, b in got[:i]) for i in range(len(got))]


@given(
    st.lists(st.sampled_from([b"foo", b"xbar9", b"", b"quiet", b"foo bar1", b"\xff\xfe"]), max_size=30),
    st.sampled_from([b"\n", b"\r", b"\r\n"]),
)
def test_the_lines_found_are_those_that_a_plain_search_finds(parts: list[bytes], end: bytes) -> None:
    patterns = MultiPattern({"foo": "foo", "bar": r"bar\d"})
    expected = [
        (part, tuple(name for name, hit in (("foo", b"foo" in part), ("bar", b"bar" in part)) if hit))
        for part in parts
        if b"foo" in part or b"bar" in part
    ]
    assert lines(patterns, end.join(parts)) == expected


def test_a_hit_says_where_it_is() -> None:
    assert list(MultiPattern({"p": "b"}).scan(b"aa\nbb\n")) == [LineHits(3, 5, ("p",))]
