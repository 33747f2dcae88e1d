"""The embedded Temporal server: found, started, stopped, and started again on its database."""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client

from workers.embedded.temporal import (
    EmbeddedTemporal,
    EmbeddedTemporalFailed,
    Origin,
    Program,
    answers,
    find_program,
    free_port,
    port_is_free,
)
from workflows.visibility import SEARCH_ATTRIBUTES


def an_executable(path: Path, text: str = "#!/bin/sh\nexit 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


async def test_only_its_owner_may_read_the_database_and_the_servers_log(tmp_path: Path) -> None:
    """A history quotes logs, and a head node has many users. A file of an earlier start is closed too."""
    database = tmp_path / "temporal.db"
    for _ in range(2):
        async with EmbeddedTemporal(database) as server:
            modes = {entry.name: entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path)}
            assert {"temporal.db", server.log_file.name} <= modes.keys()
            assert set(modes.values()) == {0o600}
        database.chmod(0o644)


async def test_a_second_server_on_the_same_database_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    """On other ports it would start, and both would run every workflow of the file."""
    database = tmp_path / "temporal.db"
    async with EmbeddedTemporal(database):
        with pytest.raises(EmbeddedTemporalFailed, match=r"another Temporal server uses .*temporal\.db"):
            await EmbeddedTemporal(database).start()
    async with EmbeddedTemporal(database) as again:
        assert again.is_running


async def test_a_database_in_no_place_to_write_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for database in (tmp_path / "file" / "temporal.db", Path("/proc/nowhere/temporal.db")):
        with pytest.raises(EmbeddedTemporalFailed, match=r"cannot be used: .*; set temporal\.database"):
            await EmbeddedTemporal(database).start()


async def test_a_directory_named_as_the_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    database, beside = tmp_path / "backstay", tmp_path / "backstay-evidence"
    for directory in (database, beside):
        directory.mkdir()
        directory.chmod(0o755)
    with pytest.raises(EmbeddedTemporalFailed, match="Is a directory"):
        await EmbeddedTemporal(database).start()
    assert {directory.stat().st_mode & 0o777 for directory in (database, beside)} == {0o755}


def test_the_official_program_on_path_comes_before_the_packaged_one(tmp_path: Path) -> None:
    official, packaged = an_executable(tmp_path / "official" / "temporal"), an_executable(tmp_path / "venv" / "temporal")
    assert find_program(str(official.parent), packaged.parent) == Program(official, Origin.PATH)
    assert find_program(str(tmp_path), packaged.parent) == Program(packaged, Origin.PACKAGED)


def test_an_activated_environment_does_not_make_the_packaged_program_an_official_one(tmp_path: Path) -> None:
    packaged = an_executable(tmp_path / "venv" / "temporal")
    assert find_program(str(packaged.parent), packaged.parent) == Program(packaged, Origin.PACKAGED)


def test_without_any_program_there_is_none(tmp_path: Path) -> None:
    assert find_program(str(tmp_path), tmp_path) is None


async def test_nothing_answers_at_a_port_nobody_listens_on() -> None:
    assert not await answers(f"127.0.0.1:{free_port()}")


async def test_what_was_started_is_still_there_after_a_restart_on_the_same_database(tmp_path: Path) -> None:
    database = tmp_path / "state" / "temporal.db"
    async with EmbeddedTemporal(database) as server:
        client = await Client.connect(server.address)
        await client.start_workflow("Anything", id="kept", task_queue="nobody")
        listed = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
        assert {key.name for key in SEARCH_ATTRIBUTES} <= set(listed.custom_attributes)
        port = server.port
    assert not await answers(f"127.0.0.1:{port}")
    async with EmbeddedTemporal(database, port=port) as server:
        assert await answers(server.address)
        description = await (await Client.connect(server.address)).get_workflow_handle("kept").describe()
        assert description.workflow_type == "Anything"


async def test_a_server_killed_from_outside_is_noticed(tmp_path: Path) -> None:
    async with EmbeddedTemporal(tmp_path / "temporal.db") as server:
        assert server.is_running
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert await server.wait() == -9
        assert not server.is_running


async def test_a_server_ends_with_the_process_that_started_it_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib, sys\n"
        "from workers.embedded.temporal import EmbeddedTemporal\n"
        "async def main():\n"
        f"    async with EmbeddedTemporal(pathlib.Path({str(tmp_path / 'temporal.db')!r})) as server:\n"
        "        print(server.port, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    port = int(await owner.stdout.readline())
    assert await answers(f"127.0.0.1:{port}")
    owner.kill()
    await owner.wait()
    deadline = time.monotonic() + 60
    while not port_is_free(port):
        assert time.monotonic() < deadline, "the server outlived its owner"


def test_a_free_port_is_given_to_nobody_else_meanwhile() -> None:
    ports = [free_port() for _ in range(300)]
    assert len(set(ports)) == 300
    assert port_is_free(ports[0]), "for who asks for it by number"


async def test_a_taken_port_is_named_with_the_key_to_change(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not port_is_free(port)
        with pytest.raises(EmbeddedTemporalFailed, match=f"port {port}.*taken.*temporal.ui_port"):
            await EmbeddedTemporal(tmp_path / "temporal.db", ui_port=port).start()


async def test_a_server_that_dies_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    program = Program(an_executable(tmp_path / "temporal", "#!/bin/sh\necho database is locked\nexit 7\n"), Origin.PATH)
    with pytest.raises(EmbeddedTemporalFailed, match=r"exit code 7: database is locked; see .*temporal\.log"):
        await EmbeddedTemporal(tmp_path / "temporal.db", program=program).start()
