"""What Backstay did to a waiting job and Slurm no longer shows: slurmctld was killed before it saved its state. Pure.

Called by `attempt.py` at each look of a watch that verifies. It only suspects: the steps that do it again look for themselves, and tell
another hand's act from a loss.
"""

from datetime import datetime

from activities.mutation import carries_our_mark, waits_for_begin_time
from activities.records import Attempt, Job, JobState, Placement
from activities.slurm.scheduler import REQUEUED_HELD


def lost_act(job: Job, attempt: Attempt, placement: Placement, *, looked_at: datetime) -> str | None:
    """What of the placement this look at the job does not show, in words; None while all of it stands, or is no longer needed.

    Args:
        job: as Slurm tells it now.
        attempt: the attempt that was placed.
        placement: what was done, each part read back then.
        looked_at: when `job` was told.
    """
    if job.restart_count < attempt.restart_count:
        gone = f"Slurm shows job {job.job_id} {job.state} with restart count {job.restart_count} again"
        return gone if placement.requeued and job.state is not JobState.CANCELLED else None
    if job.restart_count > attempt.restart_count or job.state is not JobState.PENDING or job.is_ending:
        return None
    if missing := sorted(set(placement.excluded) - set(job.excluded_nodes)):
        return f"Slurm shows the waiting job {job.job_id} without the exclusion of {', '.join(missing)}"
    if not placement.start_given:
        return None
    if job.is_held:
        ours = carries_our_mark(job) or job.reason == REQUEUED_HELD
        return f"Slurm shows job {job.job_id} in our hold again" if ours and placement.requeued else None
    if waits_for_begin_time(job, looked_at):
        return f"Slurm shows job {job.job_id} waiting for its begin time again"
    return None
