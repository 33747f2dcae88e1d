"""The same log, carried differently, is judged the same: every carrier on a share of the recorded cases, each case on some carriers.

`python -m tests.cases.test_carriers [CARRIER…]` tries all cases on all carriers (two minutes) and prints what differs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from activities.diagnosis.casefile import read_case
from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import Signals
from tests.cases import score
from tests.cases.carriers import CARRIERS

EVERY = 12
# Times, prefixes, a node's name, `nan` in a dict, a traceback that is ignored: carriers changed the verdict on these.
TELLING = ("079-", "126-", "228-", "268-", "307-")


@dataclass(frozen=True)
class Verdict:
    """What must not depend on the carrier."""

    symptom: str
    domain: str
    cause: str
    blamed: frozenset[str]
    excluded: frozenset[str]


@cache
def engine() -> Engine:
    return Engine()


@cache
def cases() -> Sequence[tuple[str, Signals, Mapping[str, Any], Verdict]]:
    """Every case with a log, and the verdict on it as it lies."""
    found = []
    for path in sorted(path for place in ("dev", "more") for path in (score.HERE / place).glob("*.yaml")):
        signals, document = read_case(path)
        if signals.logs:
            found.append((path.stem, signals, document["expected"], verdict(path.stem, signals, document["expected"])))
    return found


def verdict(name: str, signals: Signals, expected: Mapping[str, Any]) -> Verdict:
    scored = score.judged(name, signals, expected, engine())
    diagnosis = scored.judgement.diagnosis
    return Verdict(
        str(scored.judgement.symptom), str(diagnosis.domain), diagnosis.cause, frozenset(scored.blamed), frozenset(scored.excluded)
    )


def carried(signals: Signals, carry: Callable[[str], str]) -> Signals:
    logs = (log.model_copy(update={"data": carry((log.data or b"").decode()).encode()}) for log in signals.logs)
    return signals.model_copy(update={"logs": tuple(logs)})


def differing(carrier: str, *, every: int = 1) -> dict[str, tuple[Verdict, Verdict]]:
    """Cases whose verdict changes: as it was, as it is."""
    shift = list(CARRIERS).index(carrier)
    return {
        name: (before, after)
        for number, (name, signals, expected, before) in enumerate(cases())
        if (number % every == shift % every or name.startswith(TELLING))
        and (after := verdict(name, carried(signals, CARRIERS[carrier]), expected)) != before
    }


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_log_is_judged_the_same_however_it_was_carried(carrier: str) -> None:
    assert differing(carrier, every=EVERY) == {}


if __name__ == "__main__":
    for asked in sys.argv[1:] or CARRIERS:
        found = differing(asked)
        print(f"{asked:<36}{len(found):4} of {len(cases())} differ", flush=True)
        for case, (was, became) in found.items():
            print(f"    {case}\n        {was}\n        {became}")
