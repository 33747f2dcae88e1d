"""Which line of an incident came first: bursts per node, consequences dropped and counted, common causes of several nodes. Pure.

kernel.py hands the lines over, the diagnosis engine asks. The rules and their sources stand in xid.yaml (`combinations`, windows) and here.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from activities.gpu.findings import Clock, KernelFinding, Role, pci_key
from activities.gpu.xid_table import table, xid_rows
from activities.records import Action, Domain

_MINUTE: Final = 60.0
_COMMON_CAUSE_NODES: Final = 3  # this many nodes with one cause in one minute point at what they share
_RELOAD_CLEARS_AFTER: Final = 60.0  # seconds; a probe that fails *while* the driver loads is not cleared by that load
_LEAP_YEAR: Final = 366 * 86400.0  # kernel.py reads stamps that name no year as of 2000
_CLEARING: Final = ("driver_loaded", "booted")
_APPLICATION_CODES: Final = (13, 31)
_WORD_ONLY: Final = (43, 45, 154)  # never win over another line
_RECOVERY: Final = 154
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
        firsts = [_judge_burst(burst) for burst in bursts]
        loads = [finding for finding in of_node if finding.event in _CLEARING]
        judged += [kept for first in _with_repeats(bursts, firsts) if (kept := _within(first, since, loads)) is not None]
    return tuple(sorted(_common_causes(judged), key=lambda finding: finding.line))


# ---------------------------------------------------------------------------------------------------- one node


def _gap(earlier: KernelFinding, later: KernelFinding) -> float | None:
    """Seconds between two lines; None where their stamps cannot be compared. Uptime that goes back is a reboot: no gap can be told."""
    if earlier.clock is None or earlier.clock is not later.clock or earlier.clock_seconds is None or later.clock_seconds is None:
        return None
    return later.clock_seconds - earlier.clock_seconds


def _bursts(findings: Sequence[KernelFinding]) -> list[list[KernelFinding]]:
    """Lines of one node, cut where it was silent for three minutes. Lines without comparable stamps stay together."""
    silence = table()["burst_gap_seconds"]
    bursts: list[list[KernelFinding]] = []
    for finding in (finding for finding in findings if finding.role is not Role.BENIGN):
        gap = _gap(bursts[-1][-1], finding) if bursts else None
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
            up.device == down.device and up.line > down.line and ((gap := _gap(down, up)) is None or 0 <= gap <= silence) for up in ups
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


def _xid_codes(burst: Sequence[KernelFinding]) -> set[int]:
    return {finding.code for finding in burst if finding.code is not None and finding.event.startswith("xid_")}


def _first(burst: Sequence[KernelFinding]) -> KernelFinding:
    """The line to blame: isolating first causes before the others, among them the earliest, within one second the order of blame.

    43, 45 and 154 never win. A fault of the device beats an earlier 13, 31 or 137, because survivors of a dying GPU log those."""
    candidates = [finding for finding in burst if finding.role is Role.PRIMARY and finding.code not in _WORD_ONLY]
    strong = [finding for finding in candidates if finding.isolate]
    unsure = [finding for finding in candidates if finding.domain is not Domain.APPLICATION]
    if not candidates:
        order = [Role.PRIMARY, Role.NOTICE, Role.CONSEQUENCE, Role.BENIGN]
        return min(burst, key=lambda finding: (order.index(finding.role), finding.blame, finding.line))
    pool = strong or unsure or candidates
    earliest = pool[0]
    # Stamps have the resolution of a second (syslog) and one event's lines share it; beyond that the earlier line wins.
    level = [finding for finding in pool if (gap := _gap(earliest, finding)) is not None and 0 <= gap <= 1.0]
    return min(level or [earliest], key=lambda finding: (finding.blame, finding.line))


def _judge_burst(burst: Sequence[KernelFinding]) -> KernelFinding:
    first = _first(burst)
    codes = _xid_codes(burst)
    if first.code is not None and first.event.startswith("xid_"):
        first = _combined(first, codes)
    first = _with_recovery(_with_victims(first, burst), burst)
    same = [finding for finding in burst if finding.event == first.event and finding.gpu == first.gpu and finding.device == first.device]
    rest = [finding for finding in burst if finding not in same]
    others = tuple(dict.fromkeys(finding.event for finding in rest))
    return first.model_copy(update={"count": len(same), "dropped": len(rest), "others": others})


def _combined(first: KernelFinding, codes: set[int]) -> KernelFinding:
    for row in table()["combinations"]:
        together = all(code in codes for code in row["with"]) and (not row["any"] or any(code in codes for code in row["any"]))
        if not together or codes & set(row["without"]) or first.code not in row["firsts"]:
            continue
        return first.model_copy(
            update={
                "cause": row["cause"],
                "domain": Domain.SYSTEM_SOFTWARE if row["cause"] == "xid_137_peer_access_error" else Domain.HARDWARE,
                "role": Role.PRIMARY,
                "isolate": row["isolate"],
                "action": Action(row["action"]),
                "confidence": max(first.confidence, 0.85) if row["isolate"] else first.confidence,
                "why": row["why"],
            }
        )
    return first


_CAUSED_BY = re.compile(r"caused by previous Xid (\d+)")
_NETIR: Final = "xid_149_nvlink_netir"


def _with_victims(first: KernelFinding, burst: Sequence[KernelFinding]) -> KernelFinding:
    """Xid 45 of newer drivers names the Xid that tore a process's channels down: what NVIDIA's table calls ignorable was not, then."""
    named = {int(found[1]) for finding in burst if finding.code == 45 and (found := _CAUSED_BY.search(finding.text))}
    if first.code == 45 and (unseen := _named_alone(named, burst)) is not None:
        return unseen
    lost_packets = (finding for finding in burst if finding.code == 145 or (finding.code == 45 and "previous Xid 145" in finding.text))
    has_victims = any(pci_key(finding.gpu) != pci_key(first.gpu) for finding in lost_packets)
    if first.cause == "xid_149_nvlink_link_down" and has_victims and "LINK_DOWN" not in first.text:
        return first.model_copy(update={"cause": _NETIR, "why": f"{first.why}; other GPUs lost packets for it"})
    is_of_it = first.code in named and first.cause in ("xid_145_nvlink_nonfatal", "xid_145_nvlink_fabric")
    if first.isolate or 145 not in named or not (is_of_it or first.code == 45):
        return first
    # Beside a link that went down elsewhere on the fabric the neighbours die of a Nonfatal 145 (open-gpu-kernel-modules#1150): only
    # what calls itself Fatal names its node (#1355, until a reboot).
    fatal = is_of_it and "Nonfatal" not in first.text
    because = "but a process's channels were torn down for Xid 145"
    return _as_fabric_fault(first, because, isolate=fatal, confidence=0.72 if is_of_it else 0.6)


def _named_alone(named: set[int], burst: Sequence[KernelFinding]) -> KernelFinding | None:
    """The fault that only the lines of its victims still tell: the ring buffer has lost its own (open-gpu-kernel-modules#1150)."""
    rows = [row for code in named if (row := xid_rows().get(code)) is not None and row["isolate"] and row["role"] == Role.PRIMARY]
    if not rows or named == {145}:
        return None  # an Xid 145 may be a neighbour's
    row = min(rows, key=lambda row: (row["code"] == 145, row["blame"]))
    told = next(finding for finding in burst if (found := _CAUSED_BY.search(finding.text)) and int(found[1]) == row["code"])
    return told.model_copy(
        update={
            "cause": _NETIR if row["code"] == 149 else row["cause"],  # which event of the link it was, nobody says
            "domain": Domain(row["domain"]),
            "role": Role.PRIMARY,
            "isolate": True,
            "action": Action.RESTART_EXCLUDING,
            "confidence": round(0.9 * row["confidence"], 3),
            "why": f"a process's channels were torn down for Xid {row['code']}: {row['means']}",
        }
    )


def _as_fabric_fault(first: KernelFinding, because: str, *, isolate: bool, confidence: float) -> KernelFinding:
    """An Xid 145 that NVIDIA's table would have ignored, taken for the fault it was."""
    return first.model_copy(
        update={
            "cause": "xid_145_nvlink_fabric",
            "domain": Domain.HARDWARE,
            "role": Role.PRIMARY,
            "isolate": isolate,
            "action": Action.RESTART_EXCLUDING if isolate else Action.HOLD,
            "confidence": confidence,
            "why": f"{first.why}; {because}",
        }
    )


def _with_recovery(first: KernelFinding, burst: Sequence[KernelFinding]) -> KernelFinding:
    """Xid 154 sets the action for the GPU it names. Alone it tells that a GPU is unusable, but not why."""
    recovery = [finding for finding in burst if finding.event == f"xid_{_RECOVERY}"]
    if not recovery:
        return first
    asked = recovery[-1]
    if first is asked or first.event == asked.event:
        role = Role.PRIMARY if asked.isolate or asked.action is Action.HOLD else Role.BENIGN
        return asked.model_copy(update={"role": role, "action": asked.action if role is Role.PRIMARY else Action.NONE})
    if first.role is Role.PRIMARY and asked.isolate and pci_key(first.gpu) in (None, pci_key(asked.gpu)):
        return first.model_copy(
            update={
                "isolate": True,
                "action": Action.RESTART_EXCLUDING,
                "gpu": first.gpu or asked.gpu,
                "confidence": round(min(0.97, first.confidence + 0.05), 3),
                "why": f"{first.why}; {asked.why}",
            }
        )
    if first.cause == "xid_145_nvlink_nonfatal" and asked.isolate and pci_key(first.gpu) in (None, pci_key(asked.gpu)):
        # The table says ignore, the driver asks for a reset of this very GPU: what it asks counts (facts/attribution section 4, 154).
        return _as_fabric_fault(first, asked.why, isolate=True, confidence=0.72)
    if not first.isolate and asked.isolate:
        # The driver condemned another GPU than the one the first line names: keep the node out, but say so.
        return first.model_copy(
            update={"isolate": True, "action": Action.RESTART_EXCLUDING, "why": f"{first.why}; GPU {asked.gpu}: {asked.why}"}
        )
    return first


# ------------------------------------------------------------------------------------------- over several bursts


def _within(first: KernelFinding, since: datetime | None, loads: Sequence[KernelFinding]) -> KernelFinding | None:
    if since is None or not _is_before(first, since):
        return first
    cleared = any((gap := _gap(first, load)) is not None and gap > _RELOAD_CLEARS_AFTER for load in loads)
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
        gap = _gap(finding, first)
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
