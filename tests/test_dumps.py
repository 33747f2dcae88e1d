"""Where a job's flight-recorder dumps are looked for, and which of the files there are this attempt's."""

import os
from pathlib import Path
from typing import Any

import pytest

from activities import dumps
from activities.dumps import Dumps, dumps_of
from activities.logs.paths import LogRoots
from tests.builders import NOON, a_job, after, an_opt_in


def written(prefix: Path, *ranks: int, at: float = 60, size: int = 1) -> None:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        file = prefix.with_name(f"{prefix.name}{rank}")
        file.write_bytes(b"x" * size)
        moment = after(at).timestamp()
        os.utime(file, (moment, moment))


def found(root: Path, script: str = "", *, since: Any = NOON, **opt_in: Any) -> Dumps:
    return dumps_of(a_job(), an_opt_in(**opt_in), f"#!/bin/bash\n{script}\n", LogRoots([root]), since=since)


def ranks_of(told: Dumps) -> list[str]:
    return [path.name for path in told.paths]


@pytest.mark.parametrize("variable", ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"])
@pytest.mark.parametrize("line", ["export {}={}/$SLURM_JOB_ID/fr_\nsrun train", "{}={}/${{SLURM_JOB_ID}}/fr_ srun train"])
def test_dumps_are_found_where_the_batch_script_has_them_written(tmp_path: Path, variable: str, line: str) -> None:
    written(tmp_path / "17" / "fr_", 0, 1, 10, 2)
    told = found(tmp_path, line.format(variable, tmp_path))
    assert ranks_of(told) == ["fr_0", "fr_1", "fr_2", "fr_10"]
    assert told.newest_at == after(60)
    assert told.notes == ()


@pytest.mark.parametrize("said", ["{}/17", "{}/%j", "{}/17/nccl_trace_rank_"])
def test_the_comments_directory_or_beginning_goes_before_the_script(tmp_path: Path, said: str) -> None:
    written(tmp_path / "17" / "nccl_trace_rank_", 0, 1)
    written(tmp_path / "other_", 0)
    told = found(tmp_path, f"export TORCH_FR_DUMP_TEMP_FILE={tmp_path}/other_", dumps=said.format(tmp_path))
    assert ranks_of(told) == ["nccl_trace_rank_0", "nccl_trace_rank_1"]


def test_an_earlier_attempts_dumps_and_all_that_is_no_dump_are_left_alone(tmp_path: Path) -> None:
    prefix = tmp_path / "fr_"
    written(prefix, 0, at=-1)
    written(prefix, 1)
    (tmp_path / "fr_2").symlink_to(tmp_path / "fr_1")
    (tmp_path / "fr_3").mkdir()
    os.mkfifo(tmp_path / "fr_4")
    (tmp_path / "fr_5.tmp").write_text("x")
    script = f"export TORCH_FR_DUMP_TEMP_FILE={prefix}"
    assert ranks_of(found(tmp_path, script)) == ["fr_1"]
    assert found(tmp_path, script, since=None) == Dumps(), "none can be told from an older one"


def test_nothing_outside_the_allowed_roots_is_looked_at(tmp_path: Path) -> None:
    written(tmp_path / "private" / "fr_", 0)
    root = tmp_path / "runs"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "private")
    for place in (tmp_path / "private", root / "link"):
        told = found(root, f"export TORCH_FR_DUMP_TEMP_FILE={place}/fr_")
        assert told.paths == ()
        assert "logs.roots" in told.notes[0]


@pytest.mark.parametrize("value", ["$(hostname)/fr_", "$HOME/fr_", "fr_", "/shared/dumps/"])
def test_a_place_that_a_shell_would_compute_is_not_guessed(tmp_path: Path, value: str) -> None:
    assert found(tmp_path, f"export TORCH_FR_DUMP_TEMP_FILE={value}") == Dumps()


def test_more_than_the_bounds_are_none_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "fr_", 0, 1, 2, size=100)
    script = f"export TORCH_FR_DUMP_TEMP_FILE={tmp_path}/fr_"
    for bound, most in (("MOST_FILES", 2), ("MOST_BYTES", 299), ("MOST_ENTRIES", 2)):
        with monkeypatch.context() as lower:
            lower.setattr(dumps, bound, most)
            told = found(tmp_path, script)
        assert told.paths == ()
        assert "flight-recorder dumps not used" in told.notes[0]
    assert len(found(tmp_path, script).paths) == 3


def test_torchs_own_default_holds_only_what_the_jobs_user_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "nccl_trace_rank_", 0, 1)
    monkeypatch.setattr(dumps, "DEFAULT_PREFIX", tmp_path / "nccl_trace_rank_")
    owner = (tmp_path / "nccl_trace_rank_0").owner()
    roots = LogRoots([tmp_path])
    assert len(dumps_of(a_job(user=owner), an_opt_in(), "srun train", roots, since=NOON).paths) == 2
    assert dumps_of(a_job(user="nobody"), an_opt_in(), "srun train", roots, since=NOON) == Dumps()
    assert dumps_of(a_job(user=""), an_opt_in(), "srun train", roots, since=NOON) == Dumps()
    outside = LogRoots([tmp_path / "runs"])
    assert dumps_of(a_job(user=owner), an_opt_in(), "srun train", outside, since=NOON) == Dumps(), "nobody named it: no complaint"
