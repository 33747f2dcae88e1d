"""One pass over a log of several blocks: line numbers, the head and the end of progress, bars without a line break."""

import io
from pathlib import Path

import pytest

from activities.diagnosis.reader import PROGRESS_BYTES, Reader
from activities.diagnosis.reading import Reading
from activities.diagnosis.signals import LogSource
from activities.diagnosis.signatures import built_in
from activities.scanning import scan

FAILURE = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
QUIET = b"[rank7]: DEBUG data: fetched a shard, 12 sequences, queue depth 3\n"


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(built_in())


def read(reader: Reader, data: bytes, *, starts_at_line: int = 1) -> Reading:
    return reader.read((LogSource(data=data, starts_at_line=starts_at_line),), near=None)


def a_step(number: int) -> bytes:
    return b"iteration %d/ 500000 | elapsed time per iteration (ms): 5200.0 | lm loss: 2.0\n" % number


def lines_of_blocks(blocks: float) -> list[bytes]:
    return [QUIET] * int(blocks * scan.READ_BYTES / len(QUIET))


def test_lines_are_numbered_through_all_blocks(reader: Reader) -> None:
    lines = [*lines_of_blocks(1.5), FAILURE, b"\n" * 5000, *lines_of_blocks(2.5), FAILURE]
    data = b"".join(lines)
    second = data.count(b"\n")
    found = [item for item in read(reader, data, starts_at_line=11).observations if item.signature == "cuda_ecc_uncorrectable"]
    assert [item.line for item in found] == [len(lines_of_blocks(1.5)) + 11, second + 10]
    assert [data[item.position :][: len(FAILURE)] for item in found] == [FAILURE, FAILURE]


def test_a_file_and_its_bytes_are_read_alike(reader: Reader, tmp_path: Path) -> None:
    data = b"".join([*lines_of_blocks(1.2), a_step(1), *lines_of_blocks(6), a_step(2), FAILURE])
    (tmp_path / "log").write_bytes(data)
    assert reader.read((LogSource(path=tmp_path / "log"),), near=None) == read(reader, data)


def test_the_end_tells_progress_also_where_the_last_block_is_one_line(reader: Reader) -> None:
    steps = b"".join(a_step(number) for number in range(20))
    data = b"x" * (scan.READ_BYTES - len(steps) - 1) + b"\n" + steps + b"good bye\n"
    assert [len(block) for _, block in scan.blocks(io.BytesIO(data))] == [scan.READ_BYTES, len(b"good bye\n")]
    assert [mark.iteration for mark in read(reader, data).progress] == list(range(20))


def test_a_slow_down_in_the_last_blocks_is_sampled_whole(reader: Reader) -> None:
    data = b"".join([*lines_of_blocks(3), *(b"".join([a_step(number), *lines_of_blocks(0.1)]) for number in range(50))])
    assert [mark.iteration for mark in read(reader, data).marks] == list(range(50))


def test_of_bars_without_a_line_break_only_the_head_and_the_end_are_taken_apart(reader: Reader) -> None:
    bars = [b"Epoch 1:  12%%|#  | %d/500000 [00:12<01:28, 3.51it/s, loss=2.1]\r" % number for number in range(50_000)]
    reading = read(reader, b"".join(bars))
    assert reading.progress[-1].iteration == 500_000 + 49_999
    assert len(reading.progress) <= 2 * PROGRESS_BYTES // min(map(len, bars)) + 2


HUGE = b"3" * 5000  # more digits than Python makes a number of


@pytest.mark.parametrize(
    "text",
    [
        b"STRAGGLER DETECTED: rank=3000000000 score=0.61",
        b"process 1 of 8: /job:worker/replica:0/task:3000000000 stopped sending heartbeats",
        b"rank HUGE nranks HUGE cudaDev HUGE",
        b"rank=0, world_size=HUGE",
        b"GLOBAL_RANK: HUGE, MEMBER: 1/HUGE",
        b"global_ranks=[HUGE, 3000000000]",
        b"App: 0 Process rank: HUGE",
        b"  host      : node-7\n  rank      : HUGE (local_rank: HUGE)\n  exitcode  : HUGE (pid: 1)\n  exitcode  : --9 exitcode : 9",
        b"srun: error: node-7: tasks 0-HUGE: Killed",
    ],
)
def test_a_number_too_long_for_a_rank_or_a_size_is_none(reader: Reader, text: bytes) -> None:
    found = read(reader, text.replace(b"HUGE", HUGE) + b"\n")
    assert {item.rank for item in found.observations} <= {None}
    assert {failure.rank for failure in found.failures} <= {None}
    assert {failure.exitcode for failure in found.failures} <= {None}
    assert (found.world_size, found.placements.ranks, found.placements.communicators) == (None, {}, {})


def test_sruns_tasks_are_taken_apart_as_far_as_a_job_may_have_them(reader: Reader) -> None:
    few = read(reader, b"srun: error: node-7: tasks 0-2,9: Killed\n")
    many = read(reader, b"srun: error: node-7: tasks " + b",".join([b"0-99999"] * 3000) + b": Killed\n")
    assert few.placements.tasks == {0, 1, 2, 9}
    assert len(many.placements.tasks) == 4096
