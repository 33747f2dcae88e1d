"""What a stretch of log says: which fatal line counts, and which end was asked for."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.logs.progress import ProgressReader
from activities.records import FatalLine
from activities.watching.pieces import Piece, PieceReader, last_line_from_which
from tests.builders import ECC_LINE, NOON
from tests.watching.world import FewSignatures, step


def piece_of(*lines: str) -> Piece:
    reader = PieceReader(partial(ProgressReader, None), FewSignatures())
    data = "".join(f"{line}\n" for line in lines).encode()
    return reader.read(data, NOON, NOON, with_fatal=True, is_live=True)


def fatal_of(*lines: str) -> FatalLine | None:
    return piece_of(*lines).fatal


RESUMED = "successfully loaded checkpoint from /c [ t 0 ] at iteration 5"


def bar(number: int) -> str:
    """As tqdm draws it over itself."""
    return f"\r {number:3d}%|#####     | {number}/100 [00:{number % 60:02d}<10:00,  1.50s/it]"


CASES: tuple[tuple[str, tuple[str, ...], int | None], ...] = (
    ("no fatal line", (step(1), step(2)), None),
    ("nothing after it", (step(1), step(2), ECC_LINE), 0),
    ("two iterations after it", (step(1), ECC_LINE, step(2), step(3)), None),
    ("one iteration after it", (step(1), ECC_LINE, step(2)), 1),
    ("the same iteration of two ranks after it", (step(1), ECC_LINE, step(2), step(2)), 1),
    ("two lines, the first refuted", (ECC_LINE, step(1), step(2), step(3), ECC_LINE), 0),
    ("a resume inside the job after it", (step(7), ECC_LINE, "successfully loaded checkpoint from /c [ t 0 ] at iteration 5"), None),
    ("much after it", (ECC_LINE, *(["nothing to see"] * 5000)), 0),
    ("a step that others held back after it", (step(1), step(2), step(3), ECC_LINE, step(2), step(3)), 0),
    ("many that others held back", (*map(step, range(90)), ECC_LINE, *map(step, range(40, 90)), *map(step, range(50, 90))), 0),
    ("held back, and one step on", (*map(step, range(90)), ECC_LINE, *map(step, range(40, 91)), *map(step, range(50, 91))), 1),
    ("held back, and two steps on", (*map(step, range(90)), ECC_LINE, *map(step, range(40, 92))), None),
    ("a bar that others held back", (*map(bar, range(90)), ECC_LINE, *map(bar, range(60, 90))), 0),
    ("a bar that goes on", (*map(bar, range(90)), ECC_LINE, *map(bar, range(90, 99))), None),
    ("a resume, then steps made before", (*map(step, range(9)), ECC_LINE, RESUMED, step(5), step(6)), None),
    ("a resume, steps made before, and another", (*map(step, range(9)), RESUMED, step(5), ECC_LINE, step(6), step(7)), None),
    ("refuted far above", (step(1), ECC_LINE, *(["nothing"] * 5000), step(2), step(3), *(["nothing"] * 5000)), None),
)


@pytest.mark.parametrize(("why", "lines", "iterations_after"), CASES)
def test_a_fatal_line_counts_until_two_iterations_go_on_behind_it(why: str, lines: tuple[str, ...], iterations_after: int | None) -> None:
    fatal = fatal_of(*lines)
    assert (fatal.iterations_after if fatal is not None else None) == iterations_after, why


def test_what_was_seen_in_earlier_stretches_is_no_going_on_either() -> None:
    reader = PieceReader(partial(ProgressReader, None), FewSignatures())

    def read(*lines: str) -> FatalLine | None:
        data = "".join(f"{line}\n" for line in lines).encode()
        return reader.read(data, NOON, NOON, with_fatal=True, is_live=True).fatal

    assert read(*map(step, range(50))) is None
    held_back = read(ECC_LINE, *map(step, range(30, 50)))
    assert held_back is not None
    assert (held_back.iterations_after, held_back.beyond) == (0, 49)
    assert read(ECC_LINE, *map(step, range(45, 53))) is None


@given(lines=st.lists(st.sampled_from([b"a\n", b"bb\n", b"x\n", b"x\r", b"longer line\n", b"\n"]), max_size=60), wanted=st.integers(1, 4))
def test_the_last_line_from_which_the_rest_is_enough(lines: list[bytes], wanted: int) -> None:
    data = b"".join(lines)
    found = last_line_from_which(data, lambda rest: rest.count(b"x") >= wanted)
    marks = [at for at in range(len(data)) if data[at : at + 1] == b"x"]
    assert found == (marks[-wanted] if len(marks) >= wanted else 0)


def test_a_line_of_a_cause_that_ends_no_job_is_not_fatal() -> None:
    assert fatal_of(step(1), "GPU 3: clocks throttled by heat") is None


def test_only_what_hardware_reports_is_certain() -> None:
    exception = fatal_of("CustomException: boom")
    assert exception is not None
    assert not exception.is_certain
    both = fatal_of("CustomException: boom", ECC_LINE)
    assert both is not None
    assert both.is_certain


SLURMS_WORDS: tuple[tuple[str, bool], ...] = (
    ("slurmstepd: error: *** JOB 12 ON node-001 CANCELLED AT 2026-01-05T12:00:00 ***", True),
    ("slurmstepd: error: *** JOB 12 ON node-001 CANCELLED AT 2026-01-05T12:00:00 DUE TO JOB REQUEUE ***", True),
    ("slurmstepd: error: *** JOB 12 ON node-001 CANCELLED AT 2026-01-05T12:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***", False),
    ("slurmstepd: error: *** STEP 12.0 ON node-001 CANCELLED AT 2026-01-05T12:00:00 ***", False),
)


@pytest.mark.parametrize(("line", "told"), SLURMS_WORDS)
def test_an_end_that_slurm_was_asked_for_is_known_by_its_words(line: str, told: bool) -> None:
    assert piece_of(line).told_to_end is told


def test_a_fatal_line_keeps_no_secret() -> None:
    """It stands in heartbeats, in the symptom's summary and so in the history."""
    fatal = fatal_of(step(1), f"{ECC_LINE} at https://alice:hunter22@registry.example/")
    assert fatal is not None
    assert "hunter22" not in fatal.text
    assert "https://[redacted: URL credentials]@registry.example/" in fatal.text
