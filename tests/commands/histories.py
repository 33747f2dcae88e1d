"""Workflow histories built event by event, in the shape the server writes them."""

import json
from datetime import datetime
from typing import Any

from temporalio.api.common.v1 import ActivityType, Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.update.v1 import Outcome
from temporalio.client import WorkflowHistory

from tests.builders import after


def a_payload(value: Any) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


def payloads(*values: Any) -> Payloads:
    return Payloads(payloads=[a_payload(value) for value in values])


def a_failure(message: str) -> Failure:
    return Failure(message="Activity task failed", cause=Failure(message=message))


class History:
    """Writes one run's history; each method adds what the server adds."""

    def __init__(self, run_id: str = "run-1", *, continues: str = "", start: Any = None) -> None:
        self.events: list[HistoryEvent] = []
        started = self._add("WORKFLOW_EXECUTION_STARTED").workflow_execution_started_event_attributes
        started.original_execution_run_id = run_id
        started.continued_execution_run_id = continues
        if start is not None:
            started.input.CopyFrom(payloads(start))

    def _add(self, kind: str) -> HistoryEvent:
        number = len(self.events) + 1
        event = HistoryEvent(event_id=number, event_type=EventType.Value(f"EVENT_TYPE_{kind}"))
        at: datetime = after(number)
        event.event_time.FromDatetime(at)
        self.events.append(event)
        return event

    def activity(
        self, name: str, argument: Any = None, *, result: Any = None, failure: str = "", tries: int = 1, before: str = "", summary: str = ""
    ) -> "History":
        """Scheduled, started at the given try, then completed or failed."""
        event = self._add("ACTIVITY_TASK_SCHEDULED")
        scheduled = event.activity_task_scheduled_event_attributes
        scheduled.activity_type.CopyFrom(ActivityType(name=name))
        scheduled.input.CopyFrom(payloads(argument))
        if summary:
            event.user_metadata.summary.CopyFrom(a_payload(summary))
        started = self._add("ACTIVITY_TASK_STARTED").activity_task_started_event_attributes
        started.scheduled_event_id, started.attempt, started.identity = event.event_id, tries, "4711@head-2"
        if before:
            started.last_failure.CopyFrom(a_failure(before))
        if failure:
            failed = self._add("ACTIVITY_TASK_FAILED").activity_task_failed_event_attributes
            failed.scheduled_event_id = event.event_id
            failed.failure.CopyFrom(a_failure(failure))
        else:
            completed = self._add("ACTIVITY_TASK_COMPLETED").activity_task_completed_event_attributes
            completed.scheduled_event_id = event.event_id
            completed.result.CopyFrom(payloads(result))
        return self

    def signal(self, name: str, argument: Any) -> "History":
        signalled = self._add("WORKFLOW_EXECUTION_SIGNALED").workflow_execution_signaled_event_attributes
        signalled.signal_name = name
        signalled.input.CopyFrom(payloads(argument))
        return self

    def update(self, name: str, argument: Any, result: Any) -> "History":
        event = self._add("WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        accepted = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
        accepted.name = name
        accepted.args.CopyFrom(payloads(argument))
        completed = self._add("WORKFLOW_EXECUTION_UPDATE_COMPLETED").workflow_execution_update_completed_event_attributes
        completed.accepted_event_id = event.event_id
        completed.outcome.CopyFrom(Outcome(success=payloads(result)))
        return self

    def housekeeping(self) -> "History":
        self._add("WORKFLOW_TASK_SCHEDULED")
        self._add("WORKFLOW_TASK_STARTED")
        self._add("WORKFLOW_TASK_COMPLETED")
        return self

    def encrypted_result(self, name: str) -> "History":
        self.activity(name)
        result = self.events[-1].activity_task_completed_event_attributes.result
        result.payloads[0].CopyFrom(Payload(metadata={"encoding": b"binary/encrypted"}, data=b"\x00\x01"))
        return self

    def completed(self, result: Any) -> "History":
        self._add("WORKFLOW_EXECUTION_COMPLETED").workflow_execution_completed_event_attributes.result.CopyFrom(payloads(result))
        return self

    def continued(self, argument: Any, run_id: str = "run-2") -> "History":
        continued = self._add("WORKFLOW_EXECUTION_CONTINUED_AS_NEW").workflow_execution_continued_as_new_event_attributes
        continued.new_execution_run_id = run_id
        continued.input.CopyFrom(payloads(argument))
        return self

    def written(self) -> WorkflowHistory:
        return WorkflowHistory("job/alpha/17/1767614400", self.events)
