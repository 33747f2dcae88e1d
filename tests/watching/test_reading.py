"""Reading for one watch: what a log's beginning means, what makes a watch blind."""

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from activities.diagnosis.signals import FatalLine
from activities.logs.paths import LogRoots
from activities.logs.progress import ProgressReader
from activities.watching.pieces import FatalLines, Piece
from activities.watching.reading import DiskReader, LogOrigin, Reading
from tests.builders import ECC_LINE, NOON
from tests.watching.world import FewSignatures, step


def a_reader(
    log: Path,
    *,
    now: datetime = NOON,
    warning: str | None = None,
    engine: FatalLines | None = None,
    pattern: str | None = None,
    **origin: object,
) -> DiskReader:
    started = {"path": log, "attempt_started_at": NOON - timedelta(hours=1), **origin}
    return DiskReader(
        LogOrigin(**started),  # type: ignore[arg-type]
        roots=LogRoots([log.parent]),
        progress=partial(ProgressReader, pattern),
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
        more.write(ECC_LINE + "\n")
    appended = a_reader(log, cursor=cursor, may_hold_older_attempts=True, cursor_is_older_attempts=True)
    assert read(appended).piece is None
    log.write_text(step(41) + "\n" + ECC_LINE + "\n")
    truncated = a_reader(log, cursor=cursor, may_hold_older_attempts=True, cursor_is_older_attempts=True)
    piece = piece_of(truncated)
    assert piece.marks[0].iteration == 41
    assert piece.fatal is not None


def test_what_an_earlier_job_left_under_the_same_name_is_passed_over_until_this_one_writes(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(step(12) + "\n" + ECC_LINE + "\n")
    written_at = datetime.fromtimestamp(log.stat().st_mtime, tz=NOON.tzinfo)
    reader = a_reader(log, now=written_at + timedelta(seconds=65), attempt_started_at=written_at + timedelta(minutes=1))
    assert read(reader).piece is None
    with log.open("a") as more:
        more.write(step(1) + "\n")
    piece = piece_of(reader)
    assert [mark.iteration for mark in piece.marks] == [1]
    assert piece.fatal is None


def test_a_restarted_jobs_log_first_seen_now_tells_progress_but_no_fatal_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n" + ECC_LINE + "\n")
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
        def fatal_lines(self, data: bytes) -> list[FatalLine]:
            raise ZeroDivisionError

    log = tmp_path / "train.log"
    log.write_text(step(1) + "\n")
    reader = a_reader(log, engine=Broken())
    reading = read(reader)
    assert not reading.readable
    assert "ZeroDivisionError" in (reading.blind or "")
    assert reader.read() is None


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


def test_a_users_pattern_that_takes_too_much_is_told_and_the_built_in_ones_read_on(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(("ab" * 2000 + "\n") * 2000)
    reader = a_reader(log, pattern=r"(?:a|b)*a(?:a|b){900}c(?P<iteration>\d+)")
    reading = read(reader)
    while not reading.caught_up:
        reading = read(reader)
    assert reading.readable
    assert "no longer used, the built-in ones are" in str(reading.blind)
    with log.open("a") as more:
        more.write(step(7) + "\n")
    assert [mark.iteration for mark in piece_of(reader).marks] == [7]
