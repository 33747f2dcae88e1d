"""Where a job's log is, and what may be opened. Expected names are those of sbatch(1), "filename pattern"."""

import os
from pathlib import Path

import pytest

from activities.logs.paths import LogRoots, PathRefused, checkpoint_directory_of, expand_output_pattern, log_path_of
from activities.records import Job, OptIn
from tests.builders import a_job


def the_job(**changes: object) -> Job:
    return a_job("128", **{"working_directory": "/shared/run", "nodes": ("node-003", "node-004"), "restart_count": 2, **changes})


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/logs/job%j.out", "/logs/job128.out"),
        ("/logs/job%4j.out", "/logs/job0128.out"),
        ("/logs/job%J.out", "/logs/job128.out"),
        ("/logs/%99j", "/logs/0000000128"),
        ("/logs/%x-%u-%N.out", "/logs/train-alice-node-003.out"),
        ("/logs/%8x", "/logs/train"),
        ("/logs/%A_%a", "/logs/128_4294967294"),
        ("/logs/%t-%2t-%n", "/logs/0-00-0"),
        ("/logs/%s", "/logs/batch"),
        ("/logs/r%r-%3r", "/logs/r2-002"),
        ("/logs/100%%", "/logs/100%"),
        ("/logs/%%j-%j", "/logs/%j-128"),
        ("/logs/%z-%5z-%", "/logs/%z-5z-%"),
        ("/logs/%\\j", "/logs/%j"),
        ("out/%j", "/shared/run/out/128"),
        ("", "/shared/run/slurm-128.out"),
    ],
)
def test_an_output_pattern_expands_as_slurm_expands_it(pattern: str, path: str) -> None:
    assert expand_output_pattern(pattern, the_job()) == path


def test_an_array_task_has_its_own_default_name_and_symbols() -> None:
    job = a_job("77_13", numeric_id=90, working_directory="/w")
    assert expand_output_pattern("", job) == "/w/slurm-77_13.out"
    assert expand_output_pattern("/l/%A-%a-%b-%j", job) == "/l/77-13-3-90"


def test_what_cannot_be_known_is_none() -> None:
    assert expand_output_pattern("/l/%N", the_job(nodes=())) is None
    assert expand_output_pattern("/l/%S", the_job()) is None
    assert expand_output_pattern("/l/%S", the_job(sluid="s1A2B")) == "/l/s1A2B"
    assert expand_output_pattern("out", the_job(working_directory=None)) is None


def test_the_log_is_what_the_comment_names_else_the_jobs_stdout() -> None:
    job = the_job(stdout_path="/shared/%j.out")
    assert log_path_of(job, OptIn(opted_in=True)) == Path("/shared/128.out")
    assert log_path_of(job, OptIn(opted_in=True, log="logs/%j.log")) == Path("/shared/run/logs/128.log")
    assert log_path_of(the_job(stdout_path="/dev/null"), OptIn()) is None
    assert log_path_of(the_job(stdout_path=None, is_batch=False), OptIn()) is None
    assert checkpoint_directory_of(job, OptIn(checkpoints="/ckpt/%j")) == Path("/ckpt/128")
    assert checkpoint_directory_of(job, OptIn()) is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("secret")
    return tmp_path / "runs"


def test_a_file_under_a_root_opens(root: Path) -> None:
    (root / "log").write_text("hello")
    with LogRoots([root]).open(root / "log") as file:
        assert file.read() == b"hello"


def test_a_link_is_judged_by_where_it_leads(root: Path) -> None:
    (root / "log").write_text("hello")
    (root / "inside").symlink_to(root / "log")
    (root / "outside").symlink_to(root.parent / "elsewhere/secret")
    (root / "directory").symlink_to(root.parent / "elsewhere")
    roots = LogRoots([root])
    with roots.open(root / "inside") as file:
        assert file.read() == b"hello"
    for path in (root / "outside", root / "directory/secret", root / "../elsewhere/secret"):
        with pytest.raises(PathRefused, match=r"logs\.roots"):
            roots.open(path)


def test_a_root_that_is_itself_a_link_is_a_root(root: Path) -> None:
    (root / "log").write_text("hello")
    (root.parent / "link").symlink_to(root)
    with LogRoots([root.parent / "link"]).open(root.parent / "link/log") as file:
        assert file.read() == b"hello"


def test_without_roots_nothing_opens_and_the_mend_names_the_key(root: Path) -> None:
    (root / "log").write_text("hello")
    with pytest.raises(PathRefused) as refused:
        LogRoots([]).open(root / "log")
    assert "logs.roots" in refused.value.mend


def test_a_directory_with_a_roots_name_as_prefix_is_outside(root: Path) -> None:
    (root.parent / "runs-of-others").mkdir()
    with pytest.raises(PathRefused):
        LogRoots([root]).check(root.parent / "runs-of-others/log")


def test_fifos_devices_and_directories_are_refused_without_waiting(root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "directory").mkdir()
    for path in (root / "fifo", root / "directory"):
        with pytest.raises(PathRefused, match="not a regular file"):
            LogRoots([root]).open(path)
    with pytest.raises(PathRefused, match="not a regular file"):
        LogRoots([Path("/dev")]).open(Path("/dev/zero"))


def test_a_relative_path_is_refused(root: Path) -> None:
    with pytest.raises(PathRefused, match="relative"):
        LogRoots([root]).open(Path("log"))


def test_a_missing_file_is_an_ordinary_error(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LogRoots([root]).open(root / "not-yet")
