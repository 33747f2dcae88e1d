"""Reaching Slurm as the configuration says. Called by the worker, and by the commands that ask Slurm outside of one."""

from activities.configuration import Configuration, SchedulerKind
from activities.slurm.commands import CommandScheduler
from activities.slurm.scheduler import Scheduler
from activities.slurm.transport import LocalTransport


class NotReachableFromHere(Exception):
    """The configuration names a scheduler that lives inside another process. The message is the mend."""


def transport_of(configuration: Configuration) -> LocalTransport:
    """Where Slurm's programs run.

    Raises:
        NotReachableFromHere: `cluster.scheduler.kind` is `simulated`, which only `backstay demo` can provide.
    """
    section = configuration.cluster.scheduler
    match section.kind:
        case SchedulerKind.COMMAND:
            return LocalTransport(slurm_conf=section.slurm_conf, bin_directory=section.bin_directory)
        case SchedulerKind.SIMULATED:
            raise NotReachableFromHere("cluster.scheduler.kind: simulated lives inside `backstay demo --simulated` only; set it to command")


def scheduler_of(configuration: Configuration) -> Scheduler:
    """The scheduler that the configuration names; raises as `transport_of`."""
    return CommandScheduler(transport_of(configuration), configuration.cluster.scheduler)
