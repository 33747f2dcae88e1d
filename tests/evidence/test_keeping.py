"""How long evidence is kept: by age, by the size of all of it, and never anything that a capture did not write."""

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from activities.configuration import EvidenceSection
from activities.evidence.capture import EvidenceStore, Material
from activities.logs.paths import LogRoots
from tests.builders import NOON, a_job, a_key

DAY = timedelta(days=1)


class Bench:
    """A store whose captures are dated by hand: each leaves some 40 kB."""

    def __init__(self, directory: Path, **section: Any) -> None:
        self.directory = directory / "evidence"
        self.log = directory / "train.log"
        self.log.write_text("step 1\n" * 2500)
        self.store = EvidenceStore(EvidenceSection.model_validate({"directory": self.directory, **section}), LogRoots([directory]))

    def capture(self, incident_id: str, at: datetime) -> Path:
        """The folder of an incident captured at `at`."""
        self.store.capture(Material(job=a_job(), logs=[self.log]), key=a_key(), incident_id=incident_id, captured_at=at)
        folder = self.directory / f"job-alpha-17-{int(a_key().submitted_at.timestamp())}-{incident_id}"
        if folder.is_dir():
            os.utime(folder / "evidence.json", (at.timestamp(), at.timestamp()))
        return folder


def test_evidence_leaves_when_it_is_too_old_and_the_deletion_is_logged(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_for="30d")
    old, young = bench.capture("i-1", NOON), bench.capture("i-2", NOON + 20 * DAY)
    with capture_logs() as logged:
        newest = bench.capture("i-3", NOON + 30 * DAY)
    assert (old.exists(), young.exists(), newest.exists()) == (False, True, True)
    [deletion] = [line for line in logged if line["event"] == "evidence_deleted"]
    assert (deletion["folder"], deletion["bound"], deletion["left_as_not_ours"]) == (str(old), "evidence.keep_for", [])


def test_the_oldest_leave_until_the_rest_fits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_bytes=100_000)
    folders = [bench.capture(f"i-{number}", NOON + number * DAY) for number in range(4)]
    assert [folder.exists() for folder in folders] == [False, False, True, True]


def test_the_newest_stays_though_it_alone_is_too_large(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_bytes=1)
    first, second = bench.capture("i-1", NOON), bench.capture("i-2", NOON + DAY)
    assert (first.exists(), second.exists()) == (False, True)


def test_a_capture_that_is_repeated_is_still_answered_by_the_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_bytes=1)
    folder = bench.capture("i-1", NOON)
    before = (folder / "log-1.txt").stat().st_ino
    bench.capture("i-1", NOON + 60 * DAY)
    assert (folder / "log-1.txt").stat().st_ino == before


def test_what_a_capture_did_not_write_is_never_touched(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_for="1d")
    old = bench.capture("i-1", NOON)
    (old / "my-notes.txt").write_text("looked at it, bad cable")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "evidence.json").write_text("{}")
    others = {
        bench.directory / "report.pdf": "x",
        bench.directory / "exports" / "log-1.txt": "x",  # a folder without a manifest
        bench.directory / "theirs" / "evidence.json": "[]",  # a manifest that is not ours
    }
    for path, text in others.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, (0, 0))
    (bench.directory / "link").symlink_to(outside)
    bench.capture("i-2", NOON + 2 * DAY)
    assert [path.name for path in old.iterdir()] == ["my-notes.txt"]
    assert all(path.exists() for path in others)
    assert (outside / "evidence.json").exists()
    with capture_logs() as logged:
        bench.capture("i-3", NOON + 2 * DAY)
    assert [line["event"] for line in logged] == ["evidence_not_deleted"], "what was left is no capture any more; the manifest is told"


def test_what_cannot_be_deleted_costs_no_capture(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_for="1d")
    old = bench.capture("i-1", NOON)
    (old / "log-2.txt").mkdir()  # a permission would not stop root
    with capture_logs() as logged:
        newest = bench.capture("i-2", NOON + 2 * DAY)
    assert newest.exists()
    assert "evidence_not_deleted" in [line["event"] for line in logged]


def test_the_old_leave_also_where_the_new_cannot_be_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_for="1d")
    old = bench.capture("i-1", NOON)
    old.with_name(old.name.replace("i-1", "i-2")).write_text("in the way, as a full disk is")
    bench.capture("i-2", NOON + 2 * DAY)
    assert not old.exists()


def test_evidence_that_is_not_stored_keeps_nothing_and_deletes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stored_bytes=0)
    assert not bench.capture("i-1", NOON).exists()
