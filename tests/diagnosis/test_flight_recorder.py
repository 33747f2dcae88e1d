"""Dumps name the rank that stayed away, or nobody; a dump that wants to run something is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from activities.diagnosis.flight_recorder import (
    LARGEST_DUMP_BYTES,
    MOST_TOLD,
    Analysis,
    DumpUnreadable,
    Finding,
    analyse,
    load,
    parse,
    read_all,
)

WORLD = 8


def dump(
    rank: int, *, enqueued: int = 100, started: int = 100, name: str = "nccl:all_reduce", state: str = "started", **more: Any
) -> bytes:
    content = {
        "version": "2.10",
        "pg_config": {"0": {"name": "default_pg", "desc": "default", "ranks": str(list(range(WORLD)))}},
        "pg_status": {"0": {"last_enqueued_collective": enqueued, "last_started_collective": started, "last_completed_collective": 99}},
        "entries": [
            {
                "pg_id": 0,
                "collective_seq_id": enqueued,
                "profiling_name": name,
                "state": state,
                "time_created_ns": 5,
                "input_sizes": [[8]],
                "input_dtypes": ["Float"],
                "is_p2p": False,
            }
        ],
    } | more
    return pickle.dumps(content)


def analysed(changed: dict[int, dict[str, Any] | None]) -> Analysis:
    dumps = [
        parse(dump(rank, **(changed.get(rank) or {})), rank=rank, name="x")
        for rank in range(WORLD)
        if rank not in changed or changed[rank] is not None
    ]
    return analyse(dumps)


def test_a_rank_without_a_dump_is_named() -> None:
    assert analysed({3: None}).ranks == (3,)
    assert analysed({3: None}).finding is Finding.NO_DUMP


def test_a_rank_stuck_on_its_host_is_named() -> None:
    found = analysed({3: {"enqueued": 99, "started": 99, "state": "completed"}})
    assert (found.finding, found.ranks) == (Finding.NEVER_CAME, (3,))


def test_a_rank_whose_gpu_never_started_is_named_not_the_others() -> None:
    # NVRx names the seven others here (docs/attribution.md §1.7).
    found = analysed({3: {"started": 99, "state": "scheduled"}})
    assert (found.finding, found.ranks) == (Finding.NEVER_STARTED, (3,))


def test_ranks_in_another_collective_are_named() -> None:
    found = analysed({5: {"name": "nccl:all_gather"}})
    assert (found.finding, found.ranks) == (Finding.MISMATCH, (5,))


def test_nobody_is_blamed_when_all_are_in_the_same_collective() -> None:
    assert analysed({}).finding is Finding.ALL_ALIKE
    assert analysed({}).ranks == ()


def test_finished_collectives_say_nothing() -> None:
    done = {rank: {"enqueued": 99, "started": 99, "state": "completed"} for rank in range(WORLD)}
    assert analysed(dict(done)).finding is Finding.NOTHING


def test_the_group_stuck_first_decides() -> None:
    def of(rank: int) -> bytes:
        status = {"last_enqueued_collective": 7, "last_started_collective": 7, "last_completed_collective": 6}
        entry = {"pg_id": 1, "collective_seq_id": 7, "profiling_name": "nccl:broadcast", "state": "started", "time_created_ns": 1}
        behind = dict(status, last_enqueued_collective=6, last_started_collective=6)
        content = pickle.loads(dump(rank))
        content["pg_config"]["1"] = {"name": "1", "desc": "tensor", "ranks": "[0, 1]"}
        if rank in (0, 1):
            content["pg_status"]["1"] = behind if rank == 1 else status
            if rank == 0:
                content["entries"].append(entry)
        return pickle.dumps(content)

    found = analyse([parse(of(rank), rank=rank, name="x") for rank in range(WORLD)])
    assert (found.group, found.finding, found.ranks) == ("tensor", Finding.NEVER_CAME, (1,))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


@pytest.mark.parametrize(
    "data", [pickle.dumps(Evil()), pickle.dumps({"entries": [Evil()]}), b"", b"garbage", pickle.dumps([1]), b'{"entries": 3}', b"\x80\x04."]
)
def test_what_is_no_plain_dump_is_refused(data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DumpUnreadable):
        parse(data, rank=0, name="dump_0")
    assert capsys.readouterr().out == ""


def test_files_give_their_rank_and_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_12").write_bytes(dump(12))
    (tmp_path / "_dump_3.json").write_text(json.dumps({"pg_status": {}, "entries": []}))
    (tmp_path / "notes").write_text("x")
    dumps, notes = read_all(sorted(tmp_path.iterdir()))
    assert sorted(item.rank for item in dumps) == [3, 12]
    assert len(notes) == 1
    with pytest.raises(DumpUnreadable, match="no rank number"):
        load(tmp_path / "notes")


def test_a_rank_whose_dump_cannot_be_read_is_not_taken_for_one_that_left_none(tmp_path: Path) -> None:
    for rank in range(WORLD):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(b"garbage" if rank == 2 else dump(rank))
    dumps, _ = read_all(sorted(tmp_path.iterdir()))
    assert analyse(dumps).finding is Finding.NOTHING, "nor are all alike: nobody knows where it was"
    (tmp_path / "nccl_trace_rank_2").unlink()
    dumps, _ = read_all(sorted(tmp_path.iterdir()))
    assert analyse(dumps).ranks == (2,)


@pytest.mark.parametrize(
    ("name", "data", "mend"),
    [
        ("nccl_trace_rank_0", pickle.dumps(Evil()), "plain values only; dumps are the files"),
        ("nccl_trace_rank_0", b"", "dumps are the files"),
        ("train.log", b"x", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("nccl_trace_rank_0", None, "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ],
    ids=["it wants to run something", "empty", "another file", "too large"],
)
def test_a_refusal_names_the_file_and_the_mend(tmp_path: Path, name: str, data: bytes | None, mend: str) -> None:
    path = tmp_path / name
    path.write_bytes(data or b"")
    if data is None:
        with path.open("r+b") as stream:
            stream.truncate(LARGEST_DUMP_BYTES + 1)  # sparse: it takes no room
    _, [note] = read_all([path])
    assert str(path) in note
    assert mend in note


def test_a_directory_without_dumps_is_told(tmp_path: Path) -> None:
    _, [note] = read_all([tmp_path])
    assert f"{tmp_path}: holds no dump" in note


def test_a_thousand_broken_dumps_are_told_in_a_few_lines(tmp_path: Path) -> None:
    paths = [tmp_path / f"nccl_trace_rank_{rank}" for rank in range(1000)]
    dumps, notes = read_all(paths)
    assert len(dumps) == 1000
    assert len(notes) == MOST_TOLD + 1
    assert notes[-1].startswith("992 more")
