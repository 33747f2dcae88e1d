"""Where the demo plays: a private real Slurm of four nodes, or the simulated cluster where that cannot run.

Both submit the same training program and are told apart by nothing but what the audience is told. Called by `demo.py`.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from activities.configuration import SchedulerKind, SchedulerSection
from activities.slurm.scheduler import Scheduler
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import LocalProcess
from activities.slurm.simulated_state import Request
from workers.demo.script import TRAIN, batch_script
from workers.embedded.private_slurm import PrivateSlurm
from workers.embedded.slurm_programs import PrivateSlurmError, install_packages, why_not

CLUSTER = "demo"
NODES = 4
JOB_NODES = 2
TASKS_PER_NODE = 2


class Stage(ABC):
    """A cluster that the training job can be submitted to."""

    title: str
    """What the audience is told it is."""

    scheduler: Scheduler | None
    """What the worker is given; None: it makes its own from `section`."""

    section: SchedulerSection
    """What the configuration says of it."""

    @abstractmethod
    async def submit(self, train_arguments: list[str], *, log: Path, comment: str) -> str:
        """Submit the training job; its job ID."""


class RealStage(Stage):
    """slurmctld and four slurmd, started by us and gone with us."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self._slurm = slurm
        self.title = f"a private real Slurm of {NODES} nodes"
        self.scheduler = None
        self.section = SchedulerSection(kind=SchedulerKind.COMMAND, slurm_conf=slurm.slurm_conf)

    async def submit(self, train_arguments: list[str], *, log: Path, comment: str) -> str:
        script = batch_script(
            train_arguments, nodes=JOB_NODES, tasks_per_node=TASKS_PER_NODE, output=log, comment=comment, append=True, python=sys.executable
        )
        return await self._slurm.submit_text(script)


class SimulatedStage(Stage):
    """Slurm's rules in memory; the training program is a real process of this machine."""

    def __init__(self, cluster: SimulatedCluster, why: str) -> None:
        self._cluster = cluster
        self.title = f"a simulated Slurm of {NODES} nodes ({why})"
        self.scheduler = cluster
        self.section = SchedulerSection(kind=SchedulerKind.SIMULATED)

    async def submit(self, train_arguments: list[str], *, log: Path, comment: str) -> str:
        request = Request(
            node_count=JOB_NODES,
            tasks_per_node=TASKS_PER_NODE,
            comment=comment,
            stdout=str(log),
            append=True,
            working_directory=str(log.parent),
        )
        return self._cluster.submit(LocalProcess([sys.executable, "-u", str(TRAIN), *train_arguments]), request=request)


@asynccontextmanager
async def stage(*, simulated: bool, install: bool) -> AsyncIterator[Stage]:
    """The best stage this machine allows, while open.

    Args:
        simulated: take the simulated cluster without asking.
        install: install Slurm's packages where they are what is missing.

    Raises:
        PrivateSlurmError: the packages could not be installed, or the private Slurm did not start.
    """
    reason = "as asked" if simulated else why_not()
    if reason and install and not simulated:
        await install_packages()
        reason = why_not()
    if reason:
        cluster = SimulatedCluster(NODES, name=CLUSTER)
        try:
            yield SimulatedStage(cluster, reason)
        finally:
            cluster.stop()
        return
    async with PrivateSlurm(NODES) as slurm:
        yield RealStage(slurm)


__all__ = ["CLUSTER", "PrivateSlurmError", "Stage", "stage"]
