"""The vocabulary: frozen records that every other file speaks in, and the closed enums of its verdicts.

It imports nothing of ours and touches nothing. Times are timezone-aware UTC, durations are `timedelta`
(ISO 8601 durations in workflow histories), sizes say `_bytes`. Renaming a field breaks replays and open
heartbeats: add fields with defaults instead.
"""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

Confidence = Annotated[float, Field(ge=0.0, le=1.0)]


class Record(BaseModel):
    """A frozen value. Unknown fields are ignored, so that an older worker reads a newer worker's history."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# ---------------------------------------------------------------------------------------------- the job, as Slurm tells it


class JobState(StrEnum):
    """Slurm's base job states (slurm.h `enum job_states`); `unknown` where none can be told."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNKNOWN = "UNKNOWN"

    @property
    def is_ended(self) -> bool:
        """True for the states Slurm never leaves without a requeue."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN)


class JobFlag(StrEnum):
    """Slurm's job state flags (slurm.h `JOB_*` bits above the base state). 22.05 prints a flag *instead of* the state."""

    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    REQUEUED = "REQUEUED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    REQUEUE_FED = "REQUEUE_FED"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    REVOKED = "REVOKED"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    EXPEDITING = "EXPEDITING"


class Job(Record):
    """One look at one job. Fields Slurm did not tell are None; an empty tuple means Slurm said 'none'."""

    job_id: str = Field(description="what `scontrol` takes: 1234, array task 1234_7, het leader 1234")
    numeric_id: int = Field(description="Slurm's own number of this job or array task")
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    state: JobState = JobState.UNKNOWN
    flags: tuple[JobFlag, ...] = ()
    reason: str = ""
    nodes: tuple[str, ...] = ()
    node_count: int | None = None
    task_count: int | None = None
    submitted_at: AwareDatetime | None = None
    eligible_at: AwareDatetime | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    restart_count: int = 0
    is_batch: bool | None = None
    may_requeue: bool | None = Field(default=None, description="False: the user said --no-requeue")
    is_held: bool = False
    exit_code: int | None = None
    exit_signal: int | None = None
    derived_exit_code: int | None = Field(default=None, description="highest exit code of the job's steps")
    comment: str = ""
    admin_comment: str = ""
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    features: str = ""
    reservation: str = ""
    dependency: str = ""
    stdout_path: str | None = Field(default=None, description="as Slurm tells it; may hold unexpanded % patterns")
    stderr_path: str | None = None
    working_directory: str | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    time_limit: timedelta | None = None
    sluid: str | None = Field(default=None, description="Slurm's stable identity of a submission (25.11 on)")

    @property
    def is_ending(self) -> bool:
        """True while Slurm still cleans up the last execution; what it will be next is not yet known."""
        return JobFlag.COMPLETING in self.flags


class NodeState(StrEnum):
    """Slurm's base node states (slurm.h `enum node_states`)."""

    UNKNOWN = "UNKNOWN"
    DOWN = "DOWN"
    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"
    ERROR = "ERROR"
    MIXED = "MIXED"
    FUTURE = "FUTURE"


class NodeFlag(StrEnum):
    """The node state flags that matter for blame and placement; others are dropped on reading."""

    DRAIN = "DRAIN"
    FAIL = "FAIL"
    NOT_RESPONDING = "NOT_RESPONDING"
    COMPLETING = "COMPLETING"
    MAINTENANCE = "MAINTENANCE"
    RESERVED = "RESERVED"
    POWERED_DOWN = "POWERED_DOWN"
    REBOOT_REQUESTED = "REBOOT_REQUESTED"
    INVALID_REG = "INVALID_REG"
    PLANNED = "PLANNED"


class Node(Record):
    """One look at one node."""

    name: str
    state: NodeState = NodeState.UNKNOWN
    flags: tuple[NodeFlag, ...] = ()
    reason: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    booted_at: AwareDatetime | None = None

    @property
    def is_lost(self) -> bool:
        """Slurm itself says that nothing can run there: DOWN, FAIL or not responding."""
        return self.state in (NodeState.DOWN, NodeState.ERROR) or bool({NodeFlag.FAIL, NodeFlag.NOT_RESPONDING} & set(self.flags))

    @property
    def can_take_jobs(self) -> bool:
        """True when Slurm may start work there, now or when the node frees up."""
        barred = {NodeFlag.DRAIN, NodeFlag.FAIL, NodeFlag.NOT_RESPONDING, NodeFlag.MAINTENANCE, NodeFlag.INVALID_REG}
        return self.state in (NodeState.IDLE, NodeState.ALLOCATED, NodeState.MIXED) and not barred & set(self.flags)


