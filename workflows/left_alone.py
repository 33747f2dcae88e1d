"""What is said where nothing is done or nothing is known: outcomes of decisions that change nothing, and honest unknowns. Pure."""

from collections.abc import Collection

from activities.recommend import Proposal
from activities.records import (
    Action,
    Attribution,
    Decision,
    DecisionKind,
    Diagnosis,
    Incident,
    Judgement,
    Mode,
    OutcomeState,
    Recommendation,
    Symptom,
    SymptomKind,
)


def left_alone(decision: Decision, proposal: Proposal) -> tuple[OutcomeState, str]:
    """The outcome where nothing is done: by whose will, in a sentence."""
    recommendation = proposal.recommendation
    match decision.kind, recommendation.action:
        case DecisionKind.OBSERVED, _:
            first = "; a person would have been asked first" if recommendation.needs_approval else ""
            if proposal.withheld:
                first = f"; the guard rails would have left it to a person: {proposal.withheld}"
            return OutcomeState.NOT_ACTED, f"observe: Backstay would have: {recommendation.in_short}{first}"
        case DecisionKind.EXPIRED, _ if proposal.withheld:
            return OutcomeState.HELD, f"{proposal.withheld}; nobody approved it before it expired ({recommendation.expiry_reason})"
        case DecisionKind.EXPIRED, _:
            reason = f" ({recommendation.expiry_reason})" if recommendation.expiry_reason else ""
            return OutcomeState.NOT_ACTED, f"expired: nobody decided in time{reason}"
        case DecisionKind.REJECTED, _:
            return OutcomeState.NOT_ACTED, f"rejected by {decision.actor}: {decision.reason or 'no reason given'}"
        case _, Action.STOP:
            return OutcomeState.STOPPED, recommendation.why
        case _, Action.NONE:
            return OutcomeState.NOT_ACTED, recommendation.why
        case _:
            return OutcomeState.HELD, recommendation.why


def withheld(proposal: Proposal, why: str, incident: Incident) -> Proposal:
    """The same for a person to approve: the cluster's guard rails said no. Sealed anew, for the reason stands in what is approved."""
    recommendation = proposal.recommendation.model_copy(
        update={"needs_approval": True, "why": f"{proposal.recommendation.why}; not done, approve it when it may be: {why}"}
    )
    sealed = recommendation.sealed(incident_id=incident.id, restart_count=incident.restart_count)
    return proposal.model_copy(update={"recommendation": sealed, "withheld": why})


def compared(recommendation: Recommendation, ran_on: Collection[str]) -> str:
    """What Backstay would have done beside what the team did: where the attempt that followed ran."""
    among = sorted(set(recommendation.exclude_nodes) & set(ran_on))
    words = f"Backstay would have: {recommendation.in_short}; the team restarted it on {', '.join(sorted(ran_on)) or 'nodes not told'}"
    return words + (f", among them {', '.join(among)}" if among else "")


def kinds_told_by(incident: Incident) -> tuple[SymptomKind, ...]:
    """What need not be told again until the job goes on: the symptom, and the standing still of a job that crashed or lost a node. Where
    that was judged harmless, standing still is news."""
    kind = incident.symptom.kind
    judged_harmless = incident.recommendation is not None and incident.recommendation.action is Action.NONE
    stands_still = kind in (SymptomKind.CRASH, SymptomKind.NODE_FAULT) and not judged_harmless
    return (kind, SymptomKind.HANG) if stands_still else (kind,)


def unjudged(symptom: Symptom) -> Judgement:
    return Judgement(symptom=symptom.kind, diagnosis=Diagnosis(summary="the diagnosis failed; see the warnings"), attribution=Attribution())


def no_proposal(incident: Incident, mode: Mode) -> Proposal:
    """Where policy could not be asked: a person decides, whatever the mode."""
    held = Recommendation(action=Action.HOLD, why="no recommendation could be made; see the warnings", rule="built-in: nothing known")
    return Proposal(
        recommendation=held.sealed(incident_id=incident.id, restart_count=incident.restart_count),
        mode=mode,
    )
