"""The simulated cluster's memory: jobs and nodes as they stand, how they look to a client, and where a job may start.

Only `simulated.py` changes what is kept here; the rules of change live there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from activities.logs.paths import expand_output_pattern
from activities.records import Job, JobFlag, JobState, Node, NodeFlag, NodeState
from activities.slurm.simulated_programs import Execution, Exit, Program, Running


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for: unchanged for the job's life, but for what `scontrol update` may change."""

    name: str = "train"
    user: str = "alice"
    account: str = "research"
    partition: str = "train"
    node_count: int = 1
    tasks_per_node: int = 1
    required_nodes: tuple[str, ...] = ()
    batch: bool = True
    comment: str = ""
    script: str = ""
    time_limit: timedelta | None = None
    stdout: str | None = None
    stderr: str | None = None
    append: bool = False
    working_directory: str | None = None


@dataclass(slots=True)
class SimulatedNode:
    name: str
    partitions: tuple[str, ...]
    booted_at: datetime
    up: bool = True
    registered: bool = True  # with the controller since that was started
    draining: bool = False
    reason: str = ""
    job: "SimulatedJob | None" = None
    _record: Node | None = None

    @property
    def can_take_jobs(self) -> bool:
        return self.up and self.registered and not self.draining

    def changed(self) -> None:
        self._record = None

    def record(self) -> Node:
        if self._record is None:
            flags = ((NodeFlag.DRAIN, self.draining), (NodeFlag.NOT_RESPONDING, not self.up))
            completing = self.job is not None and self.job.completing
            idle = self.job is None or completing
            works = NodeState.IDLE if idle else NodeState.ALLOCATED
            state = NodeState.DOWN if not self.up else NodeState.UNKNOWN if not self.registered else works
            self._record = Node(
                name=self.name,
                state=state,
                flags=tuple(flag for flag, on in (*flags, (NodeFlag.COMPLETING, completing)) if on),
                reason=self.reason,
                partitions=self.partitions,
                booted_at=_whole_seconds(self.booted_at),
            )
        return self._record


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """One job, array task or het leader. `state` is the base state; `completing` is Slurm's flag beside it."""

    job_id: str
    numeric_id: int
    request: Request
    program: Program
    submitted_at: datetime
    eligible_at: datetime
    may_requeue: bool = True
    state: JobState = JobState.PENDING
    completing: bool = False
    requeued: bool = False  # will be pending again once it has completed
    held: str = ""  # the pending reason of the hold, or empty
    reason: str = ""
    nodes: tuple[str, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    restart_count: int = 0
    exit: Exit = field(default_factory=Exit)
    admin_comment: str = ""
    excluded: tuple[str, ...] = ()
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_sizes: tuple[int, ...] = ()  # node counts of all components; empty for an ordinary job
    lone_flags: bool = False  # Slurm 22.05 prints a flag instead of the state
    running: Running | None = None
    epoch: int = 0  # counts changes of fate, so that a timer set for an earlier one is ignored
    _records: tuple[Job, ...] | None = field(default=None, repr=False)

    @property
    def nodes_needed(self) -> int:
        return sum(self.het_sizes) or self.request.node_count

    @property
    def numbers(self) -> tuple[str, ...]:
        """Slurm's own numbers for it: one, or one for each het component."""
        return tuple(str(self.numeric_id + offset) for offset in range(max(1, len(self.het_sizes))))

    @property
    def has_finished(self) -> bool:
        return self.state.is_ended and not self.requeued

    def changed(self) -> None:
        self._records = None

    def execution(self) -> Execution:
        """What an attempt that starts now is told. No output is written without an `--output` whose path can be told."""
        request = self.request
        return Execution(
            job_id=self.job_id,
            numeric_id=self.numeric_id,
            restart_count=self.restart_count,
            nodes=self.nodes,
            task_count=self.nodes_needed * request.tasks_per_node,
            stdout=self._output(request.stdout),
            stderr=self._output(request.stderr),
            append=request.append,
            working_directory=Path(request.working_directory) if request.working_directory else None,
            array_job_id=self.array_job_id,
            array_task_id=self.array_task_id,
        )

    def _output(self, pattern: str | None) -> Path | None:
        path = None if pattern is None else expand_output_pattern(pattern, self.records()[0])
        return None if path is None else Path(path)

    def records(self) -> tuple[Job, ...]:
        """How clients see it: one record, or the leader's and its components' for a het job. Kept until something changes."""
        if self._records is None:
            if not self.het_sizes:
                self._records = (self._record(self.job_id, self.nodes, self.request.node_count, None),)
            else:
                self._records = tuple(self._components())
        return self._records

    def _components(self) -> list[Job]:
        components, first = [], 0
        for offset, size in enumerate(self.het_sizes):
            nodes = self.nodes[first : first + size]
            first += size
            job_id = self.job_id if offset == 0 else f"{self.job_id}+{offset}"
            components.append(self._record(job_id, nodes, size, offset))
        return components

    def _record(self, job_id: str, nodes: tuple[str, ...], node_count: int, het_offset: int | None) -> Job:
        request = self.request
        completing = (JobFlag.COMPLETING,) if self.completing else ()
        state = JobState.UNKNOWN if self.completing and self.lone_flags else self.state
        ended, pending = state.is_ended, state is JobState.PENDING
        derived = self.exit.code if self.exit.derived_code is None else self.exit.derived_code
        return Job(
            job_id=job_id,
            numeric_id=self.numeric_id + (het_offset or 0),
            name=request.name,
            user=request.user,
            account=request.account,
            partition=request.partition,
            state=state,
            flags=completing,
            reason=self.reason,
            nodes=() if pending else nodes,
            node_count=node_count,
            task_count=node_count * request.tasks_per_node,
            tasks_per_node=request.tasks_per_node if request.tasks_per_node > 1 else None,
            submitted_at=_whole_seconds(self.submitted_at),
            eligible_at=_whole_seconds(self.eligible_at),
            started_at=None if pending else _whole_seconds(self.started_at),
            ended_at=_whole_seconds(self.ended_at),
            restart_count=self.restart_count,
            is_batch=request.batch,
            may_requeue=self.may_requeue,
            is_held=pending and (bool(self.held) or self.reason == BAD_CONSTRAINTS),  # priority 0, either way
            is_held_once_requeued=not pending and bool(self.held),
            exit_code=self.exit.code if ended else None,
            exit_signal=self.exit.signal if ended else None,
            derived_exit_code=derived if ended else None,
            comment=request.comment,
            admin_comment=self.admin_comment,
            excluded_nodes=self.excluded,
            required_nodes=request.required_nodes,
            stdout_path=request.stdout,
            stderr_path=request.stderr,
            working_directory=request.working_directory,
            array_job_id=self.array_job_id,
            array_task_id=self.array_task_id,
            het_job_id=None if het_offset is None else self.numeric_id,
            het_offset=het_offset,
            time_limit=request.time_limit,
        )


def listing(jobs: Iterable[SimulatedJob]) -> Iterator[Job]:
    """What squeue lists: array tasks that never ran stand together in one record, `12_[4-9]`, under the array's number."""
    queued: dict[int, list[SimulatedJob]] = {}
    for job in jobs:
        if job.array_job_id is not None and job.state is JobState.PENDING and not job.restart_count:
            queued.setdefault(job.array_job_id, []).append(job)
        else:
            yield from job.records()
    for array_job_id, tasks in queued.items():
        numbers = ",".join(str(task.array_task_id) for task in tasks)
        together = {"job_id": f"{array_job_id}_[{numbers}]", "numeric_id": array_job_id, "array_task_id": None}
        yield tasks[0].records()[0].model_copy(update=together)


BAD_CONSTRAINTS = "BadConstraints"
NODES_DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
"""squeue's words; nothing warns earlier that a job cannot start."""


def nodes_for(job: SimulatedJob, idle: Collection[str], nodes: Mapping[str, SimulatedNode]) -> Sequence[str] | str:
    """The nodes a waiting job would start on now, or the pending reason. Whole nodes, first by name, required ones first."""
    request = job.request
    required = list(request.required_nodes)
    allowed = [node for name, node in nodes.items() if request.partition in node.partitions and name not in job.excluded]
    if len(allowed) < job.nodes_needed or set(required) & set(job.excluded):
        return BAD_CONSTRAINTS
    usable = [node.name for node in allowed if node.can_take_jobs]
    if len(usable) < job.nodes_needed or any(not nodes[name].can_take_jobs for name in required):
        return NODES_DOWN
    free = [name for name in usable if name in idle and name not in required]
    if any(name not in idle for name in required) or len(required) + len(free) < job.nodes_needed:
        return "Resources"
    return sorted((*required, *free[: job.nodes_needed - len(required)]))


def _whole_seconds(at: datetime | None) -> datetime | None:
    """Slurm's times have no fractions, and code that compares with them must live with that."""
    return None if at is None else at.replace(microsecond=0)
