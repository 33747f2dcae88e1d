"""NVLink errors decoded before anyone is blamed: the registers of Xid 74 (A100, H100) and the words of Xid 144-150 (NVLink 5). Pure.

xid.py calls it; the bits and rows are xid.yaml's `xid_74_bits` and `nvlink5`.
"""

import re
from typing import Any, Final, NamedTuple

from activities.gpu.findings import Role
from activities.gpu.xid_messages import XidMessage
from activities.gpu.xid_table import XidVerdict, action_of, table
from activities.records import Action, Domain

NVLINK5_CODES: Final = range(144, 151)
_NVLINK5: Final = re.compile(
    r"(?<![A-Z0-9_])(?P<unit>[A-Z][A-Z0-9_]{0,40}(?: Degraded)?)\s{1,8}(?P<no>Non-?)?Fatal\s{1,8}XC(?P<xc>[01])\s{1,8}"
    r"i(?P<injected>[01])\s{1,8}Link\s{1,8}(?P<link>-?\d{1,6})\s{0,8}"
    r"\((?P<words>[0-9a-fx ,]+)\)",
    re.I,
)
_REGISTERS: Final = re.compile(r"\(((?:\s*0x[0-9a-f]+\s*,){2,}\s*0x[0-9a-f]+\s*)\)", re.I)
_DRIVER: Final = re.compile(r"\b(\d{3})(?:\.\d+)")
_V2_FROM: Final = 575  # driver branch from which intrInfo has the second layout


def driver_branch(version: str | None) -> int | None:
    """575 of `575.57.08`; None where the version cannot be read."""
    found = _DRIVER.search(version or "")
    return int(found[1]) if found else None


def judge_nvlink(message: XidMessage, verdict: XidVerdict) -> XidVerdict:
    """Xid 74 (A100, H100): a neighbour logs it when a peer dies, so the register bits are read before blaming."""
    found = _REGISTERS.search(message.text)
    registers = [int(word.strip(), 16) for word in found[1].split(",")] if found else []
    groups = {
        group
        for register, bits in table()["xid_74_bits"].items()
        if int(register) <= len(registers)
        for group, positions in bits.items()
        if any(registers[int(register) - 1] >> position & 1 for position in positions)
    }
    meanings = [(table()["xid_74_groups"][group], group) for group in sorted(groups)]
    primary = [(meaning, group) for meaning, group in meanings if meaning["role"] == Role.PRIMARY]
    if not meanings:
        # Nothing we can decode: the driver's word `fatal` stands; without it a person has to look.
        if "fatal" in message.text.lower():
            return verdict.model_copy(update={"confidence": 0.75})
        return verdict.model_copy(update={"isolate": False, "action": Action.HOLD, "confidence": 0.4, "known": False})
    severity = [Role.PRIMARY, Role.CONSEQUENCE, Role.NOTICE, Role.BENIGN]
    meaning, group = primary[0] if primary else min(meanings, key=lambda pair: severity.index(Role(pair[0]["role"])))
    role = Role(meaning["role"])
    return verdict.model_copy(
        update={
            "role": role,
            "isolate": meaning["isolate"],
            "bucket": meaning["bucket"],
            "action": action_of(meaning["bucket"], role),
            "confidence": 0.9 if role is Role.PRIMARY else 0.7,
            "blame": 4 if role is Role.PRIMARY else 7,
            "why": f"Xid 74: register bits say {group.replace('_', ' ')}; {table()['buckets'][meaning['bucket']]['mend']}",
        }
    )


def _mask_fits(mask: str, value: int) -> bool:
    """`mask` is 32 characters, highest bit first; `-` is any."""
    return all(wanted == "-" or int(wanted) == value >> (len(mask) - 1 - place) & 1 for place, wanted in enumerate(mask))


def _layouts(driver: str | None) -> tuple[str, ...]:
    branch = driver_branch(driver)
    if branch is None:
        return ("v1", "v2")
    return ("v2",) if branch >= _V2_FROM else ("v1",)


def _row_fits(row: dict[str, Any], layout: str, intr_info: int, status: int) -> str | None:
    """The bucket this row gives, or None. Rows of 144-148 name one bit of errorStatus, rows of 149 the whole word."""
    wanted = row["status"]
    if wanted != "any" and not (status == wanted if row["code"] >= 149 else status & wanted):
        return None
    if _mask_fits(row[layout], intr_info):
        return str(row["bucket"])
    promoted = row.get(f"promoted_{layout}")
    return str(row["promoted_bucket"]) if promoted and _mask_fits(promoted, intr_info) else None


class _Decoded(NamedTuple):
    """An Xid 144-150 as NVIDIA's table reads it."""

    unit: str
    link: str
    says_fatal: bool
    bucket: str
    row: dict[str, Any]


