"""A job's world for workflow tests: what the watch sees is scripted, Slurm is simulated, recommending and rescheduling are real.

The time-skipping server never skips while an activity runs, so every scripted watch answers at once; the simulated
cluster's clock is moved on by hand where the script says so.
"""

import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.attribute import OpinionRequest
from activities.classify import ClassifyRequest
from activities.cluster_desk import HistoryQuestion, IncidentReport, PermissionRequest
from activities.configuration import ClusterSection, Configuration, Limits, PolicySection
from activities.recommend import Recommend
from activities.records import (
    Attempt,
    Change,
    ChangeKind,
    ChangeRequest,
    ClusterView,
    Evidence,
    FileCursor,
    Incident,
    Job,
    JobKey,
    Judgement,
    Mode,
    NodeHistory,
    Opinion,
    Permission,
    Progress,
    Symptom,
    SymptomKind,
    WatchEnd,
    WatchRequest,
    WatchResult,
)
from activities.reschedule import Reschedule
from activities.slurm.clock import ManualClock
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from tests.builders import NOON, a_judgement, a_symptom, some_evidence, some_progress
from workflows.state import TrainingJobState
from workflows.training_job import TrainingJob

Seen = Callable[["World", WatchRequest], Awaitable[WatchResult]]


ERRORS_END = (FileCursor(path="/shared/run1/errors.txt", inode=8, offset_bytes=512),)
"""Where the capture of a fault found the end of the error output, which no watch follows."""


class World:
    """One simulated cluster of four nodes with one job on two of them, and the script of what is seen of it."""

    def __init__(
        self,
        policy: PolicySection,
        *,
        judgement: Judgement | None = None,
        requeue: bool = True,
        exclude: Sequence[str] = (),
        **job: Any,
    ) -> None:
        self.clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
        self.cluster = SimulatedCluster(4, clock=self.clock)
        self.configuration = Configuration(cluster=ClusterSection(name="alpha"), policy=policy)
        self.judgement = judgement or a_judgement()
        self.job_id = self.cluster.submit(
            request=Request(**{"node_count": 2, "name": "train", "user": "alice", "comment": "backstay", **job}),
            requeue=requeue,
            exclude=exclude,
        )
        self.script: deque[Seen] = deque()
        self.changes: deque[Change] = deque()
        self.permission = Permission(granted=True, why="granted for a test")
        self.opinions: dict[str, Opinion] = {}
        self.before_change: Callable[[], Awaitable[None]] | None = None
        self.asked: list[WatchRequest] = []
        self.diagnosed: list[ClassifyRequest] = []
        self.histories_asked: list[HistoryQuestion] = []
        self.node_history_told = NodeHistory()
        self.changes_asked: list[ChangeRequest] = []
        self.reports: list[IncidentReport] = []
        self.permissions_asked: list[PermissionRequest] = []

    async def start_state(self, **changes: Any) -> TrainingJobState:
        job = await self.cluster.job(self.job_id)
        assert job.submitted_at is not None
        key = JobKey(cluster="alpha", job_id=self.job_id, submitted_at=job.submitted_at)
        attempt = Attempt(key=key, restart_count=0, nodes=job.nodes, started_at=job.started_at)
        return TrainingJobState(**{"key": key, "mode": self.configuration.policy.mode, "job": job, "attempt": attempt, **changes})

    async def now(self) -> Job:
        return await self.cluster.job(self.job_id)

    # ------------------------------------------------------------------------------------------------ scripted activities

    @activity.defn
    async def watch_attempt(self, request: WatchRequest) -> WatchResult:
        return await self._next(request)

    @activity.defn
    async def verify_running(self, request: WatchRequest) -> WatchResult:
        self.clock.advance(5)
        await self.now()
        return await self._next(request)

    @activity.defn
    async def verify_stepping(self, request: WatchRequest) -> WatchResult:
        return await self._next(request)

    @activity.defn
    async def verify_checkpoint(self, request: WatchRequest) -> WatchResult:
        return await self._next(request)

    @activity.defn
    async def watch_for_change(self, request: ChangeRequest) -> Change:
        self.changes_asked.append(request)
        if self.changes:
            if self.before_change is not None:
                await self.before_change()
            return self.changes.popleft().model_copy(update={"job": await self.now()})
        return Change(kind=ChangeKind.UNCHANGED, at=request.until)

    @activity.defn
    async def capture_evidence(self, request: ClassifyRequest) -> Evidence:
        return some_evidence(logs_end=ERRORS_END)

    @activity.defn
    async def diagnose(self, request: ClassifyRequest) -> Judgement:
        self.diagnosed.append(request)
        return self.judgement

    @activity.defn
    async def node_history(self, question: HistoryQuestion) -> NodeHistory:
        self.histories_asked.append(question)
        return self.node_history_told

    @activity.defn
    async def report_incident(self, report: IncidentReport) -> ClusterView:
        self.reports.append(report)
        return ClusterView(corroborated=report.attribution.nodes)

    @activity.defn
    async def permit_action(self, request: PermissionRequest) -> Permission:
        self.permissions_asked.append(request)
        return self.permission

    @activity.defn
    async def ask_attrsvc(self, request: OpinionRequest) -> Opinion:
        return self.opinions["ask_attrsvc"]

    @activity.defn
    async def ask_operator_service(self, request: OpinionRequest) -> Opinion:
        return self.opinions["ask_operator_service"]

    def activities(self) -> Sequence[Callable[..., Any]]:
        reschedule = Reschedule(self.cluster, clock=self.clock, pause=self._pause)
        recommend = Recommend(self.cluster, self.configuration, clock=_ActivityClock())
        return [
            self.watch_attempt, self.verify_running, self.verify_stepping, self.verify_checkpoint, self.watch_for_change,
            self.capture_evidence, self.node_history, self.diagnose, self.report_incident, self.permit_action, self.ask_attrsvc,
            self.ask_operator_service, recommend.recommend, reschedule.requeue_job, reschedule.confirm_pending,
            reschedule.exclude_nodes, reschedule.expedite, reschedule.release_job, reschedule.cancel_job, reschedule.drain_nodes,
        ]  # fmt: skip

    async def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def _next(self, request: WatchRequest) -> WatchResult:
        self.asked.append(request)
        if not self.script:
            raise AssertionError(f"the script is over, but the workflow watches on: {request.until}")
        return await self.script.popleft()(self, request)


