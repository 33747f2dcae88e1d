"""The steps `classify`, `attribute` and `recommend`, and the question whether the cluster permits what was decided.

Each asks activities, writes the answers into the memory and changes nothing in Slurm. What cannot be answered in time is
unknown, never a stop. Used by `training_job.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.attribute import Attribute, OpinionRequest
    from activities.classify import Classify, ClassifyRequest
    from activities.cluster_desk import ClusterDesk, HistoryQuestion, IncidentReport, PermissionRequest
    from activities.recommend import Proposal, Recommend, RecommendRequest
    from activities.records import (
        ActionRequest,
        ClusterView,
        Evidence,
        Incident,
        Milestone,
        Mode,
        NodeHistory,
        Opinion,
        Permission,
        WatchResult,
    )
    from workflows.left_alone import no_proposal, unjudged
    from workflows.memory import Memory
    from workflows.state import Stage
    from workflows.visibility import fault_in_words, job_in_words, one_line, verdict_in_words, wish_in_words
    from workflows.watch import WATCH_RETRIES, raise_if_cancelled

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")
ONE_JUDGEMENT = timedelta(minutes=5)
"""Longest try of a capture or diagnosis; a 10 GB log takes seconds, a sick file system longer."""

ALL_JUDGEMENT = timedelta(hours=1)
"""All tries of one question, through an outage of Slurm."""

ALL_READING = timedelta(minutes=10)
"""All tries of reading evidence: two long ones, or many short ones. Better a restart on half the evidence than an hour of idle nodes."""

ONE_HISTORY = timedelta(minutes=1)
"""All tries of asking what is known of the nodes, where a worker dies over it."""

_OPINIONS = (Attribute.ask_attrsvc, Attribute.ask_operator_service)
"""Whom the configuration may name, in `Terms.opinions`, by the activity that asks."""


class Judging:
    """Asks on behalf of one job's workflow."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def _job(self) -> str:
        return job_in_words(self._memory.job_now())

    async def classify(self, seen: WatchResult) -> Incident:
        """Evidence first, then the diagnosis: what is changed later may erase what it rests on."""
        assert seen.symptom is not None
        state = self._memory.state
        number = state.incidents_dropped + len(state.incidents) + 1
        incident = Incident(
            # Job IDs are reused: the submit time keeps two lives of one ID apart in the ledger and in the evidence.
            id=f"{state.key.job_id}-{int(state.key.submitted_at.timestamp())}-{number}",
            restart_count=state.attempt.restart_count,
            nodes=state.attempt.nodes,
            symptom=seen.symptom,
            progress=seen.progress,
        )
        self._memory.update(incidents=(*state.incidents, incident))
        self._memory.story().step("detected", seen.symptom.summary, reaches=Milestone.DETECTED)
        self._memory.enter(Stage.DIAGNOSING, seen.symptom.summary)
        request = ClassifyRequest(
            incident_id=incident.id,
            attempt=state.attempt,
            job=self._memory.job_now(),
            opt_in=state.opt_in,
            symptom=seen.symptom,
            progress=seen.progress,
            logs_began=state.logs_began,
            silent_since=seen.cursor.silent_since(state.attempt.restart_count),
        )
        nothing = Evidence(captured_at=workflow.now(), unreadable=("capturing evidence failed",))
        fault = f"{fault_in_words(incident)} of {self._job}"
        evidence = await self._judge(
            Classify.capture_evidence, request, summary=f"keep evidence: {fault}", otherwise=nothing, within=ALL_READING
        )
        if workflow.patched("node-history"):
            request = request.model_copy(update={"node_history": await self._node_history(incident)})
        judgement = await self._judge(
            Classify.diagnose, request, summary=f"diagnose: {fault}", otherwise=unjudged(seen.symptom), within=ALL_READING
        )
        # The excerpts' text stands in the history once, as the activity's result; state carries its hashes only.
        light = evidence.model_copy(update={"excerpts": tuple(e.model_copy(update={"text": ""}) for e in evidence.excerpts)})
        self._memory.change_incident(evidence=light, diagnosis=judgement.diagnosis, attribution=judgement.attribution)
        self._memory.story().step("diagnosed", judgement.diagnosis.summary or judgement.diagnosis.cause)
        return self._memory.incident()

    async def _node_history(self, incident: Incident) -> NodeHistory:
        """What the cluster remembers of the attempt's nodes; no answer is no history."""
        question = HistoryQuestion(
            cluster=self._memory.state.key.cluster,
            job_id=self._memory.state.key.job_id,
            user=self._memory.job_now().user,
            restart_count=incident.restart_count,
            nodes=incident.nodes,
            at=workflow.now(),
        )
        nothing = NodeHistory(unknown="the cluster's workflow was not asked in time")
        summary = f"ask the cluster what failed on the nodes of {self._job} before"
        return await self._judge(ClusterDesk.node_history, question, summary=summary, otherwise=nothing, within=ONE_HISTORY)

    async def attribute(self, incident: Incident) -> Incident:
        """Outside opinions, side by side, each with its deadline; no answer is an answer and delays nobody."""
        asked = [method for method in _OPINIONS if method.__name__ in self._memory.state.terms.opinions]
        if asked:
            request = OpinionRequest(
                incident_id=incident.id,
                attempt=self._memory.state.attempt,
                job=self._memory.job_now(),
                opt_in=self._memory.state.opt_in,
                symptom=incident.symptom,
                diagnosis=incident.diagnosis,
                attribution=incident.attribution,
            )
            opinions = await asyncio.gather(*(self._ask(method, request) for method in asked))
            self._memory.change_incident(opinions=tuple(opinions))
        return self._memory.incident()

    async def recommend(self, incident: Incident) -> Proposal:
        """Policy × diagnosis × this job's history × the cluster's ledger."""
        primary = incident.diagnosis.primary
        view: ClusterView = await self._judge(
            ClusterDesk.report_incident,
            IncidentReport(
                cluster=self._memory.state.key.cluster,
                job_id=self._memory.state.key.job_id,
                incident_id=incident.id,
                cause=incident.diagnosis.cause,
                domain=incident.diagnosis.domain,
                at=incident.symptom.detected_at,
                attribution=incident.attribution,
                user=self._memory.job_now().user,
                nodes=incident.nodes,
                restart_count=incident.restart_count,
                seen_on=primary.node if primary else None,
                rank=primary.rank if primary else None,
            ),
            summary=f"tell the cluster: {verdict_in_words(incident)}, in {self._job}",
            otherwise=ClusterView(),
        )
        proposal: Proposal = await self._judge(
            Recommend.recommend,
            RecommendRequest(
                incident=incident,
                attempt=self._memory.state.attempt,
                job=self._memory.job_now(),
                history=self._memory.state.history,
                view=view,
            ),
            summary=f"recommend for {self._job}: {verdict_in_words(incident)}",
            otherwise=no_proposal(incident, self._memory.state.mode),
        )
        if proposal.mode is Mode.OBSERVE and proposal.changes_slurm and view.breaker.tripped_at is not None:
            # Nobody asks for leave in this mode; where it would be refused, the preview has to say so.
            proposal = proposal.model_copy(update={"withheld": f"the breaker is tripped: {view.breaker.reason}"})
        self._memory.update(mode=proposal.mode)
        self._memory.change_incident(recommendation=proposal.recommendation)
        recommendation = proposal.recommendation
        self._memory.story().step("recommended", f"{recommendation.in_short}: {recommendation.why}", reaches=Milestone.RECOMMENDED)
        return proposal

    async def permission(self, proposal: Proposal) -> Permission:
        """What the cluster's guard rails say to this action. No answer is no."""
        incident = self._memory.incident()
        return await self._judge(
            ClusterDesk.permit_action,
            PermissionRequest(
                cluster=self._memory.state.key.cluster,
                action=ActionRequest(
                    job_id=self._memory.state.key.job_id,
                    incident_id=incident.id,
                    partition=self._memory.job_now().partition,
                    exclude_nodes=proposal.recommendation.exclude_nodes,
                    suspects=proposal.suspects,
                    user_excluded=proposal.recommendation.user_excluded,
                    user=self._memory.job_now().user,
                    ran_on=incident.nodes,
                    cause=incident.diagnosis.cause,
                    because=tuple(line for s in incident.attribution.suspects for line in s.because)[:5],
                    partition_nodes=proposal.partition_nodes,
                ),
            ),
            summary=f"ask the guard rails: {wish_in_words(proposal.recommendation)}? {self._job}",
            otherwise=Permission(granted=False, why="the cluster's guard rails did not answer within an hour"),
        )

    async def _ask(self, method: Callable[[Attribute, OpinionRequest], Awaitable[Opinion]], request: OpinionRequest) -> Opinion:
        try:
            return await workflow.execute_activity_method(
                method,
                request,
                schedule_to_close_timeout=self._memory.state.terms.opinion_deadline + timedelta(seconds=10),
                heartbeat_timeout=self._memory.state.terms.heartbeat_timeout,
                retry_policy=WATCH_RETRIES,
                summary=one_line(f"{method.__name__.replace('_', ' ')}: {verdict_in_words(self._memory.incident())}, in {self._job}"),
            )
        except ActivityError as error:
            raise_if_cancelled(error)
            return Opinion(source=method.__name__.removeprefix("ask_"), note=f"no answer: {error.cause or error}"[:300])

    async def _judge(
        self,
        method: Callable[[Any, RequestT], Awaitable[AnswerT]],
        request: RequestT,
        *,
        summary: str,
        otherwise: AnswerT,
        within: timedelta = ALL_JUDGEMENT,
    ) -> AnswerT:
        """One judgement or question, told in the Temporal UI by its `summary`. An activity that cannot answer leaves `otherwise`: unknown
        is a value, never a stop."""
        try:
            return await workflow.execute_activity_method(
                method,
                request,
                start_to_close_timeout=ONE_JUDGEMENT,
                schedule_to_close_timeout=within,
                heartbeat_timeout=self._memory.state.terms.heartbeat_timeout,
                retry_policy=WATCH_RETRIES,
                summary=one_line(summary),
            )
        except ActivityError as error:
            raise_if_cancelled(error)
            self._memory.warn(f"{error.activity_type} failed: {error.cause or error}"[:300])
            return otherwise