class JobKey(Record):
    """Which job, for good. Job IDs wrap and are reused, and a requeue resets Slurm's SubmitTime, so the key holds the
    submit time *at first sight*: a restart count that went up is the same job, a count back at zero with another
    submit time is a new one."""

    cluster: str
    job_id: str
    submitted_at: AwareDatetime

    @property
    def workflow_id(self) -> str:
        return f"job/{self.cluster}/{self.job_id}/{int(self.submitted_at.timestamp())}"


class Attempt(Record):
    """One execution of a job."""

    key: JobKey
    restart_count: int = 0
    nodes: tuple[str, ...] = ()
    started_at: AwareDatetime | None = None


# ------------------------------------------------------------------------------------------------------ watching


class Mode(StrEnum):
    """How far Backstay may go for a job; ordered from least to most."""

    OBSERVE = "observe"
    APPROVE = "approve"
    AUTO = "auto"


class OptIn(Record):
    """What a job's `--comment`, or the operator's partition rule, says about watching it."""

    opted_in: bool = False
    mode: Mode | None = None
    checkpoints: str | None = Field(default=None, description="directory the job writes its checkpoints to")
    log: str | None = Field(default=None, description="log file, where it is not the batch job's stdout")
    progress_pattern: str | None = Field(default=None, description="the user's own regular expression for an iteration line")
    warnings: tuple[str, ...] = ()


class SignalSource(StrEnum):
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


class FatalLine(Record):
    """The first fatal line of a log that no iteration followed."""

    at: AwareDatetime = Field(description="the line's own time where it has one, else when it was read")
    read_at: AwareDatetime
    text: str
    rank: int | None = None
    node: str | None = None
    iterations_after: int = Field(default=0, description="one may still come from ranks that had finished the step; two refute it")
    is_certain: bool = Field(default=True, description="False: programs also print such a line and go on; wait longer where no steps come")


class LostNode(Record):
    """Since when a node of the attempt has been DOWN, FAIL or not responding, as far as we saw."""

    node: str
    since: AwareDatetime


class Cursor(Record):
    """Heartbeat details of a watch: what another worker needs to go on without reading again or missing a line."""

    restart_count: int = 0
    files: tuple[FileCursor, ...] = ()
    progress: Progress = Progress()
    checkpoint_times: tuple[AwareDatetime, ...] = ()
    last_output_at: AwareDatetime | None = None
    suspicion: "Symptom | None" = Field(default=None, description="seen once, waiting for the second look or the settle time")
    looked_at: AwareDatetime | None = None
    blind: str | None = Field(default=None, description="what cannot be read and the mend; None when everything can")
    fatal: FatalLine | None = Field(default=None, description="waits for its settle time; forgotten when iterations follow")
    paused_at: AwareDatetime | None = Field(
        default=None, description="last look at which the attempt could not compute: suspended, nodes powering up"
    )
    told_to_end_at: AwareDatetime | None = Field(
        default=None, description="the log said that Slurm ends the job (cancelled, requeued, preempted): what dies after that is no cause"
    )
    lost_nodes: tuple[LostNode, ...] = ()
    line_gap_seconds: float | None = Field(default=None, description="longest time between two iteration lines of this attempt")
    slow_since: AwareDatetime | None = Field(default=None, description="since when steps have been slow against the baseline")
    bad_loss_iterations: tuple[int, ...] = Field(
        default=(), description="consecutive iterations, up to now, whose loss was NaN or infinite"
    )
    bad_loss_since: AwareDatetime | None = None


class SymptomKind(StrEnum):
    CRASH = "crash"
    HANG = "hang"
    SLOWDOWN = "slowdown"
    NODE_FAULT = "node_fault"
    NO_CHECKPOINT = "no_checkpoint"
    BAD_NUMBERS = "bad_numbers"
    NONE = "none"


class Symptom(Record):
    """What detection concludes, and why it says so."""

    kind: SymptomKind
    onset: AwareDatetime = Field(description="when the fault began, as well as can be told")
    detected_at: AwareDatetime
    summary: str
    signals: tuple[Signal, ...] = ()


