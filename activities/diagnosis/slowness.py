"""What slows a job down that goes on: the network it fell back to, an adapter, a port, a rank, or steps that only became slower. Pure.

quiet.py asks it first, when no line tells of a failure."""

from collections.abc import Sequence
from dataclasses import replace

from activities.diagnosis import trends
from activities.diagnosis.case import Case
from activities.diagnosis.concluding import finish
from activities.diagnosis.context import Refined
from activities.diagnosis.reading import Observation
from activities.diagnosis.shown import short
from activities.diagnosis.signatures import Role
from activities.records import Judgement, SymptomKind


def of_slowness(case: Case) -> Judgement | None:
    """The first answer, what names a cause before what only shows that steps became slower."""
    looks = (_over_tcp, _far_adapter, _degraded_port, _reported_straggler, _slow_ranks, _slowdown)
    return next((judgement for look in looks if (judgement := look(case)) is not None), None)


def _over_tcp(case: Case) -> Judgement | None:
    falls_back = case.seen("ofi_init_failed") and case.seen("network_socket") and not case.seen("network_fast")
    if not falls_back or case.facts.only_node is not None:  # within one node nothing goes over the network
        return None
    item = next(item for item in case.observations if item.signature == "ofi_init_failed")
    found = Refined("rdma_fallback_to_tcp", 0.75, "the fast transport did not start, NCCL uses TCP sockets")
    return finish(case, found, item, symptom=SymptomKind.SLOWDOWN)


def _far_adapter(case: Case) -> Judgement | None:
    far = next((item for item in case.observations if item.signature == "gdr_too_far"), None)
    # The way to the adapter does not change under a job: it explains what was slow from this start on, none that came later.
    since_start = case.slowdown is not None and far is not None and any(mark.position < far.position for mark in case.reading.marks)
    if far is None or not (case.seen("below_expected") or since_start):
        return None
    found = Refined("nic_gpu_topology_slow", 0.7, "less bandwidth than expected, and NCCL reaches the adapter only through the CPU")
    return finish(case, found, far, symptom=SymptomKind.SLOWDOWN)


def _degraded_port(case: Case) -> Judgement | None:
    of_ports = [item for item in case.observations if item.cause in ("ib_port_error", "ib_port_down_degraded")]
    degraded = next((item for item in of_ports if item.role in (Role.PRIMARY, Role.HINT)), None)
    if degraded is None or not (case.slowdown is not None or case.seen("ib_device_marked_failed")):
        return None
    found = Refined("ib_port_down_degraded", 0.78, "a port failed and the job goes on without it")
    return finish(case, found, degraded, [item for item in of_ports if item is not degraded], symptom=SymptomKind.SLOWDOWN)


def _reported_straggler(case: Case) -> Judgement | None:
    reports = [item for item in case.observations if item.signature == "straggler_reported"]
    if not reports:
        return None
    reported = reports[0]
    if len({item.rank for item in reports if item.rank is not None}) > 1:
        reported = replace(reported, rank=None, named_node=None)  # each time another one: nobody is slow by itself
    comes_and_goes = case.slowdown is not None and case.slowdown.comes_and_goes
    why = "the job's own straggler detection names it" + (", now and then" if comes_and_goes else "")
    return finish(case, Refined(_slow_cause(comes_and_goes), 0.7, why), reported, symptom=SymptomKind.SLOWDOWN)


def _slow_ranks(case: Case) -> Judgement | None:
    ranks = trends.slow_ranks(case.reading.marks)
    if not ranks:
        return None
    shared = _share_a_nic(case, ranks)
    found = (
        Refined("nic_gpu_topology_slow", 0.66, "they share one network adapter")
        if shared
        else Refined("slow_gpu_straggler", 0.6, "the same ranks each time")
    )
    of_ranks = [mark for mark in case.reading.marks if mark.by_rank]
    line = of_ranks[0].line
    factor = trends.times_as_slow(of_ranks, ranks[0])
    text = f"rank{'s' if len(ranks) > 1 else ''} {short(ranks)}: {factor:.2g} times as long as the others, in {len(of_ranks)} reports"
    rank = ranks[0] if len(ranks) == 1 or shared else None
    node = None if shared else case.whereabouts.node_of_all(ranks)
    item = Observation("slow_ranks", Role.PRIMARY, found.confidence, text, found.cause, line=line, rank=rank, named_node=node)
    return finish(case, found, item, symptom=SymptomKind.SLOWDOWN)


def _slowdown(case: Case) -> Judgement | None:
    slowdown = case.slowdown
    if slowdown is None:
        return None
    hints = [item for item in case.notices if item.cause == "slow_gpu_straggler"]
    if not slowdown.comes_and_goes and len({item.node for item in hints}) == 1:
        found = Refined("slow_gpu_straggler", 0.66, "steps became slower, and only its readings are not as they should be")
        return finish(case, found, hints[0], symptom=SymptomKind.SLOWDOWN)
    found = Refined(_slow_cause(slowdown.comes_and_goes), 0.5, "now and then" if slowdown.comes_and_goes else "and stays so")
    of_epochs = any(mark.line == slowdown.since_line and mark.epoch_seconds for mark in case.reading.marks)
    what = "an epoch" if of_epochs else "a step"
    text = f"{what} takes {slowdown.late_seconds:.4g} s, it took {slowdown.early_seconds:.4g} s"
    item = Observation("slowdown", Role.PRIMARY, 0.5, text, found.cause, line=slowdown.since_line)
    return finish(case, found, item, symptom=SymptomKind.SLOWDOWN)


def _slow_cause(comes_and_goes: bool) -> str:
    return "slow_node_intermittent" if comes_and_goes else "slow_gpu_straggler"


def _share_a_nic(case: Case, ranks: Sequence[int]) -> bool:
    nics: dict[int, set[str]] = {}
    for item in case.observations:
        if item.signature == "nccl_channel_nic" and item.rank is not None and "nic" in item.groups:
            nics.setdefault(item.rank, set()).add(item.groups["nic"])
    used = [nics[rank] for rank in ranks if rank in nics]
    return len(ranks) >= 2 and len(used) >= 2 and bool(set.intersection(*used))
