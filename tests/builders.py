"""Small builders for every record: name what the test is about, the rest is plausible and fixed. Used by all tests."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.records import (
    Action,
    Attempt,
    Attribution,
    Decision,
    DecisionKind,
    Diagnosis,
    Domain,
    Evidence,
    Excerpt,
    Implication,
    Incident,
    Job,
    JobKey,
    JobState,
    Judgement,
    Node,
    NodeState,
    OptIn,
    PastIncident,
    Phase,
    PrimaryEvent,
    Progress,
    Recommendation,
    Signal,
    SignalSource,
    Suspect,
    Symptom,
    SymptomKind,
)

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
"""The moment most tests start at: a whole second, as Slurm tells times."""

ECC_LINE = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
"""A fatal line as PyTorch prints it."""


def after(seconds: float) -> datetime:
    """`NOON` and so many seconds."""
    return NOON + timedelta(seconds=seconds)


def node_names(count: int) -> tuple[str, ...]:
    return tuple(f"node-{number:03d}" for number in range(1, count + 1))


def _made(defaults: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {**defaults, **changes}


def a_job(job_id: str = "17", **changes: Any) -> Job:
    """A batch job that runs on node-001 and node-002 since `NOON`."""
    base, _, task = job_id.partition("_")
    array = {"array_job_id": int(base), "array_task_id": int(task)} if task else {}
    running = changes.get("state", JobState.RUNNING) is not JobState.PENDING
    defaults = {
        "job_id": job_id, "numeric_id": int(base.partition("+")[0]), "name": "train", "user": "alice", "account": "research",
        "partition": "train", "state": JobState.RUNNING, "reason": "None", "nodes": node_names(2) if running else (),
        "node_count": 2, "task_count": 4, "submitted_at": NOON, "eligible_at": NOON, "started_at": NOON if running else None,
        "is_batch": True, "may_requeue": True, "exit_code": 0, "exit_signal": None, "comment": "backstay", **array,
    }  # fmt: skip
    return Job(**_made(defaults, changes))


def a_node(name: str = "node-001", **changes: Any) -> Node:
    """A healthy node, allocated."""
    defaults = {"name": name, "state": NodeState.ALLOCATED, "partitions": ("train",), "booted_at": NOON - timedelta(days=30)}
    return Node(**_made(defaults, changes))


def a_key(job_id: str = "17", **changes: Any) -> JobKey:
    return JobKey(**_made({"cluster": "alpha", "job_id": job_id, "submitted_at": NOON}, changes))


def an_attempt(**changes: Any) -> Attempt:
    return Attempt(**_made({"key": a_key(), "restart_count": 0, "nodes": node_names(2), "started_at": NOON}, changes))


def an_opt_in(**changes: Any) -> OptIn:
    return OptIn(**_made({"opted_in": True}, changes))


def a_signal(text: str = ECC_LINE, **changes: Any) -> Signal:
    return Signal(**_made({"source": SignalSource.LOG, "at": after(60), "text": text}, changes))


def some_progress(iteration: int | None = 120, **changes: Any) -> Progress:
    """An attempt that trains: a step a second, a checkpoint at iteration 100."""
    defaults = {
        "phase": Phase.TRAINING, "phase_since": NOON, "iteration": iteration, "iteration_at": after(60), "first_iteration": 1,
        "checkpoint_iteration": 100, "checkpoint_at": after(40), "step_seconds": 1.0, "baseline_step_seconds": 1.0,
        "checkpoint_interval_seconds": 20.0,
    }  # fmt: skip
    return Progress(**_made(defaults, changes))


def an_implication(node: str = "node-002", **changes: Any) -> Implication:
    """The output of alice's job 17 says so."""
    return Implication(**_made({"node": node, "at": NOON, "job_id": "17", "user": "alice", "said": ECC_LINE}, changes))