class WatchUntil(StrEnum):
    """How far a watch goes. Every watch also ends at a symptom, at the job's end and at its deadline."""

    SYMPTOM = "symptom"
    RUNNING = "running"
    STEPPING = "stepping"
    CHECKPOINT = "checkpoint"


class WatchEnd(StrEnum):
    SYMPTOM = "symptom"
    ENDED_WELL = "ended_well"
    ENDED_AS_KNOWN = "ended_as_known"
    REQUEUED = "requeued"
    FORGOTTEN = "forgotten"
    REACHED = "reached"
    DEADLINE = "deadline"


class WatchRequest(Record):
    """Which attempt to watch, how far, and what is known of it already."""

    attempt: Attempt
    opt_in: OptIn = OptIn()
    until: WatchUntil = WatchUntil.SYMPTOM
    checkpoint_before: int | None = Field(default=None, description="checkpoint: the iteration that a new checkpoint must exceed")
    resumed_from: int | None = Field(default=None, description="stepping: the checkpoint it should go on from; a start below it is noted")
    excluded_nodes: tuple[str, ...] = Field(default=(), description="the attempt must not run there; `on_excluded` of the result tells")
    known_symptoms: tuple[SymptomKind, ...] = Field(default=(), description="already reported for this attempt ...")
    known_onset: AwareDatetime | None = Field(default=None, description="... and since when; not reported again until progress resumes")
    cursor: Cursor | None = Field(default=None, description="of an earlier watch of this job; an older attempt's gives file offsets only")
    deadline: AwareDatetime | None = None


class WatchResult(Record):
    """Why a watch ended. `ended_as_known`: the job ended badly, as a symptom reported before had foretold; no new incident.
    `requeued`: someone else's act; `job` shows the new restart count. `forgotten`: slurmctld no longer knows the job."""

    kind: WatchEnd
    at: AwareDatetime = Field(description="when it happened, as well as can be told; for `reached` the milestone's time")
    summary: str = ""
    symptom: Symptom | None = None
    job: Job | None = Field(default=None, description="last look; None when Slurm never told of it")
    progress: Progress = Progress()
    cursor: Cursor = Cursor()
    on_excluded: tuple[str, ...] = Field(default=(), description="excluded nodes the attempt runs on all the same")
    started_over: bool = Field(default=False, description="the attempt began below `resumed_from`: it did not load that checkpoint")
    blind: str | None = Field(default=None, description="what could not be read, with the mend")


class ChangeKind(StrEnum):
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
    """What somebody else, or the job itself, did meanwhile. `ended` and the other kinds supersede the recommendation."""

    kind: ChangeKind
    at: AwareDatetime
    summary: str = ""
    job: Job | None = None
    progress: Progress = Progress()
    cursor: Cursor | None = None


# ------------------------------------------------------------------------------------------------ judging


class Excerpt(Record):
    """A bounded piece of one source, redacted, with the hash of what was stored."""

    source: SignalSource
    title: str
    text: str
    sha256: str
    stored_at: str | None = Field(default=None, description="reference into the evidence store, where there is more")
    truncated_bytes: int = 0


class Evidence(Record):
    """Captured before anything is changed: a requeue truncates stdout by default. At most 64 KB in all."""

    captured_at: AwareDatetime
    excerpts: tuple[Excerpt, ...] = ()
    unreadable: tuple[str, ...] = Field(default=(), description="what could not be captured, and why")


class Domain(StrEnum):
    """Who has to mend it."""

    HARDWARE = "hardware"
    NETWORK = "network"
    STORAGE = "storage"
    SYSTEM_SOFTWARE = "system_software"
    APPLICATION = "application"
    USER = "user"
    SCHEDULER = "scheduler"
    NONE = "none"
    UNKNOWN = "unknown"


class Side(StrEnum):
    """The coarser question outside services answer: is it the job's own doing, or what it runs on?"""

    WORKLOAD = "workload"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class PrimaryEvent(Record):
    """The first cause: the line it rests on and where it happened."""

    text: str
    line: int | None = Field(default=None, description="1-based line number in its source")
    source: SignalSource = SignalSource.LOG
    at: AwareDatetime | None = None
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None