def judge_nvlink5(message: XidMessage, verdict: XidVerdict, driver: str | None) -> XidVerdict:
    """Xid 144-150 by unit, intrInfo in the driver's layout and errorStatus; undecoded ones need a person."""
    decoded = _decoded(message, driver)
    if decoded is None:
        why = f"Xid {message.code}: not in NVIDIA's NVLink 5 table; a person has to look"
        return verdict.model_copy(update={"isolate": False, "action": Action.HOLD, "confidence": 0.3, "known": False, "why": why})
    judged = {"RESET_GPU": _asks_for_a_reset, "XID_154_EVAL": _left_to_xid_154}.get(decoded.bucket, _ignored)
    told = {"bucket": decoded.bucket, "investigate": decoded.row["investigate"]}
    return verdict.model_copy(update=told | judged(message.code, decoded))


def _decoded(message: XidMessage, driver: str | None) -> _Decoded | None:
    found = _NVLINK5.search(message.text)
    words = [int(word, 16) for word in re.findall(r"0x[0-9a-f]{1,8}\b", found["words"], re.I)] if found else []
    if found is None or len(words) < 2:
        return None
    unit, intr_info, status = found["unit"].upper(), words[0], words[1]
    rows = [row for row in table()["nvlink5"] if row["code"] == message.code and unit in [name.upper() for name in row["unit"].split("/")]]
    fits = [
        (row, bucket) for row in rows for layout in _layouts(driver) if (bucket := _row_fits(row, layout, intr_info, status)) is not None
    ]
    if not fits:
        return None
    weight = {"RESET_GPU": 2, "XID_154_EVAL": 1}
    row, bucket = max(fits, key=lambda pair: weight.get(pair[1], 0))
    covered = row["code"] >= 149 or bucket == "RESET_GPU" or _all_bits_known(rows, status)
    return _Decoded(unit, found["link"], found["no"] is None, bucket, row) if covered else None


def _asks_for_a_reset(code: int, line: _Decoded) -> dict[str, Any]:
    at_peer = bool(line.row.get("at_peer"))
    # The kernel's own Nonfatal against the table's reset is a disagreement people must see (NVSentinel#1357): they decide.
    disagrees = not line.says_fatal
    peer = "; the reason code points at the peer device" if at_peer else ""
    return {
        "cause": _nvlink5_cause(code, line.unit),
        "isolate": True,
        "action": Action.HOLD if disagrees else Action.RESTART_EXCLUDING,
        "confidence": 0.5 if disagrees else 0.7 if at_peer else 0.9,
        "why": _mend_in_words(code, line) + peer + ("; the line itself says Nonfatal" if disagrees else ""),
    }


def _left_to_xid_154(code: int, line: _Decoded) -> dict[str, Any]:
    seen_by_victim = line.unit == "RLW_SRC_TRACK"
    role = Role.CONSEQUENCE if seen_by_victim else Role.PRIMARY
    victim = "; packets lost as the victim sees it, look for the link that went down" if seen_by_victim else ""
    return {
        "role": role,
        "cause": "xid_145_nvlink_fabric",
        "isolate": False,
        "action": action_of(line.bucket, role),
        "confidence": 0.5,
        "blame": 7,
        "why": _mend_in_words(code, line) + victim,
    }


def _ignored(code: int, line: _Decoded) -> dict[str, Any]:
    says = ", the line says Fatal" if line.says_fatal else ""
    return {
        "role": Role.NOTICE if line.unit == "NETIR_BER_EVENT" or line.says_fatal else Role.BENIGN,
        "cause": "xid_145_nvlink_nonfatal",
        "domain": Domain.NONE,
        "isolate": False,
        "action": Action.NONE,
        "confidence": 0.5 if line.says_fatal else 0.85,
        "blame": 8,
        "why": f"Xid {code} {line.unit} on link {line.link}: NVIDIA's table says ignore{says}",
    }


def _mend_in_words(code: int, line: _Decoded) -> str:
    return f"Xid {code} {line.unit} on link {line.link}: {table()['buckets'][line.bucket]['mend']}"


def _all_bits_known(rows: list[dict[str, Any]], status: int) -> bool:
    known = 0
    for row in rows:
        known |= 0xFFFFFFFF if row["status"] == "any" else row["status"]
    return not status & ~known


def _nvlink5_cause(code: int, unit: str) -> str:
    """The cause slug: links that went down, the link's internal errors, and everything that travels the fabric."""
    if code == 150 or unit in ("NETIR", "NETIR_INT", "NETIR_MFDE_EVENT"):
        return "xid_149_nvlink_netir"
    return "xid_149_nvlink_link_down" if code == 149 else "xid_145_nvlink_fabric"
