"""Two users of one machine run `backstay up`: each has a server, a port and a database of their own, and neither meets the other's."""

import asyncio
import json
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.loading import load_configuration
from activities.scanning import databases
from tests.commands.running import Service, a_site, environment, service, told
from workers.client import TemporalUnreachable, connect
from workers.embedded.ownership import listening_user, new_ownership, owner_file, read_mark, read_ownership, write_mark
from workers.embedded.temporal import EmbeddedTemporal, free_port

# In a mount namespace of its own, the directory that keeps others from this interpreter (such as /root) is laid open down to it only.
LAID_OPEN = """
mkdir -p "$3" && mount --bind "$2" "$3" && mount -t tmpfs -o mode=755 tmpfs "$1" && mkdir -p "$2" && mount --bind "$3" "$2" || exit 99
shift 3
exec "$@"
"""


class User:
    """Another user of this machine, with a home and a configuration of their own."""

    def __init__(self, name: str, home: Path, port: int, ui_port: int) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.home = name, home
        self.database = home / "state" / "temporal.db"
        self.configuration = str(
            a_site(home, temporal={"address": f"127.0.0.1:{port}", "ui_port": ui_port, "database": str(self.database)})
        )
        # Compiled matchers of whoever runs the tests, where there are any: compiling them anew takes a busy machine a minute.
        if (cache := databases.directory()) is not None and cache.is_dir():
            (home / ".cache" / databases.DIRECTORY).mkdir(parents=True)
            for compiled in cache.iterdir():
                with suppress(FileNotFoundError):  # another test's process is writing there
                    shutil.copy2(compiled, home / ".cache" / databases.DIRECTORY)
        for each in (home, *home.rglob("*")):
            os.chown(each, entry.pw_uid, entry.pw_gid)
        self._as = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")
        self._env = environment(HOME=str(home), TMPDIR=str(home), USER=name, LOGNAME=name)

    @property
    def prefix(self) -> Sequence[str]:
        base = Path(sys.base_prefix)
        closed = next((each for each in reversed(base.parents) if not each.stat().st_mode & 0o001), None)
        if closed is None:
            return self._as
        opened = ("unshare", "--mount", "sh", "-c", LAID_OPEN, "sh", str(closed), str(base), str(self.home / "python"))
        return (*opened, *self._as)

    def another_configuration(self, name: str, **temporal: object) -> str:
        """A second file of this user's."""
        path = self.home / f"{name}.yaml"
        written = json.loads(Path(self.configuration).read_text())
        path.write_text(json.dumps({**written, "temporal": {**written["temporal"], **temporal}}))
        return str(path)

    async def backstay(self, *arguments: str, configuration: str | None = None) -> tuple[int, str, str]:
        return await told(*arguments, "-c", configuration or self.configuration, prefix=self.prefix, env=self._env)

    def up(self) -> AbstractAsyncContextManager[Service]:
        return service("up", "-c", self.configuration, log=self.home / "up.log", prefix=self.prefix, env=self._env)


