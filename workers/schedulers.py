"""Which scheduler a configuration means. Called by the worker and by commands that ask Slurm themselves.

A simulated cluster lives in the memory of one process: whoever builds one (the demo, a test) lends it to the worker of
the same process under its cluster name.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from activities.configuration import Configuration, SchedulerKind
from activities.slurm.commands import CommandScheduler
from activities.slurm.scheduler import Scheduler
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.transport import LocalTransport

_lent: dict[str, SimulatedCluster] = {}


@contextmanager
def lent(cluster_name: str, cluster: SimulatedCluster) -> Iterator[None]:
    """While open, `scheduler_of` answers with this simulated cluster for that name."""
    if cluster_name in _lent:
        raise ValueError(f"a simulated cluster {cluster_name} is lent already; give this one another name")
    _lent[cluster_name] = cluster
    try:
        yield
    finally:
        del _lent[cluster_name]


def scheduler_of(configuration: Configuration) -> Scheduler:
    """The scheduler to ask. A simulated one that nobody lent is an empty cluster of four nodes."""
    section = configuration.cluster.scheduler
    match section.kind:
        case SchedulerKind.COMMAND:
            transport = LocalTransport(slurm_conf=section.slurm_conf, bin_directory=section.bin_directory)
            return CommandScheduler(transport, section)
        case SchedulerKind.SIMULATED:
            return _lent.get(configuration.cluster.name) or SimulatedCluster(name=configuration.cluster.name)
