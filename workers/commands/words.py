"""A job's state and incidents as lines for people. Pure; called by the commands that tell people."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.cells import cell_len, chop_cells

from activities.records import Action, Diagnosis, Evidence, Incident, OutcomeState, Progress, Recommendation, Suspect
from activities.slurm.hostlist import collect
from workers.commands.shapes import newest_checkpoint, pending_recommendation, unseen, warnings_of
from workers.commands.terminal import printable
from workflows.state import HELD_BY_GUARD_RAILS, Stage, TrainingJobState

MOST_NODES_NAMED = 8


def clock(at: datetime | None) -> str:
    """Date and time in UTC, to the second."""
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def job_in_words(
    state: TrainingJobState, progress: Progress | None = None, extra_warnings: Sequence[str] = (), *, blind: str | None = None
) -> Iterator[str]:
    """Everything `show` tells, line by line. `blind`: what the watch cannot see at present."""
    progress = progress or state.progress
    job = state.job
    nodes = state.attempt.nodes or (job.nodes if job else ())
    yield f"job {state.key.job_id} of {state.key.cluster}" + (f": {job.name}, user {job.user}, partition {job.partition}" if job else "")
    where = nodes_in_words(nodes)
    yield f"  {state.stage.value.replace('_', ' ')}, mode {state.mode.value}, attempt {state.attempt.restart_count} on {where}"
    if blind is not None and state.stage is Stage.WATCHING:
        yield f"  {unseen(blind)}"
    elif state.summary:
        yield f"  {state.summary}"
    iteration = "not seen yet" if progress.iteration is None else str(progress.iteration)
    newest = newest_checkpoint(state, progress)
    checkpoint = "none seen yet" if newest is None else f"at iteration {newest}"
    yield f"  iteration {iteration}; newest checkpoint {checkpoint}"
    for warning in warnings_of(state, extra_warnings):
        yield f"  warning: {warning}"
    if state.incidents_dropped:
        yield f"  {state.incidents_dropped} older incidents stand in the history only: `backstay audit {state.key.job_id}`"
    for incident in state.incidents:
        yield ""
        yield from incident_in_words(incident)
    if pending := pending_recommendation(state):
        yield ""
        yield "waits for a decision; `reject` in place of `approve` leaves the job alone:"
        yield f"  backstay approve {state.key.job_id} --digest {pending.digest}"


def nodes_in_words(nodes: Sequence[str]) -> str:
    """A few by name, many as Slurm writes them: `512 nodes: node-[001-512]`."""
    if len(nodes) <= MOST_NODES_NAMED:
        return ", ".join(nodes) or "no nodes"
    return f"{len(nodes)} nodes: {collect(nodes)}"


def incident_in_words(incident: Incident) -> Iterator[str]:
    """One incident, from symptom to outcome."""
    symptom = incident.symptom
    yield f"incident {incident.id}: {symptom.kind.value} in attempt {incident.restart_count}, {symptom.summary}"
    yield f"  began {clock(symptom.onset)}, detected {clock(symptom.detected_at)} UTC"
    yield from diagnosis_in_words(incident.diagnosis)
    # Whoever would resubmit the job, or look into it, counts on what was captured.
    yield from (f"  evidence: {line}" for line in stored_evidence_in_words(incident.evidence))
    yield from (f"  evidence lacks: {printable(what)}" for what in (incident.evidence.unreadable if incident.evidence else ()))
    yield from (f"  suspect: {line}" for line in suspects_in_words(incident.attribution.suspects))
    if not incident.attribution.suspects:
        yield "  suspect: none named"
    for opinion in incident.opinions:
        yield f"  {opinion.source} says {opinion.verdict.value}: {opinion.why or opinion.note or 'no reason given'}"
    if incident.recommendation:
        yield from recommendation_in_words(incident.recommendation)
    if decision := incident.decision:
        yield f"  decision: {decision.kind.value} by {decision.actor} at {clock(decision.at)} UTC" + (
            f": {decision.reason}" if decision.reason else ""
        )
    outcome = incident.outcome
    yield f"  outcome: {outcome_in_words(outcome.state)}" + (f", {outcome.summary}" if outcome.summary else "")
    for step in outcome.steps:
        name = STEP_WORDS.get(step.name, step.name.replace("_", " "))
        yield f"    {clock(step.at)}  {name}" + (f": {step.detail}" if step.detail else "")


STEP_WORDS: Mapping[str, str] = {
    HELD_BY_GUARD_RAILS: "left to a person by the guard rails",
    "still_held": "still in Backstay's own hold",
}
"""Steps whose own names would be taken for something else; the others are told by their names."""


def outcome_in_words(state: OutcomeState) -> str:
    """`held` reads as `scontrol hold`, which Backstay has not done."""
    return "left to a person" if state is OutcomeState.HELD else state.value.replace("_", " ")


def stored_evidence_in_words(evidence: Evidence | None) -> Iterator[str]:
    """Where files were kept, and which: `/var/lib/backstay/…: batch_script.sh, log-1.txt`."""
    kept = [Path(excerpt.stored_at) for excerpt in (evidence.excerpts if evidence else ()) if excerpt.stored_at]
    for directory in dict.fromkeys(path.parent for path in kept):
        yield f"{directory}: {', '.join(path.name for path in kept if path.parent == directory)}"


def diagnosis_in_words(diagnosis: Diagnosis) -> Iterator[str]:
    """What happened and the line it rests on."""
    yield f"  cause: {diagnosis.cause} ({diagnosis.domain.value}), confidence {diagnosis.confidence:.2f}"
    if diagnosis.summary:
        yield f"    {diagnosis.summary}"
    if primary := diagnosis.primary:
        place = [f"line {primary.line}" if primary.line is not None else "", primary.source.value]
        place += [
            f"{kind} {value}" for kind, value in (("rank", primary.rank), ("node", primary.node), ("gpu", primary.gpu)) if value is not None
        ]
        if primary.at:
            place.append(f"{clock(primary.at)} UTC")
        yield f"    first event ({', '.join(part for part in place if part)}):"
        yield f"      {printable(primary.text)}"
    consequences = f"{diagnosis.cascades} consequences explained away" if diagnosis.cascades else ""
    harmless = f"{diagnosis.benign} alarming but harmless lines" if diagnosis.benign else ""
    if consequences or harmless:
        yield f"    {', '.join(part for part in (consequences, harmless) if part)}"


def suspects_in_words(suspects: Sequence[Suspect]) -> Iterator[str]:
    """Each suspect with its confidence and the reason."""
    for suspect in suspects:
        names = (("node", suspect.node), ("gpu", suspect.gpu), ("rank", suspect.rank))
        where = " ".join(f"{kind} {value}" for kind, value in names if value is not None)
        yield f"{where or 'unnamed'}, confidence {suspect.confidence:.2f}" + (
            f": {printable(suspect.because[0])}" if suspect.because else ""
        )


def action_in_words(recommendation: Recommendation) -> str:
    """What would be done, with its nodes."""
    words = recommendation.action.in_words
    if recommendation.exclude_nodes:
        without = "" if recommendation.action is Action.RESTART_EXCLUDING else ", keeping off"
        words += f"{without} {nodes_in_words(recommendation.backstay_excludes)}"
    if recommendation.user_excluded:
        words += f" (the user's own list keeps it off {nodes_in_words(recommendation.user_excluded)}, too)"
    return words + (f", drain {', '.join(recommendation.drain_nodes)}" if recommendation.drain_nodes else "")


def recommendation_in_words(recommendation: Recommendation) -> Iterator[str]:
    """What to do, why, and until when that may be approved."""
    yield f"  recommendation: {action_in_words(recommendation)}"
    yield f"    {recommendation.why}"
    expiry = f", expires {clock(recommendation.expires_at)} UTC" if recommendation.expires_at else ""
    reason = f" ({recommendation.expiry_reason})" if recommendation.expires_at and recommendation.expiry_reason else ""
    yield f"    rule {recommendation.rule}, digest {recommendation.digest or '-'}{expiry}{reason}"


def duration(length: timedelta) -> str:
    """In the largest unit that divides it: 24 h, 90 s."""
    seconds = int(length.total_seconds())
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def clipped(text: str, widest: int) -> str:
    """The text, printable and at most so many columns wide; a wide letter takes two."""
    text = printable(text)
    return text if cell_len(text) <= widest else f"{chop_cells(text, widest - 1)[0]}…"
