"""Single values of Slurm's JSON, in every version's shape. Pure; called by `parsing.py`.

22.05 prints plain values, 23.02 and later `{"set", "infinite", "number"}`. What cannot be told becomes None, never a guess.
"""

import math
from datetime import datetime
from typing import Any

from activities.records import utc
from activities.slurm import hostlist

_NO_VALUE = 0xFFFFFFFD  # slurm.h: NO_VAL is 0xfffffffe, INFINITE 0xffffffff; older parsers print them as they are


def number(value: Any) -> int | None:
    """A number in either shape; None for unset, infinite and Slurm's NO_VAL."""
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or abs(value) >= 2**53:  # json-c prints NaN and Infinity
        return None
    return None if _NO_VALUE < value <= 0xFFFFFFFF else int(value)


def moment(value: Any) -> datetime | None:
    seconds = number(value)
    return utc(seconds) if seconds and 0 < seconds < 2**36 else None


def text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(part) for part in value)
    return value if isinstance(value, str) else ""


def words(value: Any) -> tuple[str, ...]:
    return tuple(word for word in text(value).split(",") if word)


def node_names(value: Any) -> tuple[str, ...]:
    """An expression that cannot be read stays as it is, one unknown name: it must blind us neither to the job nor to the others."""
    expression = text(value)
    try:
        return hostlist.expand(expression)
    except hostlist.HostlistInvalid:
        return (expression,)


def yes_or_no(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    told = number(value)
    return None if told is None else told != 0


def exit_status(value: Any) -> tuple[int | None, int | None]:
    """Exit code and signal, from a wait status (22.05: 768 is exit code 3, 9 is SIGKILL) or from the verbose object."""
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal")
        signal_number = number(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else None
        code = number(value["return_code"])
        if code is None and signal_number:
            code = 0  # as scontrol prints it: 0:9
        return code, signal_number or None
    status = number(value)
    if status is None:
        return None, None
    return status >> 8, (status & 0x7F) or None
