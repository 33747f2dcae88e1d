"""Reaching Slurm from a command, outside any worker. Called by `doctor` and `failopen`, which need no Temporal."""

from activities.configuration import Configuration, SchedulerKind
from activities.slurm.commands import CommandScheduler
from activities.slurm.scheduler import Scheduler
from activities.slurm.transport import LocalTransport
from workers.commands.controller import CommandController, Controller
from workers.commands.errors import BadUsage


def scheduler_for(configuration: Configuration) -> Scheduler:
    """The scheduler of a configuration. Raises `BadUsage` for one that exists inside another process only."""
    return CommandScheduler(_transport(configuration), configuration.cluster.scheduler)


def controller_for(configuration: Configuration) -> Controller:
    """The controller behind it, for what the scheduler's protocol does not ask."""
    return CommandController(_transport(configuration), configuration.cluster.scheduler.timeout)


def _transport(configuration: Configuration) -> LocalTransport:
    section = configuration.cluster.scheduler
    match section.kind:
        case SchedulerKind.COMMAND:
            return LocalTransport(slurm_conf=section.slurm_conf, bin_directory=section.bin_directory)
        case SchedulerKind.SIMULATED:
            raise BadUsage("cluster.scheduler.kind: simulated lives inside `backstay demo --simulated` only; set it to command")