class Diagnosis(Record):
    """Why it happened. `cause` is a slug of the closed vocabulary (activities/diagnosis/causes.yaml) or 'unknown'."""

    domain: Domain = Domain.UNKNOWN
    cause: str = "unknown"
    confidence: Confidence = 0.0
    summary: str = ""
    primary: PrimaryEvent | None = None
    cascades: int = Field(default=0, description="events explained away as consequences")
    benign: int = Field(default=0, description="alarming lines that mean nothing")
    lines: tuple[str, ...] = Field(default=(), description="the lines it rests on, each with its number")


class Suspect(Record):
    node: str | None = None
    gpu: str | None = None
    rank: int | None = None
    confidence: Confidence
    because: tuple[str, ...] = ()


class Attribution(Record):
    """Which node, GPU or rank. `abstained` means: we looked and will not say."""

    suspects: tuple[Suspect, ...] = ()
    abstained: bool = True
    sources: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The suspects' nodes, where known, in the order of the suspects."""
        return tuple(suspect.node for suspect in self.suspects if suspect.node)


class Verdict(StrEnum):
    """What an outside opinion says should happen, as a closed enum (never a substring of prose)."""

    STOP = "STOP"
    RESTART = "RESTART"
    UNKNOWN = "UNKNOWN"


class Opinion(Record):
    """One outside source's answer, kept beside ours. It is never the source of node blame for NVIDIA's attrsvc."""

    source: str
    verdict: Verdict = Verdict.UNKNOWN
    domain: Domain = Domain.UNKNOWN
    side: Side = Field(default=Side.UNKNOWN, description="where the source tells workload from infrastructure, and no more")
    cause: str | None = None
    suspects: tuple[Suspect, ...] = ()
    why: str = ""
    note: str = Field(default="", description="why there is no answer: timed out, unreachable, refused")
    took: timedelta = timedelta(0)


class Judgement(Record):
    """Everything the engine concludes from one set of signals."""

    symptom: SymptomKind
    diagnosis: Diagnosis
    attribution: Attribution
    progress: Progress = Progress()


# ------------------------------------------------------------------------------------- recommending, deciding, acting


class Action(StrEnum):
    NONE = "none"
    RESTART = "restart"
    RESTART_EXCLUDING = "restart_excluding"
    STOP = "stop"
    HOLD = "hold"


class Recommendation(Record):
    action: Action
    exclude_nodes: tuple[str, ...] = ()
    drain_nodes: tuple[str, ...] = ()
    why: str = Field(description="one sentence a person on call can act on")
    rule: str = Field(description="the policy rule that decided")
    expires_at: AwareDatetime | None = None
    expiry_reason: str = ""
    needs_approval: bool = Field(default=False, description="a guard or a disagreement asks for a person, whatever the mode")
    digest: str = ""

    @property
    def in_short(self) -> str:
        """The action and what it excludes: `restart_excluding node-002`."""
        return " ".join([self.action, *self.exclude_nodes])

    def sealed(self, *, incident_id: str, restart_count: int) -> "Recommendation":
        """The same recommendation with its digest: 12 hex digits over what would be done to which attempt, and why.

        An approval names the digest; anything that changes what would be done changes it."""
        content = json.dumps(
            [incident_id, restart_count, self.action, sorted(self.exclude_nodes), sorted(self.drain_nodes), self.rule, self.why],
            separators=(",", ":"),
        )
        return self.model_copy(update={"digest": hashlib.sha256(content.encode()).hexdigest()[:12]})


class DecisionKind(StrEnum):
    APPROVED = "approved"
    REJECTED = "rejected"
    AUTO = "auto"
    OBSERVED = "observed"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


class Decision(Record):
    kind: DecisionKind
    actor: str
    at: AwareDatetime
    reason: str = ""
    digest: str = ""


class DecisionRequest(Record):
    """What a person sends: by the signals `approve` / `reject` or the Update `decide`."""

    approve: bool
    actor: str
    digest: str
    reason: str = ""


class OutcomeState(StrEnum):
    RECOVERED = "recovered"
    IN_PROGRESS = "in_progress"
    NO_PROGRESS = "no_progress"
    STOPPED = "stopped"
    HELD = "held"
    NOT_ACTED = "not_acted"
    FAILED = "failed"


class Step(Record):
    """One thing done or observed: a fact in the past tense, with its time."""

    name: str
    at: AwareDatetime
    detail: str = ""


