"""xid.yaml read once, and the verdict its rows give. Pure; xid.py and nvlink.py judge with it, bursts.py reads its rules over lines."""

from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import Field
from ruamel.yaml import YAML

from activities.gpu.findings import Role
from activities.records import Action, Confidence, Domain, Record

TABLE: Final = Path(__file__).with_name("xid.yaml")


class XidVerdict(Record):
    """What a message means by the tables, taken alone."""

    code: int
    name: str
    bucket: str = Field(description="NVIDIA's immediate action")
    investigate: str = ""
    cause: str = "unknown"
    domain: Domain = Domain.UNKNOWN
    role: Role = Role.PRIMARY
    isolate: bool = False
    confidence: Confidence = 0.3
    action: Action = Action.HOLD
    blame: int = 6
    why: str = ""
    known: bool = Field(default=True, description="False: no row decides, so a person has to look")


@cache
def table() -> dict[str, Any]:
    """xid.yaml, read once."""
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(TABLE)
    return loaded


@cache
def xid_rows() -> dict[int, dict[str, Any]]:
    return {row["code"]: row for row in table()["xids"]}


@cache
def sxid_rows() -> dict[int, dict[str, Any]]:
    return {row["code"]: row for row in table()["sxids"]}


def action_of(bucket: str, role: Role) -> Action:
    """A bucket's action for the job. Only a first cause asks for anything; one that needs nothing mended still needs a restart."""
    if role is not Role.PRIMARY:
        return Action.NONE
    action = Action(table()["buckets"][bucket]["action"])
    return Action.RESTART if action is Action.NONE else action
