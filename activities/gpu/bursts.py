"""Which line of an incident came first: bursts per node, consequences dropped and counted, common causes of several nodes. Pure.

kernel.py hands the lines over; first_line.py judges each burst; windows stand in xid.yaml.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from activities.gpu.findings import Clock, KernelFinding, Role, pci_key, seconds_between
from activities.gpu.first_line import first_of
from activities.gpu.xid_table import table
from activities.records import Action, Domain

_MINUTE: Final = 60.0
_COMMON_CAUSE_NODES: Final = 3  # this many nodes with one cause in one minute point at what they share
_RELOAD_CLEARS_AFTER: Final = 60.0  # seconds; a probe that fails *while* the driver loads is not cleared by that load
_LEAP_YEAR: Final = 366 * 86400.0  # kernel.py reads stamps that name no year as of 2000
_CLEARING: Final = ("driver_loaded", "booted")
_APPLICATION_CODES: Final = (13, 31)
_SERVER_BACK: Final = {"nfs_not_responding": "nfs_ok", "lustre_lost": "lustre_restored"}
BACK: Final = "_and_back"  # ends the event of a trouble that the same log shows to be over
_FATAL_REPEATS: Final = 5  # NVSentinel's analyser: same fatal Xid on one GPU, in a day, asks for support


def judge_bursts(findings: Iterable[KernelFinding], since: datetime | None = None) -> tuple[KernelFinding, ...]:
    """One finding for each burst on each node: its first cause, with the rest counted in `dropped` and named in `others`.

    Args:
        findings: as `read_kernel_log` gives them, of any number of nodes.
        since: start of the incident's window. Older bursts are left out, except those that left a GPU unusable and that
            no later driver load cleared: they come back as `gpu_reset_required_xid_95`.
    """
    by_node: dict[str | None, list[KernelFinding]] = {}
    for finding in findings:
        by_node.setdefault(finding.node, []).append(finding)
    judged: list[KernelFinding] = []
    for of_node in by_node.values():
        bursts = _bursts(_with_returns(_with_flaps(_without_cleared(of_node))))
        firsts = [first_of(burst) for burst in bursts]
        loads = [finding for finding in of_node if finding.event in _CLEARING]
        judged += [kept for first in _with_repeats(bursts, firsts) if (kept := _within(first, since, loads)) is not None]
    return tuple(sorted(_common_causes(judged), key=lambda finding: finding.line))


# ---------------------------------------------------------------------------------------------------- one node


def _bursts(findings: Sequence[KernelFinding]) -> list[list[KernelFinding]]:
    """Lines of one node, cut where it was silent for three minutes. Lines without comparable stamps stay together."""
    silence = table()["burst_gap_seconds"]
    bursts: list[list[KernelFinding]] = []
    for finding in (finding for finding in findings if finding.role is not Role.BENIGN):
        gap = seconds_between(bursts[-1][-1], finding) if bursts else None
        # A stamp that goes back by more than the silence is a reboot (uptime) or a second log: another burst as well.
        if not bursts or (gap is not None and abs(gap) > silence):
            bursts.append([])
        bursts[-1].append(finding)
    return bursts or ([[finding] for finding in findings[:1]] if findings else [])


def _without_cleared(findings: Sequence[KernelFinding]) -> list[KernelFinding]:
    """Xid 162 (power smoothing engaged again) clears an earlier 163 of the same GPU (NVSentinel#1252)."""
    kept: list[KernelFinding] = []
    for finding in findings:
        if finding.code == 162 and finding.event == "xid_162":
            kept = [earlier for earlier in kept if not (earlier.event == "xid_163" and pci_key(earlier.gpu) == pci_key(finding.gpu))]
        kept.append(finding)
    return kept


def _with_flaps(findings: Sequence[KernelFinding]) -> list[KernelFinding]:
    """A port that came back within the silence flapped: the job lost its connections, but no bandwidth is missing now."""
    silence = table()["burst_gap_seconds"]
    ups = [finding for finding in findings if finding.event == "port_up"]

    def came_back(down: KernelFinding) -> bool:
        return any(
            up.device == down.device and up.line > down.line and ((gap := seconds_between(down, up)) is None or 0 <= gap <= silence)
            for up in ups
        )

    flapped = {"cause": "ib_port_error", "action": Action.RESTART_EXCLUDING, "why": "an HCA port went down and came back"}
    return [finding.model_copy(update=flapped) if finding.event == "port_down" and came_back(finding) else finding for finding in findings]


def _with_returns(findings: Sequence[KernelFinding]) -> list[KernelFinding]:
    """A file server that answers again: what waited for it went on, so it explains a failure only if nothing else does."""

    def came_back(lost: KernelFinding) -> bool:
        again = _SERVER_BACK.get(lost.event)
        return again is not None and any(
            back.event == again and back.line > lost.line and back.device is not None and back.device in lost.text for back in findings
        )

    def returned(lost: KernelFinding) -> KernelFinding:
        why = f"{lost.why}; it came back"
        return lost.model_copy(update={"event": f"{lost.event}{BACK}", "confidence": min(lost.confidence, 0.5), "blame": 8, "why": why})

    return [returned(finding) if came_back(finding) else finding for finding in findings]


# ------------------------------------------------------------------------------------------- over several bursts


def _within(first: KernelFinding, since: datetime | None, loads: Sequence[KernelFinding]) -> KernelFinding | None:
    if since is None or not _is_before(first, since):
        return first
    cleared = any((gap := seconds_between(first, load)) is not None and gap > _RELOAD_CLEARS_AFTER for load in loads)
    if cleared or not (first.isolate and first.domain is Domain.HARDWARE):
        return None
    return first.model_copy(
        update={
            "cause": "gpu_reset_required_xid_95",
            "action": Action.RESTART_EXCLUDING,
            "confidence": min(first.confidence, 0.6),
            "why": f"reported before this attempt and not cleared by a reset since: {first.why}",
        }
    )


def _is_before(finding: KernelFinding, moment: datetime) -> bool:
    """False where its stamp does not tell. One without a year is of the year that brings it nearest."""
    if finding.at is not None:
        return finding.at < moment
    if finding.clock is not Clock.YEARLESS or finding.clock_seconds is None:
        return False
    return 0 < (moment.replace(year=2000).timestamp() - finding.clock_seconds) % _LEAP_YEAR < _LEAP_YEAR / 2


def _with_repeats(bursts: Sequence[Sequence[KernelFinding]], firsts: Sequence[KernelFinding]) -> list[KernelFinding]:
    return [_with_earlier(first, bursts[:index]) for index, first in enumerate(firsts)]


def _with_earlier(first: KernelFinding, bursts: Sequence[Sequence[KernelFinding]]) -> KernelFinding:
    """13 at one GPC and TPC, or 31 on one GPU, in two bursts within a day: the device, not the program (NVIDIA WORKFLOW_XID_13 and _31).

    One fault prints many lines, so repeats are counted over bursts. 31 moving between GPUs is the program.
    """
    if first.code not in _APPLICATION_CODES and not first.isolate:
        return first
    window = table()["repeat_window_hours"] * 3600.0

    def is_repeat(finding: KernelFinding) -> bool:
        gap = seconds_between(finding, first)
        return finding.event == first.event and pci_key(finding.gpu) == pci_key(first.gpu) and (gap is None or abs(gap) <= window)

    repeating = [burst for burst in bursts if any(is_repeat(finding) for finding in burst)]
    earlier = [finding for burst in repeating for finding in burst if is_repeat(finding)]
    if first.code in _APPLICATION_CODES and earlier and _follows_device(first, earlier, bursts):
        where = first.place or f"GPU {first.gpu}"
        return first.model_copy(
            update={
                "cause": "illegal_memory_access_faulty_gpu",
                "domain": Domain.HARDWARE,
                "confidence": 0.7,
                "isolate": True,
                "action": Action.RESTART_EXCLUDING,
                "why": f"Xid {first.code} again at {where}: the fault follows the device; run NVIDIA's diagnostic on it",
            }
        )
    if first.isolate and len(repeating) + 1 >= _FATAL_REPEATS:
        return first.model_copy(update={"why": f"{first.why}; {len(repeating) + 1} times within a day: ask the vendor's support"})
    return first


def _follows_device(first: KernelFinding, earlier: Sequence[KernelFinding], bursts: Sequence[Sequence[KernelFinding]]) -> bool:
    if first.code == 13:
        return first.place is not None and any(finding.place == first.place for finding in earlier)
    gpus = {pci_key(finding.gpu) for burst in bursts for finding in burst if finding.event == first.event} | {pci_key(first.gpu)}
    programs = {finding.process.split(", ")[-1] for finding in (*earlier, first) if finding.process}
    return first.gpu is not None and len(gpus) == 1 and len(programs) > 1


# ------------------------------------------------------------------------------------------ over several nodes


class _Primaries:
    """First causes of all nodes by clock and time. Uptime counts from each node's own boot, so it says nothing across nodes."""

    def __init__(self, judged: Sequence[KernelFinding]) -> None:
        self._by: dict[tuple[Clock, str], list[tuple[float, int, KernelFinding]]] = defaultdict(list)
        for number, finding in enumerate(judged):
            if finding.role is Role.PRIMARY and finding.clock not in (None, Clock.UPTIME) and finding.clock_seconds is not None:
                self._by[finding.clock, finding.cause].append((finding.clock_seconds, number, finding))
        for found in self._by.values():
            found.sort(key=lambda entry: entry[:2])

    def of_other_nodes(self, finding: KernelFinding, cause: str) -> list[KernelFinding]:
        """Those with this cause, within a minute of `finding`, on other nodes."""
        if finding.clock is None or finding.clock_seconds is None:
            return []
        found = self._by.get((finding.clock, cause), [])
        first = bisect_left(found, finding.clock_seconds - _MINUTE, key=lambda entry: entry[0])
        last = bisect_right(found, finding.clock_seconds + _MINUTE, key=lambda entry: entry[0])
        return [other for _, _, other in found[first:last] if other.node != finding.node]

    def causes(self) -> set[str]:
        return {cause for _, cause in self._by}


def _common_causes(judged: Sequence[KernelFinding]) -> list[KernelFinding]:
    primaries = _Primaries(judged)
    return [_among_nodes(finding, primaries) for finding in judged]


def _among_nodes(finding: KernelFinding, primaries: _Primaries) -> KernelFinding:
    """Several nodes at once: the one whose device failed explains the others' consequences; the same fault on three or more nodes
    in one minute points at what they share (switch, power, file server), and then no single node is blamed."""
    if finding.role is not Role.PRIMARY:
        return finding
    alike = {other.node for other in primaries.of_other_nodes(finding, finding.cause)}
    if finding.isolate and len(alike) + 1 >= _COMMON_CAUSE_NODES:
        shared = f"{len(alike) + 1} nodes in one minute: look for what they share (switch, power, fabric) before blaming one"
        return finding.model_copy(
            update={
                "isolate": False,
                "action": Action.HOLD,
                "confidence": round(finding.confidence * 0.6, 3),
                "why": f"{shared}; {finding.why}",
            }
        )
    if not finding.isolate and finding.code in (*_APPLICATION_CODES, 137):
        # A survivor of a peer's death logs these: its own first line is a consequence of the node that isolates.
        peers = (other for cause in sorted(primaries.causes()) for other in primaries.of_other_nodes(finding, cause))
        device = next((other for other in peers if other.isolate and other.domain is Domain.HARDWARE), None)
        if device is not None:
            why = f"follows {device.event} on {device.node}; {finding.why}"
            return finding.model_copy(update={"role": Role.CONSEQUENCE, "action": Action.NONE, "why": why})
    return finding
