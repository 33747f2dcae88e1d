"""The line of one burst that is to blame, and what the lines beside it make of it. Pure; bursts.py calls `first_of`.

The rules and their sources stand in xid.yaml (`combinations`) and here."""

import re
from collections.abc import Sequence
from typing import Final

from activities.gpu.findings import KernelFinding, Role, pci_key, seconds_between
from activities.gpu.xid_table import table, xid_rows
from activities.records import Action, Domain

_WORD_ONLY: Final = (43, 45, 154)  # never win over another line
_RECOVERY: Final = 154
_CAUSED_BY: Final = re.compile(r"caused by previous Xid (\d+)")
_NETIR: Final = "xid_149_nvlink_netir"


def first_of(burst: Sequence[KernelFinding]) -> KernelFinding:
    """The first cause of a burst, with the rest counted in `dropped` and named in `others`."""
    first = _first(burst)
    codes = _xid_codes(burst)
    if first.code is not None and first.event.startswith("xid_"):
        first = _combined(first, codes)
    first = _with_recovery(_with_victims(first, burst), burst)
    same = [finding for finding in burst if finding.event == first.event and finding.gpu == first.gpu and finding.device == first.device]
    rest = [finding for finding in burst if finding not in same]
    others = tuple(dict.fromkeys(finding.event for finding in rest))
    return first.model_copy(update={"count": len(same), "dropped": len(rest), "others": others})


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
    level = [finding for finding in pool if (gap := seconds_between(earliest, finding)) is not None and 0 <= gap <= 1.0]
    return min(level or [earliest], key=lambda finding: (finding.blame, finding.line))


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
        # The table says ignore, the driver asks for a reset of this very GPU: what it asks counts (docs/attribution.md §4, 154).
        return _as_fabric_fault(first, asked.why, isolate=True, confidence=0.72)
    if not first.isolate and asked.isolate:
        # The driver condemned another GPU than the one the first line names: keep the node out, but say so.
        return first.model_copy(
            update={"isolate": True, "action": Action.RESTART_EXCLUDING, "why": f"{first.why}; GPU {asked.gpu}: {asked.why}"}
        )
    return first
