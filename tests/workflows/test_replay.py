"""Committed histories of every path, replayed: a new worker goes on with what an older one began. Recorded by tests/histories/record.py."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from tests.histories.record import SCENARIOS
from tests.test_worker import activities_called_by_workflows
from workers.worker import workflow_runner
from workflows.cluster import Cluster
from workflows.training_job import TrainingJob

HISTORIES = Path(__file__).parents[1] / "histories"
RECORDED = sorted(path.stem for path in HISTORIES.glob("*.json"))
MEND = "the workflows no longer do what a running watch has done: put the change behind workflow.patched (see tests/histories/record.py)"


def told(name: str) -> dict[str, Any]:
    history: dict[str, Any] = json.loads((HISTORIES / f"{name}.json").read_text())
    return history


def events_of(history: Mapping[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """The attributes of each event of one kind, such as `activityTaskScheduled`."""
    return (event[f"{kind}EventAttributes"] for event in history["events"] if f"{kind}EventAttributes" in event)


async def replay(history: Mapping[str, Any]) -> None:
    replayer = Replayer(
        workflows=[TrainingJob, Cluster],
        data_converter=pydantic_data_converter,
        workflow_runner=workflow_runner(),
    )
    await replayer.replay_workflow(WorkflowHistory.from_json(history["workflowId"], {"events": history["events"]}))


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_history_replays(name: str) -> None:
    try:
        await replay(told(name))
    except NondeterminismError as error:
        error.add_note(MEND)
        raise


class ChangedOnDisk(MetaPathFinder):
    """What an upgrade of the checkout under a running worker comes to: no module of ours can be read as it was."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in ("activities", "workflows"):
            raise ImportError(f"{fullname} is not what it was when the worker started", name=fullname)
        return None


@pytest.mark.parametrize("name", ["auto_recovered.0", "cluster_with_a_storm.0"])
async def test_a_worker_goes_on_with_the_code_it_started_with(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [ChangedOnDisk(), *sys.meta_path])
    await replay(told(name))


# ------------------------------------------------------------------------------------------------ what is recorded


def test_every_scenario_is_recorded_and_every_recording_has_its_scenario() -> None:
    assert {name.rpartition(".")[0] for name in RECORDED} == set(SCENARIOS)


def test_every_activity_of_the_workflows_stands_in_some_history() -> None:
    seen = {scheduled["activityType"]["name"] for name in RECORDED for scheduled in events_of(told(name), "activityTaskScheduled")}
    assert activities_called_by_workflows() - {"model_validate"} - seen == set()


def test_every_message_a_person_or_a_job_can_send_stands_in_some_history() -> None:
    histories = [told(name) for name in RECORDED]
    updates = {
        accepted["acceptedRequest"]["input"]["name"]
        for history in histories
        for accepted in events_of(history, "workflowExecutionUpdateAccepted")
    }
    signals = {signalled["signalName"] for history in histories for signalled in events_of(history, "workflowExecutionSignaled")}
    assert updates == {"decide", "report_incident", "permit_action", "reset_breaker", "trip_breaker", "clear_node"}
    assert signals == {"approve", "reject"}


def test_histories_that_were_passed_on_stand_beside_their_continuations() -> None:
    passed_on = [name for name in RECORDED if any(True for _ in events_of(told(name), "workflowExecutionContinuedAsNew"))]
    assert {"auto_recovered.0", "stopped_after_three_restarts.2", "cluster_with_a_storm.0"} <= set(passed_on)


def test_nothing_of_the_recording_machine_was_kept() -> None:
    for name in RECORDED:
        text = (HISTORIES / f"{name}.json").read_text()
        assert '"identity":"worker"' in text
        assert "Traceback" not in text


# ------------------------------------------------------------------------------------------------ the control


def with_activities_swapped(history: dict[str, Any], one: str, other: str) -> dict[str, Any]:
    names = {one: other, other: one}
    for scheduled in events_of(history, "activityTaskScheduled"):
        name = scheduled["activityType"]["name"]
        scheduled["activityType"]["name"] = names.get(name, name)
    return history


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("auto_recovered.0", "capture_evidence", "diagnose"),
        ("auto_recovered.0", "requeue_job", "exclude_nodes"),
        ("auto_recovered.0", "expedite", "release_job"),
        ("cluster_with_a_storm.0", "note_incident", "weigh_action"),
    ],
)
async def test_a_history_in_another_order_does_not_replay(name: str, one: str, other: str) -> None:
    with pytest.raises(NondeterminismError):
        await replay(with_activities_swapped(told(name), one, other))
