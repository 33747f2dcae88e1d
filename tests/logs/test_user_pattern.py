"""A user's own pattern can stop nobody: patterns made to hang a backtracking matcher, dear ones, and honest ones among long lines."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.logs.progress import MarkKind, ProgressMark, ProgressReader
from activities.logs.user_pattern import UserPattern

pytestmark = pytest.mark.timeout(120)  # Python's `re` would need longer than the world has stood

# The pattern, and a line that it nearly fits.
HOSTILE = [
    (r"(?P<iteration>(?:\d|\d)+)x", "1" * 60),
    (r"x[^b]*[^b]*[^b]*[^b]*[^b]*y(?P<iteration>\d+)", "x" + "a" * 4000),
    (r"(?P<iteration>(?:\d+)+)x", "1" * 4000),
    (r"(a+)+b(?P<iteration>\d+)", "a" * 4000),
    (r"((a|b)*c)*(?P<iteration>\d+)x", "abc" * 1300),
    (r"(?:(?:(?:a*)*)*)*(?P<iteration>\d+)", "a" * 4000),
    (r"^(\w+\s?)*(?P<iteration>\d)\.$", "word " * 800),
    (r".*.*.*.*.*.*.*.*.*.*=(?P<iteration>\d+)", "=" * 4000),
    (r"(?:.?){200}x(?P<iteration>\d+)", "y" * 4000),
    (r"(?P<iteration>\d+)(?:a|b)*a(?:a|b){400}c", "1" + "ab" * 2000),
]


def read(pattern: str, *lines: str) -> tuple[ProgressMark, ...]:
    return ProgressReader(pattern).read("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize(("pattern", "line"), HOSTILE)
@pytest.mark.parametrize("times", [1, 300])
def test_a_pattern_made_to_hang_ends_and_the_next_job_is_read(pattern: str, line: str, times: int) -> None:
    assert read(pattern, *[line] * times) == ()
    assert [mark.iteration for mark in read(r"at (?P<iteration>\d+)", "at 7")] == [7]


@pytest.mark.parametrize(("pattern", "line"), HOSTILE)
def test_a_line_that_another_rule_hits_or_that_fits_only_far_behind_is_no_way_round(pattern: str, line: str) -> None:
    assert read(pattern, f"{line} could not save checkpoint", f"{line:4200} 1x y7 =7 b7 a.") == ()


@pytest.mark.parametrize(("pattern", "line"), HOSTILE)
def test_a_line_of_a_mebibyte_that_nearly_fits_ends_as_well(pattern: str, line: str) -> None:
    assert read(pattern, line * ((1 << 20) // len(line))) == ()


def test_a_dear_pattern_is_set_aside_and_the_built_in_ones_go_on() -> None:
    reader = ProgressReader(r"(?:a|b)*a(?:a|b){900}c(?P<iteration>\d+)")
    line = "ab" * 2000 + "\n"
    for _ in range(100):
        reader.read((line * 250).encode())
        if reader.set_aside is not None:
            break
    assert reader.set_aside is not None
    assert "no longer used" in reader.set_aside
    assert "use fewer repeats" in reader.set_aside
    assert [mark.iteration for mark in reader.read(b"step: 12  loss: 3.2\n")] == [12]


def test_an_honest_pattern_is_never_set_aside_whatever_the_log() -> None:
    reader = ProgressReader(r"batch no\. (?P<iteration>\d+) took (?P<step_seconds>[\d.]+)s")
    for block in range(4):
        lines = [f"batch no. {block * 10_000 + number} took 1.5s" for number in range(10_000)]
        marks = reader.read("".join(f"{line}\n" for line in lines).encode())
        assert marks[0].iteration == block * 10_000
    assert reader.set_aside is None


def test_where_every_line_is_an_iteration_some_of_each_stretch_are_read() -> None:
    """As with the built-in rules: no log can make Python look at half a million lines a second."""
    marks = read(r"^(?P<iteration>\d+)$", *map(str, range(100_000)))
    assert 1000 < len(marks) < 10_000
    counts = [mark.iteration for mark in marks if mark.iteration is not None]
    assert counts == sorted(counts)
    assert counts[-1] > 95_000


def test_only_the_first_4096_bytes_of_a_line_are_looked_at() -> None:
    pattern = r"at (?P<iteration>\d+)"
    assert [mark.iteration for mark in read(pattern, "at 1 " + "x" * 100_000, "x" * 100_000 + " at 2", "at 3")] == [1, 3]


def test_a_match_never_leaves_its_line() -> None:
    assert read(r"epoch[^x]*step\s+(?P<iteration>\d+)", "epoch 3", "step", "5") == ()
    bar = ProgressReader(r"^it (?P<iteration>\d+)$").read(b"it 1\rit 2\rit 3\n")
    assert [mark.iteration for mark in bar] == [1, 2, 3]


def test_the_users_lines_and_the_built_in_marks_keep_their_order() -> None:
    marks = read(r"at (?P<iteration>\d+)", "at 1", "saving checkpoint at iteration 1 to /c", "at 2", "Training completed", "nothing")
    assert [(mark.kind, mark.iteration) for mark in marks] == [
        (MarkKind.ITERATION, 1),
        (MarkKind.CHECKPOINT_STARTED, 1),
        (MarkKind.ITERATION, 2),
        (MarkKind.TRAINING_ENDED, None),
    ]


def test_a_pattern_may_name_the_prefix_it_sees_in_the_log() -> None:
    assert [mark.iteration for mark in read(r"^\[rank0\]: at (?P<iteration>\d+)", "[rank0]: at 5", "[rank1]: at 6")] == [5]
    assert [mark.iteration for mark in read(r"(?P<iteration>\d+) done", "2026-01-02 03:04:05 7 done")] == [7]


_PIECES = st.sampled_from(["step", " ", "=", r"\d+", "[^ ]*", ".*?", ".*", "a?", "(?:x|loss)+", r"\w+", "^", "$", r"\b", "[a-z]{1,3}"])
_LINES = st.lists(st.text(alphabet="step= 0123loxa.,", max_size=30), max_size=6)


@given(st.lists(_PIECES, max_size=5), st.lists(_PIECES, max_size=4), _LINES)
def test_the_lines_and_numbers_found_are_those_python_finds(before: list[str], behind: list[str], lines: list[str]) -> None:
    pattern = "".join(before) + r"(?P<iteration>\d+)" + "".join(behind)
    user = UserPattern(pattern)
    data = "".join(f"{line}\n" for line in lines).encode()
    found = [user.search(data[start:end].decode()) for start, end in user.lines_in(data)]
    expected = [match["iteration"] for line in lines if (match := re.search(pattern, line, re.ASCII))]
    assert [groups["iteration"] for groups in found if groups is not None] == expected
