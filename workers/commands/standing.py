"""Where a job stands, in a line or two beside its name in the list: what it needs a person for, the verdict on its fault, or what
cannot be seen of it. Pure; called by `job_table.py`.
"""

from typing import NamedTuple

from activities.records import Decision, DecisionKind, Incident, OutcomeState, Recommendation
from workers.commands.lookup import Found
from workers.commands.shapes import Need, has_gone_on, needs_you, pending_recommendation, unseen
from workers.commands.words import action_in_words
from workflows.state import Stage
from workflows.visibility import fault_in_words, verdict_in_words

SEE_TO_IT = {Need.DECISION: "decide", Need.HELD: "left to you", Need.FAILED: "failed"}
"""A need as the column NEEDS YOU names it. `held` reads as `scontrol hold`, which Backstay has not done."""


class Standing(NamedTuple):
    """What is said of one job."""

    need: Need | None
    sentence: str
    command: str = ""
    """What to type, on a line of its own so that it can be copied."""


def standing(found: Found) -> Standing:
    """Where the job stands now: the most urgent thing there is to say."""
    state, progress = found.state, found.progress
    need = needs_you(state, progress)
    incident = state.incidents[-1] if state.incidents else None
    match need:
        case Need.DECISION:
            return _to_decide(found)
        case Need.HELD | Need.FAILED if incident is not None:
            lead = "left to you" if need is Need.HELD else "failed, needs you"
            sentence = f"{lead}: {_verdict(incident)}: {incident.outcome.summary}"
            return Standing(need, sentence.rstrip(": "), f"backstay show {state.key.job_id}")
        case _:
            pass
    stands = incident is not None and incident.restart_count == state.attempt.restart_count
    if incident is not None and stands and state.stage in (Stage.WATCHING, Stage.FOLLOWING, Stage.ENDED):
        if has_gone_on(incident, progress):
            return Standing(need, f"goes on again after a {incident.symptom.kind.replace('_', ' ')}")
        if incident.outcome.state is not OutcomeState.RECOVERED:
            return Standing(need, f"{_verdict(incident)}; {_what_became_of_it(incident)}".rstrip("; "))
    if state.stage is Stage.WATCHING and found.blind is not None:
        return Standing(need, unseen(found.blind))
    if not found.from_worker and state.stage is not Stage.ENDED:
        return Standing(need, "not seen now: no worker answers")
    return Standing(need, state.summary)


def _to_decide(found: Found) -> Standing:
    job_id = found.state.key.job_id
    pending = pending_recommendation(found.state)
    if pending is None:  # without a worker the stage is known and the recommendation is not
        return Standing(Need.DECISION, "needs your decision: a recommendation waits; no worker tells which", f"backstay show {job_id}")
    incident = found.state.incidents[-1]
    sentence = f"needs your decision: {action_in_words(pending)}? {_verdict(incident)}: {incident.outcome.summary}".rstrip(": ")
    return Standing(Need.DECISION, sentence, f"backstay approve {job_id} --digest {pending.digest}")


def _verdict(incident: Incident) -> str:
    """`crash after iteration 120: ecc_uncorrectable, suspect node-002`."""
    return f"{fault_in_words(incident)}: {verdict_in_words(incident)}"


def _what_became_of_it(incident: Incident) -> str:
    """In mode observe what would have been done, which is the whole use of that mode; else what was."""
    match incident.decision, incident.recommendation:
        case Decision(kind=DecisionKind.OBSERVED), Recommendation() as recommendation:
            return f"would have: {action_in_words(recommendation)}"
        case _:
            return incident.outcome.summary
