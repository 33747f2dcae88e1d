"""Reading for one watch: which fatal line counts, what a log's beginning means, what makes a watch blind."""

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.logs.paths import LogRoots
from activities.logs.progress import ProgressReader
from activities.records import FatalLine
from activities.watching.reading import DiskReader, FatalLines, LogOrigin, Piece, Reading, last_line_from_which
from tests.builders import NOON
from tests.watching.world import FewSignatures, FoundLine

FATAL = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def step(number: int) -> str:
    return f" iteration {number:8d}/ 1000 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5E+00 |"


def a_reader(
    log: Path, *, now: datetime = NOON, warning: str | None = None, engine: FatalLines | None = None, **origin: object
) -> DiskReader:
    started = {"path": log, "attempt_started_at": NOON - timedelta(hours=1), **origin}
    return DiskReader(
        LogOrigin(**started),  # type: ignore[arg-type]
        roots=LogRoots([log.parent]),
        progress=partial(ProgressReader, None),
        engine=engine or FewSignatures(),
        checkpoint_look=timedelta(seconds=5),
        clock=lambda: now,
        warning=warning,
    )


def read(reader: DiskReader) -> Reading:
    reading = reader.read()
    assert reading is not None
    return reading


def piece_of(reader: DiskReader) -> Piece:
    piece = read(reader).piece
    assert piece is not None
    return piece


def fatal_of(*lines: str, tmp_path: Path) -> FatalLine | None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    return piece_of(a_reader(log)).fatal


CASES: tuple[tuple[str, tuple[str, ...], int | None], ...] = (
    ("no fatal line", (step(1), step(2)), None),
    ("nothing after it", (step(1), step(2), FATAL), 0),
    ("two iterations after it", (step(1), FATAL, step(2), step(3)), None),
    ("one iteration after it", (step(1), FATAL, step(2)), 1),
    ("the same iteration of two ranks after it", (step(1), FATAL, step(2), step(2)), 1),
    ("two lines, the first refuted", (FATAL, step(1), step(2), step(3), FATAL), 0),
    ("a resume inside the job after it", (step(7), FATAL, "successfully loaded checkpoint from /c [ t 0 ] at iteration 5"), None),
    ("much after it", (FATAL, *(["nothing to see"] * 5000)), 0),
    ("refuted far above", (step(1), FATAL, *(["nothing"] * 5000), step(2), step(3), *(["nothing"] * 5000)), None),
)


@pytest.mark.parametrize(("why", "lines", "iterations_after"), CASES)
def test_a_fatal_line_counts_until_two_iterations_follow(
    why: str, lines: tuple[str, ...], iterations_after: int | None, tmp_path: Path
) -> None:
    fatal = fatal_of(*lines, tmp_path=tmp_path)
    assert (fatal.iterations_after if fatal is not None else None) == iterations_after, why


@given(lines=st.lists(st.sampled_from([b"a\n", b"bb\n", b"x\n", b"x\r", b"longer line\n", b"\n"]), max_size=60), wanted=st.integers(1, 4))
def test_the_last_line_from_which_the_rest_is_enough(lines: list[bytes], wanted: int) -> None:
    data = b"".join(lines)
    found = last_line_from_which(data, lambda rest: rest.count(b"x") >= wanted)
    marks = [at for at in range(len(data)) if data[at : at + 1] == b"x"]
    assert found == (marks[-wanted] if len(marks) >= wanted else 0)


