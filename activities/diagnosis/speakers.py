"""Whose word a line is. Who speaks of a cancellation, of a lost node or of a task elsewhere is not who failed. Pure.

loglines.py and the engine ask before they take the node that a line begins with for the node that the line is about."""

import re
from dataclasses import replace

from activities.logs.prefixes import Prefixed, parse_prefix

# slurmstepd on the first node of a step tells of the end of all of it (slurmstepd/req.c); whom it names wrote the line.
_CANCELLATION = re.compile(r"[*]{3} (?:STEP|JOB) \S+ ON (?P<writer>\S+) CANCELLED AT ")
# Programs that run where the job was launched, or where the controller is, and tell of nodes elsewhere.
_MESSENGER = re.compile(
    r"\s*(?:srun|salloc|sbatch|scontrol|slurmctld|slurmdbd|mpirun|mpiexec(?:\.hydra)?|prterun|orterun|pdsh@[\w.-]+)(?:\[\d+\])?: "
    r"|\s*(?:mpirun|mpiexec|prterun|orterun) (?:noticed|detected|has exited|was unable)"
)


def writer_of(text: str) -> str | None:
    """The node whose slurmstepd tells that a step or job was cancelled; None for any other line. It is a node of the job, and no more."""
    found = _CANCELLATION.search(text) if " CANCELLED AT " in text else None
    return found["writer"] if found else None


def about(prefixed: Prefixed) -> Prefixed:
    """The line with the node and rank that it is about, in place of those of who wrote it: srun names the node of the task it tells of;
    a cancellation, a controller and a launcher's summary name none by where they stand."""
    if writer_of(prefixed.text) is not None:
        return replace(prefixed, node=None)
    if not _MESSENGER.match(prefixed.text):
        return prefixed
    itself = parse_prefix(prefixed.text)
    return replace(prefixed, node=itself.node, rank=itself.rank, task=None)


def is_messenger(text: str) -> bool:
    """True for the word of a program that tells of other nodes than its own."""
    return writer_of(text) is not None or _MESSENGER.match(text) is not None
