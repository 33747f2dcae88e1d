"""Following a log: every complete line exactly once, whatever happens to the file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activities.logs.follow import FIRST_SIGHT_BYTES, LINE_BYTES, Chunk, LogFollower
from activities.logs.paths import LogRoots


class Log:
    """A log file and a follower of it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "slurm-1.out"
        self.roots = LogRoots([directory])
        self.follower = LogFollower(self.path, self.roots)

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def truncate(self) -> None:
        os.truncate(self.path, 0)

    def rotate(self) -> None:
        """Renames the log away, as logrotate does."""
        number = 1
        while (self.path.parent / f"slurm-1.out.{number}").exists():
            number += 1
        self.path.rename(self.path.parent / f"slurm-1.out.{number}")

    def hand_over(self) -> None:
        """Another worker goes on from the cursor."""
        self.follower = LogFollower(self.path, self.roots, self.follower.cursor)

    def read(self, limit_bytes: int = 8 << 20) -> Chunk:
        return self.follower.read(limit_bytes)

    def read_all(self, limit_bytes: int = 8 << 20) -> list[bytes]:
        lines: list[bytes] = []
        while True:
            chunk = self.follower.read(limit_bytes)
            lines += [line for line in chunk.data.split(b"\n") if line]
            if not chunk.more:
                return lines


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_only_complete_lines_are_handed_out(log: Log) -> None:
    log.append(b"one\ntw")
    assert log.read().data == b"one\n"
    log.append(b"o\n")
    assert log.read().data == b"two\n"
    assert log.read() == Chunk()


def test_an_ended_jobs_last_line_needs_no_line_end(log: Log) -> None:
    log.append(b"one\nTraceback")
    assert log.read().data == b"one\n"
    assert log.follower.read(unfinished=True).data == b"Traceback\n"
    assert log.follower.read(unfinished=True).data == b""


def test_a_carriage_return_ends_a_line(log: Log) -> None:
    log.append(b" 1%|#| 1/100\r 2%|#| 2/100\r 3%")
    assert log.read().data == b" 1%|#| 1/100\r 2%|#| 2/100\r"


def test_colours_go_and_other_bytes_stay(log: Log) -> None:
    log.append(b"\x1b[31mstep: 1\x1b[0m \xff\xfe loss\n")
    assert log.read().data == b"step: 1 \xff\xfe loss\n"


def test_nul_bytes_after_a_truncation_do_not_swallow_the_line_behind_them(log: Log) -> None:
    log.append(b"\0" * 300_000 + b"step 5\n")
    assert log.read_all() == [b"step 5"]


def test_a_file_that_is_not_there_yet_is_said_so_and_read_once_it_comes(log: Log) -> None:
    chunk = log.read()
    assert chunk.missing
    assert chunk.error is not None
    assert str(log.path) in chunk.error
    log.append(b"one\n")
    assert log.read() == Chunk(data=b"one\n")


def test_a_path_outside_the_roots_is_an_error_with_the_mend(tmp_path: Path) -> None:
    chunk = LogFollower(Path("/etc/hostname"), LogRoots([tmp_path])).read()
    assert chunk.error is not None
    assert "logs.roots" in chunk.error


def test_a_directory_instead_of_a_file_is_an_error_not_an_exception(tmp_path: Path) -> None:
    assert LogFollower(tmp_path, LogRoots([tmp_path])).read().error is not None


def test_a_requeue_that_truncates_starts_over(log: Log) -> None:
    log.append(b"attempt one, a long line\n")
    log.read()
    log.truncate()
    log.append(b"attempt two\n")
    chunk = log.read()
    assert (chunk.data, chunk.truncated) == (b"attempt two\n", True)


def test_a_log_that_was_truncated_and_grew_past_the_offset_is_noticed_by_its_head(log: Log) -> None:
    log.append(b"attempt one\n")
    log.read()
    log.truncate()
    log.append(b"attempt two\nand more than before\n")
    chunk = log.read()
    assert (chunk.data, chunk.truncated) == (b"attempt two\nand more than before\n", True)