def test_an_idle_log_brings_no_reading(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n")
    reader = a_reader(log)
    piece_of(reader)
    assert [reader.read() for _ in range(20)] == [None] * 20
    assert reader.looked_at == NOON


def test_lines_found_at_the_first_look_are_as_old_as_the_file(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n")
    written_at = datetime.fromtimestamp(log.stat().st_mtime, tz=NOON.tzinfo)
    reader = a_reader(log, now=written_at + timedelta(hours=2), attempt_started_at=written_at - timedelta(hours=1))
    piece = piece_of(reader)
    assert piece.output_at == written_at
    with log.open("a") as more:
        more.write(step(2) + "\n")
    piece = piece_of(reader)
    assert piece.output_at == written_at + timedelta(hours=2)


def test_what_an_older_attempt_left_is_passed_over_and_a_truncated_log_is_read_whole(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n")
    first = a_reader(log)
    cursor = read(first).file
    assert cursor is not None
    with log.open("a") as more:
        more.write(FATAL + "\n")
    appended = a_reader(log, cursor=cursor, may_hold_older_attempts=True, cursor_is_older_attempts=True)
    assert read(appended).piece is None
    log.write_text(step(41) + "\n" + FATAL + "\n")
    truncated = a_reader(log, cursor=cursor, may_hold_older_attempts=True, cursor_is_older_attempts=True)
    piece = piece_of(truncated)
    assert piece.marks[0].iteration == 41
    assert piece.fatal is not None


def test_a_restarted_jobs_log_first_seen_now_tells_progress_but_no_fatal_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n" + FATAL + "\n")
    piece = piece_of(a_reader(log, may_hold_older_attempts=True))
    assert piece.marks
    assert piece.fatal is None


def test_what_cannot_be_read_is_told_with_the_mend_and_so_is_a_refused_pattern(tmp_path: Path) -> None:
    elsewhere = a_reader(tmp_path / "train.log", warning="in the job's comment: progress pattern refused", path=Path("/proc/self/status"))
    blind = read(elsewhere).blind
    assert blind is not None
    assert "logs.roots" in blind
    assert "progress pattern" in blind
    unknown = read(a_reader(tmp_path / "train.log", path=None))
    assert (unknown.readable, "log=/path" in (unknown.blind or "")) == (False, True)


def test_a_fault_of_our_own_while_reading_blinds_the_watch_but_does_not_end_it(tmp_path: Path) -> None:
    class Broken:
        def fatal_lines(self, data: bytes) -> list[FoundLine]:
            raise ZeroDivisionError

    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n")
    reader = a_reader(log, engine=Broken())
    reading = read(reader)
    assert not reading.readable
    assert "ZeroDivisionError" in (reading.blind or "")
    assert reader.read() is None


def test_a_line_of_a_cause_that_ends_no_job_is_not_fatal(tmp_path: Path) -> None:
    assert fatal_of(step(1), "GPU 3: clocks throttled by heat", tmp_path=tmp_path) is None


def test_only_what_hardware_reports_is_certain(tmp_path: Path) -> None:
    exception = fatal_of("CustomException: boom", tmp_path=tmp_path)
    assert exception is not None
    assert not exception.is_certain
    both = fatal_of("CustomException: boom", FATAL, tmp_path=tmp_path)
    assert both is not None
    assert both.is_certain


SLURMS_WORDS: tuple[tuple[str, bool], ...] = (
    ("slurmstepd: error: *** JOB 12 ON node-001 CANCELLED AT 2026-01-05T12:00:00 ***", True),
    ("slurmstepd: error: *** JOB 12 ON node-001 CANCELLED AT 2026-01-05T12:00:00 DUE TO JOB REQUEUE ***", True),
    ("slurmstepd: error: *** JOB 12 ON node-001 CANCELLED AT 2026-01-05T12:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***", False),
    ("slurmstepd: error: *** STEP 12.0 ON node-001 CANCELLED AT 2026-01-05T12:00:00 ***", False),
)


@pytest.mark.parametrize(("line", "told"), SLURMS_WORDS)
def test_an_end_that_slurm_was_asked_for_is_known_by_its_words(line: str, told: bool, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(line + "\n")
    piece = piece_of(a_reader(log))
    assert piece.told_to_end is told


def test_a_long_log_is_caught_up_with_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{step(number)}\n" for number in range(1, 20_001)))
    reader = a_reader(log)
    first = read(reader)
    assert not first.caught_up
    last = read(reader)
    while not last.caught_up:
        last = read(reader)
    assert last.piece is not None
    assert last.piece.marks[-1].iteration == 20_000


def test_reading_goes_on_from_a_cursor(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n" + step(2) + "\n")
    cursor = read(a_reader(log)).file
    with log.open("a") as more:
        more.write(step(3) + "\n")
    piece = piece_of(a_reader(log, cursor=cursor))
    assert [mark.iteration for mark in piece.marks] == [3]


def test_a_fatal_line_keeps_no_secret(tmp_path: Path) -> None:
    """It stands in heartbeats, in the symptom's summary and so in the history."""
    fatal = fatal_of(step(1), f"{FATAL} at https://alice:hunter22@registry.example/", tmp_path=tmp_path)
    assert fatal is not None
    assert "hunter22" not in fatal.text
    assert "https://[redacted: URL credentials]@registry.example/" in fatal.text
