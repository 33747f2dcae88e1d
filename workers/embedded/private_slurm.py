"""A real Slurm of several nodes on this machine, private to its owner: own directory, ports, munge key and socket.

Used by the tests and by `backstay demo`. A site's Slurm on the same machine is neither read nor touched. Each daemon
runs under `keeper.py`, so that a node can be lost as nodes are lost: all at once, without a word to the controller.
"""

import asyncio
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from activities.slurm.transport import LocalTransport, TransportError

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "sinfo", "scancel")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # daemons live in sbin, which not every PATH has
_KEEPER = Path(__file__).with_name("keeper.py")
_POLL = 0.1
_COMMAND_TIMEOUT = timedelta(seconds=20)


class PrivateSlurmError(Exception):
    """The private cluster could not do what was asked; the message holds the end of the log that tells why."""


class PrivateSlurm:
    """N `slurmd`, one `slurmctld` and one `munged`, started by `start()` and gone after `stop()`.

    Args:
        nodes: how many; they are named node-001, node-002, ...
        cpus_per_node: as Slurm is told; the machine may have fewer.
        min_job_age: how long an ended job is remembered (MinJobAge).
        requeue_delay: how long a requeued job is not eligible (Slurm's cred_expire, plus one second).
        slurmd_timeout: how long a silent node is believed in before it is DOWN (SlurmdTimeout).
        kill_wait: between SIGTERM and SIGKILL of a job (KillWait).
        extra: further lines for slurm.conf.
    """

    def __init__(
        self,
        nodes: int = 4,
        *,
        cpus_per_node: int = 8,
        min_job_age: timedelta = timedelta(seconds=300),
        requeue_delay: timedelta = timedelta(seconds=121),
        slurmd_timeout: timedelta = timedelta(seconds=6),
        kill_wait: timedelta = timedelta(seconds=5),
        extra: Sequence[str] = (),
    ) -> None:
        self.node_names = tuple(f"node-{number:03d}" for number in range(1, nodes + 1))
        self._cpus_per_node = cpus_per_node
        self._min_job_age = min_job_age
        self._requeue_delay = requeue_delay
        self._slurmd_timeout = slurmd_timeout
        self._kill_wait = kill_wait
        self._extra = tuple(extra)
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}  # not asyncio's: the owner may use several event loops
        self._directory: Path | None = None

    # ------------------------------------------------------------------------------------------------- where it is

    @property
    def directory(self) -> Path:
        """Its directory; exists between `start` and `stop`."""
        if self._directory is None:
            raise PrivateSlurmError("the private Slurm is not started")
        return self._directory

    @property
    def slurm_conf(self) -> Path:
        return self.directory / "slurm.conf"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to talk to this cluster: PATH and SLURM_CONF."""
        return {"SLURM_CONF": str(self.slurm_conf), "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".strip(":")}

    @property
    def transport(self) -> LocalTransport:
        return LocalTransport(slurm_conf=self.slurm_conf)

    def log(self, daemon: str) -> Path:
        """The log of `munged`, `slurmctld` or a node."""
        return self.directory / "log" / f"{daemon}.log"

    # ------------------------------------------------------------------------------------------------ start and stop

    async def start(self, *, idle_within: timedelta = timedelta(seconds=30)) -> None:
        """Starts everything and waits until every node is idle. Raises `PrivateSlurmError`, having stopped what ran."""
        if reason := why_not():
            raise PrivateSlurmError(reason)
        self._directory = Path(tempfile.mkdtemp(prefix="bs-slurm-", dir="/tmp"))  # unix socket paths end at 107 bytes
        try:
            self._write_files()
            self._keep("munged", "--foreground", "--force", f"--socket={self.directory}/munge.sock", *self._munge_files())
            await self._until_exists(self.directory / "munge.sock", "munged")
            await self.start_controller()
            for name in self.node_names:
                await self.restart_node(name)
            await self.wait_idle(within=idle_within)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends every daemon, step and task, and removes the directory. Never raises; safe to call twice."""
        await asyncio.gather(*(self._end(name) for name in list(self._keepers)))
        if self._directory is not None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
            self._directory = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def kill_node(self, name: str) -> None:
        """SIGKILL to the node's slurmd, its step daemons and tasks. Slurm notices after `slurmd_timeout`."""
        self._check_node(name)
        await self._end(name)

    async def restart_node(self, name: str) -> None:
        """Starts the node's slurmd; it comes back to service by itself (ReturnToService=2)."""
        self._check_node(name)
        await self._end(name)
        self._keep("slurmd", "-D", "-N", name, "-f", str(self.slurm_conf), log=name)

    async def stop_controller(self) -> None:
        """Ends slurmctld in good order: it saves its state."""
        if (keeper := self._keepers.get("slurmctld")) is None:
            return
        keeper.terminate()
        await _ended(keeper, within=20)
        await self._end("slurmctld")  # does nothing more to one that went by itself

    async def start_controller(self) -> None:
        """Starts slurmctld on its saved state and waits until it answers."""
        self._keep("slurmctld", "-D", "-f", str(self.slurm_conf))
        async with asyncio.timeout(20):
            while b"is UP" not in (await self._try("scontrol", "ping"))[1]:
                self._check_alive("slurmctld")
                await asyncio.sleep(_POLL)

    # ---------------------------------------------------------------------------------------------------- using it

    async def run(self, *argv: str) -> str:
        """The output of one of Slurm's commands on this cluster. Raises `PrivateSlurmError` with its stderr."""
        returncode, stdout, stderr = await self._try(*argv)
        if returncode != 0:
            raise PrivateSlurmError(f"{' '.join(argv)}: {stderr.decode(errors='replace').strip()}")
        return stdout.decode(errors="replace")

    async def submit(self, script: Path, *sbatch_arguments: str) -> str:
        """Submits a batch script; the job's ID."""
        answer = await self.run("sbatch", "--parsable", *sbatch_arguments, str(script))
        return answer.strip().partition(";")[0]

    async def submit_text(self, text: str, *sbatch_arguments: str) -> str:
        """Submits a batch script given as text, to run in this cluster's directory unless told otherwise; the job's ID."""
        descriptor, name = tempfile.mkstemp(prefix="job-", suffix=".sh", dir=self.directory)
        with os.fdopen(descriptor, "w") as file:
            file.write(text if text.startswith("#!") else f"#!/bin/bash\n{text}")
        return await self.submit(Path(name), f"--chdir={self.directory}", *sbatch_arguments)

    async def job_states(self) -> Mapping[str, str]:
        """Compact state by job ID, of every job the controller remembers: `{"1": "RUNNING"}`."""
        lines = (await self.run("squeue", "--noheader", "--states=all", "--array", "--format=%i %T")).splitlines()
        return {job_id: state for job_id, _, state in (line.partition(" ") for line in lines)}

    async def wait_state(self, job_id: str, *states: str, within: timedelta = timedelta(seconds=30)) -> str:
        """Waits until the job is in one of `states` (as squeue prints them); that state."""
        return await _seen(lambda: self._one_of(self.job_states, job_id), states, within=within, what=f"job {job_id}")

    async def node_states(self) -> Mapping[str, str]:
        """State by node, as sinfo prints it: `{"node-001": "idle"}`."""
        lines = (await self.run("sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %T")).splitlines()
        return {name: state for name, _, state in (line.partition(" ") for line in lines)}

    async def wait_node(self, name: str, *states: str, within: timedelta = timedelta(seconds=60)) -> str:
        """Waits until the node is in one of `states` (as sinfo prints them, `down*`); that state."""
        return await _seen(lambda: self._one_of(self.node_states, name), states, within=within, what=name)

    async def wait_idle(self, *, within: timedelta = timedelta(seconds=30)) -> None:
        """Waits until every node is idle."""
        states: Mapping[str, str] = {}
        try:
            async with asyncio.timeout(within.total_seconds()):
                while True:
                    for name in self._keepers:
                        self._check_alive(name)
                    returncode, stdout, _ = await self._try("sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %T")
                    lines = stdout.decode().splitlines() if returncode == 0 else []
                    states = {node: state for node, _, state in (line.partition(" ") for line in lines)}
                    if set(states.values()) == {"idle"}:
                        return
                    await asyncio.sleep(_POLL)
        except TimeoutError as error:
            raise PrivateSlurmError(f"nodes not idle after {within}: {dict(states)}\n{self._tail('slurmctld')}") from error

    async def clear(self) -> None:
        """Cancels every job, brings every node back and waits until all are idle: a clean table for the next test."""
        if "slurmctld" not in self._keepers or self._keepers["slurmctld"].poll() is not None:
            await self.start_controller()
        for name in self.node_names:
            if name not in self._keepers or self._keepers[name].poll() is not None:
                await self.restart_node(name)
        if unfinished := [job_id for job_id, state in (await self.job_states()).items() if state in _UNFINISHED]:
            await self._try("scancel", "--full", "--signal=KILL", *unfinished)
            await self._try("scancel", *unfinished)
        sidelined = [name for name, state in (await self.node_states()).items() if state.rstrip("*~#$@+").startswith(_SIDELINED)]
        if sidelined:
            await self._try("scontrol", "update", f"NodeName={','.join(sidelined)}", "State=RESUME")
        await self.wait_idle(within=timedelta(seconds=60))

    # -------------------------------------------------------------------------------------------------- underneath

    def _write_files(self) -> None:
        for name in ("state", "spool", "log"):
            (self.directory / name).mkdir()
        key = self.directory / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        self.directory.chmod(0o755)  # munged refuses a socket below a directory that others cannot enter
        controller_port, *node_ports = _free_ports(1 + len(self.node_names))
        user = pwd.getpwuid(os.getuid()).pw_name
        nodes = (
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={self._cpus_per_node} RealMemory=4096"
            for name, port in zip(self.node_names, node_ports, strict=True)
        )
        node_list = ",".join(self.node_names)
        lines = (
            "ClusterName=private",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={controller_port}",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            f"StateSaveLocation={self.directory}/state",
            f"SlurmdSpoolDir={self.directory}/spool/%n",
            f"SlurmctldPidFile={self.directory}/slurmctld.pid",
            f"SlurmdPidFile={self.directory}/%n.pid",
            f"SlurmctldLogFile={self.directory}/log/slurmctld.log",
            f"SlurmdLogFile={self.directory}/log/%n.log",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.directory}/munge.sock,cred_expire={int(self._requeue_delay.total_seconds()) - 1}",
            "ProctrackType=proctrack/linuxproc",  # cgroups need a delegated hierarchy, which containers seldom have
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides",  # the machine may have fewer CPUs than its nodes say
            "MpiDefault=none",
            "AccountingStorageType=accounting_storage/none",
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={self.directory}/log/jobs.txt",
            "JobRequeue=1",
            "ReturnToService=2",
            f"MinJobAge={int(self._min_job_age.total_seconds())}",
            f"SlurmdTimeout={int(self._slurmd_timeout.total_seconds())}",
            f"KillWait={int(self._kill_wait.total_seconds())}",
            "MessageTimeout=5",
            "InactiveLimit=30",
            "SlurmctldTimeout=10",
            "SchedulerParameters=sched_interval=2,sched_min_interval=100000,batch_sched_delay=0,bf_interval=2",
            *nodes,
            f"PartitionName=train Nodes={node_list} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO",
            f"PartitionName=all Nodes={node_list} MaxTime=INFINITE State=UP OverSubscribe=NO",
            *self._extra,
        )
        self.slurm_conf.write_text("\n".join(lines) + "\n")
        # From 23.11 on slurmd starts no step without a cgroup plugin unless told that there is none; 22.05 does not know the word.
        if self._version() >= (23, 11):
            self.slurm_conf.with_name("cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _version(self) -> tuple[int, int]:
        said = subprocess.run(("slurmctld", "-V"), capture_output=True, text=True, check=True, env=dict(self.environment)).stdout
        found = re.search(r"(\d+)\.(\d+)", said)
        if found is None:
            raise PrivateSlurmError(f"slurmctld -V printed no version: {said!r}")
        return int(found[1]), int(found[2])

    def _munge_files(self) -> tuple[str, ...]:
        at = self.directory
        return (
            f"--key-file={at}/munge.key",
            f"--pid-file={at}/munge.pid",
            f"--seed-file={at}/munge.seed",
            f"--log-file={at}/log/munged.log",
        )

    def _keep(self, program: str, *arguments: str, log: str | None = None) -> None:
        name = log or program
        path = shutil.which(program, path=self.environment["PATH"])
        if path is None:
            raise PrivateSlurmError(why_not() or f"{program} is not installed")
        with (self.directory / "log" / f"{name}.out").open("ab") as output:
            self._keepers[name] = subprocess.Popen(
                (sys.executable, "-I", "-S", str(_KEEPER), path, *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={"PATH": self.environment["PATH"], "SLURM_CONF": self.environment["SLURM_CONF"], "LC_ALL": "C"},
                start_new_session=True,
            )

    async def _end(self, name: str) -> None:
        if (keeper := self._keepers.pop(name, None)) is None:
            return
        if keeper.stdin is not None:
            keeper.stdin.close()
        if not await _ended(keeper, within=10):
            keeper.kill()  # what it kept is in uninterruptible sleep; nothing else can be done from here
            await _ended(keeper, within=10)

    def _check_node(self, name: str) -> None:
        if name not in self.node_names:
            raise PrivateSlurmError(f"no node {name}: there are {', '.join(self.node_names)}")

    def _check_alive(self, name: str) -> None:
        keeper = self._keepers[name]
        if keeper.poll() is not None:
            raise PrivateSlurmError(f"{name} ended with {keeper.poll()}:\n{self._tail(name)}")

    def _tail(self, name: str) -> str:
        texts = (path.read_text(errors="replace") for path in (self.log(name), self.log(name).with_suffix(".out")) if path.exists())
        return "\n".join(line for text in texts for line in text.splitlines()[-15:])

    async def _until_exists(self, path: Path, daemon: str) -> None:
        async with asyncio.timeout(10):
            while True:
                if await asyncio.to_thread(path.exists):
                    return
                self._check_alive(daemon)
                await asyncio.sleep(0.02)

    @staticmethod
    async def _one_of(read: Callable[[], Awaitable[Mapping[str, str]]], name: str) -> str:
        return (await read()).get(name, "unknown")

    async def _try(self, *argv: str) -> tuple[int, bytes, bytes]:
        try:
            done = await self.transport.run(argv, timeout=_COMMAND_TIMEOUT)
        except TransportError as error:
            return -1, b"", str(error).encode()
        return done.returncode, done.stdout, done.stderr


_UNFINISHED: Collection[str] = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "SIGNALING"}
)
_SIDELINED = ("down", "drain", "fail", "error")


