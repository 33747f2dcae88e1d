"""A real full disk under the embedded database: a small file system of the test's own, filled while Backstay runs and before it starts."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.service import RPCError

from activities.loading import load_configuration
from tests.commands.running import a_site, service, told
from workers.client import connect
from workers.commands.service_checks import disk
from workers.disk import in_units, try_to_write, why_not_writable
from workers.embedded.temporal import EmbeddedTemporal, EmbeddedTemporalFailed, free_port

SIZE = "12m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine mounts nothing: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> None:
    """Takes all that is free, to the last page."""
    with (place / "somebody-elses-data").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


async def write_until_it_fails(configuration: str) -> None:
    """SQLite writes into what its files hold already for a while; then a write needs room that is not there."""
    client = await connect(load_configuration(Path(configuration)))
    for number in range(100):
        try:
            await client.start_workflow(
                "Anything", "x" * 500_000, id=f"big-{number}", task_queue="nobody", rpc_timeout=timedelta(seconds=5)
            )
        except RPCError:
            return
    raise AssertionError("a full disk took 50 MB")


def a_site_there(tmp_path: Path, place: Path) -> str:
    section = {"address": f"127.0.0.1:{free_port()}", "ui_port": free_port(), "database": str(place / "temporal.db")}
    return str(a_site(tmp_path, temporal=section))


async def test_a_disk_that_fills_up_under_the_database_is_found_by_doctor_and_no_command_calls_it_well(
    tmp_path: Path, small_disk: Path
) -> None:
    configuration = a_site_there(tmp_path, small_disk)
    async with service("up", "-c", configuration, log=tmp_path / "up.log") as up:
        code, out, _ = await told("doctor", "--json", "-c", configuration)
        before = {check["name"]: check for check in json.loads(out)}
        assert (before["temporal write"]["status"], before["worker"]["status"]) == ("ok", "ok")
        fill(small_disk)
        await write_until_it_fails(configuration)
        code, out, _ = await told("doctor", "--json", "-c", configuration)
        after = {check["name"]: check for check in json.loads(out)}
        assert code == 1
        assert after["database disk"]["status"] == "failed"
        assert f"the disk of {small_disk} is full" in after["database disk"]["found"]
        assert "temporal.database" in after["database disk"]["mend"]
        assert after["temporal write"]["status"] == "failed", "a real write, not the figures of a file system"
        for arguments in (("jobs", "--json"), ("breaker", "--json")):
            code, out, errors = await told(*arguments, "-c", configuration)
            assert (code, out) == (3, ""), errors
            assert errors.count("\n") == 1
        assert await up.stop() == 0
    assert all("event" in line for line in up.lines())


async def test_up_on_a_full_disk_names_the_path_and_the_fix(tmp_path: Path, small_disk: Path) -> None:
    fill(small_disk)
    code, _, errors = await told("up", "-c", a_site_there(tmp_path, small_disk))
    why = json.loads(errors.splitlines()[-1])["why"]
    assert code == 3
    assert f"temporal.database ({small_disk / 'temporal.db'}) cannot grow: the disk of {small_disk} is full (0 bytes free)" in why
    assert why.endswith("free space there, or set temporal.database to a file on another disk")


async def test_a_file_size_limit_is_named_as_what_it_is(tmp_path: Path) -> None:
    """`ulimit -f` of a login session stops a database as a full disk does."""
    configuration = a_site_there(tmp_path, tmp_path)
    code, _, errors = await told("up", "-c", configuration, prefix=("sh", "-c", 'ulimit -f 2000; exec "$@"', "sh"))
    assert code == 3
    assert "takes no more from this process (ulimit -f)" in errors
    assert str(tmp_path) in errors


async def test_the_embedded_server_is_not_even_started_there(small_disk: Path) -> None:
    fill(small_disk)
    server = EmbeddedTemporal(small_disk / "temporal.db")
    with pytest.raises(EmbeddedTemporalFailed, match="is full"):
        await server.start()
    assert server.pid is None


def test_little_room_is_told_before_the_disk_is_full(small_disk: Path) -> None:
    check = disk("evidence disk", small_disk, "evidence.directory to one on another disk")
    assert (check.status, check.found) == ("failed", f"12.0 MiB free at {small_disk}")
    assert "evidence.directory" in check.mend


def test_a_directory_that_is_still_to_be_made_is_asked_at_the_place_where_it_will_be(tmp_path: Path) -> None:
    assert str(tmp_path) in disk("evidence disk", tmp_path / "a" / "b", "evidence.directory").found
    assert not (tmp_path / "a").exists()


def test_what_is_written_to_try_leaves_nothing_behind(tmp_path: Path) -> None:
    try_to_write(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert why_not_writable(tmp_path, PermissionError(13, "Permission denied")) == f"{tmp_path} cannot be written: Permission denied"
    assert [in_units(size) for size in (0, 2048, 12 * 1024**2, 3 * 1024**4)] == ["0 bytes", "2 KiB", "12.0 MiB", "3.0 TiB"]
