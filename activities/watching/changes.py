"""What happens to a job while a person decides: somebody else's act, or the job's own recovery, supersedes the recommendation.

Pure, like `attempt.py`, on which it rests for what is seen. Called by `activities/detect.py`.
"""

from datetime import datetime

from activities.records import Change, ChangeKind, ChangeRequest, Job, JobState, SymptomKind
from activities.watching.attempt import AttemptWatch

_STOPS_PROGRESS = (SymptomKind.CRASH, SymptomKind.HANG, SymptomKind.NODE_FAULT)
STEPS_THAT_COUNT = 2  # one iteration may still be on its way out of a buffer


class ChangeWatch:
    """Compares every look with the state in which the recommendation was made."""

    def __init__(self, request: ChangeRequest, watch: AttemptWatch) -> None:
        self._request = request
        self._watch = watch
        cursor = request.cursor
        self._iteration_when_asked = cursor.progress.iteration if cursor is not None else None
        self._checkpoint_when_asked = cursor.progress.checkpoint_iteration if cursor is not None else None
        self._lost_nodes = {lost.node for lost in cursor.lost_nodes} if cursor is not None else set()

    def change(self, now: datetime) -> Change | None:
        """What changed, `unchanged` once `until` has come, or None while nothing did."""
        request, job = self._request, self._watch.job
        if self._watch.is_forgotten:
            return self._made(ChangeKind.FORGOTTEN, now, f"Slurm no longer knows job {request.attempt.key.job_id}")
        if job is not None and not self._watch.is_blind_to_slurm:
            change = self._by_scheduler(job, now) or self._by_progress(job, now)
            if change is not None:
                return change
        if now >= request.until:
            return self._made(ChangeKind.UNCHANGED, now, "nothing changed meanwhile")
        return None

    def _by_scheduler(self, job: Job, now: datetime) -> Change | None:
        asked = self._request.state_when_asked
        if job.restart_count > self._request.restart_count:
            if (lost := self._requeued_off(job, now)) is not None:
                return self._by_slurm(job, now, lost)
            return self._made(ChangeKind.REQUEUED, now, f"job {job.job_id} was requeued, restart count {job.restart_count}")
        if job.is_ending or job.state is asked:
            return None  # while Slurm cleans up, what it will be next is not known
        match job.state:
            case JobState.UNKNOWN:
                return None
            case JobState.CANCELLED:
                return self._made(ChangeKind.CANCELLED, job.ended_at or now, f"job {job.job_id} was cancelled")
            case JobState.PENDING:
                return self._made(ChangeKind.REQUEUED, now, f"job {job.job_id} is back in the queue")
            case JobState.RUNNING:
                if asked is JobState.SUSPENDED:
                    return None
                return self._made(ChangeKind.STARTED, job.started_at or now, f"job {job.job_id} runs again")
            case JobState.SUSPENDED:
                return None
            case (
                JobState.COMPLETED
                | JobState.FAILED
                | JobState.TIMEOUT
                | JobState.NODE_FAIL
                | JobState.PREEMPTED
                | JobState.BOOT_FAIL
                | JobState.DEADLINE
                | JobState.OUT_OF_MEMORY
            ):
                if asked.is_ended or asked is JobState.UNKNOWN:
                    # Slurm corrects the end state of an ended job (FAILED to NODE_FAIL); it has ended all the same. Unknown when
                    # asked means that it was ending already (22.05 shows COMPLETING in place of the state).
                    return None
                return self._made(ChangeKind.ENDED, job.ended_at or now, f"job {job.job_id} ended: {job.state}")

    def _requeued_off(self, job: Job, now: datetime) -> str | None:
        """The lost node whose job Slurm itself requeued: that is the fault, and no answer to it. None: another hand requeued it."""
        attempt = self._request.attempt
        # One that is back by now was lost all the same.
        self._lost_nodes |= {node.name for node in self._watch.view(now).nodes if node.name in attempt.nodes}
        return min(self._lost_nodes, default=None) if job.restart_count == attempt.restart_count + 1 else None

    def _by_slurm(self, job: Job, now: datetime, lost: str) -> Change | None:
        """A job that waits out Slurm's delay may still be kept off nodes, and given the delay back."""
        if job.is_ending or job.state is JobState.UNKNOWN or (job.state is JobState.PENDING and not job.is_held):
            return None
        off = f"job {job.job_id}, which Slurm itself requeued off {lost},"
        if job.state is JobState.CANCELLED:
            return self._made(ChangeKind.CANCELLED, job.ended_at or now, f"{off} was cancelled")
        if job.state is JobState.PENDING:
            return self._made(ChangeKind.REQUEUED, now, f"{off} is held ({job.reason}), so somebody is at it")
        started = f"{off} has started: its delay was over before anyone decided"
        return self._made(ChangeKind.STARTED, job.started_at or now, started, by_slurm=True)

    def _by_progress(self, job: Job, now: datetime) -> Change | None:
        progress, request = self._watch.progress, self._request
        if job.state is not JobState.RUNNING or job.restart_count != request.attempt.restart_count:
            return None
        if request.symptom in _STOPS_PROGRESS and progress.iteration is not None:
            before = self._iteration_when_asked
            if before is not None and progress.iteration >= before + STEPS_THAT_COUNT:
                at = progress.iteration_at or now
                return self._made(ChangeKind.RESUMED_PROGRESS, at, f"iterations go on by themselves: {before}, now {progress.iteration}")
        if request.symptom is SymptomKind.NO_CHECKPOINT and progress.checkpoint_iteration is not None:
            saved = self._checkpoint_when_asked
            if saved is None or progress.checkpoint_iteration > saved:
                at = progress.checkpoint_at or now
                return self._made(ChangeKind.RESUMED_PROGRESS, at, f"a checkpoint of iteration {progress.checkpoint_iteration} was written")
        return None

    def _made(self, kind: ChangeKind, at: datetime, summary: str, *, by_slurm: bool = False) -> Change:
        watch = self._watch
        return Change(kind=kind, at=at, by_slurm=by_slurm, summary=summary, job=watch.job, progress=watch.progress, cursor=watch.cursor(at))
