"""The milestones of verification: when a new attempt runs, steps, and has written a checkpoint newer than the one before the fault.

Pure; called by `attempt.py` for watches that go until a milestone.
"""

from datetime import datetime

from activities.checkpoints import CheckpointMark
from activities.detectors.view import AttemptView
from activities.records import WatchRequest, WatchUntil

Reached = tuple[datetime, str]


def reached_by(
    view: AttemptView, request: WatchRequest, *, was_read: bool, disk: CheckpointMark | None, disk_readable: bool
) -> Reached | None:
    """When the milestone asked for was reached, and how; None while it was not, or none is asked for.

    Args:
        view: the attempt as it is seen now.
        request: which milestone, and what it must exceed.
        was_read: the log was read once since the attempt began: what an older attempt left there is behind us.
        disk: newest complete checkpoint of the directory the job named.
        disk_readable: that directory was named, and can be read.
    """
    job, progress = view.job, view.progress
    if job is None or not view.is_running or job.restart_count != view.attempt.restart_count:
        return None  # a count below the attempt's is an older state of Slurm's, in which the attempt before runs
    match request.until:
        case WatchUntil.SYMPTOM:
            return None
        case WatchUntil.RUNNING:
            return (job.started_at or view.now, f"job {job.job_id} runs on {len(job.nodes)} nodes") if was_read else None
        case WatchUntil.STEPPING:
            if progress.iteration_at is None:
                return None
            return progress.iteration_at, f"job {job.job_id} iterates again, at {progress.iteration}"
        case WatchUntil.CHECKPOINT:
            return _on_disk(view, request, disk) if disk_readable else _in_log(view, request)


def _on_disk(view: AttemptView, request: WatchRequest, disk: CheckpointMark | None) -> Reached | None:
    """The directory's word counts, not the log's: a half-written checkpoint is none."""
    if disk is None or not _is_newer(view, request, disk.iteration, disk.written_at):
        return None
    return disk.written_at, f"checkpoint of iteration {disk.iteration} is complete in {disk.path}"


def _in_log(view: AttemptView, request: WatchRequest) -> Reached | None:
    iteration, at = view.progress.checkpoint_iteration, view.progress.checkpoint_at
    if iteration is None or at is None or not _is_newer(view, request, iteration, at):
        return None
    return at, f"the log says that a checkpoint of iteration {iteration} was saved"


def _is_newer(view: AttemptView, request: WatchRequest, iteration: int, written_at: datetime) -> bool:
    """Beyond the checkpoint before the fault, and written by this attempt."""
    if request.checkpoint_before is not None and iteration <= request.checkpoint_before:
        return False
    return view.started_at is None or written_at >= view.started_at