def a_symptom(kind: SymptomKind = SymptomKind.CRASH, **changes: Any) -> Symptom:
    defaults = {"kind": kind, "onset": after(60), "detected_at": after(62), "summary": f"a {kind} for a test"}
    return Symptom(**_made(defaults, changes))


def a_crash(**changes: Any) -> Symptom:
    return a_symptom(SymptomKind.CRASH, **changes)


def a_hang(**changes: Any) -> Symptom:
    return a_symptom(SymptomKind.HANG, **changes)


def an_excerpt(text: str = ECC_LINE, **changes: Any) -> Excerpt:
    defaults = {"source": SignalSource.LOG, "title": "slurm-17.out", "text": text, "sha256": "0" * 64}
    return Excerpt(**_made(defaults, changes))


def some_evidence(*texts: str, **changes: Any) -> Evidence:
    excerpts = tuple(an_excerpt(text) for text in texts or (ECC_LINE,))
    return Evidence(**_made({"captured_at": after(64), "excerpts": excerpts}, changes))


def a_primary_event(text: str = ECC_LINE, **changes: Any) -> PrimaryEvent:
    return PrimaryEvent(**_made({"text": text, "line": 7, "at": after(60), "rank": 3, "node": "node-002"}, changes))


def a_diagnosis(cause: str = "ecc_uncorrectable", domain: Domain = Domain.HARDWARE, **changes: Any) -> Diagnosis:
    defaults = {"domain": domain, "cause": cause, "confidence": 0.95, "summary": f"{cause} for a test", "primary": a_primary_event()}
    return Diagnosis(**_made(defaults, changes))


def an_application_bug(**changes: Any) -> Diagnosis:
    return a_diagnosis("python_exception_rank_logic", Domain.APPLICATION, **changes)


def a_suspect(node: str | None = "node-002", **changes: Any) -> Suspect:
    return Suspect(**_made({"node": node, "rank": 3, "confidence": 0.9, "because": (ECC_LINE,)}, changes))


def an_attribution(*suspects: Suspect, **changes: Any) -> Attribution:
    """Blames the suspects given; without any it abstains."""
    return Attribution(**_made({"suspects": suspects, "abstained": not suspects, "sources": ("rules",)}, changes))


def a_judgement(**changes: Any) -> Judgement:
    defaults = {"symptom": SymptomKind.CRASH, "diagnosis": a_diagnosis(), "attribution": an_attribution(a_suspect())}
    return Judgement(**_made(defaults, changes))


def a_recommendation(action: Action = Action.RESTART_EXCLUDING, **changes: Any) -> Recommendation:
    """Sealed for incident `i-1` of attempt 0."""
    exclude = ("node-002",) if action is Action.RESTART_EXCLUDING else ()
    defaults = {"action": action, "exclude_nodes": exclude, "why": "node-002 has a broken GPU", "rule": "hardware"}
    return Recommendation(**_made(defaults, changes)).sealed(incident_id="i-1", restart_count=0)


def a_decision(kind: DecisionKind = DecisionKind.APPROVED, **changes: Any) -> Decision:
    return Decision(**_made({"kind": kind, "actor": "bob", "at": after(70)}, changes))


def an_incident(**changes: Any) -> Incident:
    defaults = {
        "id": "i-1", "nodes": node_names(2), "symptom": a_crash(), "progress": some_progress(), "evidence": some_evidence(),
        "diagnosis": a_diagnosis(), "attribution": an_attribution(a_suspect()), "recommendation": a_recommendation(),
    }  # fmt: skip
    return Incident(**_made(defaults, changes))


def a_past_incident(**changes: Any) -> PastIncident:
    defaults = {
        "cause": "ecc_uncorrectable", "domain": Domain.HARDWARE, "action": Action.RESTART_EXCLUDING, "acted": True, "at": NOON,
        "checkpoint_iteration": 100, "suspects": ("node-002",),
    }  # fmt: skip
    return PastIncident(**_made(defaults, changes))
