"""The words the GPU rooms share: what one kernel line or one reading means, and how it ranks against others.

Pure records; xid.py, kernel.py, bursts.py and snapshot.py make them, the diagnosis engine reads them.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from pydantic import AwareDatetime, Field

from activities.records import Action, Confidence, Domain, Record


class Role(StrEnum):
    """What a line may claim inside one incident."""

    PRIMARY = "primary"  # may be the first cause
    CONSEQUENCE = "consequence"  # follows something else; never wins over another line, never blames a node
    NOTICE = "notice"  # true and worth telling, but it ends no job
    BENIGN = "benign"  # alarming words that mean nothing


class Clock(StrEnum):
    """Which clock a line's stamp was read from. Two stamps can be compared only on the same clock."""

    UTC = "utc"  # the stamp named its zone
    LOCAL = "local"  # a full date without a zone
    YEARLESS = "yearless"  # syslog's `May  6 11:03:44`
    UPTIME = "uptime"  # seconds since that node booted; not comparable between nodes


class KernelFinding(Record):
    """One kernel line that says something, or (after `judge_bursts`) the first cause of one burst on one node."""

    node: str | None = None
    gpu: str | None = Field(
        default=None, description="PCI address as the line wrote it, lower case; or a device of another kind in `device`"
    )
    device: str | None = Field(default=None, description="NIC, port, file system, process or memory bank the line names")
    at: AwareDatetime | None = Field(default=None, description="None where the line's stamp has no year or no date")
    clock: Clock | None = None
    clock_seconds: float | None = Field(default=None, description="the stamp in seconds on `clock`; None: the line has no stamp")
    line: int = Field(description="1-based line number in the text given")
    text: str
    event: str = Field(description="which row of the tables it is: xid_79, sxid_12028, nfs_not_responding")
    code: int | None = Field(default=None, description="Xid or SXid number")
    place: str | None = Field(default=None, description="GPC and TPC of an Xid 13, so that repeats can be compared")
    process: str | None = Field(default=None, description="pid and name as the driver wrote them")
    cause: str = "unknown"
    domain: Domain = Domain.UNKNOWN
    role: Role = Role.PRIMARY
    confidence: Confidence = 0.3
    isolate: bool = Field(default=False, description="keep the node out of the next attempt")
    action: Action = Action.HOLD
    why: str = ""
    blame: int = Field(default=6, description="order among lines of the same second; 1 is blamed first")
    count: int = Field(default=1, description="how often this event stands in the burst")
    dropped: int = Field(default=0, description="other events of the burst explained away as consequences")
    others: tuple[str, ...] = Field(default=(), description="their names, without repeats")
    in_job_log: bool = Field(default=False, description="found in a job's output, where anyone can print such a line")


class GpuFinding(Record):
    """What a reading of a GPU or a node says."""

    node: str | None = None
    gpu: str | None = Field(default=None, description="index, UUID or PCI address, as the reading named it; None: the whole node")
    reading: str = Field(description="which reading decided, in canonical form: remap_failure")
    value: str = Field(description="what it read, as text")
    cause: str = "unknown"
    domain: Domain = Domain.UNKNOWN
    role: Role = Role.PRIMARY
    confidence: Confidence = 0.3
    isolate: bool = False
    action: Action = Action.HOLD
    why: str = ""


def meaning_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a finding that one row of kernel_lines.yaml or readings.yaml tells. Only what may be a first cause asks for an act."""
    role = Role(row.get("role", Role.PRIMARY))
    return {
        "cause": row["cause"],
        "domain": Domain(row["domain"]),
        "role": role,
        "confidence": row["confidence"],
        "isolate": row.get("isolate", False),
        "action": Action(row.get("action", Action.NONE)) if role is Role.PRIMARY else Action.NONE,
        "why": row["why"],
    }


_ADDRESS: Final = re.compile(r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-7])?$", re.I)


def pci_key(address: str | None) -> str | None:
    """One spelling for a PCI address, for comparing only: the driver omits the function, lspci the domain, NVML writes eight digits."""
    if address is None:
        return None
    found = _ADDRESS.search(address.strip())
    if found is None:
        return address.strip().lower()
    domain = int(found["domain"] or "0", 16)
    return f"{domain:04x}:{found['bus']}:{found['device']}".lower()


def seconds_between(earlier: KernelFinding, later: KernelFinding) -> float | None:
    """Seconds between two lines; None where their stamps cannot be compared. Uptime that goes back is a reboot: no gap can be told."""
    if earlier.clock is None or earlier.clock is not later.clock or earlier.clock_seconds is None or later.clock_seconds is None:
        return None
    return later.clock_seconds - earlier.clock_seconds