class _ActivityClock:
    """The time-skipping server's own time, as an activity is told it."""

    def now(self) -> datetime:
        return activity.info().current_attempt_scheduled_time


# ------------------------------------------------------------------------------------------------ what a watch may see


def requeued_by_another_hand(*, progress: Progress | None = None) -> Seen:
    """Somebody requeues the running attempt; seen while the next one still waits."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        await world.cluster.requeue(world.job_id)
        world.clock.advance(5)
        return await _result(world, WatchEnd.REQUEUED, progress=progress)

    return seen


def runs(*, progress: Progress | None = None) -> Seen:
    """The attempt waited in the queue and runs now."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        world.clock.advance(150)
        return await _result(world, WatchEnd.REACHED, progress=progress)

    return seen


def crashes(
    *,
    checkpoint: int | None = 100,
    kind: SymptomKind = SymptomKind.CRASH,
    node_lost: bool = False,
    told_with_nodes: bool = False,
    seen_after: float = 5,
) -> Seen:
    """The attempt fails; Slurm shows it FAILED, or has requeued it already where it lost a node. `seen_after`: so many seconds later.
    `told_with_nodes`: the watch saw where it ran, though its record shows that no more."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        if told_with_nodes:
            world.clock.advance(150)
            attempt = request.attempt.model_copy(update={"nodes": ("node-003", "node-004")})
            result = await _result(world, WatchEnd.SYMPTOM, symptom=_symptom(world, kind))
            await world.cluster.requeue(world.job_id)
            return result.model_copy(update={"job": await world.now(), "attempt": attempt})
        if node_lost:
            world.cluster.node_down((await world.now()).nodes[0])
        else:
            world.cluster.fail_job(world.job_id)
        world.clock.advance(seen_after)
        return await _result(
            world, WatchEnd.SYMPTOM, symptom=_symptom(world, kind), progress=some_progress(checkpoint_iteration=checkpoint)
        )

    return seen


def hangs(*, checkpoint: int | None = 100, progress: Progress | None = None) -> Seen:
    """The attempt stops stepping; Slurm still shows it RUNNING."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        shown = progress or some_progress(checkpoint_iteration=checkpoint)
        return await _result(world, WatchEnd.SYMPTOM, symptom=_symptom(world, SymptomKind.HANG), progress=shown)

    return seen


def reaches(*, iteration: int = 121, checkpoint: int | None = 100, first_iteration: int = 101) -> Seen:
    """The milestone that was asked for."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        progress = some_progress(iteration, first_iteration=first_iteration, checkpoint_iteration=checkpoint)
        seen = await _result(world, WatchEnd.REACHED, progress=progress)
        return seen.model_copy(update={"started_over": request.resumed_from is not None and first_iteration < request.resumed_from})

    return seen


def ends(kind: WatchEnd = WatchEnd.ENDED_WELL) -> Seen:
    async def seen(world: World, request: WatchRequest) -> WatchResult:
        return await _result(world, kind)

    return seen


def recovers(*, checkpoint: int = 120) -> list[Seen]:
    """Running, stepping, and a newer checkpoint."""
    return [reaches(), reaches(), reaches(checkpoint=checkpoint)]


def _symptom(world: World, kind: SymptomKind) -> Symptom:
    return a_symptom(kind, onset=world.clock.now(), detected_at=world.clock.now())


async def _result(world: World, kind: WatchEnd, *, symptom: Symptom | None = None, progress: Progress | None = None) -> WatchResult:
    return WatchResult(kind=kind, at=world.clock.now(), symptom=symptom, job=await world.now(), progress=progress or some_progress())


# ------------------------------------------------------------------------------------------------ running it


@asynccontextmanager
async def watched(env: WorkflowEnvironment, world: World, **state: Any) -> AsyncIterator[WorkflowHandle[TrainingJob, TrainingJobState]]:
    """The job's workflow running on a worker of its own."""
    queue = f"test-{uuid.uuid4()}"
    async with Worker(env.client, task_queue=queue, workflows=[TrainingJob], activities=world.activities()):
        start = await world.start_state(**state)
        yield await env.client.start_workflow(TrainingJob.run, start, id=f"{start.key.workflow_id}/{queue}", task_queue=queue)


async def the_end_of(env: WorkflowEnvironment, world: World, **state: Any) -> TrainingJobState:
    """What the job's workflow tells at its end, when nobody says anything to it."""
    async with watched(env, world, **state) as handle:
        return await handle.result()


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def policy(mode: Mode, **changes: Any) -> PolicySection:
    """Half the partition may be excluded: the test cluster has four nodes."""
    return PolicySection(mode=mode, **{"limits": Limits(excluded_fraction=0.5), **changes})


def a_change(kind: ChangeKind) -> Change:
    return Change(kind=kind, at=NOON, summary=f"the job was {kind}")


def step_names(incident: Incident) -> Sequence[str]:
    return [step.name for step in incident.outcome.steps]
