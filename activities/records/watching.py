"""Watching one attempt: how far Backstay may go, what is seen, what it comes to, and the requests and results of a watch.

`Cursor` stands in heartbeats and histories: add fields with defaults, rename none.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import AwareDatetime, Field

from activities.records.base import Record
from activities.records.scheduler import Attempt, Job, JobState


class Mode(StrEnum):
    """How far Backstay may go for a job; ordered from least to most."""

    OBSERVE = "observe"  # recommendations are recorded beside what the team did
    APPROVE = "approve"  # a person decides
    AUTO = "auto"  # it acts within the guard rails


class OptIn(Record):
    """What a job's `--comment`, or the operator's partition rule, says about watching it."""

    opted_in: bool = False
    mode: Mode | None = None
    checkpoints: str | None = Field(default=None, description="directory the job writes its checkpoints to")
    log: str | None = Field(default=None, description="log file, where it is not the batch job's stdout")
    dumps: str | None = Field(
        default=None, description="directory of the NCCL flight-recorder dumps, or what their names begin with before the rank"
    )
    progress_pattern: str | None = Field(default=None, description="the user's own regular expression for an iteration line")
    warnings: tuple[str, ...] = ()


class SignalSource(StrEnum):
    """Where something was observed."""

    SCHEDULER = "scheduler"
    LOG = "log"
    NODE = "node"
    KERNEL = "kernel"
    GPU = "gpu"
    CHECKPOINT = "checkpoint"


class Signal(Record):
    """One raw observation, with its source and time."""

    source: SignalSource
    at: AwareDatetime
    text: str
    node: str | None = None
    rank: int | None = None
    gpu: str | None = None


class SymptomKind(StrEnum):
    """How a job suffers."""

    CRASH = "crash"  # it ended badly, or is about to
    HANG = "hang"  # allocated, and no iteration for longer than it ever needs
    SLOWDOWN = "slowdown"  # its steps take longer than its own usual ones
    NODE_FAULT = "node_fault"  # Slurm has lost a node of it
    NO_CHECKPOINT = "no_checkpoint"  # it steps and writes no checkpoint
    BAD_NUMBERS = "bad_numbers"  # its loss is NaN, infinite or has diverged
    NONE = "none"  # nothing is wrong


class Symptom(Record):
    """What detection concludes, and why it says so."""

    kind: SymptomKind
    onset: AwareDatetime = Field(description="when the fault began, as well as can be told")
    detected_at: AwareDatetime
    summary: str
    signals: tuple[Signal, ...] = ()


class Phase(StrEnum):
    """What the job is doing, as its own log tells; each phase has a patience of its own."""

    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    EVALUATING = "evaluating"
    FINISHING = "finishing"


class Progress(Record):
    """How far one attempt has come. None means not seen, never zero."""

    phase: Phase = Phase.STARTING
    phase_since: AwareDatetime | None = None
    iteration: int | None = None
    iteration_at: AwareDatetime | None = None
    first_iteration: int | None = Field(default=None, description="the first iteration this attempt reported: where it resumed")
    checkpoint_iteration: int | None = Field(default=None, description="newest complete checkpoint, from log or disk")
    checkpoint_at: AwareDatetime | None = None
    step_seconds: float | None = Field(default=None, description="median seconds per iteration of this attempt, recent")
    baseline_step_seconds: float | None = Field(default=None, description="median seconds per iteration early in this attempt")
    checkpoint_interval_seconds: float | None = Field(default=None, description="usual seconds between checkpoints")
    iteration_logged_at: AwareDatetime | None = Field(default=None, description="the log's own time of the last iteration line")
    step_samples: tuple[float, ...] = Field(default=(), description="recent seconds per iteration, oldest first, bounded")
    early_step_samples: tuple[float, ...] = Field(default=(), description="seconds per iteration the baseline rests on, bounded")
    steps_seen: int = Field(default=0, description="step times seen so far; the first ones are warm-up and not in the baseline")
    checkpoint_times: tuple[AwareDatetime, ...] = Field(default=(), description="when checkpoints were completed, bounded")
    last_loss: float | None = None


class FileCursor(Record):
    """Where reading of one log stopped. Device and inode tell rotation, a shrunken size tells truncation, the head's hash
    tells a file that was truncated and has grown again."""

    path: str
    device: int = 0
    inode: int = 0
    offset_bytes: int = 0
    head_sha256: str = ""
    head_bytes: int = 0
    tail_sha256: str = Field(default="", description="of the bytes just before the offset: two attempts may begin alike")
    tail_bytes: int = 0
    in_long_line: bool = Field(default=False, description="the offset lies inside an over-long line whose rest is skipped")
    real_path: str = Field(default="", description="where `path` led when the file was first read, if it was a link")
    former: "FileCursor | None" = Field(
        default=None, description="of the file that stood here before, until the job is seen to write to this one"
    )
    unwritten_bytes: int | None = Field(
        default=None, description="size of a file that took another's place, as first seen; None once it has been written to"
    )


class FatalLine(Record):
    """The first fatal line of a log that no iteration followed."""

    at: AwareDatetime = Field(description="when it was written, as well as the file tells; a line's own time may lack its zone")
    read_at: AwareDatetime
    text: str
    rank: int | None = None
    node: str | None = None
    iterations_after: int = Field(default=0, description="one may still come from ranks that had finished the step; two refute it")
    beyond: int | None = Field(
        default=None, description="only iterations beyond this one refute it: others held back may arrive late; None: none was seen before"
    )
    is_certain: bool = Field(default=True, description="False: programs also print such a line and go on; wait longer where no steps come")


class LostNode(Record):
    """Since when a node of the attempt has been DOWN, FAIL or not responding, as far as we saw."""

    node: str
    since: AwareDatetime


class WrittenBeside(Record):
    """A file that a job wrote outside its log: a sign of life, looked for when its log is silent."""

    at: AwareDatetime
    path: str
    is_checkpoint: bool = Field(description="below the checkpoint directory the job named")


class Cursor(Record):
    """Heartbeat details of a watch: what another worker needs to go on without reading again or missing a line."""

    restart_count: int = 0
    files: tuple[FileCursor, ...] = ()
    progress: Progress = Progress()
    checkpoint_times: tuple[AwareDatetime, ...] = ()
    last_output_at: AwareDatetime | None = None
    suspicion: Symptom | None = Field(default=None, description="seen once, waiting for the second look or the settle time")
    looked_at: AwareDatetime | None = None
    blind: str | None = Field(default=None, description="what cannot be read and the mend; None when everything can")
    fatal: FatalLine | None = Field(default=None, description="waits for its settle time; forgotten when iterations follow")
    paused_at: AwareDatetime | None = Field(
        default=None, description="last look at which the attempt could not compute: suspended, nodes powering up"
    )
    told_to_end_at: AwareDatetime | None = Field(
        default=None, description="the log said that Slurm ends the job (cancelled, requeued, preempted): what dies after that is no cause"
    )
    unconfirmed_fatal: FatalLine | None = Field(
        default=None, description="printed behind the log's word that Slurm ends the job: counts where Slurm does not agree"
    )
    lost_nodes: tuple[LostNode, ...] = ()
    line_gap_seconds: float | None = Field(default=None, description="longest time between two iteration lines of this attempt")
    slow_since: AwareDatetime | None = Field(default=None, description="since when steps have been slow against the baseline")
    bad_loss_iterations: tuple[int, ...] = Field(
        default=(), description="consecutive iterations, up to now, whose loss was NaN or infinite"
    )
    bad_loss_since: AwareDatetime | None = None
    nodes: tuple[str, ...] = Field(default=(), description="of the attempt, since Slurm first told them")
    started_at: AwareDatetime | None = Field(default=None, description="of the attempt, as Slurm told")
    stepping_since: AwareDatetime | None = Field(default=None, description="when this attempt's first iteration line was read")
    block_seconds: float | None = Field(
        default=None, description="what a buffer's worth of lines takes, as long as none was seen to come by itself"
    )
    beside: WrittenBeside | None = Field(default=None, description="what the job wrote last outside its log, when that was looked for")
    mode: Mode | None = Field(default=None, description="what would hold for a fault seen now, by the worker that watches")

    def silent_since(self, restart_count: int) -> datetime | None:
        """When this attempt last wrote; None where that is not known: it wrote nothing yet, or its log cannot be read,
        and who cannot see must not call it silent."""
        return self.last_output_at if self.restart_count == restart_count and self.blind is None else None


class WatchUntil(StrEnum):
    """How far a watch goes. Every watch also ends at a symptom, at the job's end and at its deadline."""

    SYMPTOM = "symptom"
    RUNNING = "running"
    STEPPING = "stepping"
    CHECKPOINT = "checkpoint"


