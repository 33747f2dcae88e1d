"""A workflow history read as facts: one per thing that happened, in the past tense, with the event's ID.

Pure: a history in, facts out; no server, no worker, none of our workflow code is asked. So an auditor can read the same
story from an exported JSON history. Called by `backstay audit`, and by `show` where no worker answers a query.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import AwareDatetime, Field
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from activities.outside_text import TextRefused, json_value
from activities.records import Record, utc
from workers.commands.payload_words import in_words


class Fact(Record):
    """One thing that happened, as the history tells it."""

    event_id: int
    run_id: str
    at: AwareDatetime
    name: str = Field(description="what happened, in the past tense, such as `requeue_job_completed`")
    text: str = Field(default="", description="the same in words")
    data: Any = Field(default=None, description="the event's input or output as plain JSON values")


def facts_of(history: WorkflowHistory) -> list[Fact]:
    """The facts of one run, in the order of its events.

    Args:
        history: as fetched from a server, or `WorkflowHistory.from_json` of an exported file.
    """
    reader = _Reader(history)
    return [fact for event in history.events if (fact := reader.read(event)) is not None]


def decoded(payloads: Payloads | Sequence[Payload]) -> list[Any]:
    """Payloads as plain JSON values. What is encrypted or binary stays closed and says so."""
    items = payloads.payloads if isinstance(payloads, Payloads) else payloads
    return [_decoded(payload) for payload in items]


def _decoded(payload: Payload) -> Any:
    encoding = payload.metadata.get("encoding", b"").decode(errors="replace")
    if encoding == "binary/null":
        return None
    if encoding.startswith("json/"):
        try:
            return json_value(payload.data)
        except TextRefused as refusal:
            return f"({len(payload.data)} bytes of {encoding}, not shown: {refusal})"
    return f"({len(payload.data)} bytes of {encoding or 'unknown encoding'})"


def _one(values: list[Any]) -> Any:
    """A single argument stands for itself; several stay a list; none is None."""
    return values[0] if len(values) == 1 else values or None


def failure_in_words(failure: Failure) -> str:
    """The failure and its cause in one line: the cause is what happened, the wrapper where."""
    messages: list[str] = []
    current: Failure | None = failure
    while current is not None and len(messages) < 3:
        if current.message and current.message not in messages:
            messages.append(current.message)
        current = current.cause if current.HasField("cause") else None
    return ": ".join(messages) or "no reason given"


class _Reader:
    """Reads one run's events in order; an activity's or timer's later events point back at the one that scheduled it."""

    def __init__(self, history: WorkflowHistory) -> None:
        self._run_id = history.run_id if history.events else ""
        self._names: dict[int, str] = {}  # by the event ID that scheduled, started or initiated
        self._table: Mapping[int, Callable[[HistoryEvent], Fact | None]] = {
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: self._started,
            EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: self._activity_scheduled,
            EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: self._activity_started,
            EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: self._activity_completed,
            EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: self._activity_failed,
            EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: self._activity_timed_out,
            EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: self._activity_cancelled,
            EventType.EVENT_TYPE_TIMER_STARTED: self._timer_started,
            EventType.EVENT_TYPE_TIMER_FIRED: self._timer_fired,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: self._signalled,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: self._update_accepted,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: self._update_completed,
            EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: self._attributes_set,
            EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: self._task_failed,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: self._cancel_requested,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: self._terminated,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: self._completed,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: self._failed,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: self._timed_out,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: self._cancelled,
            EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: self._continued,
        }

    def read(self, event: HistoryEvent) -> Fact | None:
        """The event's fact; None for Temporal's own housekeeping (workflow tasks, markers), which decides nothing."""
        reader = self._table.get(event.event_type)
        return reader(event) if reader else None

    def _fact(self, event: HistoryEvent, name: str, text: str = "", data: Any = None) -> Fact:
        at = utc(event.event_time.seconds + event.event_time.nanos / 1e9)
        return Fact(event_id=event.event_id, run_id=self._run_id, at=at, name=name, text=text, data=data)

    # ------------------------------------------------------------------------------------------- the workflow itself

    def _started(self, event: HistoryEvent) -> Fact:
        started = event.workflow_execution_started_event_attributes
        data = _one(decoded(started.input))
        if started.continued_execution_run_id:
            return self._fact(event, "workflow_continued", f"goes on from run {started.continued_execution_run_id}; {in_words(data)}", data)
        return self._fact(event, "workflow_started", in_words(data), data)

    def _completed(self, event: HistoryEvent) -> Fact:
        data = _one(decoded(event.workflow_execution_completed_event_attributes.result))
        return self._fact(event, "workflow_completed", in_words(data), data)

    def _failed(self, event: HistoryEvent) -> Fact:
        return self._fact(event, "workflow_failed", failure_in_words(event.workflow_execution_failed_event_attributes.failure))

    def _timed_out(self, event: HistoryEvent) -> Fact:
        return self._fact(event, "workflow_timed_out")

    def _cancelled(self, event: HistoryEvent) -> Fact:
        return self._fact(event, "workflow_cancelled")

    def _cancel_requested(self, event: HistoryEvent) -> Fact:
        asked = event.workflow_execution_cancel_requested_event_attributes
        return self._fact(event, "workflow_cancel_requested", f"by {asked.identity or 'unknown'}: {asked.cause or 'no reason given'}")

    def _terminated(self, event: HistoryEvent) -> Fact:
        ended = event.workflow_execution_terminated_event_attributes
        return self._fact(event, "workflow_terminated", f"by {ended.identity or 'unknown'}: {ended.reason or 'no reason given'}")

    def _continued(self, event: HistoryEvent) -> Fact:
        continued = event.workflow_execution_continued_as_new_event_attributes
        data = _one(decoded(continued.input))
        return self._fact(event, "workflow_continued_as_new", f"as run {continued.new_execution_run_id}", data)

    def _task_failed(self, event: HistoryEvent) -> Fact:
        return self._fact(event, "workflow_task_failed", failure_in_words(event.workflow_task_failed_event_attributes.failure))

    def _attributes_set(self, event: HistoryEvent) -> Fact:
        fields = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        data = {name: _decoded(payload) for name, payload in sorted(fields.items())}
        text = ", ".join(f"{name.removeprefix('Backstay')}={_plain(value)}" for name, value in data.items())
        return self._fact(event, "search_attributes_set", text, data)

    # ------------------------------------------------------------------------------------------------------ activities

    def _activity_scheduled(self, event: HistoryEvent) -> Fact:
        scheduled = event.activity_task_scheduled_event_attributes
        name = scheduled.activity_type.name
        self._names[event.event_id] = name
        summary = _decoded(event.user_metadata.summary) if event.user_metadata.HasField("summary") else None
        return self._fact(event, f"{name}_began", str(summary) if summary else "", _one(decoded(scheduled.input)))

    def _activity_started(self, event: HistoryEvent) -> Fact | None:
        started = event.activity_task_started_event_attributes
        if started.attempt <= 1:
            return None  # the first try is told by the activity's own beginning and end
        why = failure_in_words(started.last_failure) if started.HasField("last_failure") else "no reason given"
        return self._fact(
            event,
            f"{self._name(started.scheduled_event_id)}_tried_again",
            f"try {started.attempt}, by {started.identity}; before it: {why}",
        )

    def _activity_completed(self, event: HistoryEvent) -> Fact:
        completed = event.activity_task_completed_event_attributes
        data = _one(decoded(completed.result))
        return self._fact(event, f"{self._name(completed.scheduled_event_id)}_completed", in_words(data), data)

    def _activity_failed(self, event: HistoryEvent) -> Fact:
        failed = event.activity_task_failed_event_attributes
        return self._fact(event, f"{self._name(failed.scheduled_event_id)}_failed", failure_in_words(failed.failure))

    def _activity_timed_out(self, event: HistoryEvent) -> Fact:
        timed_out = event.activity_task_timed_out_event_attributes
        kind = timed_out.failure.timeout_failure_info.timeout_type
        words = TimeoutType.Name(kind).removeprefix("TIMEOUT_TYPE_").lower().replace("_", " ")
        return self._fact(event, f"{self._name(timed_out.scheduled_event_id)}_timed_out", f"{words}: {failure_in_words(timed_out.failure)}")

    def _activity_cancelled(self, event: HistoryEvent) -> Fact:
        return self._fact(event, f"{self._name(event.activity_task_canceled_event_attributes.scheduled_event_id)}_cancelled")

    def _name(self, scheduled_event_id: int) -> str:
        return self._names.get(scheduled_event_id, "activity")

    # -------------------------------------------------------------------------------------- timers and people

    def _timer_started(self, event: HistoryEvent) -> Fact:
        started = event.timer_started_event_attributes
        seconds = started.start_to_fire_timeout.seconds
        summary = _decoded(event.user_metadata.summary) if event.user_metadata.HasField("summary") else "a timer"
        self._names[event.event_id] = str(summary)
        return self._fact(event, "timer_started", f"{summary}: {seconds} s")

    def _timer_fired(self, event: HistoryEvent) -> Fact:
        return self._fact(event, "timer_fired", self._names.get(event.timer_fired_event_attributes.started_event_id, ""))

    def _signalled(self, event: HistoryEvent) -> Fact:
        signal = event.workflow_execution_signaled_event_attributes
        data = _one(decoded(signal.input))
        return self._fact(event, f"signal_{signal.signal_name}_received", in_words(data), data)

    def _update_accepted(self, event: HistoryEvent) -> Fact:
        accepted = event.workflow_execution_update_accepted_event_attributes
        name = accepted.accepted_request.input.name
        self._names[event.event_id] = name
        data = _one(decoded(accepted.accepted_request.input.args))
        return self._fact(event, f"update_{name}_accepted", in_words(data), data)

    def _update_completed(self, event: HistoryEvent) -> Fact:
        completed = event.workflow_execution_update_completed_event_attributes
        name = self._names.get(completed.accepted_event_id, "update")
        if completed.outcome.HasField("failure"):
            return self._fact(event, f"update_{name}_failed", failure_in_words(completed.outcome.failure))
        data = _one(decoded(completed.outcome.success))
        return self._fact(event, f"update_{name}_completed", in_words(data), data)


def _plain(value: Any) -> str:
    match value:
        case None:
            return "none"
        case list():
            return "+".join(str(item) for item in value) or "none"
        case _:
            return str(value)


def predecessor_run_id(history: WorkflowHistory) -> str | None:
    """The run this one continues as new, or None when it is the first."""
    if not history.events:
        return None
    return history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id or None
