"""One watch: takes in snapshots of Slurm and readings of the disk, shows them as a view, and says when the watch is over.

No clock, file or network here: `detect.py` hands in what was seen and when. `cursor` is what another worker needs to go on.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from activities.checkpoints import CheckpointMark
from activities.configuration import WatchSection
from activities.detectors.endings import ENDED_BADLY, ended_badly
from activities.detectors.progress import unseen
from activities.detectors.verdict import judge
from activities.detectors.view import AttemptView, is_paused
from activities.logs.paths import checkpoint_directory_of, log_path_of
from activities.records import (
    Cursor,
    FatalLine,
    Job,
    JobState,
    LostNode,
    Node,
    Progress,
    Symptom,
    WatchEnd,
    WatchRequest,
    WatchResult,
    WatchUntil,
)
from activities.slurm.feed import Snapshot
from activities.watching.folding import with_checkpoint, with_piece
from activities.watching.lost_acts import lost_act
from activities.watching.milestones import reached_by
from activities.watching.reading import LONGEST_PAUSE, DiskReader, LogOrigin, Reading

STALE_READING = LONGEST_PAUSE  # a file system that has not answered for this long: nothing is known of the log
FINAL_READ = timedelta(seconds=5)  # longest wait for the last lines of an ended job
STALE_LOOK = timedelta(seconds=60)  # a restart count below the attempt's is an old look this long, then another job
TOLD_PATIENCE = timedelta(minutes=2)  # from Slurm's word in the log to the job's end: KillWait is 30 s by default (slurm.conf)
ABSENT_LOOKS = 2  # squeue answers that must miss the job before it counts as forgotten


class AttemptWatch:
    """The state of one watch. All methods are called from the event loop."""

    def __init__(self, request: WatchRequest, cursor: Cursor, patience: WatchSection, *, began_at: datetime) -> None:
        self._request = request
        self._patience = patience
        self._began_at = began_at
        self.attempt = request.attempt
        # A cursor of an older attempt tells where its log was read to, and nothing of this attempt.
        self._earlier_cursor = cursor
        self._own = cursor.restart_count == self.attempt.restart_count
        self._state = cursor if self._own else Cursor(restart_count=self.attempt.restart_count, files=cursor.files)
        if self._own and not self.attempt.nodes:  # asked for while it waited in the queue, and seen to run by an earlier watch
            self.attempt = self.attempt.model_copy(update={"nodes": cursor.nodes, "started_at": cursor.started_at})
        self._suspicion: Symptom | None = self._state.suspicion
        self._lost: dict[str, LostNode] = {lost.node: lost for lost in self._state.lost_nodes}
        self._job: Job | None = None
        self._looked_at: datetime | None = None
        self._lost_looks: tuple[Node, ...] = ()
        self._unreachable_since: datetime | None = None
        self._absent = 0
        self._lost_act: str | None = None
        self._snapshot_number = 0
        self._ended_seen_at: datetime | None = None
        self._jobs: Mapping[str, Job] = {}
        self._looked_beside_at: datetime | None = None
        self._disk_checkpoint: CheckpointMark | None = None
        self._reading: Reading | None = None
        self._reader: DiskReader | None = None

    # ----------------------------------------------------------------------------------------------- what was seen

    def see(self, snapshot: Snapshot, lost: Mapping[str, Node]) -> None:
        """Takes in one snapshot; `lost` are its nodes that are lost, by name."""
        self._unreachable_since = snapshot.unreachable_since
        if not snapshot.is_good or snapshot.number == self._snapshot_number:
            return
        self._snapshot_number, self._jobs = snapshot.number, snapshot.jobs
        key = self.attempt.key
        job = snapshot.jobs.get(key.job_id)
        if job is not None and self._is_another_job(job):
            job = None
        if job is None:
            # A look from before this watch may be older than the job.
            self._absent += snapshot.taken_at > self._began_at
            return
        self._absent = 0
        placement = self._request.placement
        if placement is not None and snapshot.taken_at > self._began_at:
            self._lost_act = lost_act(job, self.attempt, placement, looked_at=snapshot.taken_at)
        if job.restart_count < self.attempt.restart_count and snapshot.taken_at - self._began_at < STALE_LOOK:
            return
        self._job, self._looked_at = job, snapshot.taken_at
        is_this_attempt = job.restart_count == self.attempt.restart_count
        if is_this_attempt and job.nodes and job.state is not JobState.PENDING:
            told = {"nodes": job.nodes, "started_at": job.started_at or self.attempt.started_at}
            if told != {"nodes": self.attempt.nodes, "started_at": self.attempt.started_at}:
                self.attempt = self.attempt.model_copy(update=told)
        if is_this_attempt and is_paused(job):
            self._update(paused_at=snapshot.taken_at)
        if is_this_attempt and job.state.is_ended:
            self._ended_seen_at = self._ended_seen_at or snapshot.taken_at
        self._lost_looks = tuple(lost[name] for name in self.attempt.nodes if name in lost)
        self._lost = {node.name: self._lost.get(node.name, LostNode(node=node.name, since=snapshot.taken_at)) for node in self._lost_looks}

    def wants_reader(self) -> LogOrigin | None:
        """Where to read, once the attempt runs (or has ended): before that, its log's path shows the attempt before."""
        job = self._job
        if self._reader is not None or job is None or job.restart_count != self.attempt.restart_count:
            return None
        if job.state in (JobState.PENDING, JobState.UNKNOWN):
            return None
        path = log_path_of(job, self._request.opt_in)
        files = {file.path: file for file in self._earlier_cursor.files}
        restarted = self.attempt.restart_count > 0 and not self._own
        return LogOrigin(
            path=path,
            cursor=files.get(str(path)),
            checkpoints=checkpoint_directory_of(job, self._request.opt_in),
            working_directory=Path(job.working_directory) if job.working_directory else None,
            attempt_started_at=self.attempt.started_at,
            may_hold_older_attempts=restarted and (str(path) in files or not files),
            cursor_is_older_attempts=restarted and str(path) in files,
            iteration=self.progress.iteration if self._own else None,
        )

    def reads_by(self, reader: DiskReader) -> None:
        self._reader = reader

    def take(self, reading: Reading) -> bool:
        """Takes in one reading. True when it makes a fresh look at Slurm worth while."""
        had_fatal = self._state.fatal is not None
        self._reading = reading
        if reading.piece is not None:
            self._state = with_piece(self._state, reading.piece, self._patience, started_at=self.attempt.started_at)
        if reading.checkpoint is not None:
            self._disk_checkpoint = reading.checkpoint
            self._state = with_checkpoint(self._state, reading.checkpoint, at=reading.at, started_at=self.attempt.started_at)
        if reading.looked_beside:
            self._looked_beside_at = reading.at
            self._update(beside=reading.beside)
        self._update(files=(reading.file,) if reading.file is not None else self._state.files)
        return self._state.fatal is not None and not had_fatal

    def _update(self, **changes: object) -> None:
        self._state = self._state.model_copy(update=changes)

    # ---------------------------------------------------------------------------------------------- what it comes to

    @property
    def job(self) -> Job | None:
        return self._job

    @property
    def progress(self) -> Progress:
        return self._state.progress

    @property
    def _is_running(self) -> bool:
        job = self._job
        return job is not None and job.state is JobState.RUNNING and job.restart_count == self.attempt.restart_count

    @property
    def is_forgotten(self) -> bool:
        return self._absent >= ABSENT_LOOKS

    @property
    def is_blind_to_slurm(self) -> bool:
        return self._unreachable_since is not None

    @property
    def needs_a_look_soon(self) -> bool:
        """True while a second or two matter: a fatal line settles, or an ended job's last lines are awaited."""
        return self._state.fatal is not None or self._ended_seen_at is not None or self._request.until is not WatchUntil.SYMPTOM

    def blind(self, now: datetime) -> str | None:
        """What cannot be seen at present, and the mend."""
        texts = []
        if self._unreachable_since is not None:
            texts.append(f"Slurm has not answered since {self._unreachable_since:%Y-%m-%d %H:%M:%S} UTC; `backstay doctor` tells why")
        if self._reading is not None and self._reading.blind is not None:
            texts.append(self._reading.blind)
        reader = self._reader
        if reader is not None and reader.looked_at is not None and now - reader.looked_at > STALE_READING:
            texts.append(f"{reader.path}: its file system has not answered for {(now - reader.looked_at).total_seconds():.0f} s")
        elif (unseen := self._unseen(now)) is not None:
            texts.append(unseen)
        return " · ".join(texts) or None

    def _unseen(self, now: datetime) -> str | None:
        """Why a hang of this attempt could not be told from its silence, once it is time to say so, and the mend."""
        view, patience = self.view(now), self._patience
        started, reader = view.started_at, self._reader
        if not view.is_running or started is None or now - started <= patience.startup_patience:
            return None
        why = unseen(view, patience)
        if why is None:
            return None
        where = f"{reader.path}: {why}" if reader is not None and reader.path is not None else why
        return (
            f"progress cannot be seen; crashes only: {where}; give a pattern in the job's comment (progress=...) or "
            "`watch.progress_pattern`, or name the log that tells it (log=/path)"
        )

    def cursor(self, now: datetime) -> Cursor:
        if not self._own and self._reading is None:
            # Nothing of this attempt was read yet: the offsets still are the older attempt's.
            return self._earlier_cursor.model_copy(update={"looked_at": now, "blind": self.blind(now)})
        return self._state.model_copy(
            update={
                "suspicion": self._suspicion,
                "lost_nodes": tuple(self._lost.values()),
                "nodes": self.attempt.nodes,
                "started_at": self.attempt.started_at,
                "looked_at": now,
                "blind": self.blind(now),
            }
        )

    def view(self, now: datetime) -> AttemptView:
        state, reading, reader = self._state, self._reading, self._reader
        fresh = reader is not None and reader.looked_at is not None and now - reader.looked_at <= STALE_READING
        # What is half read may be refuted by the next line.
        is_catching_up = self._is_running and (reading is None or not reading.caught_up)
        return AttemptView(
            now=now,
            attempt=self.attempt,
            job=self._job,
            looked_at=self._looked_at,
            scheduler_unreachable_since=self._unreachable_since,
            nodes=self._lost_looks,
            lost_nodes=tuple(self._lost.values()),
            log_readable=fresh and reading is not None and reading.readable and reading.caught_up,
            last_output_at=state.last_output_at,
            fatal=None if is_catching_up else self._fatal(now),
            progress=state.progress,
            line_gap=timedelta(seconds=state.line_gap_seconds) if state.line_gap_seconds else None,
            block=timedelta(seconds=state.block_seconds) if state.block_seconds else None,
            stepping_since=state.stepping_since,
            earlier_attempts_stepped=self._request.earlier_attempts_stepped,
            beside=state.beside,
            has_looked_beside=self._has_looked_beside,
            checkpoints_readable=reading is None or reading.checkpoints_readable,
            checkpoint_count=0 if is_catching_up else max(len(state.checkpoint_times), len(state.progress.checkpoint_times)),
            slow_since=None if is_catching_up else state.slow_since,
            bad_loss_iterations=() if is_catching_up else state.bad_loss_iterations,
            bad_loss_since=state.bad_loss_since,
            suspicion=self._suspicion,
            paused_at=state.paused_at,
        )

    def _fatal(self, now: datetime) -> FatalLine | None:
        """The fatal line that counts. Any program can print that Slurm ends the job: what dies behind such a word is no cause where
        Slurm agrees, or has not had the time to."""
        state, job = self._state, self._job
        told_at = state.told_to_end_at
        if state.fatal is not None or job is None:
            return state.fatal
        if told_at is None or (job.restart_count == self.attempt.restart_count and job.state in ENDED_BADLY):
            return state.unconfirmed_fatal
        return state.unconfirmed_fatal if self._is_running and not job.is_ending and now - told_at >= TOLD_PATIENCE else None

    def end(self, now: datetime) -> WatchResult | None:
        """Why the watch is over, or None while it goes on. Remembers a suspicion for the second look."""
        request, job = self._request, self._job
        if self.is_forgotten:
            return self._result(WatchEnd.FORGOTTEN, now, f"Slurm no longer knows job {self.attempt.key.job_id}")
        if self._lost_act is not None and self._unreachable_since is None:
            return self._result(WatchEnd.ACT_LOST, now, self._lost_act)
        if job is not None and self._unreachable_since is None and not self._waits_for_last_lines(now):
            view = self.view(now)
            judged = judge(view, self._patience, known=request.known_symptoms, known_onset=request.known_onset)
            self._suspect(judged.suspicion)
            if judged.verdict is not None:
                return self._result(WatchEnd.SYMPTOM, judged.verdict.detected_at, judged.verdict.summary, symptom=judged.verdict)
            if view.was_requeued:
                summary = f"job {job.job_id} was requeued, restart count {job.restart_count}; not by this watch's doing"
                return self._result(WatchEnd.REQUEUED, now, summary)
            if job.state.is_ended and not job.is_ending:
                as_known = ended_badly(view, self._patience) is not None
                kind = WatchEnd.ENDED_AS_KNOWN if as_known else WatchEnd.ENDED_WELL
                return self._result(kind, job.ended_at or now, f"job {job.job_id} ended: {job.state}")
            reached = reached_by(view, request, was_read=self._was_read(now), disk=self._disk_checkpoint, disk_readable=self._disk_readable)
            if reached is not None:
                return self._result(WatchEnd.REACHED, *reached)
        if request.deadline is not None and now >= request.deadline:
            return self._result(WatchEnd.DEADLINE, now, f"not {request.until} by {request.deadline:%Y-%m-%d %H:%M:%S} UTC")
        return None

    def _suspect(self, suspicion: Symptom | None) -> None:
        """Keeps it for the second look; until then it is looked for what else the job writes than its log."""
        self._suspicion = suspicion
        reader, job = self._reader, self._job
        if reader is None or job is None or reader.looks_beside is (suspicion is not None):
            return
        theirs = (other for other in self._jobs.values() if other.user == job.user and other.job_id != job.job_id)
        reader.other_jobs = tuple(theirs) if suspicion is not None else ()
        reader.looks_beside = suspicion is not None

    @property
    def _has_looked_beside(self) -> bool:
        if self._reader is None or self._suspicion is None:
            return True
        return self._looked_beside_at is not None and self._looked_beside_at >= self._suspicion.detected_at

    def _was_read(self, now: datetime) -> bool:
        """Whether the log was read since the attempt began, or cannot be: a file system that hangs holds up no milestone."""
        if self._reader is not None and self._reader.looked_at is not None:
            return True
        return now - (self.attempt.started_at or now) >= STALE_READING

    @property
    def _disk_readable(self) -> bool:
        return self._request.opt_in.checkpoints is not None and (self._reading is None or self._reading.checkpoints_readable)

    def _waits_for_last_lines(self, now: datetime) -> bool:
        ended, reader = self._ended_seen_at, self._reader
        if ended is None or reader is None:
            return False
        reader.job_has_ended = True
        return not reader.has_read_the_end and now - ended < FINAL_READ

    def _result(self, kind: WatchEnd, at: datetime, summary: str, *, symptom: Symptom | None = None) -> WatchResult:
        request, job, first = self._request, self._job, self.progress.first_iteration
        now = self._looked_at if self._looked_at is not None and self._looked_at > at else at
        started_over = request.resumed_from is not None and first is not None and first < request.resumed_from
        nodes = job.nodes if job is not None and job.restart_count == self.attempt.restart_count else ()
        return WatchResult(
            kind=kind,
            at=at,
            summary=summary,
            symptom=symptom,
            job=job,
            attempt=self.attempt,
            progress=self.progress,
            cursor=self.cursor(now),
            on_excluded=tuple(node for node in nodes if node in request.excluded_nodes),
            started_over=started_over,
            blind=self.blind(now),
        )

    def _is_another_job(self, job: Job) -> bool:
        # Job IDs wrap: a count back at zero with a later submit time is a new job (JobKey).
        submitted = self.attempt.key.submitted_at
        return job.restart_count == 0 and job.submitted_at is not None and job.submitted_at > submitted + timedelta(seconds=1)
