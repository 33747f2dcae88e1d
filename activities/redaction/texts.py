"""Redacts what is made of texts: records that go into a history, JSON that leaves the site, fields of a log line. Pure."""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from activities.records import Record
from activities.redaction.redactor import redact, secrets_in

R = TypeVar("R", bound=Record)

_NAMES_A_SECRET = re.compile(r"(?i)pass|secret|token|key|auth|cookie|credential")


def redact_record(record: R) -> R:
    """The record with every text in it redacted: what a step returns stands in the workflow history for good."""
    plain = record.model_dump()
    left = redact_value(plain)
    return record if left is plain else type(record).model_validate(left)


def redact_value(value: Any) -> Any:
    """The value with every text in it redacted, at any depth; itself where it holds no secret.

    A text under a name such as `password` counts as assigned to it. Keys stay.
    """
    # Most values hold none: one look at all their texts tells it.
    if not secrets_in("\n".join(_texts(value)).encode("utf-8", "surrogatepass")):
        return value
    return _redacted(value)


def _texts(value: Any) -> Iterator[str]:
    match value:
        case Enum():
            return
        case str():
            yield value
        case Mapping():
            for key, item in value.items():
                yield from (f"{key}={item}",) if _is_named(key, item) else _texts(item)
        case tuple() | list():
            for item in value:
                yield from _texts(item)


def _redacted(value: Any) -> Any:
    match value:
        case Enum():
            return value
        case str():
            return redact(value)
        case Mapping():
            return {key: _redacted_under(key, item) if _is_named(key, item) else _redacted(item) for key, item in value.items()}
        case tuple() | list():
            return type(value)(_redacted(item) for item in value)
        case _:
            return value


def _is_named(key: object, item: object) -> bool:
    return isinstance(key, str) and isinstance(item, str) and not isinstance(item, Enum) and _NAMES_A_SECRET.search(key) is not None


def _redacted_under(key: str, item: str) -> str:
    before = f"{key}="
    named = redact(before + item)
    return redact(named.removeprefix(before)) if named.startswith(before) else redact(item)