class WatchEnd(StrEnum):
    """Why a watch ended."""

    SYMPTOM = "symptom"
    ENDED_WELL = "ended_well"
    ENDED_AS_KNOWN = "ended_as_known"  # badly, as a symptom reported before had foretold: no new incident
    REQUEUED = "requeued"  # someone else's act; `job` shows the new restart count
    FORGOTTEN = "forgotten"  # slurmctld no longer knows the job
    REACHED = "reached"  # the milestone that was asked for
    DEADLINE = "deadline"
    ACT_LOST = "act_lost"  # Slurm came back with older state, without what Backstay did to the waiting job


class Placement(Record):
    """What Backstay did to the waiting job, and Slurm showed when it was read back. A slurmctld that is killed before it saved its state
    comes back without it."""

    requeued: bool = Field(default=False, description="the restart is Backstay's own: a count below the attempt's shows it lost")
    excluded: tuple[str, ...] = Field(default=(), description="nodes written into ExcNodeList")
    start_given: bool = Field(default=False, description="it was told to start now, or was released")
    controller_start: str = Field(default="", description="of the slurmctld that was told, as it says")


class WatchRequest(Record):
    """Which attempt to watch, how far, and what is known of it already."""

    attempt: Attempt
    opt_in: OptIn = OptIn()
    until: WatchUntil = WatchUntil.SYMPTOM
    checkpoint_before: int | None = Field(default=None, description="checkpoint: the iteration that a new checkpoint must exceed")
    resumed_from: int | None = Field(default=None, description="stepping: the checkpoint it should go on from; a start below it is noted")
    excluded_nodes: tuple[str, ...] = Field(default=(), description="the attempt must not run there; `on_excluded` of the result tells")
    placement: Placement | None = Field(
        default=None, description="what Backstay did to the waiting job; where Slurm no longer shows it, the watch ends with `act_lost`"
    )
    known_symptoms: tuple[SymptomKind, ...] = Field(default=(), description="already reported for this attempt ...")
    known_onset: AwareDatetime | None = Field(default=None, description="... and since when; not reported again until progress resumes")
    earlier_attempts_stepped: bool = Field(
        default=False, description="iteration lines were read of the attempt before: a silent start is unusual for this job"
    )
    cursor: Cursor | None = Field(default=None, description="of an earlier watch of this job; an older attempt's gives file offsets only")
    deadline: AwareDatetime | None = None


