"""The job, its attempts and its nodes, as Slurm tells them. Made by `activities/slurm/`, read everywhere."""

from datetime import timedelta
from enum import StrEnum

from pydantic import AwareDatetime, Field

from activities.records.base import Record


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
    tasks_per_node: int | None = Field(default=None, description="what the job asked for (--ntasks-per-node); None: it did not")
    submitted_at: AwareDatetime | None = None
    eligible_at: AwareDatetime | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    restart_count: int = 0
    is_batch: bool | None = None
    may_requeue: bool | None = Field(default=None, description="False: the user said --no-requeue")
    is_held: bool = False
    is_held_once_requeued: bool = Field(
        default=False, description="runs or has ended, and a requeue will not let it start: somebody holds it"
    )
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
