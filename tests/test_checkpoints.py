"""The newest complete checkpoint on disk, in each framework's layout; half-written ones do not count."""

import io
import os
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.checkpoints import MOST_ENTRIES, CheckpointMark, CheckpointsUnreadable, newest_checkpoint
from activities.logs.paths import LogRoots

LONG_AGO = datetime(2026, 1, 5, tzinfo=UTC)
NOW = LONG_AGO + timedelta(hours=1)


class Disk:
    """A checkpoint directory; every file is an hour old unless `fresh`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, content: bytes | str = b"x", *, fresh: bool = False) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        at = (NOW if fresh else LONG_AGO).timestamp()
        for place in (path, *path.parents[: len(path.relative_to(self.root).parts) - 1]):
            os.utime(place, (at, at))

    def newest(self, **how: CheckpointMark) -> CheckpointMark | None:
        return newest_checkpoint(self.root, LogRoots([self.root]), now=NOW, **how)

    def iteration(self) -> int | None:
        mark = self.newest()
        return None if mark is None else mark.iteration


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def a_zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    return content.getvalue()


def test_no_directory_and_an_empty_one_are_no_checkpoint(disk: Disk) -> None:
    assert disk.newest() is None
    assert newest_checkpoint(disk.root / "later", LogRoots([disk.root])) is None


def test_megatrons_tracker_names_the_newest_finished_one(disk: Disk) -> None:
    disk.write("latest_checkpointed_iteration.txt", "200", fresh=True)
    disk.write("iter_0000100/mp_rank_00/model_optim_rng.pt")
    disk.write("iter_0000200/mp_rank_00/model_optim_rng.pt", fresh=True)
    disk.write("iter_0000300/mp_rank_00/model_optim_rng.pt")
    mark = disk.newest()
    assert mark == CheckpointMark(iteration=200, written_at=NOW, path=str(disk.root / "iter_0000200"))


def test_a_tracker_whose_checkpoint_is_missing_or_empty_falls_back_to_the_one_before(disk: Disk) -> None:
    disk.write("latest_checkpointed_iteration.txt", "200\n")
    disk.write("iter_0000100/mp_rank_00/model_optim_rng.pt")
    assert disk.iteration() == 100
    (disk.root / "iter_0000200/mp_rank_00").mkdir(parents=True)
    assert disk.iteration() == 100


def test_a_release_tracker_says_nothing(disk: Disk) -> None:
    disk.write("latest_checkpointed_iteration.txt", "release")
    disk.write("release/mp_rank_00/model_optim_rng.pt")
    assert disk.newest() is None


def test_without_a_tracker_an_old_megatron_checkpoint_counts_once_it_is_quiet(disk: Disk) -> None:
    disk.write("iter_0000100/mp_rank_00/model_optim_rng.pt", fresh=True)
    assert disk.newest() is None
    disk.write("iter_0000100/mp_rank_00/model_optim_rng.pt")
    assert disk.iteration() == 100


def test_a_distributed_megatron_checkpoint_needs_its_metadata(disk: Disk) -> None:
    disk.write("iter_0000100/__0_0.distcp")
    disk.write("iter_0000100/common.pt")
    assert disk.newest() is None
    disk.write("iter_0000100/.metadata", fresh=True)
    disk.write("iter_0000100/metadata.json", fresh=True)
    assert disk.iteration() == 100


def test_deepspeeds_latest_names_the_newest_finished_one(disk: Disk) -> None:
    disk.write("latest", "global_step100")
    disk.write("global_step100/mp_rank_00_model_states.pt")
    disk.write("global_step200/mp_rank_00_model_states.pt")
    assert disk.iteration() == 100


def test_an_empty_shard_is_half_written(disk: Disk) -> None:
    disk.write("latest", "global_step200")
    disk.write("global_step100/mp_rank_00_model_states.pt")
    disk.write("global_step200/mp_rank_00_model_states.pt")
    disk.write("global_step200/zero_pp_rank_0_mp_rank_00_optim_states.pt", b"")
    assert disk.iteration() == 100


def test_hugging_face_is_complete_with_its_trainer_state(disk: Disk) -> None:
    disk.write("checkpoint-500/model-00001-of-00002.safetensors")
    disk.write("checkpoint-500/trainer_state.json", "{}", fresh=True)
    disk.write("checkpoint-1000/optimizer.pt")
    disk.write("tmp-checkpoint-1500/trainer_state.json", "{}")
    assert disk.iteration() == 500
    disk.write("checkpoint-1000/model.safetensors")
    assert disk.iteration() == 1000


def test_torchtitan_is_complete_with_its_metadata(disk: Disk) -> None:
    disk.write("checkpoint/step-10/.metadata")
    disk.write("checkpoint/step-10/__0_0.distcp")
    disk.write("checkpoint/step-20/__0_0.distcp")
    disk.write("checkpoint/step-20/.metadata.tmp")
    mark = disk.newest()
    assert mark is not None
    assert (mark.iteration, mark.path) == (10, str(disk.root / "checkpoint/step-10"))


@pytest.mark.parametrize(
    ("name", "iteration"),
    [
        ("epoch=1-step=500.ckpt", 500),
        ("model-step=500-val_loss=1.20.ckpt", 500),
        ("checkpoint_1_500.pt", 500),
        ("checkpoint_500.pt", 500),
        ("ckpt_500.pt", 500),
        ("model_step_500.pt", 500),
        ("last.ckpt", None),
        ("events.500", None),
    ],
)
def test_single_files_count_when_the_archive_is_whole(disk: Disk, name: str, iteration: int | None) -> None:
    disk.write(name, a_zip(), fresh=True)
    assert disk.iteration() == iteration


def test_a_file_that_is_still_being_written_does_not_count(disk: Disk) -> None:
    disk.write("epoch=0-step=100.ckpt", a_zip())
    disk.write("epoch=1-step=200.ckpt", a_zip()[:-30], fresh=True)
    disk.write("epoch=2-step=300.ckpt", b"", fresh=True)
    assert disk.iteration() == 100


def test_nemo_and_orbax_mark_what_is_unfinished(disk: Disk) -> None:
    disk.write("checkpoints/run--step=100-consumed_samples=800.0/weights/.metadata")
    disk.write("checkpoints/run--step=100-consumed_samples=800.0/weights/__0_0.distcp")
    disk.write("checkpoints/run--step=200-consumed_samples=1600.0/weights/.metadata")
    disk.write("checkpoints/run--step=200-consumed_samples=1600.0-unfinished", b"")
    assert disk.iteration() == 100
    disk.write("300/_CHECKPOINT_METADATA", "{}")
    disk.write("400.orbax-checkpoint-tmp-12/_CHECKPOINT_METADATA", "{}")
    disk.write("500/notes.txt")
    assert disk.iteration() == 300


def test_a_known_checkpoint_is_not_looked_into_again(disk: Disk) -> None:
    disk.write("checkpoint-500/trainer_state.json", "{}")
    known = disk.newest()
    assert known is not None
    (disk.root / "checkpoint-500/trainer_state.json").unlink()
    assert disk.newest(known=known) == known
    assert disk.newest() is None


def test_outside_the_roots_is_unreadable_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(CheckpointsUnreadable, match=r"logs\.roots"):
        newest_checkpoint(tmp_path, LogRoots([tmp_path / "elsewhere"]))


def test_a_file_where_a_directory_should_be_is_unreadable(disk: Disk) -> None:
    disk.write("ckpt.txt")
    with pytest.raises(CheckpointsUnreadable, match="correct the path"):
        newest_checkpoint(disk.root / "ckpt.txt", LogRoots([disk.root]))


def test_a_link_out_of_the_roots_is_no_checkpoint(disk: Disk, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = Disk(tmp_path_factory.mktemp("elsewhere"))
    elsewhere.write("checkpoint-900/trainer_state.json", "{}")
    (disk.root / "checkpoint-900").symlink_to(elsewhere.root / "checkpoint-900")
    disk.write("checkpoint-100/trainer_state.json", "{}")
    assert disk.iteration() == 100


def test_too_many_entries_are_said_to_be_too_many(disk: Disk) -> None:
    for number in range(MOST_ENTRIES + 1):
        (disk.root / f"sample-{number}").touch()
    with pytest.raises(CheckpointsUnreadable, match="only the checkpoints"):
        disk.newest()


def test_a_number_longer_than_any_count_names_no_checkpoint(disk: Disk) -> None:
    """Python refuses to read 5,000 digits, and JSON for programs ends at 64 bits; either would blind a command to every job."""
    disk.write("iter_0000100/mp_rank_00/model.pt")
    disk.write(f"iter_{'9' * 20}/mp_rank_00/model.pt")
    disk.write(f"checkpoint-{'9' * 200}/trainer_state.json")
    assert disk.iteration() == 100
