"""What the demo tells: new facts of a job's state as lines, and the table at the end. Pure; called by `demo.py`.

A log's own words are in the lines: whoever prints them makes them harmless first, as `terminal.tell` does."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from rich.table import Table

from activities.records import Incident, OutcomeState
from workflows.state import TrainingJobState

# Steps of an outcome as people are told them; a step that is not listed is told by its own name.
STEP_WORDS: Mapping[str, str] = {
    "detected": "Backstay sees it",
    "diagnosed": "it diagnoses",
    "recommended": "it recommends",
    "decided": "decision",
    "held_by_guard_rails": "left to a person by the guard rails",
    "requeued": "scontrol requeue",
    "pending": "the job waits in the queue",
    "excluded": "nodes excluded",
    "expedited": "StartTime=now: Slurm's requeue delay is given back",
    "released": "released",
    "running": "the next attempt runs",
    "stepping": "it steps again",
    "recovered": "RECOVERED",
}

ENDINGS = frozenset(OutcomeState) - {OutcomeState.IN_PROGRESS}


def new_lines(before: TrainingJobState | None, now: TrainingJobState) -> Iterator[str]:
    """What happened between two looks at the job, in order."""
    if before is None:
        where = ", ".join(now.attempt.nodes) or "no nodes yet"
        yield f"Backstay watches job {now.key.job_id} on {where}, mode {now.mode.value}"
    told = {incident.id: len(incident.outcome.steps) for incident in before.incidents} if before else {}
    for incident in now.incidents:
        for step in incident.outcome.steps[told.get(incident.id, 0) :]:
            words = STEP_WORDS.get(step.name, step.name.replace("_", " "))
            yield f"{words}: {step.detail}" if step.detail else words
            if step.name == "diagnosed":
                yield from _grounds(incident)


def _grounds(incident: Incident) -> Iterator[str]:
    diagnosis = incident.diagnosis
    yield f"    cause {diagnosis.cause} ({diagnosis.domain.value}), confidence {diagnosis.confidence:.2f}"
    if diagnosis.primary:
        yield f"    first event: {diagnosis.primary.text}"
    if diagnosis.cascades:
        yield f"    {diagnosis.cascades} other alarming lines were its consequences"
    for suspect in incident.attribution.suspects:
        if suspect.node:
            yield f"    suspect: {suspect.node}, confidence {suspect.confidence:.2f}"


def ended(state: TrainingJobState) -> Incident | None:
    """The first incident, once its outcome stands."""
    first = state.incidents[0] if state.incidents else None
    return first if first is not None and first.outcome.state in ENDINGS else None


def milestone_table(incident: Incident, fault_at: datetime) -> Table:
    """When each milestone was reached, in seconds since the fault was injected."""
    table = Table("MILESTONE", "TIME (UTC)", "SINCE THE FAULT", title=f"Incident {incident.id}: {incident.outcome.state.value}")
    for name in type(incident.outcome.milestones).model_fields:
        at: datetime | None = getattr(incident.outcome.milestones, name)
        reached = f"{at:%H:%M:%S.%f}"[:-4] if at else "-"
        table.add_row(name, reached, f"{(at - fault_at).total_seconds():6.1f} s" if at else "not reached")
    return table
