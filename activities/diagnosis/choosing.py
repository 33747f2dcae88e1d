"""Which judgement a case gets: its first cause, a collective that was waited in, or what quiet.py finds where no line tells. Pure.

The engine calls `judgement_of`."""

from activities.diagnosis import concluding
from activities.diagnosis.case import Case
from activities.diagnosis.causality import ENDS_A_WAIT, IS_SPECIFIC, NAMES_ITS_CAUSE, Verdict, choose
from activities.diagnosis.causes import UNKNOWN, cause_of
from activities.diagnosis.collectives import WAITING, Waiting, waiting_of, with_dumps
from activities.diagnosis.quiet import ended_badly, of_a_hang, of_no_event
from activities.diagnosis.reading import Observation
from activities.diagnosis.shown import short, shown_lines
from activities.diagnosis.signatures import Role
from activities.records import Attribution, Diagnosis, Domain, Judgement, PrimaryEvent, SignalSource, Suspect, SymptomKind


def judgement_of(case: Case) -> Judgement:
    verdict = choose(_events(case), case.steps)
    waiting = _waiting(case, verdict)
    if waiting is not None and case.flight is not None:
        waiting = with_dumps(waiting, case.flight)
    if waiting is not None and (verdict.primary is None or verdict.is_fallback or verdict.primary.cause in ENDS_A_WAIT):
        return _of_waiting(case, waiting)
    ended_from_outside = (
        verdict.primary is not None
        and verdict.primary.cause in ENDS_A_WAIT
        and not any(item.signature == "kill_task_failed" for item in case.observations)
    )
    if ended_from_outside and (hang := of_a_hang(case)) is not None:
        return hang
    if verdict.primary is None and ended_badly(case) and (held := _held_back(case, verdict)) is not None:
        verdict = held
    if verdict.primary is not None:
        return concluding.of_primary(case, verdict.primary, verdict)
    return of_no_event(case, verdict)


def _held_back(case: Case, verdict: Verdict) -> Verdict | None:
    """The last error that a job which ended badly seems to have outlived, by no more steps than other ranks may have held back."""
    errors = [item for item in verdict.recovered if item.role is Role.PRIMARY and case.steps.may_be_held_back(item)]
    last = max(errors, key=lambda item: item.position, default=None)
    if last is None:
        return None
    supporters = tuple(item for item in errors if item.cause == last.cause and item is not last)
    return Verdict(last, supporters, verdict.cascades, False, tuple(item for item in verdict.recovered if item is not last))


def _events(case: Case) -> list[Observation]:
    """Observations that may count: a clean end outranks every line before it, and a job that lives on most of them."""
    if case.lives():
        standing = [item.position for item in case.observations if item.role is Role.CASCADE and item.cause and _stands(case, item)]
        felt = max(standing, default=-1)  # peers that felt it, and no step since: the job does not live on past what came before
        return [
            item
            for item in case.observations
            if item.role is not Role.PRIMARY
            or item.source is not SignalSource.LOG
            or item.weight >= NAMES_ITS_CAUSE
            or (item.weight >= IS_SPECIFIC and item.position < felt and _stands(case, item))
        ]
    if case.caught:
        return [item for item in case.observations if item not in case.caught]
    if not case.facts.ended_well:
        return case.observations
    return [item for item in case.observations if item.source is not SignalSource.LOG or item.role not in (Role.PRIMARY, Role.CASCADE)]


def _stands(case: Case, item: Observation) -> bool:
    return item.source is SignalSource.LOG and not case.steps.went_on_after(item)


def _waiting(case: Case, verdict: Verdict) -> Waiting | None:
    waits = [item for item in case.observations if not case.steps.went_on_after(item)]
    first = next((item for item in waits if item.signature in WAITING), None)
    primary = verdict.primary
    if first is None or (
        primary is not None
        and primary.position < first.position
        and primary.source is SignalSource.LOG
        and (primary.cause not in ENDS_A_WAIT or primary.log == first.log)
    ):
        return None
    phase, stuck = case.phase_at(first.position), case.seen("dataloader_stuck")
    return waiting_of(case.reading, waits, phase=phase, dataloader_stuck=stuck, tasks=case.facts.task_count)


def _of_waiting(case: Case, waiting: Waiting) -> Judgement:
    rank = waiting.missing_ranks[0] if len(waiting.missing_ranks) == 1 else None
    node = case.whereabouts.node_of_all(waiting.missing_ranks) if waiting.missing_ranks else None
    waited = len(waiting.waiting_ranks)
    who = (
        f"rank {rank} did not come"
        if rank is not None
        else f"ranks {short(waiting.missing_ranks)}{f', all of {node},' if node else ''} did not come"
        if waiting.missing_ranks
        else "nobody can be told apart"
    )
    cause = cause_of(waiting.cause) if waiting.cause else None
    summary = f"{waited or 'some'} ranks waited in a collective until it timed out; {who}" + (
        f"; {waiting.because}" if waiting.because else ""
    )
    return Judgement(
        symptom=case.symptom(cause, waiting.first, default=SymptomKind.HANG),
        diagnosis=Diagnosis(
            domain=cause.domain if cause else Domain.UNKNOWN,
            cause=cause.slug if cause else UNKNOWN,
            confidence=waiting.confidence,
            summary=summary,
            primary=PrimaryEvent(
                text=waiting.first.text if node is None and rank is None else f"did not come; another rank: {waiting.first.text}",
                line=waiting.first.line,
                at=waiting.first.at,
                rank=rank,
                node=node,
            ),
            cascades=max(0, case.count(Role.CASCADE) - 1),
            benign=case.count(Role.BENIGN),
            lines=shown_lines([waiting.first]),
        ),
        attribution=_of_the_absent(case, node, rank, who, waiting.cause or UNKNOWN),
        progress=case.progress(),
    )


def _of_the_absent(case: Case, node: str | None, rank: int | None, who: str, cause: str) -> Attribution:
    """Who stayed away is no culprit by that alone; with a node that failed others before, and they not elsewhere, it is."""
    if node is None or not case.facts.repeats(node, cause, seen_here=True, rank=rank):
        return Attribution(abstained=True, sources=("signatures",))
    because = f"{who}, and other work failed on {node} before and not elsewhere"
    return Attribution(suspects=(Suspect(node=node, rank=rank, confidence=0.7, because=(because,)),), sources=("signatures",))
