"""Whose an embedded Temporal server is. Loopback is open to every user of a machine, and two of them may run `backstay up` on one.

Beside the database stands a file for its owner only: a random token, and where the server was last served. The server carries a digest
of the token in its namespace. Whoever connects compares both, and asks the kernel whose process listens there: a digest can be copied
by somebody else's server, the user that the kernel names cannot. Written by `up`; compared by `workers/client.py`.
"""

import hashlib
import os
import pwd
import secrets
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError
from temporalio.api.namespace.v1 import UpdateNamespaceInfo
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client

from activities.records import Record

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")

# Keys of the namespace's data. Everybody on the machine can read them.
DIGEST, USER, DATABASE = "backstay-owner", "backstay-user", "backstay-database"

_LISTENS = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it (include/net/tcp_states.h)


class OwnerFileUnusable(Exception):
    """The file beside the database cannot be read, or is not ours. The message names it and the fix."""


class Ownership(Record):
    """What stands beside a database of the embedded server."""

    token: str
    configured: str | None = Field(default=None, description="temporal.address of the configuration it was started with")
    address: str | None = Field(default=None, description="where it is served: the same, or a free port where that was taken")
    ui_port: int | None = None
    pid: int | None = None
    since: AwareDatetime | None = None

    def address_for(self, configured: str) -> str:
        """Where a configuration with this `temporal.address` finds the server. One that names another address means another server."""
        return self.address if self.address is not None and configured == self.configured else configured

    @property
    def digest(self) -> str:
        """What may be shown of the token."""
        return hashlib.sha256(f"backstay embedded server {self.token}".encode()).hexdigest()


class Mark(Record):
    """What a server tells of its owner; all empty where it was not started by `backstay up`."""

    digest: str = ""
    user: str = ""
    database: str = ""


def owner_file(database: Path) -> Path:
    """Where the ownership of this database is written."""
    return database.with_name(f"{database.name}.owner")


def read_ownership(database: Path) -> Ownership | None:
    """The ownership of the database at this path; None where `up` never served one there.

    Raises:
        OwnerFileUnusable: it is somebody else's, or no longer what `up` wrote.
    """
    path = owner_file(database)
    try:
        return Ownership.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        user = _owner_of(path) or _owner_of(path.parent) or "another user"
        fix = f"run this command as {user}, or set temporal.database to a file of your own"
        raise OwnerFileUnusable(f"the embedded Temporal server of {database} belongs to {user}; {fix}") from error
    except OSError as error:
        raise OwnerFileUnusable(f"{path} cannot be read: {error.strerror}; set temporal.database to a file on a sound disk") from error
    except ValidationError as error:
        raise OwnerFileUnusable(f"{path} is not what `backstay up` wrote; remove it and start `backstay up` again") from error


def write_ownership(database: Path, ownership: Ownership) -> None:
    """Writes it in one move, readable by its owner only. Raises `OSError`."""
    path = owner_file(database)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # 0600, whatever the umask
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(ownership.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def new_ownership() -> Ownership:
    return Ownership(token=secrets.token_hex(32))


async def read_mark(client: Client, *, within: timedelta | None = None) -> Mark:
    """What the server tells of its owner. Raises `RPCError`."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    data = (await client.workflow_service.describe_namespace(request, timeout=within)).namespace_info.data
    return Mark(digest=data.get(DIGEST, ""), user=data.get(USER, ""), database=data.get(DATABASE, ""))


async def write_mark(client: Client, database: Path, ownership: Ownership) -> None:
    """Makes the server carry its owner's mark; it stands in the database from then on. Raises `RPCError`."""
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    info = UpdateNamespaceInfo(
        description=described.namespace_info.description,
        owner_email=described.namespace_info.owner_email,
        data={DIGEST: ownership.digest, USER: user_name(os.geteuid()), DATABASE: str(database)},
    )
    await client.workflow_service.update_namespace(UpdateNamespaceRequest(namespace=client.namespace, update_info=info))


async def claim(client: Client, database: Path, *, configured: str, ui_port: int, pid: int) -> Ownership:
    """Makes the server that serves this database the caller's, and remembers where it is. Raises `OSError` and `RPCError`."""
    known = read_ownership(database) or new_ownership()
    await write_mark(client, database, known)
    address = client.service_client.config.target_host
    ownership = Ownership(token=known.token, configured=configured, address=address, ui_port=ui_port, pid=pid, since=datetime.now(UTC))
    write_ownership(database, ownership)
    return ownership


def why_foreign(ownership: Ownership | None, database: Path, mark: Mark, address: str) -> str | None:
    """Why the server at a loopback address is not the one the configuration means, with the fix; None when it is.

    Args:
        ownership: what stands beside the configured database; None: `up` never served it, so `address` must be an operator's own server.
        database: the configured one.
        mark: what the server tells.
        address: where it answers.
    """
    theirs = f"the Temporal server at {address} is {_whose(mark)}"
    if ownership is None:
        if not mark.digest:
            return None
        may_use = os.geteuid() == 0 or mark.user == user_name(os.geteuid())
        own = "start `backstay up` with a configuration of your own, which gets a server and a port of its own"
        fix = f"to use it, set temporal.database to {mark.database}" if may_use else own
        return f"{theirs}, and not that of this configuration ({database}); {fix}"
    if mark.digest == ownership.digest:
        listener, owner = listening_user(address), owner_file(database).stat().st_uid
        if listener is None or listener == owner:
            return None
        return (
            f"the Temporal server at {address} passes for that of {database}, but is a process of user {user_name(listener)}; "
            "do not use it: tell your administrator, and set temporal.address to another port"
        )
    return (
        f"{theirs}, and not that of {database}; start `backstay up`, which takes another port; if you mean the server at {address}, "
        f"set temporal.database to its file, or remove {owner_file(database)} where it is a server that `backstay up` did not start"
    )


def _whose(mark: Mark) -> str:
    return f"user {mark.user}'s, started by `backstay up` on {mark.database}" if mark.digest else "one that `backstay up` did not start"


def is_loopback(address: str) -> bool:
    """Whether `host:port` is this machine's own."""
    return address.rpartition(":")[0] in LOOPBACK


def listening_user(address: str) -> int | None:
    """The user ID of the process that listens at a loopback `host:port`, by the kernel's own table (proc(5), /proc/net/tcp); None where it
    does not tell."""
    port = int(address.rpartition(":")[2])
    found: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[7]))
    return found.pop() if len(found) == 1 else None  # several, each on an address of its own: which one answers is not known


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _owner_of(path: Path) -> str | None:
    try:
        return user_name(path.stat().st_uid)
    except OSError:
        return None