def test_two_attempts_that_begin_alike_are_told_apart_by_what_stood_before_the_offset(log: Log) -> None:
    banner = b"".join(b"module load thing-%d\n" % number for number in range(200))
    log.append(banner + b"12:00 one\n")
    log.read()
    log.truncate()
    log.append(banner + b"13:00 two\n" + b"13:01 three\n")
    chunk = log.read()
    assert chunk.truncated
    assert chunk.data.endswith(b"13:00 two\n13:01 three\n")


def test_a_rotated_log_is_finished_before_the_new_one_begins(log: Log) -> None:
    log.append(b"one\n")
    log.read()
    log.append(b"two\nlast without an end")
    log.rotate()
    log.append(b"three\n")
    first, second = log.read(), log.read()
    assert first.data == b"two\nlast without an end\n"
    assert first.more
    assert (second.data, second.rotated) == (b"three\n", True)


def test_a_rotation_while_no_worker_looked_loses_nothing(log: Log) -> None:
    log.append(b"one\n")
    log.read()
    log.append(b"two\n")
    log.rotate()
    log.append(b"three\n")
    log.hand_over()
    assert log.read_all() == [b"two", b"three"]


def test_a_cursor_of_another_machine_with_other_device_numbers_goes_on(log: Log) -> None:
    log.append(b"one\n")
    log.read()
    log.append(b"two\n")
    cursor = log.follower.cursor.model_copy(update={"device": 999})
    assert LogFollower(log.path, log.roots, cursor).read().data == b"two\n"


def test_a_cursor_of_another_file_is_not_used(log: Log, tmp_path: Path) -> None:
    log.append(b"one\n")
    log.read()
    (tmp_path / "other").write_bytes(b"first\n")
    assert LogFollower(tmp_path / "other", log.roots, log.follower.cursor).read().data == b"first\n"


# ------------------------------------------------------------------------------------------- replaced under the writer


