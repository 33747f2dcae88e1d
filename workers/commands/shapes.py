"""The JSON that commands print with `--json`: stable, documented here by construction, times ISO 8601 UTC, durations in seconds.

Pure functions from records to plain values, so that a change of a record's fields never changes what programs read.
Called by `jobs`, `show`, `approve`, `reject` and `diagnose`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from activities.records import (
    Attribution,
    Decision,
    DecisionKind,
    Diagnosis,
    Incident,
    Judgement,
    Milestones,
    Outcome,
    OutcomeState,
    PrimaryEvent,
    Progress,
    Recommendation,
    Suspect,
    Symptom,
    SymptomKind,
)
from workflows.state import Stage, TrainingJobState

Json = dict[str, Any]


def moment(at: datetime | None) -> str | None:
    """ISO 8601 in UTC with a trailing Z, or null."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def job_document(state: TrainingJobState, progress: Progress | None = None, extra_warnings: Sequence[str] = ()) -> Json:
    """What `show --json` prints.

    Args:
        state: the workflow's own record.
        progress: of the attempt as its watch last told, where it is newer than the state's.
        extra_warnings: what the command itself has to say, such as that no worker answered.
    """
    progress = progress or state.progress
    return {
        "job": _job(state),
        "state": state.stage.value,
        "mode": state.mode.value,
        "attempt": state.attempt.restart_count if state.attempt else None,
        "iteration": progress.iteration,
        "checkpoint_iteration": newest_checkpoint(state, progress),
        "warnings": list(warnings_of(state, extra_warnings)),
        "incidents": [incident_document(incident) for incident in state.incidents],
    }


def newest_checkpoint(state: TrainingJobState, progress: Progress) -> int | None:
    """Of the attempt, or, before it has seen one, of those before it: what the job would resume from."""
    return progress.checkpoint_iteration if progress.checkpoint_iteration is not None else state.newest_checkpoint


def warnings_of(state: TrainingJobState, extra_warnings: Sequence[str] = ()) -> tuple[str, ...]:
    """All that a reader must be warned of, each once: what the watch is blind to now, the workflow may have noted of the one before."""
    return tuple(dict.fromkeys((*state.warnings, *extra_warnings)))


def job_row(
    state: TrainingJobState, progress: Progress | None = None, extra_warnings: Sequence[str] = (), *, blind: str | None = None
) -> Json:
    """One element of the list that `jobs --json` prints: the document's head, without the incidents themselves.

    Args:
        blind: what the watch cannot see at present. Its summary then says that, and not that no fault was seen.
    """
    document = job_document(state, progress, extra_warnings)
    incidents = document.pop("incidents")
    pending = pending_recommendation(state)
    return {
        **document,
        "summary": state.summary if blind is None or state.stage is not Stage.WATCHING else unseen(blind),
        "blind": blind,
        "incidents": len(incidents),
        # By the stage, not by `pending`: without a worker the stage is known and the recommendation is not.
        "needs_approval": state.stage is Stage.AWAITING_DECISION,
        "digest": pending.digest if pending else None,
        "needs_you": need.value if (need := needs_you(state, progress or state.progress)) else None,
        "outcome": state.incidents[-1].outcome.summary if state.incidents else None,
    }


def unseen(blind: str) -> str:
    """What is said of a watch that cannot see all: that it saw no fault would read as if all were well."""
    return f"cannot be seen: {blind}"


class Need(StrEnum):
    """Why a job's line asks for a person."""

    DECISION = "decision"  # a recommendation waits for approval
    HELD = "held"  # nothing was done and nothing will be: policy or a guard rail left it to a person, or nobody decided in time
    FAILED = "failed"  # what was to be done could not be done


def needs_you(state: TrainingJobState, progress: Progress) -> Need | None:
    """What only a person can do now for this job, or None. `progress`: as its watch last told."""
    if state.stage is Stage.AWAITING_DECISION:
        return Need.DECISION
    if state.stage not in (Stage.WATCHING, Stage.FOLLOWING) or not state.incidents:
        return None
    newest = state.incidents[-1]
    if has_gone_on(newest, progress):
        return None
    expired = newest.decision is not None and newest.decision.kind is DecisionKind.EXPIRED
    if expired and newest.outcome.state is OutcomeState.NOT_ACTED:
        return Need.HELD
    return {OutcomeState.HELD: Need.HELD, OutcomeState.FAILED: Need.FAILED}.get(newest.outcome.state)


def has_gone_on(incident: Incident, progress: Progress) -> bool:
    """Whether the job does again what it had stopped doing: steps after a hang, checkpoints after they were missed."""
    match incident.symptom.kind:
        case SymptomKind.HANG:
            return (progress.iteration or 0) > (incident.progress.iteration or 0)
        case SymptomKind.NO_CHECKPOINT:
            return (progress.checkpoint_iteration or 0) > (incident.progress.checkpoint_iteration or 0)
        case _:
            return False


