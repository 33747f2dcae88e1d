"""A first cause made into a judgement: what its context refines it to, whom it implicates, in what words. Pure.

choosing.py and quiet.py call it with the case and what they found."""

from collections.abc import Sequence
from dataclasses import replace

from activities.diagnosis.case import Case
from activities.diagnosis.causality import ENDS_A_WAIT, Verdict
from activities.diagnosis.causes import UNKNOWN, Blames, cause_of
from activities.diagnosis.context import Context, Refined
from activities.diagnosis.reading import Observation
from activities.diagnosis.refine import refine
from activities.diagnosis.shown import shown_lines
from activities.diagnosis.signatures import Role, Turn
from activities.diagnosis.suspects import attribute
from activities.diagnosis.tracebacks import read_traceback
from activities.records import Attribution, Diagnosis, Domain, Judgement, PrimaryEvent, SignalSource, SymptomKind

_BESIDES_TOLD = 4

# Every node that shows one of these has it; of other causes only the first node is where it began.
_ON_EACH_NODE = ("ib_port_down_degraded", "fabric_manager_not_running", "driver_libs_missing_on_node")
# On several nodes these are the trouble of what the nodes share.
_OF_WHAT_NODES_SHARE = (
    "prolog_failed",
    "prolog_hung",
    "container_runtime_misconfigured",
    "slurm_auth_failure",
    "clock_skew",
    "driver_libs_missing_on_node",
)


def of_primary(case: Case, primary: Observation, verdict: Verdict) -> Judgement:
    """The judgement of a first cause, refined by what stands around it."""
    cause = primary.cause or UNKNOWN
    refined = refine(cause, _context(case, primary, verdict.supporters))
    if refined is None and primary.signature == "python_exception":
        refined = _of_exception(case, primary, verdict.supporters)
    if refined is None:
        is_supported = bool(verdict.supporters) and not verdict.is_fallback
        refined = Refined(cause, min(0.97, primary.weight + 0.03) if is_supported else primary.weight)
    told = cause_of(refined.cause)
    if (told is None or told.domain is not Domain.SCHEDULER) and any(item.cause in ENDS_A_WAIT for item in case.observations):
        reasons = (refined.because, "the job stood still until its time limit")
        refined = replace(refined, because="; ".join(reason for reason in reasons if reason))
    return finish(case, refined, primary, verdict.supporters, cascades=verdict.cascades)


def _context(case: Case, primary: Observation, same: Sequence[Observation]) -> Context:
    in_the_log = primary.source is SignalSource.LOG
    resumed_at = {told.position for told in case.reading.phases if told.turn is Turn.TRAINING_BEGINS}  # names an iteration, is none
    steps = (mark for mark in case.reading.marks if mark.iteration is not None or mark.loss is not None)
    return Context(
        primary=primary,
        same=same,
        observations=case.observations,
        reading=case.reading,
        steps=case.steps,
        facts=case.facts,
        whereabouts=case.whereabouts,
        phase=case.phase_at(primary.position if in_the_log else case.reading.bytes + 1),
        stepped=any(mark.position < primary.position and mark.position not in resumed_at for mark in steps)
        if in_the_log
        else bool(case.reading.marks),
        steps_after=case.steps.went_on_after(primary),
        training_ended=case.training_ended_at is not None and primary.position > case.training_ended_at,
    )


def _of_exception(case: Case, primary: Observation, same: Sequence[Observation]) -> Refined | None:
    """An exception in the program's own code; from many ranks alike it is certainly the program."""
    trace = read_traceback(primary.text, primary.own_context)
    if trace is None:
        return None
    alike = {item.rank for item in (primary, *same) if item.rank is not None and trace.type in item.text}
    everywhere = len(alike) >= 2 and len(alike) >= (case.reading.world_size or len(alike)) / 2
    place = f" at {trace.place}" if trace.place else ""
    spread = f", on {len(alike)} ranks alike" if everywhere else ""
    confidence = 0.72 if everywhere else 0.6 if trace.own_file else primary.weight
    return Refined(primary.cause or UNKNOWN, confidence, f"{trace.type}{place}{spread}")