class OpenLog(Log):
    """A log whose writer keeps open what it opened, as slurmstepd does, whatever becomes of the name."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._writer = self.path.open("ab", buffering=0)
        self.write(b"one\n")
        assert self.read().data == b"one\n"

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def look(self) -> bytes:
        """As many reads as it takes to get past those that a quiet log answers."""
        return b"".join(self.read().data for _ in range(12))


@pytest.fixture
def open_log(tmp_path: Path) -> OpenLog:
    return OpenLog(tmp_path)


def test_a_log_replaced_and_not_written_since_makes_blind_until_it_is(open_log: OpenLog) -> None:
    open_log.path.unlink()
    open_log.path.touch()
    open_log.write(b"two\n")
    assert open_log.look() == b""
    assert open_log.follower.is_blind
    open_log.hand_over()
    open_log.look()
    assert open_log.follower.is_blind, "another worker knows it by the cursor"
    open_log.append(b"three\n")
    assert open_log.look() == b"three\n"
    assert not open_log.follower.is_blind


def test_what_stood_in_the_new_file_at_first_sight_does_not_show_that_the_job_writes_it(open_log: OpenLog) -> None:
    open_log.path.unlink()
    open_log.append(b"placed here by hand\n")
    assert open_log.look() == b"placed here by hand\n"
    assert open_log.follower.is_blind
    open_log.path.unlink()
    open_log.path.touch()
    open_log.look()
    assert open_log.follower.is_blind
    open_log.append(b"two\n")
    open_log.look()
    assert not open_log.follower.is_blind


def test_a_copy_in_its_place_is_not_read_again_and_makes_blind(open_log: OpenLog) -> None:
    copy = open_log.path.with_suffix(".tmp")
    copy.write_bytes(open_log.path.read_bytes())
    copy.rename(open_log.path)  # as `sed -i` does; a file system mounted anew with other inodes looks alike
    assert open_log.look() == b""
    assert open_log.follower.is_blind
    open_log.append(b"two\n")
    assert open_log.look() == b"two\n"
    assert not open_log.follower.is_blind


@pytest.mark.parametrize("another_takes_its_place", [True, False])
def test_a_renamed_log_is_followed_as_long_as_it_is_written(open_log: OpenLog, another_takes_its_place: bool) -> None:
    open_log.rotate()
    if another_takes_its_place:
        open_log.path.touch()
    open_log.write(b"two\n")
    assert open_log.look() == b"two\n"
    open_log.write(b"three\n")
    open_log.hand_over()
    assert open_log.look() == b"three\n"
    assert not open_log.follower.is_blind
    open_log.write(b"four\n")
    open_log.append(b"five\n")  # the writer opens its log anew
    assert open_log.look() == b"four\nfive\n"
    open_log.append(b"six\n")
    assert open_log.look() == b"six\n"
    assert not open_log.follower.is_blind


def test_a_renamed_log_that_was_then_compressed_makes_blind(open_log: OpenLog) -> None:
    open_log.rotate()
    open_log.path.touch()
    open_log.look()
    assert not open_log.follower.is_blind
    open_log.path.with_name("slurm-1.out.1").unlink()
    open_log.look()
    assert open_log.follower.is_blind


def test_a_link_that_leads_elsewhere_now_leaves_the_log_it_led_to_followed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "run.log").write_bytes(b"one\n")
    (tmp_path / "b" / "run.log").touch()
    link = tmp_path / "a" / "latest"
    link.symlink_to(tmp_path / "a" / "run.log")
    follower = LogFollower(link, LogRoots([tmp_path]))
    assert follower.read().data == b"one\n"
    link.unlink()
    link.symlink_to(tmp_path / "b" / "run.log")
    with (tmp_path / "a" / "run.log").open("ab") as file:
        file.write(b"two\n")
    assert b"".join(follower.read().data for _ in range(3)) == b"two\n"
    assert not follower.is_blind


def test_a_log_that_was_emptied_in_place_is_still_the_jobs(open_log: OpenLog) -> None:
    open_log.truncate()  # logrotate's copytruncate
    assert open_log.look() == b""
    assert not open_log.follower.is_blind
    open_log.write(b"two\n")
    assert open_log.look() == b"two\n"


def test_a_file_that_slurm_opened_for_a_new_attempt_makes_nobody_blind(open_log: OpenLog) -> None:
    open_log.path.unlink()
    with open_log.path.open("ab"):
        follower = LogFollower(open_log.path, open_log.roots, open_log.follower.cursor, opened_anew=True)
        follower.read()
        assert not follower.is_blind
        open_log.path.unlink()
        open_log.path.touch()
        for _ in range(12):
            follower.read()
        assert follower.is_blind


def test_an_over_long_line_is_cut_and_what_follows_is_read(log: Log) -> None:
    log.append(b"before\n" + b"x" * (3 * LINE_BYTES) + b"\nafter\n")
    chunk = log.read()
    assert chunk.data == b"before\n" + b"x" * LINE_BYTES + b"\nafter\n"
    assert (chunk.cut_lines, chunk.skipped_bytes) == (1, 2 * LINE_BYTES)


def test_a_line_of_a_hundred_megabytes_costs_bounded_memory_and_survives_a_hand_over(log: Log) -> None:
    log.append(b"before\n")
    log.read()
    with log.path.open("ab") as file:
        for _ in range(100):
            file.write(b"y" * (1 << 20))
        file.write(b"\nafter\n")
    sizes = []
    lines = []
    while True:
        chunk = log.read()
        sizes.append(len(chunk.data))
        lines += chunk.data.split(b"\n")
        log.hand_over()
        if not chunk.more:
            break
    assert max(sizes) <= LINE_BYTES + 1
    assert [line[:5] for line in lines if line] == [b"yyyyy", b"after"]


def test_a_huge_backlog_at_first_sight_is_read_from_its_last_part_and_says_so(log: Log) -> None:
    with log.path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek((1 << 30) - 20)
        file.write(b"partial\nstep 10\n")
    chunk = log.read()
    assert chunk.skipped_bytes >= (1 << 30) - FIRST_SIGHT_BYTES
    lines = [line for line in chunk.data.split(b"\n") if line]
    while chunk.more:
        chunk = log.read()
        lines += [line for line in chunk.data.split(b"\n") if line]
    assert lines == [b"partial", b"step 10"]


def test_a_quiet_log_is_opened_again_now_and_then(log: Log) -> None:
    log.append(b"one\n")
    log.read()
    status = log.path.stat()
    os.truncate(log.path, 0)
    log.append(b"two\n")
    os.utime(log.path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the same size and time, as a stale NFS cache would tell
    assert b"two\n" in b"".join(log.read().data for _ in range(12))


# ------------------------------------------------------------------------------------------- properties

History = list[tuple[str, bytes | int]]
_line = st.binary(min_size=0, max_size=40).map(lambda raw: bytes(byte for byte in raw if byte not in b"\0\n\r\x1b"))


@st.composite
def _histories(draw: st.DrawFn) -> History:
    """What happens to a log: writes cut anywhere, reads of any size, rotations, hand-overs."""
    text = b"".join(b"%d:%s\n" % (number, draw(_line)) for number in range(draw(st.integers(0, 30))))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=20)))
    steps: History = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        steps.append(("append", text[start:end]))
        steps += draw(st.lists(st.sampled_from([("read", 1), ("read", 100_000), ("hand over", 0)]), max_size=2))
    return steps


def _play(log: Log, steps: History, seen: list[bytes]) -> bytes:
    written = b""
    acts: dict[str, Callable[[], object]] = {"hand over": log.hand_over, "rotate": log.rotate}
    for what, argument in steps:
        if isinstance(argument, bytes):
            log.append(argument)
            written += argument
        elif what == "read":
            seen += [line for line in log.read(limit_bytes=argument).data.split(b"\n") if line]
        else:
            acts[what]()
    return written


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_histories())
def test_every_complete_line_comes_exactly_once_however_writes_and_reads_fall(
    tmp_path_factory: pytest.TempPathFactory, steps: History
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    seen: list[bytes] = []
    written = _play(log, steps, seen)
    seen += log.read_all()
    assert seen == [line for line in written.split(b"\n") if line]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(_histories(), min_size=1, max_size=3))
def test_every_line_comes_exactly_once_through_rotations(tmp_path_factory: pytest.TempPathFactory, parts: list[History]) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    seen: list[bytes] = []
    written = b""
    for number, steps in enumerate(parts):
        log.append(b"part %d\n" % number)
        written += b"part %d\n" % number + _play(log, steps, seen)
        # Rotations are further apart than reads: only what was written last may not have been seen.
        seen += log.read_all(limit_bytes=1)
        if number < len(parts) - 1:
            log.append(b"end %d\n" % number)
            written += b"end %d\n" % number
            log.rotate()
    seen += log.read_all()
    assert seen == [line for line in written.split(b"\n") if line]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attempts=st.lists(st.tuples(_histories(), st.booleans()), min_size=1, max_size=3))
def test_after_a_truncation_the_new_content_comes_whole(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[History, bool]]
) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    for number, (steps, hands_over) in enumerate(attempts):
        if number:
            log.truncate()
        seen: list[bytes] = []
        begin = b"attempt %d\n" % number
        log.append(begin)
        written = begin + _play(log, steps, seen)
        if hands_over:
            log.hand_over()
        # Before Linux 6.13 two writes within some milliseconds get one time: the same size then means another look (see above).
        for _ in range(12):
            seen += log.read_all()
        assert seen == [line for line in written.split(b"\n") if line]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=2000), limit=st.integers(1, 3000))
def test_any_bytes_are_read_without_an_exception(tmp_path_factory: pytest.TempPathFactory, data: bytes, limit: int) -> None:
    log = Log(tmp_path_factory.mktemp("log"))
    log.append(data)
    assert log.read(limit_bytes=limit).error is None
    log.follower.read(unfinished=True)
    assert log.follower.cursor.offset_bytes == len(data)
