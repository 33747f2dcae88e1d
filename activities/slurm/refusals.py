"""Slurm's error texts and what each means for us: a table, and the small function that reads it. Called by `commands.py`.

The commands print `slurm_strerror()` and exit 1 for nearly everything, so the text is the only answer there is. The strings
are those of src/common/slurm_errno.c, compared between 22.05, 24.11 and 26.05: the ones listed here did not change.
"""

from activities.slurm.scheduler import (
    JobFinished,
    JobNotPending,
    JobPending,
    JobUnknown,
    NodeNameInvalid,
    NotABatchJob,
    PermissionDenied,
    RequeueDisabled,
    SchedulerError,
    SchedulerRefused,
    SchedulerUnreachable,
    SchedulerUnreadable,
)

# Text in Slurm's words -> our error and the mend. First match wins: no answer at all goes before any reading of an answer.
_MEANINGS: tuple[tuple[str, type[SchedulerError], str], ...] = (
    ("Unable to contact slurm controller", SchedulerUnreachable, "is slurmctld up? (`scontrol ping`)"),
    # requeue and hold say this on 22.05 when slurmctld is down (measured); the answer, if any, was not understood by Slurm's client
    ("Unexpected message received", SchedulerUnreachable, "is slurmctld up? (`scontrol ping`)"),
    ("Unable to establish configuration source", SchedulerUnreachable, "set cluster.scheduler.slurm_conf"),
    ("Could not establish a configuration source", SchedulerUnreachable, "set cluster.scheduler.slurm_conf"),
    ("Slurm backup controller in standby mode", SchedulerUnreachable, "the primary controller does not answer"),
    ("Controller is in standby mode", SchedulerUnreachable, "the primary controller does not answer"),
    ("Socket timed out on send/recv operation", SchedulerUnreachable, "slurmctld is overloaded or gone"),
    ("Connection timed out", SchedulerUnreachable, "slurmctld is overloaded or gone"),
    ("Zero Bytes were transmitted or received", SchedulerUnreachable, "munge keys or clocks may differ (`munge -n | unmunge`)"),
    ("Communication connection failure", SchedulerUnreachable, "is slurmctld up? (`scontrol ping`)"),
    ("Communication shutdown failure", SchedulerUnreachable, "is slurmctld up? (`scontrol ping`)"),
    ("Message send failure", SchedulerUnreachable, "is slurmctld up? (`scontrol ping`)"),
    ("Message receive failure", SchedulerUnreachable, "is slurmctld up? (`scontrol ping`)"),
    ("Rate limit exceeded", SchedulerUnreachable, "slurmctld asks for fewer questions (SlurmctldParameters=rl_enable)"),
    ("Protocol authentication error", SchedulerUnreachable, "is munged up, with the cluster's key? (`munge -n | unmunge`)"),
    ("Munge encode failed", SchedulerUnreachable, "is munged up? (`munge -n | unmunge`)"),
    ("Failed to access", SchedulerUnreachable, "is munged up? (`munge -n | unmunge`)"),
    ("Incompatible versions of client and server code", SchedulerUnreadable, "use client commands of the cluster's version"),
    ("Invalid job id specified", JobUnknown, "Slurm never had it, or has forgotten it (MinJobAge)"),
    ("Job is pending execution", JobPending, "it already waits to run"),
    ("Job is no longer pending execution", JobNotPending, "only a pending job can be changed so"),
    ("Job is not pending nor running", JobNotPending, "only a pending job can be changed so"),
    ("Job has already started", JobNotPending, "only a pending job can be changed so"),
    ("Job has already finished", JobFinished, "requeue it first"),
    ("Job/step already completing or completed", JobFinished, "it ended before"),
    ("Requested operation is presently disabled", RequeueDisabled, "the user said --no-requeue; policy.override_no_requeue permits it"),
    ("Only batch jobs are accepted or processed", NotABatchJob, "srun and salloc allocations cannot be requeued"),
    ("Job script not specified", NotABatchJob, "srun and salloc allocations have no script"),
    ("Invalid node name specified", NodeNameInvalid, "nothing was changed; see `sinfo -N`"),
    ("Access/permission denied", PermissionDenied, "run as SlurmUser, or give this user AdminLevel=Operator (nodes: Administrator)"),
    ("Invalid user id", PermissionDenied, "run as SlurmUser, or give this user AdminLevel=Operator (nodes: Administrator)"),
    ("Job not heterogeneous job leader", SchedulerRefused, "name the leader of the heterogeneous job"),
    ("Operation not permitted on individual component of heterogeneous job", SchedulerRefused, "name the leader of the heterogeneous job"),
    ("Job can not be altered now, try again later", SchedulerRefused, "Slurm is changing it at this moment"),
    ("Invalid node state specified", SchedulerRefused, "the node is not in a state that allows it"),
)


def error_for(question: str, said: str) -> SchedulerError:
    """The error that Slurm's text `said` means, asked `question`; an unknown text is a refusal in Slurm's own words. Without any text
    nothing is known: a command whose slurmctld is killed while it asks may end so (22.05.8)."""
    text = " ".join(said.split())
    if not text:
        return SchedulerUnreadable(f"{question}: failed and gave no reason; is slurmctld up? (`scontrol ping`)")
    for words, error, mend in _MEANINGS:
        if words.lower() in text.lower():
            return error(f"{question}: {text[:300]} ({mend})")
    return SchedulerRefused(f"{question}: {text[:300]}")
