"""The step `attribute`: outside opinions beside our own, each an activity with its own deadline.

Built-in rules have spoken in `classify`; here NVIDIA's attribution service and the operator's own service are asked, side by
side. Called by `workflows/judging.py` for those that are configured.
"""

import asyncio
from collections.abc import Collection

import httpx
from temporalio import activity

from activities.beat import heartbeats
from activities.configuration import AttributionSection
from activities.evidence.capture import EvidenceStore
from activities.logs.paths import log_path_of
from activities.opinions.asking import a_client
from activities.opinions.attrsvc import AttributionService
from activities.opinions.http import OperatorService, OpinionQuestion
from activities.records import Attempt, Attribution, Diagnosis, Job, Opinion, OptIn, Record, Symptom


class OpinionRequest(Record):
    """What an outside service is told."""

    incident_id: str
    attempt: Attempt
    job: Job
    opt_in: OptIn
    symptom: Symptom
    diagnosis: Diagnosis
    attribution: Attribution


class Attribute:
    """One instance a worker. Each service stops at its own deadline; an answer that does not come is an answer."""

    def __init__(self, services: AttributionSection, store: EvidenceStore, client: httpx.AsyncClient | None = None) -> None:
        client = client or a_client()
        attrsvc, operator = services.attrsvc, services.operator_service
        self._store = store
        self._attrsvc = AttributionService(client, attrsvc.url, deadline=attrsvc.deadline) if attrsvc else None
        self._operator = (
            OperatorService(client, operator.url, deadline=operator.deadline, token_file=operator.token_file) if operator else None
        )

    @activity.defn
    async def ask_attrsvc(self, request: OpinionRequest) -> Opinion:
        """NVIDIA's attribution service; never a source of node blame."""
        log = log_path_of(request.job, request.opt_in)
        if self._attrsvc is None:
            return Opinion(source="attrsvc", note="not configured on this worker; set attribution.attrsvc.url")
        if log is None:
            return Opinion(source="attrsvc", note="not asked: the job's log path is not known")
        async with heartbeats("asking attrsvc"):
            return await self._attrsvc.ask(
                log_path=log, job_id=request.job.job_id, cycle=request.attempt.restart_count, user=request.job.user or "unknown"
            )

    @activity.defn
    async def ask_operator_service(self, request: OpinionRequest) -> Opinion:
        """The operator's own service, by the contract in `deploy/opinion.openapi.yaml`."""
        if self._operator is None:
            return Opinion(source="operator_service", note="not configured on this worker; set attribution.operator_service.url")
        evidence = await asyncio.to_thread(self._store.captured, key=request.attempt.key, incident_id=request.incident_id)
        question = OpinionQuestion(
            cluster=request.attempt.key.cluster,
            incident_id=request.incident_id,
            restart_count=request.attempt.restart_count,
            job=request.job,
            symptom=request.symptom,
            diagnosis=request.diagnosis,
            attribution=request.attribution,
            excerpts=evidence.excerpts if evidence else (),
        )
        async with heartbeats("asking the operator's service"):
            opinion = await self._operator.ask(question)
        return _only_on(request.attempt.nodes, opinion)


def _only_on(nodes: Collection[str], opinion: Opinion) -> Opinion:
    """The opinion without suspects that the attempt never had. The service reads the same log, which can name any node."""
    strangers = dict.fromkeys(suspect.node for suspect in opinion.suspects if suspect.node is not None and suspect.node not in nodes)
    if not strangers:
        return opinion
    kept = tuple(suspect for suspect in opinion.suspects if suspect.node not in strangers)
    said = f"it suspects {', '.join(sorted(strangers))}, where this attempt did not run: left out"
    return opinion.model_copy(update={"suspects": kept, "why": f"{opinion.why}; {said}" if opinion.why else said})