def started(up: Service) -> str:
    """The address at which this `up` told that its Temporal is."""
    return str(next(line["address"] for line in up.lines() if line["event"] == "temporal_started"))


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    """Two, who both want the same ports."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("to run as other users, this test needs root, setpriv and unshare")
    directory = Path(tempfile.mkdtemp(prefix="backstay-users-"))
    directory.chmod(0o755)
    port, ui_port = free_port(), free_port()
    made = []
    for name in ("nobody", "daemon"):
        (directory / name).mkdir()
        made.append(User(name, directory / name, port, ui_port))
    yield made[0], made[1]
    shutil.rmtree(directory)


async def test_two_users_run_up_side_by_side_and_neither_reaches_the_others(users: tuple[User, User]) -> None:
    ann, bob = users
    async with ann.up() as hers, bob.up() as his:
        assert started(hers) != started(his)
        assert [ann.database.exists(), bob.database.exists()] == [True, True]
        assert {owner_file(user.database).stat().st_mode & 0o777 for user in users} == {0o600}

        # What one does to the breaker of cluster alpha, the other's cluster alpha does not know.
        assert (await bob.backstay("breaker", "trip", "--reason", "mine"))[0] == 0
        code, out, _ = await ann.backstay("breaker", "--json")
        assert (code, json.loads(out)["breaker"]["tripped_at"]) == (0, None)
        code, out, errors = await bob.backstay("jobs", "--json")
        assert (code, out) == (0, "[]\n")
        assert "the breaker has been tripped by daemon" in errors

        # Bob's configuration names Ann's address and a database that was never served: he is told whose server that is.
        there = bob.another_configuration("there", address=started(hers), database=str(bob.home / "nothing.db"))
        asked = (("jobs",), ("show", "1"), ("approve", "1"), ("breaker",), ("worker",))
        for code, out, errors in await asyncio.gather(*(bob.backstay(*arguments, configuration=there) for arguments in asked)):
            assert (code, out) == (3, ""), errors
            assert "is user nobody's, started by `backstay up`" in errors
            assert "start `backstay up` with a configuration of your own" in errors
        code, out, _ = await bob.backstay("doctor", "--json", configuration=there)
        assert (code, "is user nobody's" in json.loads(out)[0]["found"]) == (1, True)

        # Her database is hers to read.
        code, _, errors = await bob.backstay("jobs", configuration=bob.another_configuration("hers", database=str(ann.database)))
        assert (code, "belongs to nobody; run this command as nobody" in errors) == (3, True), errors

        # The same user, once more.
        code, _, errors = await ann.backstay("up")
        assert (code, f"is already running with this configuration (process {hers_pid(ann)}, since 20" in errors) == (1, True), errors
        assert started(hers) in errors

        # Root reads everything, and means her server by her configuration.
        assert (await told("jobs", "-c", ann.configuration))[0] == 0

        assert (await hers.stop(), await his.stop()) == (0, 0)


def hers_pid(user: User) -> int | None:
    ownership = read_ownership(user.database)
    return ownership.pid if ownership else None


async def test_a_server_of_another_user_that_carries_the_right_mark_is_refused_by_whose_process_it_is(users: tuple[User, User]) -> None:
    """Everybody can read a mark, and copy it onto a server of their own at a port that has become free."""
    ann, _ = users
    async with ann.up() as hers:
        address = started(hers)
        assert await hers.stop() == 0
    ownership = read_ownership(ann.database)
    assert ownership is not None
    async with EmbeddedTemporal(ann.home / "forged.db", port=int(address.rpartition(":")[2])) as forged:
        client = await Client.connect(forged.address)
        await write_mark(client, ann.database, ownership)
        assert (await read_mark(client)).digest == ownership.digest
        code, out, errors = await ann.backstay("jobs", "--json")
    assert (code, out) == (3, "")
    assert "is a process of user root; do not use it" in errors


async def test_the_kernel_says_whose_process_listens() -> None:
    server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert listening_user(f"127.0.0.1:{port}") == os.geteuid()
    server.close()
    await server.wait_closed()
    assert listening_user(f"127.0.0.1:{port}") is None


async def test_a_server_that_up_did_not_start_is_used_where_up_never_served_the_database_and_refused_where_it_did(tmp_path: Path) -> None:
    """An operator's own Temporal on this machine carries no mark."""
    async with EmbeddedTemporal(tmp_path / "theirs.db") as theirs:
        database = tmp_path / "temporal.db"
        configuration = load_configuration(a_site(tmp_path, temporal={"address": theirs.address, "database": str(database)}))
        await connect(configuration)
        owner_file(database).write_text(new_ownership().model_dump_json())
        with pytest.raises(TemporalUnreachable, match="one that `backstay up` did not start, and not that of") as refused:
            await connect(configuration)
    assert "start `backstay up`" in refused.value.mend


def test_only_the_address_it_was_configured_with_leads_to_the_port_it_has() -> None:
    """Another address in the configuration means another server, which is then compared and refused; never this one unasked."""
    moved = new_ownership().model_copy(update={"configured": "127.0.0.1:7233", "address": "127.0.0.1:40001"})
    assert moved.address_for("127.0.0.1:7233") == "127.0.0.1:40001"
    assert moved.address_for("127.0.0.1:9999") == "127.0.0.1:9999"


async def test_an_owner_file_that_is_no_longer_whole_is_named_with_the_fix(tmp_path: Path) -> None:
    database = tmp_path / "temporal.db"
    owner_file(database).write_text("{")
    with pytest.raises(TemporalUnreachable, match=r"temporal\.db\.owner is not what `backstay up` wrote; remove it"):
        await connect(load_configuration(a_site(tmp_path, temporal={"database": str(database)})))
