"""The files that a private cluster's daemons read: slurm.conf, cgroup.conf and a munge key. Written by `private_slurm.py` at its start."""

import os
import pwd
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from workers.embedded.slurm_programs import slurm_version


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """What one private cluster is to be like; `PrivateSlurm` says what each means."""

    node_names: tuple[str, ...]
    cpus_per_node: int
    min_job_age: timedelta
    requeue_delay: timedelta
    slurmd_timeout: timedelta
    kill_wait: timedelta
    extra: tuple[str, ...]


def write_files(at: Path, terms: ClusterTerms) -> None:
    """Everything the daemons need to find in the cluster's own, still empty directory."""
    for name in ("state", "spool", "log"):
        (at / name).mkdir()
    key = at / "munge.key"
    key.touch(mode=0o400)
    key.write_bytes(os.urandom(1024))
    at.chmod(0o755)  # munged refuses a socket below a directory that others cannot enter
    ports = _free_ports(1 + len(terms.node_names))
    (at / "slurm.conf").write_text(slurm_conf(at, terms, ports))
    # From 23.11 on slurmd starts no step without a cgroup plugin unless told that there is none; 22.05 does not know the word.
    if slurm_version() >= (23, 11):
        (at / "cgroup.conf").write_text("CgroupPlugin=disabled\n")


def slurm_conf(at: Path, terms: ClusterTerms, ports: Sequence[int]) -> str:
    """The text of slurm.conf (slurm.conf(5)); `ports`: the controller's, then one for each node."""
    controller_port, *node_ports = ports
    user = pwd.getpwuid(os.getuid()).pw_name
    nodes = (
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={terms.cpus_per_node} RealMemory=4096"
        for name, port in zip(terms.node_names, node_ports, strict=True)
    )
    node_list = ",".join(terms.node_names)
    lines = (
        "ClusterName=private",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={controller_port}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"StateSaveLocation={at}/state",
        f"SlurmdSpoolDir={at}/spool/%n",
        f"SlurmctldPidFile={at}/slurmctld.pid",
        f"SlurmdPidFile={at}/%n.pid",
        f"SlurmctldLogFile={at}/log/slurmctld.log",
        f"SlurmdLogFile={at}/log/%n.log",
        "AuthType=auth/munge",
        f"AuthInfo=socket={at}/munge.sock,cred_expire={int(terms.requeue_delay.total_seconds()) - 1}",
        "ProctrackType=proctrack/linuxproc",  # cgroups need a delegated hierarchy, which containers seldom have
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SlurmdParameters=config_overrides",  # the machine may have fewer CPUs than its nodes say
        "MpiDefault=none",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={at}/log/jobs.txt",
        "JobRequeue=1",
        "ReturnToService=2",
        f"MinJobAge={int(terms.min_job_age.total_seconds())}",
        f"SlurmdTimeout={int(terms.slurmd_timeout.total_seconds())}",
        f"KillWait={int(terms.kill_wait.total_seconds())}",
        "MessageTimeout=5",
        "InactiveLimit=30",
        "SlurmctldTimeout=10",
        "SchedulerParameters=sched_interval=2,sched_min_interval=100000,batch_sched_delay=0,bf_interval=2",
        *nodes,
        f"PartitionName=train Nodes={node_list} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO",
        f"PartitionName=all Nodes={node_list} MaxTime=INFINITE State=UP OverSubscribe=NO",
        *terms.extra,
    )
    return "\n".join(lines) + "\n"


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on at this moment; all are held until the last is found, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
