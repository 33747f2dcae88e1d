"""Situations for the policy's tests: all that one recommendation rests on."""

from datetime import timedelta
from typing import Any

from activities.configuration import PolicySection
from activities.policy import Situation
from activities.records import (
    Attribution,
    JobState,
    LedgerEntry,
    Mode,
    Node,
)
from tests.builders import (
    NOON,
    a_crash,
    a_diagnosis,
    a_job,
    a_node,
    a_suspect,
    after,
    an_attribution,
    node_names,
    some_progress,
)

NO_BLAME = Attribution()
POLICY = PolicySection()


def some_nodes(count: int, **changes: Any) -> tuple[Node, ...]:
    return tuple(a_node(name, **changes) for name in node_names(count))


def a_situation(**changes: Any) -> Situation:
    """A hardware crash of job 17 traced to node-002, in a partition of 40 nodes."""
    defaults: dict[str, Any] = {
        "symptom": a_crash(),
        "diagnosis": a_diagnosis(),
        "attribution": an_attribution(a_suspect()),
        "job": a_job(state=JobState.FAILED, ended_at=after(61)),
        "nodes": some_nodes(40),
        "progress": some_progress(),
        "mode": Mode.AUTO,
        "now": after(65),
        "min_job_age": timedelta(seconds=300),
        "incident_id": "i-1",
        "corroborated": ("node-002",),
    }
    return Situation(**{**defaults, **changes})


def an_entry(node: str, **changes: Any) -> LedgerEntry:
    defaults: dict[str, Any] = {"node": node, "implicated_at": NOON, "job_id": "9", "cause": "ecc_uncorrectable", "partition": "train"}
    return LedgerEntry(**{**defaults, **changes})