def finish(
    case: Case,
    found: Refined,
    primary: Observation,
    same: Sequence[Observation] = (),
    *,
    cascades: int = 0,
    symptom: SymptomKind | None = None,
) -> Judgement:
    """
    Args:
        found: the cause, how sure, and why where something besides `primary` told.
        same: further observations of the same cause.
        cascades: how many observations were explained away.
        symptom: what the job suffers; None: what the cause usually does, or what detection saw.
    """
    cause = cause_of(found.cause)
    node, _ = case.whereabouts.locate(found.evidence or primary)
    implicated = _implicated(case, found, primary, same)
    attribution = _narrowed(case, found, primary, implicated)
    if attribution.abstained and len(case.facts.nodes) > 1 and {suspect.node for suspect in implicated.suspects} >= set(case.facts.nodes):
        node, where = None, f" on all {len(case.facts.nodes)} nodes"
    elif node is None or (cause is not None and cause.domain is Domain.SCHEDULER and cause.blames is Blames.NOBODY):
        where = ""  # a limit is the job's, wherever it was printed
    elif any(suspect.node == node for suspect in attribution.suspects):
        where = f" on {node}"
    else:
        where = f" (seen first on {node})"
    because = f"; {found.because}" if found.because else ""
    return Judgement(
        symptom=symptom if symptom is not None else case.symptom(cause, primary, default=SymptomKind.CRASH),
        diagnosis=Diagnosis(
            domain=cause.domain if cause else Domain.UNKNOWN,
            cause=found.cause if cause else UNKNOWN,
            confidence=round(found.confidence, 2),
            summary=(cause.means if cause else "the cause is not known") + where + because,
            primary=PrimaryEvent(
                text=primary.text,
                line=primary.line,
                source=primary.source,
                at=primary.at,
                rank=_rank(case, primary, same, node),
                node=node,
                gpu=primary.gpu,
            ),
            cascades=cascades,
            benign=case.count(Role.BENIGN),
            lines=shown_lines([primary, *same]),
        ),
        attribution=attribution,
        progress=case.progress(),
    )


def besides(case: Case, judgement: Judgement) -> tuple[str, ...]:
    """Devices that should be looked at though this job ended of something else: they may end the next attempt."""
    known = {suspect.node for suspect in judgement.attribution.suspects}
    asking = [
        (item, case.whereabouts.locate(item)[0], cause)
        for item in (*case.observations, *case.notices)
        if item.source in (SignalSource.KERNEL, SignalSource.GPU) and item.isolate and item.cause != judgement.diagnosis.cause
        if (cause := cause_of(item.cause or "")) is not None and cause.domain in (Domain.HARDWARE, Domain.NETWORK)
    ]
    told = [
        f"besides{f', on {node}' if node else ''}: {cause.means}; this job ended of something else ({shown_lines([item])[0][:300]})"
        for item, node, cause in asking
        if node not in known
    ]
    return tuple(dict.fromkeys(told))[:_BESIDES_TOLD]


def of_strangers(case: Case) -> tuple[str, ...]:
    """What the log tells of nodes that this attempt does not have, in words: it stays evidence and implicates nobody."""
    told = {item.named_node: item for item in reversed(case.of_strangers)}
    return tuple(
        f"{node} is none of this job's nodes, what the log tells of it implicates nobody ({shown_lines([item])[0][:300]})"
        for node, item in sorted(told.items(), key=lambda entry: entry[1].position)
    )[:_BESIDES_TOLD]


