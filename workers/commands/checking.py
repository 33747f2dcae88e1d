"""One line of `doctor`, and how the checks write theirs."""

from enum import StrEnum

from activities.records import Record


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Check(Record):
    """One line of `doctor`."""

    name: str
    status: Status
    found: str
    mend: str = ""


def ok(name: str, found: str) -> Check:
    return Check(name=name, status=Status.OK, found=found)


def warning(name: str, found: str, mend: str) -> Check:
    return Check(name=name, status=Status.WARNING, found=found, mend=mend)


def failed(name: str, found: str, mend: str) -> Check:
    return Check(name=name, status=Status.FAILED, found=found, mend=mend)
