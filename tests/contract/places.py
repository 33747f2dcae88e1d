"""Two clusters behind one door, for the contract: the simulation with a clock moved by hand, and the private real Slurm."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

from activities.configuration import SchedulerSection
from activities.records import Job, JobState, Node
from activities.slurm.clock import ManualClock
from activities.slurm.commands import CommandScheduler
from activities.slurm.scheduler import Scheduler
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import Exit, Life, Scripted
from activities.slurm.simulated_state import Request
from activities.slurm.transport import Completed, Transport
from workers.embedded.private_slurm import PrivateSlurm

T = TypeVar("T")

SCRIPT = {
    "endless": "sleep 600",
    "deaf": "trap '' TERM\ntouch \"${SLURM_CONF%/*}/deaf-$SLURM_JOB_ID\"\nsleep 600 & wait; sleep 600; sleep 600",
    "fails": "sleep 1; exit 3",
    "succeeds": "sleep 1; exit 0",
    "dies": "kill -KILL $$",
}
LIFE = {
    "endless": Life(),
    "deaf": Life(deaf=True),
    "fails": Life(timedelta(seconds=1), Exit(code=3)),
    "succeeds": Life(timedelta(seconds=1)),
    "dies": Life(timedelta(seconds=1), Exit(signal=9)),
}


class Place(Protocol):
    """A cluster of four idle nodes, node-001 ... node-004; jobs take whole nodes; KillWait is 5 s, the requeue delay 121 s."""

    scheduler: Scheduler

    def weak(self) -> Scheduler:
        """The same cluster, asked with a credential that may look and nothing else."""

    def now(self) -> datetime: ...

    async def pause(self) -> None:
        """Lets a little time pass; the unit of `until`."""

    async def submit(
        self,
        does: str = "endless",
        *,
        nodes: int = 1,
        requeue: bool = True,
        hold: bool = False,
        nodelist: Sequence[str] = (),
        exclude: Sequence[str] = (),
        array: Sequence[int] = (),
        comment: str = "",
    ) -> str: ...

    async def submit_het(self, *nodes: int) -> str: ...

    async def submit_interactive(self) -> str:
        """An allocation without a batch script, running."""

    async def until_deaf(self, job_id: str) -> None:
        """Until a running job that does `deaf` hears SIGTERM no more: a real script comes to its first line some time after RUNNING."""

    async def lose_node(self, name: str) -> None: ...

    async def stop_controller(self) -> None: ...

    async def start_controller(self) -> None: ...


async def until(place: Place, look: Callable[[], Awaitable[T]], holds: Callable[[T], bool], within: float = 60.0) -> T:
    """What `look` finds once it is as wanted; at most `within` of the place's seconds."""
    begin = place.now()
    while True:
        seen = await look()
        if holds(seen):
            return seen
        assert (place.now() - begin).total_seconds() < within, f"not seen within {within:g} s; last seen: {seen}"
        await place.pause()


async def job_in(place: Place, job_id: str, state: JobState, within: float = 60.0) -> Job:
    """The job once it is in that state and nothing of it is being cleaned up."""
    return await until(place, lambda: place.scheduler.job(job_id), lambda job: job.state is state and not job.is_ending, within)


async def node_of(place: Place, name: str) -> Node:
    return next(node for node in await place.scheduler.nodes() if node.name == name)


