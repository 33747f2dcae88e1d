"""Reading NVIDIA's kernel messages: the words of one Xid or SXid as fields. Pure; what they mean is xid.py's business."""

import re
from typing import Final

from pydantic import Field

from activities.records import Record


class XidMessage(Record):
    """One Xid as the driver wrote it."""

    code: int
    gpu: str | None = Field(default=None, description="PCI address, lower case, as written")
    instance: str | None = Field(default=None, description="MIG instance, such as GPU-I:05")
    pid: int | None = None
    process: str | None = None
    text: str = ""


class SxidMessage(Record):
    """One SXid of an NVSwitch. `fatal` is None where the line does not say (its data lines do not)."""

    code: int
    switch: str | None = None
    fatal: bool | None = None
    link: int | None = None
    text: str = ""


# `NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, ...`; old drivers `Xid (0000:3b:00): 31, Ch ...`; MIG `Xid (PCI:0000:05:00 GPU-I:05): 94`.
_XID: Final = re.compile(
    r"\bXid\s*\(\s*(?:PCI:)?(?P<gpu>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)?(?:\s+(?P<mig>GPU-I:\d+))?[^)]{0,80}\)\s*:\s*(?P<code>\d{1,4})\b"
    r"(?P<rest>.*)",
    re.I | re.S,
)
# What others make of it: `Xid: 79`, `XID 79`, `XID error 79`. Only read where no driver message stands in the text.
_QUOTED: Final = re.compile(
    r"\bXid(?:[ _-]*(?:critical|errors?|event|code|number))*\s*[:=#]?\s*(?P<code>\d{1,4})\b(?P<rest>.*)", re.I | re.S
)
_PID: Final = re.compile(r"^\s*,?\s*pid\s*=\s*(?:(?P<pid>\d+)|'?<[^>]*>'?|[^,]*)\s*,?", re.I)
_NAME: Final = re.compile(r"^\s*name\s*=\s*(?P<name><[^>]*>|[^,]*)\s*,?", re.I)
_SXID: Final = re.compile(
    r"(?P<switch>nvidia-nvswitch\d+)?:?\s{0,4}SXid\s*\(\s*(?:PCI:)?(?P<address>[0-9a-f:.]+)[^)]{0,80}\)\s*:\s*(?P<code>\d{1,6})\s*,?\s*(?P<rest>.*)",
    re.I | re.S,
)
_LINK: Final = re.compile(r"\bLink\s+(\d+)", re.I)
_FATAL: Final = re.compile(r"^\s*(?P<no>non-?\s?)?fatal\b", re.I)
_PLACE: Final = re.compile(r"\bGPC\s*(\d+)\s*,\s*TPC\s*(\d+)", re.I)


def parse_xid(text: str) -> XidMessage | None:
    """The first Xid message in `text`, or None. A number in prose counts only right behind the word Xid."""
    found = _XID.search(text) or _QUOTED.search(text)
    if found is None:
        return None
    groups = found.groupdict()
    rest = groups["rest"]
    pid = name = None
    if taken := _PID.match(rest):
        pid = taken["pid"]
        rest = rest[taken.end() :]
    if taken := _NAME.match(rest):
        name = taken["name"].strip()
        rest = rest[taken.end() :]
    return XidMessage(
        code=int(groups["code"]),
        gpu=groups["gpu"].lower() if groups.get("gpu") else None,
        instance=groups.get("mig"),
        pid=int(pid) if pid and len(pid) < 12 else None,
        process=name if name and not name.startswith("<") else None,
        text=rest.strip(" ,"),
    )


def parse_sxid(text: str) -> SxidMessage | None:
    """The first SXid message in `text`, or None. Its data lines (`Severity 0 Engine instance ...`) carry no Fatal or Non-fatal."""
    found = _SXID.search(text)
    if found is None:
        return None
    rest = found["rest"]
    word = _FATAL.match(rest)
    link = _LINK.search(rest)
    return SxidMessage(
        code=int(found["code"]),
        switch=found["switch"],
        fatal=None if word is None else word["no"] is None,
        link=int(link[1]) if link and len(link[1]) < 6 else None,
        text=rest.strip(),
    )


def place_of(message: XidMessage) -> str | None:
    """Where on the die an Xid 13 happened (`GPC 1, TPC 2`), so that repeats at one place can be told from a program's fault."""
    found = _PLACE.search(message.text)
    return f"GPC {int(found[1])}, TPC {int(found[2])}" if found else None
