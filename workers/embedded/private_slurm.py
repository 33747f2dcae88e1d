"""A real Slurm of several nodes on this machine, private to its owner: own directory, ports, munge key and socket.

Used by the tests and by `backstay demo`. A site's Slurm on the same machine is neither read nor touched. A node can be
lost as nodes are lost: all at once, without a word to the controller (`daemons.py`).
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from activities.slurm.transport import LocalTransport, TransportError
from workers.embedded.daemons import Daemons, end_of
from workers.embedded.slurm_conf import ClusterTerms, write_files
from workers.embedded.slurm_programs import PrivateSlurmError, search_path, why_not

_POLL = 0.1
_COMMAND_TIMEOUT = timedelta(seconds=20)


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
        self._terms = ClusterTerms(
            node_names=self.node_names,
            cpus_per_node=cpus_per_node,
            min_job_age=min_job_age,
            requeue_delay=requeue_delay,
            slurmd_timeout=slurmd_timeout,
            kill_wait=kill_wait,
            extra=tuple(extra),
        )
        self._daemons = Daemons()
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
        return {"SLURM_CONF": str(self.slurm_conf), "PATH": search_path()}

    @property
    def transport(self) -> LocalTransport:
        return LocalTransport(slurm_conf=self.slurm_conf)

    def log(self, daemon: str) -> Path:
        """The log of `munged`, `slurmctld` or a node."""
        return self.directory / "log" / f"{daemon}.log"

    # ------------------------------------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Starts everything and waits until every node is idle. Raises `PrivateSlurmError`, having stopped what ran."""
        if reason := why_not():
            raise PrivateSlurmError(reason)
        self._directory = Path(tempfile.mkdtemp(prefix="bs-slurm-", dir="/tmp"))  # unix socket paths end at 107 bytes
        try:
            write_files(self.directory, self._terms)
            self._keep("munged", "munged", "--foreground", "--force", f"--socket={self.directory}/munge.sock", *self._munge_files())
            await self._daemons.until_exists(self.directory / "munge.sock", "munged")
            await self.start_controller()
            for name in self.node_names:
                await self.restart_node(name)
            await self.wait_idle()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends every daemon, step and task, and removes the directory. Never raises; safe to call twice."""
        await asyncio.gather(*(self._daemons.end(name) for name in self._daemons.names))
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
        await self._daemons.end(name)

    async def restart_node(self, name: str) -> None:
        """Starts the node's slurmd; it comes back to service by itself (ReturnToService=2)."""
        self._check_node(name)
        await self._daemons.end(name)
        self._keep(name, "slurmd", "-D", "-N", name, "-f", str(self.slurm_conf))

    async def stop_controller(self) -> None:
        """Ends slurmctld in good order: it saves its state."""
        await self._daemons.end_in_good_order("slurmctld")

    async def kill_controller(self) -> None:
        """SIGKILL to slurmctld: what it had not saved yet is lost."""
        await self._daemons.end("slurmctld")

    def save_state(self, to: Path) -> None:
        """Copies what slurmctld has saved; what it will have saved in a moment is not in it."""
        shutil.copytree(self.directory / "state", to)

    def restore_state(self, saved: Path) -> None:
        """Puts what was copied back, for a slurmctld that is not running: it will start as if it had died before it saved the rest."""
        shutil.rmtree(self.directory / "state")
        shutil.copytree(saved, self.directory / "state")

    async def start_controller(self) -> None:
        """Starts slurmctld on its saved state and waits until it answers."""
        self._keep("slurmctld", "slurmctld", "-D", "-f", str(self.slurm_conf))
        async with asyncio.timeout(60):
            while b"is UP" not in (await self._try("scontrol", "ping"))[1]:
                self._daemons.check_alive("slurmctld")
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

    async def wait_state(self, job_id: str, *states: str, within: timedelta = timedelta(seconds=60)) -> str:
        """Waits until the job is in one of `states` (as squeue prints them); that state."""
        return await _seen(lambda: self._one_of(self.job_states, job_id), states, within=within, what=f"job {job_id}")

    async def node_states(self) -> Mapping[str, str]:
        """State by node, as sinfo prints it: `{"node-001": "idle"}`."""
        lines = (await self.run("sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %T")).splitlines()
        return {name: state for name, _, state in (line.partition(" ") for line in lines)}

    async def wait_node(self, name: str, *states: str, within: timedelta = timedelta(seconds=60)) -> str:
        """Waits until the node is in one of `states` (as sinfo prints them, `down*`); that state."""
        return await _seen(lambda: self._one_of(self.node_states, name), states, within=within, what=name)

    async def wait_idle(self, *, within: timedelta = timedelta(seconds=60)) -> None:
        """Waits until every node is idle."""
        states: Mapping[str, str] = {}
        try:
            async with asyncio.timeout(within.total_seconds()):
                while True:
                    for name in self._daemons.names:
                        self._daemons.check_alive(name)
                    returncode, stdout, _ = await self._try("sinfo", "--noheader", "--Node", "--partition=all", "--format=%N %T")
                    lines = stdout.decode().splitlines() if returncode == 0 else []
                    states = {node: state for node, _, state in (line.partition(" ") for line in lines)}
                    if set(states.values()) == {"idle"}:
                        return
                    await asyncio.sleep(_POLL)
        except TimeoutError as error:
            raise PrivateSlurmError(f"nodes not idle after {within}: {dict(states)}\n{end_of(self.log('slurmctld'))}") from error

    async def clear(self) -> None:
        """Cancels every job, brings every node back and waits until all are idle: a clean table for the next test."""
        if not self._daemons.is_running("slurmctld"):
            await self.start_controller()
        for name in self.node_names:
            if not self._daemons.is_running(name):
                await self.restart_node(name)
        if unfinished := [job_id for job_id, state in (await self.job_states()).items() if state in _UNFINISHED]:
            await self._try("scancel", "--full", "--signal=KILL", *unfinished)
            await self._try("scancel", *unfinished)
        sidelined = [name for name, state in (await self.node_states()).items() if state.rstrip("*~#$@+").startswith(_SIDELINED)]
        if sidelined:
            await self._try("scontrol", "update", f"NodeName={','.join(sidelined)}", "State=RESUME")
        await self.wait_idle()

    # -------------------------------------------------------------------------------------------------- underneath

    def _munge_files(self) -> tuple[str, ...]:
        at = self.directory
        return (
            f"--key-file={at}/munge.key",
            f"--pid-file={at}/munge.pid",
            f"--seed-file={at}/munge.seed",
            f"--log-file={at}/log/munged.log",
        )

    def _keep(self, name: str, program: str, *arguments: str) -> None:
        self._daemons.keep(name, program, *arguments, log=self.log(name), environment=self.environment)

    def _check_node(self, name: str) -> None:
        if name not in self.node_names:
            raise PrivateSlurmError(f"no node {name}: there are {', '.join(self.node_names)}")

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
    """Reads until what is read is wanted; returns it. A controller that gives no answer once is asked again."""
    seen = "unknown"
    try:
        async with asyncio.timeout(within.total_seconds()):
            while True:
                try:
                    seen = await read()
                except PrivateSlurmError as error:
                    seen = f"not told ({error})"
                if seen in wanted:
                    return seen
                await asyncio.sleep(_POLL)
    except TimeoutError as error:
        raise PrivateSlurmError(f"{what} is {seen}, not {' or '.join(wanted)}, after {within.total_seconds():g} s") from error
