"""What people see of a workflow in the Temporal UI and its lists: search attributes, current details, activity summaries.

Search attributes are not encrypted (Temporal's documentation), so they hold names and slugs only, never log text.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate, TypedSearchAttributes

from activities.records import Action, Incident, Job, JobKey, Recommendation
from workflows.state import Stage, TrainingJobState

CLUSTER = SearchAttributeKey.for_keyword("BackstayCluster")
JOB = SearchAttributeKey.for_keyword("BackstayJob")
STATE = SearchAttributeKey.for_keyword("BackstayState")
NEEDS_APPROVAL = SearchAttributeKey.for_bool("BackstayNeedsApproval")
CAUSE = SearchAttributeKey.for_keyword("BackstayCause")
NODES = SearchAttributeKey.for_keyword_list("BackstayNodes")

SEARCH_ATTRIBUTES: tuple[SearchAttributeKey[Any], ...] = (CLUSTER, JOB, STATE, NEEDS_APPROVAL, CAUSE, NODES)
"""What the Temporal server must know; registered by the worker at its start."""


def type_in_words(key: SearchAttributeKey[Any]) -> str:
    """The type as Temporal's programs and its documentation name it: `Keyword`, `Bool`, `KeywordList`."""
    return key.indexed_value_type.name.title().replace("_", "")


MOST_NODES_LISTED = 50
"""A list of a thousand node names is no search attribute; the suspects come first."""

MOST_BYTES_LISTED = 1900
"""Temporal takes 2,048 bytes of one attribute and *fails the workflow* that writes more (measured: 50 names of 38 letters)."""


def listed(nodes: Iterable[str]) -> list[str]:
    """As many of these names, each once and in their order, as one search attribute can hold."""
    kept: list[str] = []
    size = 2
    for name in dict.fromkeys(nodes):
        size += len(name.encode()) + 3  # its quotes and the comma, as JSON
        if len(kept) == MOST_NODES_LISTED or size > MOST_BYTES_LISTED:
            break
        kept.append(name)
    return kept


def at_first(key: JobKey, nodes: tuple[str, ...]) -> TypedSearchAttributes:
    """The attributes a job's workflow starts with."""
    return TypedSearchAttributes(
        [
            SearchAttributePair(CLUSTER, key.cluster),
            SearchAttributePair(JOB, key.job_id),
            SearchAttributePair(STATE, str(Stage.WATCHING)),
            SearchAttributePair(NEEDS_APPROVAL, False),
            SearchAttributePair(NODES, listed(nodes)),
        ]
    )


def attributes_of(state: TrainingJobState) -> tuple[tuple[str, ...], list[SearchAttributeUpdate[Any]]]:
    """The attributes as they should read now, and a comparable form, so that nothing is written twice."""
    incident = state.incidents[-1] if state.incidents else None
    suspects = incident.attribution.nodes if incident else ()
    nodes = listed([*suspects, *state.attempt.nodes])
    waiting = state.stage is Stage.AWAITING_DECISION
    cause = incident.diagnosis.cause if incident else ""
    updates: list[SearchAttributeUpdate[Any]] = [
        STATE.value_set(str(state.stage)),
        NEEDS_APPROVAL.value_set(waiting),
        NODES.value_set(nodes),
    ]
    if cause:
        updates.append(CAUSE.value_set(cause))
    return (state.stage, str(waiting), cause, *nodes), updates


MOST_SUMMARY_BYTES = 200
"""Of a workflow's one-line summary; Temporal documents no more, and Slurm takes job names of a thousand letters."""


def one_line(text: str, most_bytes: int = MOST_SUMMARY_BYTES) -> str:
    """Text of a user's (a job name) as one printable line of at most so many bytes."""
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line.encode()) <= most_bytes else line.encode()[: most_bytes - 3].decode(errors="ignore") + "…"


_MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`[]<>"} | {"\n": " ", "\r": " "})
"""What begins code, links, pictures and HTML. Summaries and warnings quote comments, paths and log lines: a user's own words must
not become a link or a picture in an operator's browser."""


def plain_markdown(text: str) -> str:
    """Text of a person's or a program's as one line of Markdown that means itself."""
    return text.translate(_MARKUP)


def watching_in_words(state: TrainingJobState) -> str:
    """What the watch that begins now looks for."""
    if not state.known_symptoms:
        return "no fault seen"
    attempt = state.attempt.restart_count
    told = dict.fromkeys(incident.symptom.kind for incident in state.incidents if incident.restart_count == attempt)
    kinds = " and the ".join(kind.replace("_", " ") for kind in told or state.known_symptoms)
    return f"the {kinds} told of stands; watching for anything else"


def details_of(state: TrainingJobState, runs: Mapping[str, str] | None = None) -> str:
    """Where the job stands, in a few lines of Markdown for the workflow's page; `runs`: the links of `earlier_runs`."""
    stage, summary = state.stage.replace("_", " "), plain_markdown(state.summary)
    lines = [f"**{stage}**: {summary}" if summary else f"**{stage}**"]
    job = job_in_words(state.job or Job(job_id=state.key.job_id, numeric_id=0))
    # Of what waits or is done now; in which mode the next fault is met, the worker's configuration says then (heartbeats tell it).
    mode = f"; mode {state.mode}" if state.stage in (Stage.AWAITING_DECISION, Stage.ACTING) else ""
    lines.append(f"{job}, attempt {state.attempt.restart_count} on {', '.join(state.attempt.nodes) or 'no nodes yet'}{mode}")
    if state.incidents:
        lines.append(_incident_in_words(state.incidents[-1], waiting=state.stage is Stage.AWAITING_DECISION))
    lines.extend(f"warning: {plain_markdown(warning)}" for warning in state.warnings[-3:])
    if runs:
        lines.append("earlier in this job's story: " + " · ".join(f"[the {which}]({link})" for which, link in runs.items()))
    return "\n\n".join(lines)


def _incident_in_words(incident: Incident, *, waiting: bool) -> str:
    words = f"{fault_in_words(incident)}: {incident.diagnosis.domain}/{incident.diagnosis.cause}"
    recommendation = incident.recommendation
    if recommendation and recommendation.action is not Action.NONE:
        words += f" → {recommendation.in_short}"
        if waiting:
            words += f" (digest `{recommendation.digest}`, expires {recommendation.expires_at})"
    return words


# ------------------------------------------------------------------------------------------------ a job's runs, by link


def run_link(namespace: str, workflow_id: str, run_id: str) -> str:
    """The page of one run in whichever Temporal UI this is read in: an address without its host."""
    return f"/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}/{quote(run_id, safe='')}/history"


def earlier_runs(*, namespace: str, workflow_id: str, first: str, before: str | None) -> Mapping[str, str]:
    """Links to the run that this one continues and to the first of the job's story, each once; none in the first run itself.

    Args:
        first: run ID of the first run of the chain.
        before: run ID of the run that was continued as this one, or None.
    """
    found = {"first run": first} if before else {}
    if before and before != first:
        found["run before"] = before
    return {which: run_link(namespace, workflow_id, run_id) for which, run_id in found.items()}


# ------------------------------------------------------------------------------------------------ activities, in words

MOST_NAME_BYTES = 48
"""Of a job's name where a sentence goes on beside it: act, verdict, nodes and job ID must stay within `MOST_SUMMARY_BYTES`."""

MOST_NODES_BYTES = 40
MOST_NODES_NAMED = 5


def name_in_words(job: Job) -> str:
    """The job's name, which is its user's own words, as one line that means itself. The Temporal UI is told no name in any other way."""
    return one_line(plain_markdown(" ".join(job.name.split())), MOST_NAME_BYTES).strip()


def job_in_words(job: Job) -> str:
    """`train-7b (job 1234)`: how each summary names the job."""
    name = name_in_words(job)
    return f"{name} (job {job.job_id})" if name else f"job {job.job_id}"


def fault_in_words(incident: Incident) -> str:
    """`crash after iteration 120`."""
    kind, reached = incident.symptom.kind.replace("_", " "), incident.progress.iteration
    return kind if reached is None else f"{kind} after iteration {reached}"


def verdict_in_words(incident: Incident) -> str:
    """`ecc_uncorrectable, suspect node-003`."""
    suspects = incident.attribution.nodes
    return incident.diagnosis.cause + (f", suspect {nodes_in_words(suspects)}" if suspects else ", nobody suspected")


def nodes_in_words(nodes: tuple[str, ...]) -> str:
    """The first few by name, the rest counted."""
    named, rest = one_line(", ".join(nodes[:MOST_NODES_NAMED]), MOST_NODES_BYTES), len(nodes) - MOST_NODES_NAMED
    return named + (f" and {rest} more" if rest > 0 else "")


def wish_in_words(recommendation: Recommendation) -> str:
    """`restart excluding node-003`, of many nodes the first few."""
    return f"{recommendation.action.in_words} {nodes_in_words(recommendation.backstay_excludes)}".rstrip()


_MUTATIONS: Mapping[str, str] = {
    "requeue_job": "requeue {job}",
    "confirm_pending": "wait until {job} is pending",
    "exclude_nodes": "write exclusions: {nodes}, for {job}",
    "expedite": "start {job} now: Slurm's requeue delay is given back",
    "release_job": "release {job} from Backstay's own hold",
    "cancel_job": "cancel {job}",
    "drain_nodes": "drain {nodes}, suspected in {job}",
}


def mutation_in_words(name: str, job: str, nodes: tuple[str, ...]) -> str:
    """What a mutation of Slurm does to the job, which comes as `job_in_words` says it."""
    words = _MUTATIONS.get(name, f"{name.replace('_', ' ')}: {{job}}")
    return one_line(words.format(job=job, nodes=nodes_in_words(nodes)))