class WatchResult(Record):
    """Why a watch ended, and what was known then."""

    kind: WatchEnd
    at: AwareDatetime = Field(description="when it happened, as well as can be told; for `reached` the milestone's time")
    summary: str = ""
    symptom: Symptom | None = None
    job: Job | None = Field(default=None, description="last look; None when Slurm never told of it")
    attempt: Attempt | None = Field(
        default=None, description="the attempt with the nodes and start it was seen to have; `job` may show the next one already"
    )
    progress: Progress = Progress()
    cursor: Cursor = Cursor()
    on_excluded: tuple[str, ...] = Field(default=(), description="excluded nodes the attempt runs on all the same")
    started_over: bool = Field(default=False, description="the attempt began below `resumed_from`: it did not load that checkpoint")
    blind: str | None = Field(default=None, description="what could not be read, with the mend")


class ChangeKind(StrEnum):
    """What became of a job whose recommendation waits. Every kind but `unchanged` supersedes the recommendation."""

    UNCHANGED = "unchanged"
    ENDED = "ended"
    REQUEUED = "requeued"
    CANCELLED = "cancelled"
    RESUMED_PROGRESS = "resumed_progress"
    FORGOTTEN = "forgotten"
    STARTED = "started"


class ChangeRequest(Record):
    """What a recommendation was made for; watched while a person decides."""

    attempt: Attempt
    state_when_asked: JobState
    restart_count: int = Field(description="Slurm's count when asked; it may already be above the attempt's")
    until: AwareDatetime
    opt_in: OptIn = OptIn()
    symptom: SymptomKind = SymptomKind.NONE
    cursor: Cursor | None = Field(default=None, description="of the watch that found the symptom: tells progress that came after it")


class Change(Record):
    """What somebody else, or the job itself, did meanwhile."""

    kind: ChangeKind
    by_slurm: bool = Field(default=False, description="no other hand's: Slurm itself had requeued the job off a lost node, and started it")
    at: AwareDatetime
    summary: str = ""
    job: Job | None = None
    progress: Progress = Progress()
    cursor: Cursor | None = None