async def _seen(read: Callable[[], Awaitable[str]], wanted: Collection[str], *, within: timedelta, what: str) -> str:
    """Reads until what is read is wanted; returns it."""
    seen = "unknown"
    try:
        async with asyncio.timeout(within.total_seconds()):
            while True:
                if (seen := await read()) in wanted:
                    return seen
                await asyncio.sleep(_POLL)
    except TimeoutError as error:
        raise PrivateSlurmError(f"{what} is {seen}, not {' or '.join(wanted)}, after {within.total_seconds():g} s") from error


async def _ended(process: subprocess.Popen[bytes], *, within: float) -> bool:
    """Waits up to `within` seconds for the process to end; whether it did. Polls, because no event loop owns the process."""
    deadline = time.monotonic() + within
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on at this moment; all are held until the last is found, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def why_not() -> str | None:
    """Why a private Slurm cannot run here, with the mend; None when it can."""
    if sys.platform != "linux":
        return "a private Slurm needs Linux: run it in a container"
    if os.geteuid() != 0:
        return "a private Slurm must be started by root (slurmd starts tasks as their users): use root or a container"
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"
    if missing := [program for program in _PROGRAMS if shutil.which(program, path=path) is None]:
        return f"missing {', '.join(missing)}: apt-get install slurm-wlm munge (or `backstay demo --install`)"
    return None


async def install_packages() -> None:
    """Installs Debian's or Ubuntu's slurm-wlm and munge; takes a minute. Raises `PrivateSlurmError`."""
    if shutil.which("apt-get") is None:
        raise PrivateSlurmError("no apt-get here: install Slurm (slurmctld, slurmd, client commands) and munge by hand")
    for argv in (("update", "-q"), ("install", "-q", "-y", "--no-install-recommends", "slurm-wlm", "munge")):
        process = await asyncio.create_subprocess_exec(
            *("apt-get", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise PrivateSlurmError(f"apt-get {argv[0]} failed:\n{output.decode(errors='replace')[-1500:]}")