class Milestones(Record):
    detected: AwareDatetime | None = None
    recommended: AwareDatetime | None = None
    decided: AwareDatetime | None = None
    acted: AwareDatetime | None = None
    running: AwareDatetime | None = None
    stepping: AwareDatetime | None = None
    recovered: AwareDatetime | None = None


class Outcome(Record):
    state: OutcomeState = OutcomeState.IN_PROGRESS
    summary: str = ""
    steps: tuple[Step, ...] = ()
    milestones: Milestones = Milestones()


class Incident(Record):
    """One fault of one attempt, from symptom to outcome."""

    id: str
    restart_count: int = 0
    nodes: tuple[str, ...] = ()
    symptom: Symptom
    progress: Progress = Progress()
    evidence: Evidence | None = None
    diagnosis: Diagnosis = Diagnosis()
    attribution: Attribution = Attribution()
    opinions: tuple[Opinion, ...] = ()
    recommendation: Recommendation | None = None
    decision: Decision | None = None
    outcome: Outcome = Outcome()


# ------------------------------------------------------------------------------------------------ what history remembers


class PastIncident(Record):
    """What policy needs to know of an earlier incident of the same job."""

    cause: str
    domain: Domain
    action: Action
    acted: bool
    at: AwareDatetime
    checkpoint_iteration: int | None = None
    suspects: tuple[str, ...] = ()


class JobHistory(Record):
    incidents: tuple[PastIncident, ...] = ()
    restarts: int = Field(default=0, description="restarts Backstay made")
    restarts_without_checkpoint: int = Field(default=0, description="in a row, with no newer checkpoint seen since")


class LedgerEntry(Record):
    """One node held responsible, for a time."""

    node: str
    implicated_at: AwareDatetime
    job_id: str
    cause: str
    because: tuple[str, ...] = ()
    excluded_until: AwareDatetime | None = None
    drained_by_us: bool = False
    booted_at: AwareDatetime | None = None
    partition: str = Field(default="", description="partition of the job that implicated it; empty counts for every partition")


# ------------------------------------------------------------------------------------------------ the cluster


class RecentIncident(Record):
    """One fault on the cluster, as storm detection sees it."""

    at: AwareDatetime
    job_id: str
    cause: str
    domain: Domain
    suspects: tuple[str, ...] = Field(default=(), description="nodes it was traced to")


class ActionTaken(Record):
    """One action the guard rails granted."""

    at: AwareDatetime
    job_id: str
    incident_id: str


class Breaker(Record):
    """Tripped while `tripped_at` is set; only a person's reset clears it."""

    tripped_at: AwareDatetime | None = None
    reason: str = ""
    reset_at: AwareDatetime | None = None
    reset_by: str = ""


class ClusterState(Record):
    """What no single job can know. `recent_incidents` and `actions` hold only what the windows still need."""

    entries: tuple[LedgerEntry, ...] = ()
    recent_incidents: tuple[RecentIncident, ...] = ()
    actions: tuple[ActionTaken, ...] = ()
    breaker: Breaker = Breaker()


class ClusterView(Record):
    """What a job's workflow is told of its cluster when it reports a fault."""

    excluded: tuple[LedgerEntry, ...] = Field(default=(), description="exclusions in force")
    breaker: Breaker = Breaker()


class BreakerReset(Record):
    """A person's word that the cluster may act again."""

    actor: str
    reason: str = ""


class ActionRequest(Record):
    """What a job's workflow asks before it acts."""

    job_id: str
    incident_id: str
    partition: str = ""
    exclude_nodes: tuple[str, ...] = Field(default=(), description="all nodes the next attempt would be kept off")
    suspects: tuple[str, ...] = Field(default=(), description="those of them this incident implicates: they enter the ledger")
    cause: str = "unknown"
    because: tuple[str, ...] = ()
    partition_nodes: int = Field(default=0, ge=0, description="nodes of the partition; 0: not known")


class Permission(Record):
    """The guard rails' answer."""

    granted: bool
    why: str
    excluded_now: tuple[str, ...] = Field(default=(), description="nodes excluded in the partition at this moment, before the action")


def utc(timestamp: float) -> datetime:
    """A UTC time from seconds since the epoch."""
    return datetime.fromtimestamp(timestamp, tz=UTC)


def as_json(record: BaseModel) -> Any:
    """The record as plain JSON values; times are ISO 8601 with a trailing Z."""
    return record.model_dump(mode="json")


Cursor.model_rebuild()
