"""NVIDIA's error numbers: what one Xid or SXid means for recovery. Pure; the data is xid.yaml.

kernel.py calls it for kernel lines, snapshot.py for "last Xid" readings, the diagnosis engine for Xids quoted in job logs.
An Xid nobody has a row for, and an NVLink 5 error no row decodes, needs a person: never "nothing to do"
(NVSentinel lets an undecoded one through as NONE; health-monitors/syslog-health-monitor).
"""

import re
from typing import Any, Final

from activities.gpu.findings import Role
from activities.gpu.nvlink import NVLINK5_CODES, judge_nvlink, judge_nvlink5
from activities.gpu.xid_messages import SxidMessage, XidMessage, parse_sxid, parse_xid, place_of
from activities.gpu.xid_table import XidVerdict, action_of, sxid_rows, table, xid_rows
from activities.records import Action, Domain

__all__ = ["SxidMessage", "XidMessage", "XidVerdict", "judge_sxid", "judge_xid", "parse_sxid", "parse_xid", "place_of", "recovery_text"]

_PARENTHESES: Final = re.compile(r"\(([^()]*)\)")


def judge_xid(message: XidMessage, driver: str | None = None) -> XidVerdict:
    """What one Xid means, taken alone.

    Args:
        message: the message as parsed.
        driver: driver version, where known; it chooses the NVLink 5 layout. Without it both layouts are tried.
    """
    row = xid_rows().get(message.code)
    if row is None:
        retired = message.code in table()["retired_xids"]
        why = "NVIDIA no longer uses this number" if retired else "the number is not in NVIDIA's catalogue"
        return XidVerdict(
            code=message.code,
            name="RETIRED" if retired else "UNKNOWN",
            bucket="CONTACT_SUPPORT",
            why=f"Xid {message.code}: {why}; a person has to look",
            known=False,
        )
    verdict = _verdict(row)
    match message.code:
        case 74:
            return judge_nvlink(message, verdict)
        case 154:
            return _judge_recovery(message, verdict)
        case code if code in NVLINK5_CODES:
            return judge_nvlink5(message, verdict, driver)
        case _:
            return verdict


def judge_sxid(message: SxidMessage) -> XidVerdict:
    """What one SXid means. The line's own Fatal or Non-fatal overrules the table where the table says `potentially`."""
    row = sxid_rows().get(message.code)
    category = row["category"] if row else "potentially_fatal" if message.fatal else "non_fatal" if message.fatal is False else None
    if category is None:
        why = f"SXid {message.code} is in no table and the line names no severity; a person has to look"
        return XidVerdict(code=message.code, name="UNKNOWN", bucket="CONTACT_SUPPORT", known=False, why=why)
    if message.fatal is False and category in ("potentially_fatal", "fabric_setup", "app_or_peer_access"):
        category = "non_fatal"
    meaning = table()["sxid_categories"][category]
    name = row["name"] if row else "not in the table"
    verdict = XidVerdict(
        code=message.code,
        name=name,
        bucket=category,
        cause=meaning["cause"],
        domain=Domain(meaning["domain"]),
        role=Role(meaning["role"]),
        isolate=meaning["isolate"],
        confidence=meaning["confidence"] if row else min(0.5, meaning["confidence"]),
        action=Action(meaning["action"]),
        blame=2 if category == "always_fatal" else 4,
        why=f"NVSwitch error {message.code} ({name}): {meaning['mend']}",
    )
    # Where line and table disagree, or the line names no severity, a person decides.
    unsure = (category == "always_fatal" and message.fatal is False) or (verdict.isolate and message.fatal is None)
    if unsure:
        return verdict.model_copy(update={"action": Action.HOLD, "isolate": False, "confidence": 0.5})
    return verdict


def _verdict(row: dict[str, Any]) -> XidVerdict:
    """A row of the catalogue as it stands, before any decoding."""
    bucket, role = row["bucket"], Role(row["role"])
    waits = row["isolate"] and role is Role.NOTICE  # a repair that takes effect at the next reset (63, 156)
    mend = "the job goes on; reset the GPU before the next one" if waits else table()["buckets"][bucket]["mend"]
    return XidVerdict(
        code=row["code"],
        name=row["name"],
        bucket=bucket,
        investigate=row.get("investigate", ""),
        cause=row["cause"],
        domain=Domain(row["domain"]),
        role=role,
        isolate=row["isolate"],
        confidence=row["confidence"],
        action=action_of(bucket, role),
        blame=row["blame"],
        why=f"Xid {row['code']}: {row['means']}; {mend}",
    )


def recovery_text(message: XidMessage) -> str | None:
    """The bucket an Xid 154 asks for: the text in its last parentheses. None: not a 154; 'CONTACT_SUPPORT': a text we do not know."""
    if message.code != 154:
        return None
    texts = _PARENTHESES.findall(message.text)
    wanted = texts[-1].strip().lower() if texts else ""
    for text, bucket in table()["xid_154"].items():
        if text.lower() == wanted:
            return str(bucket)
    return "CONTACT_SUPPORT"


def _judge_recovery(message: XidMessage, verdict: XidVerdict) -> XidVerdict:
    """Xid 154 names no cause, only what must be done before the GPU is used again; bursts.py lets it set the action of the burst."""
    bucket = recovery_text(message) or "CONTACT_SUPPORT"
    asks = table()["buckets"][bucket]
    action = Action(asks["action"])
    return verdict.model_copy(
        update={
            "bucket": bucket,
            "action": action,
            "isolate": action is Action.RESTART_EXCLUDING,
            "why": f"Xid 154: the driver asks: {asks['mend']}",
            "known": bucket != "CONTACT_SUPPORT",
        }
    )
