"""The step `recommend`: policy × diagnosis × this job's history × the cluster's ledger, on a fresh look at Slurm.

Thin: it gathers the situation and asks `policy.py`. Called by `workflows/judging.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from pydantic import Field
from temporalio import activity

from activities.beat import beating
from activities.configuration import Configuration
from activities.modes import mode_now
from activities.placement import looks, nodes_of_partition
from activities.policy import Situation, recommend, suspect_nodes
from activities.records import (
    Action,
    Attempt,
    ClusterView,
    Incident,
    Job,
    JobHistory,
    Mode,
    Node,
    Recommendation,
    Record,
)
from activities.slurm.clock import Clock
from activities.slurm.scheduler import JobUnknown, Scheduler, SchedulerSettings


class RecommendRequest(Record):
    incident: Incident
    attempt: Attempt
    job: Job
    history: JobHistory
    view: ClusterView


class Proposal(Record):
    """A recommendation, and the terms on which it may be carried out, read from the configuration at this moment."""

    recommendation: Recommendation
    mode: Mode
    suspects: tuple[str, ...] = Field(default=(), description="those of the excluded nodes that this incident implicates")
    changes_slurm: bool = Field(default=False, description="carrying it out would change something in Slurm")
    approvers: tuple[str, ...] = ()
    override_no_requeue: bool = False
    spare_nodes: int = 0
    partition_nodes: int = 0
    withheld: str = Field(default="", description="why the cluster's guard rails did not permit it, where they did not")


class Recommend:
    """One instance a worker."""

    def __init__(
        self,
        scheduler: Scheduler,
        configuration: Configuration,
        *,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits so many seconds for nodes that have yet to register (tests pass one that turns a simulated clock)."""
        self._scheduler = scheduler
        self._pause = pause
        self._configuration = configuration
        self._clock = clock

    @activity.defn
    @beating
    async def recommend(self, request: RecommendRequest) -> Proposal:
        """What should be done, sealed with its digest. Raises `SchedulerUnreachable` while Slurm does not answer."""
        settings = await self._scheduler.settings()
        async for job, nodes in looks(self._scheduler, partial(self._fresh, request.job), clock=self._clock, pause=self._pause):
            proposal = self._propose(request, job, nodes, settings)
            if not proposal.recommendation.short_of_nodes:
                break
        return proposal

    def _propose(self, request: RecommendRequest, job: Job, nodes: tuple[Node, ...], settings: SchedulerSettings) -> Proposal:
        policy = self._configuration.policy
        incident = request.incident
        mode = mode_now(job, self._configuration.watch, policy)
        situation = Situation(
            symptom=incident.symptom,
            diagnosis=incident.diagnosis,
            attribution=incident.attribution,
            opinions=incident.opinions,
            job=job,
            restart_count=request.attempt.restart_count,
            history=request.history,
            ledger=request.view.excluded,
            corroborated=request.view.corroborated,
            nodes=nodes,
            progress=incident.progress,
            mode=mode,
            now=self._clock.now(),
            min_job_age=settings.min_job_age,
            incident_id=incident.id,
        )
        recommendation = recommend(situation, policy)
        still_runs = not (job.state.is_ended or job.is_ending)
        cancels = recommendation.action is Action.STOP and still_runs and policy.stop_cancels_running
        return Proposal(
            recommendation=recommendation,
            mode=mode,
            suspects=tuple(sorted(set(suspect_nodes(situation, policy)) & set(recommendation.exclude_nodes))),
            changes_slurm=recommendation.action in (Action.RESTART, Action.RESTART_EXCLUDING) or cancels,
            approvers=policy.approvers,
            override_no_requeue=policy.override_no_requeue,
            spare_nodes=policy.limits.spare_nodes,
            partition_nodes=len(nodes_of_partition(job, nodes)),
        )

    async def _fresh(self, job: Job) -> Job:
        """The job as it is now; one that Slurm has forgotten is judged by its last look."""
        try:
            return await self._scheduler.job(job.job_id)
        except JobUnknown:
            return job