def pending_recommendation(state: TrainingJobState) -> Recommendation | None:
    """The recommendation that waits for a person, or None."""
    if state.stage is not Stage.AWAITING_DECISION or not state.incidents:
        return None
    newest = state.incidents[-1]
    return newest.recommendation if newest.decision is None else None


def incident_document(incident: Incident) -> Json:
    """One fault, from symptom to outcome."""
    return {
        "id": incident.id,
        "symptom": _symptom(incident.symptom),
        "diagnosis": _diagnosis(incident.diagnosis),
        "attribution": {
            "suspects": [_suspect(suspect) for suspect in incident.attribution.suspects],
            "abstained": incident.attribution.abstained,
        },
        "recommendation": _recommendation(incident.recommendation),
        "decision": decision_document(incident.decision) if incident.decision else None,
        "outcome": _outcome(incident.outcome),
    }


def judgement_document(judgement: Judgement, recommendation: Recommendation) -> Json:
    """What `diagnose --json` prints."""
    diagnosis = judgement.diagnosis
    return {
        "symptom": {"kind": judgement.symptom.value},
        "diagnosis": {
            "domain": diagnosis.domain.value,
            "cause": diagnosis.cause,
            "confidence": diagnosis.confidence,
            "summary": diagnosis.summary,
            "primary": _primary(diagnosis.primary),
            "cascades": diagnosis.cascades,
            "benign": diagnosis.benign,
        },
        "attribution": _attribution(judgement.attribution),
        "recommendation": {
            "action": recommendation.action.value,
            "exclude_nodes": list(recommendation.exclude_nodes),
            "user_excluded": list(recommendation.user_excluded),
            "why": recommendation.why,
        },
        "progress": {
            "iteration": judgement.progress.iteration,
            "checkpoint_iteration": judgement.progress.checkpoint_iteration,
            "step_seconds": judgement.progress.step_seconds,
        },
        "notes": list(judgement.notes),
    }


def milestones_document(milestones: Milestones) -> Mapping[str, str | None]:
    """The seven moments of a recovery, each null until it is reached, in their order."""
    return {name: moment(getattr(milestones, name)) for name in Milestones.model_fields}


def _job(state: TrainingJobState) -> Json:
    job = state.job
    nodes = state.attempt.nodes if state.attempt and state.attempt.nodes else (job.nodes if job else ())
    return {
        "cluster": state.key.cluster,
        "job_id": state.key.job_id,
        "name": job.name if job else "",
        "user": job.user if job else "",
        "partition": job.partition if job else "",
        "nodes": list(nodes),
    }


def _symptom(symptom: Symptom) -> Json:
    return {
        "kind": symptom.kind.value,
        "onset": moment(symptom.onset),
        "detected_at": moment(symptom.detected_at),
        "summary": symptom.summary,
    }


def _diagnosis(diagnosis: Diagnosis) -> Json:
    return {
        "domain": diagnosis.domain.value,
        "cause": diagnosis.cause,
        "confidence": diagnosis.confidence,
        "primary": _primary(diagnosis.primary),
        "cascades": diagnosis.cascades,
    }


def _primary(primary: PrimaryEvent | None) -> Json | None:
    if primary is None:
        return None
    return {
        "line": primary.line,
        "text": primary.text,
        "time": moment(primary.at),
        "rank": primary.rank,
        "node": primary.node,
        "gpu": primary.gpu,
    }


def _attribution(attribution: Attribution) -> Json:
    return {
        "suspects": [_suspect(suspect) for suspect in attribution.suspects],
        "abstained": attribution.abstained,
        "sources": list(attribution.sources),
    }


def _suspect(suspect: Suspect) -> Json:
    return {
        "node": suspect.node,
        "rank": suspect.rank,
        "gpu": suspect.gpu,
        "confidence": suspect.confidence,
        "because": list(suspect.because),
    }


def _recommendation(recommendation: Recommendation | None) -> Json | None:
    if recommendation is None:
        return None
    return {
        "action": recommendation.action.value,
        "exclude_nodes": list(recommendation.exclude_nodes),
        "user_excluded": list(recommendation.user_excluded),
        "why": recommendation.why,
        "rule": recommendation.rule,
        "digest": recommendation.digest,
        "expires_at": moment(recommendation.expires_at),
    }


def decision_document(decision: Decision) -> Json:
    """A decision as `show`, `approve` and `reject` print it."""
    return {"kind": decision.kind.value, "actor": decision.actor, "at": moment(decision.at), "reason": decision.reason}


def _outcome(outcome: Outcome) -> Json:
    return {
        "state": outcome.state.value,
        "steps": [{"name": step.name, "at": moment(step.at), "detail": step.detail} for step in outcome.steps],
        "milestones": milestones_document(outcome.milestones),
    }
