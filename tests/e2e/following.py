"""Following a job's history as it is written, so that a test can strike the moment a step is recorded."""

from collections.abc import AsyncIterator, Sequence

from temporalio.api.enums.v1 import EventType

from tests.e2e.site import Site, Training

Happening = tuple[str, str]
"""`("scheduled" or "completed", activity name)`"""


async def happened(site: Site, run: Training, awaited: Sequence[Happening]) -> AsyncIterator[Happening]:
    """Yields each of these, in this order, the moment it stands in the history of the workflow's present run."""
    due = list(awaited)
    names: dict[int, str] = {}
    handle = await site.handle(run.job_id)
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
            seen = ("scheduled", names[event.event_id])
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            seen = ("completed", names[event.activity_task_completed_event_attributes.scheduled_event_id])
        else:
            continue
        if seen == due[0]:
            yield due.pop(0)
        if not due:
            return
    raise AssertionError(f"the workflow's run ended without {due}")