class SimulatedPlace:
    def __init__(self, *, lone_flags: bool) -> None:
        self._clock = ManualClock()
        self.cluster = SimulatedCluster(4, clock=self._clock, kill_wait=timedelta(seconds=5), lone_flags=lone_flags)
        self.scheduler: Scheduler = self.cluster

    def weak(self) -> Scheduler:
        self.cluster.may_operate = self.cluster.may_administer = False
        return self.cluster

    def now(self) -> datetime:
        return self._clock.now()

    async def pause(self) -> None:
        self._clock.advance(0.25)

    async def submit(
        self,
        does: str = "endless",
        *,
        nodes: int = 1,
        requeue: bool = True,
        hold: bool = False,
        nodelist: Sequence[str] = (),
        exclude: Sequence[str] = (),
        array: Sequence[int] = (),
        comment: str = "",
    ) -> str:
        request = Request(
            user="root", account="", name="contract", node_count=nodes, required_nodes=tuple(nodelist), comment=comment,
            script=f"#!/bin/bash\n{SCRIPT[does]}\n", stdout="/dev/null", working_directory="/",
        )  # fmt: skip
        return self.cluster.submit(Scripted((LIFE[does],)), request=request, requeue=requeue, hold=hold, exclude=exclude, array=array)

    async def submit_het(self, *nodes: int) -> str:
        return self.cluster.submit(request=Request(), het=nodes)

    async def submit_interactive(self) -> str:
        return self.cluster.submit(request=Request(batch=False))

    async def until_deaf(self, job_id: str) -> None:
        """From its start."""

    async def lose_node(self, name: str) -> None:
        self.cluster.node_down(name)

    async def stop_controller(self) -> None:
        self.cluster.down = True

    async def start_controller(self) -> None:
        self.cluster.down = False


class AsNobody:
    """Runs every command as a user of no rights: not root, not SlurmUser, not the job's owner."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def run(self, argv: Sequence[str], *, timeout: timedelta, stdin: bytes | None = None) -> Completed:  # noqa: ASYNC109
        as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *argv)
        return await self._transport.run(as_nobody, timeout=timeout, stdin=stdin)


class RealPlace:
    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm = slurm
        self.scheduler: Scheduler = CommandScheduler(slurm.transport, SchedulerSection())
        self._interactive: asyncio.Task[str] | None = None

    def weak(self) -> Scheduler:
        return CommandScheduler(AsNobody(self.slurm.transport), SchedulerSection())

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def pause(self) -> None:
        await asyncio.sleep(0.2)

    async def submit(
        self,
        does: str = "endless",
        *,
        nodes: int = 1,
        requeue: bool = True,
        hold: bool = False,
        nodelist: Sequence[str] = (),
        exclude: Sequence[str] = (),
        array: Sequence[int] = (),
        comment: str = "",
    ) -> str:
        return await self.slurm.submit_text(
            f"#!/bin/bash\n{SCRIPT[does]}\n",
            *("--exclusive", "--job-name=contract", "--output=/dev/null", "--chdir=/", f"--nodes={nodes}"),
            "--requeue" if requeue else "--no-requeue",
            *(["--hold"] if hold else []),
            *([f"--nodelist={','.join(nodelist)}"] if nodelist else []),
            *([f"--exclude={','.join(exclude)}"] if exclude else []),
            *([f"--array={','.join(map(str, array))}"] if array else []),
            *([f"--comment={comment}"] if comment else []),
        )

    async def submit_het(self, *nodes: int) -> str:
        parts = "\n#SBATCH hetjob\n".join(f"#SBATCH --nodes={count} --exclusive" for count in nodes)
        return await self.slurm.submit_text(f"#!/bin/bash\n{parts}\nsleep 600\n", "--output=/dev/null")

    async def submit_interactive(self) -> str:
        before = set(await self.slurm.job_states())
        self._interactive = asyncio.create_task(self.slurm.run("salloc", "--kill-command", "--nodes=1", "--exclusive", "sleep", "15"))
        return await until(self, lambda: self._new_job(before), bool)

    async def close(self) -> None:
        """Waits for the end of an interactive job's client; its job was cancelled."""
        if self._interactive is not None:
            await asyncio.wait([self._interactive])
            self._interactive.exception()  # revoked: what is expected

    async def _new_job(self, before: set[str]) -> str:
        return next(
            (job_id for job_id, state in (await self.slurm.job_states()).items() if job_id not in before and state == "RUNNING"), ""
        )

    async def until_deaf(self, job_id: str) -> None:
        async with asyncio.timeout(60):
            while not (self.slurm.directory / f"deaf-{job_id}").exists():
                await self.pause()

    async def lose_node(self, name: str) -> None:
        await self.slurm.kill_node(name)

    async def stop_controller(self) -> None:
        await self.slurm.stop_controller()

    async def start_controller(self) -> None:
        await self.slurm.start_controller()