def _rank(case: Case, primary: Observation, same: Sequence[Observation], node: str | None) -> int | None:
    """The primary's own rank, else one that says the same on its node, else the first that failed there."""
    if primary.rank is not None or primary.source is SignalSource.SCHEDULER:
        return primary.rank
    rank = next((item.rank for item in same if item.rank is not None and item.node == primary.node), None)
    return case.whereabouts.first_failed_on(node) if rank is None and node is not None else rank


def _implicated(case: Case, found: Refined, primary: Observation, same: Sequence[Observation]) -> Attribution:
    cause = cause_of(found.cause)
    items = [(item, *case.whereabouts.locate(item)) for item in _evidence_for(case, found.cause, found.evidence or primary, same)]
    items = [(item, None if case.facts.is_stranger(node) else node, how) for item, node, how in items]
    sources = tuple(dict.fromkeys(str(item.source) for item, _, _ in items))
    asks_for_isolation = primary.source is not SignalSource.KERNEL or primary.isolate or found.names_node
    if not asks_for_isolation and cause is not None and cause.symptom is not SymptomKind.NONE:
        items = []  # the kernel's words do not ask to keep the node out
    return attribute(found.cause, found.confidence, items, sources, names_node=found.names_node)


def _evidence_for(case: Case, slug: str, primary: Observation, same: Sequence[Observation]) -> list[Observation]:
    """The primary, and what says the same in its own right."""
    spreads = slug in _ON_EACH_NODE
    if slug == "ib_port_down_degraded":
        # Both ends of a link see it; the log cannot tell which end is at fault.
        same = [item for item in case.observations if item.cause in ("ib_port_error", slug) and item.role is Role.PRIMARY]
    if case.whereabouts.locate(primary)[0] is None:
        # The first line does not say where; others of the same cause do, and agree.
        located = [item for item in same if case.whereabouts.locate(item)[0] is not None]
        if len({case.whereabouts.locate(item)[0] for item in located}) == 1:
            return [primary, located[0]]
    sees_devices = (SignalSource.KERNEL, SignalSource.GPU)
    certain = [item for item in same if spreads or item.source is SignalSource.NODE or (item.source in sees_devices and item.isolate)]
    return [primary, *certain]


def _narrowed(case: Case, found: Refined, primary: Observation, attribution: Attribution) -> Attribution:
    """Blame taken back where the same trouble is everywhere: then it is what they share."""
    slug = found.cause
    if slug in _OF_WHAT_NODES_SHARE:
        failing = {name for failed in case.facts.failures for name in failed.nodes} | {suspect.node for suspect in attribution.suspects}
        if attribution.suspects:
            failing |= {case.whereabouts.locate(item)[0] for item in case.observations if item.cause == slug and item.named_node}
        if len(failing) >= 3 or (len(failing) >= 2 and len(failing) == len(case.facts.nodes)):
            return Attribution(abstained=True, sources=attribution.sources)
    unkillable = {item.named_node for item in case.observations if item.signature == "kill_task_failed" and item.named_node}
    if slug == "time_limit_unkillable_node_drained" and len(unkillable) > 1:
        return Attribution(abstained=True, sources=attribution.sources)
    if (
        slug == "thermal_throttling"
        and len(case.facts.nodes) > 2
        and {suspect.node for suspect in attribution.suspects} >= set(case.facts.nodes)
    ):
        return Attribution(abstained=True, sources=attribution.sources)  # the hall is hot: without them no node is left
    if slug == "driver_library_mismatch_new_processes_only" and not case.facts.ended_badly:
        return Attribution(abstained=True, sources=attribution.sources)  # what runs already is not touched by it
    # What else tells of one node, its history or the one end of all connections, stands though every node felt it.
    everywhere = (
        found.evidence is None and set(case.facts.nodes) == case.reading.nodes.get(primary.signature, set()) and len(case.facts.nodes) > 1
    )
    if everywhere and (cause := cause_of(slug)) is not None and cause.domain in (Domain.SYSTEM_SOFTWARE, Domain.NETWORK):
        return Attribution(abstained=True, sources=attribution.sources)
    return attribution
