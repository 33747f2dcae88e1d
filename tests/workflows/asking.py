"""What tests ask of a job's running workflow: to wait until it waits, and what bob says then."""

import asyncio

from temporalio.client import WorkflowHandle

from activities.records import (
    DecisionRequest,
    Incident,
)
from tests.workflows.scripted import step_names
from workflows.state import Stage, TrainingJobState
from workflows.training_job import TrainingJob

Handle = WorkflowHandle[TrainingJob, TrainingJobState]


async def until_pending(handle: Handle) -> Incident:
    """The incident that waits for a decision, once the scripted watch beside it has ended.

    A decision takes that watch back. The time-skipping server refuses to cancel an activity that ended in the same moment
    (ACTIVITY_UNKNOWN) and loses the update with the refused task: it would be waited for without end. A real server does neither.
    """
    while True:
        state = await handle.query(TrainingJob.state)
        described = await handle.describe()
        if state.stage is Stage.AWAITING_DECISION and not described.raw_description.pending_activities:
            return state.incidents[-1]
        await asyncio.sleep(0.05)


async def until_withheld(handle: Handle, *, times: int) -> Incident:
    """The incident that waits for a decision after the guard rails have said no so often."""
    while True:
        incident = await until_pending(handle)
        if step_names(incident).count("held_by_guard_rails") == times:
            return incident
        await asyncio.sleep(0.05)


async def approve(handle: Handle, incident: Incident, *, yes: bool = True) -> None:
    """What bob says to what is pending."""
    assert incident.recommendation is not None
    request = DecisionRequest(approve=yes, actor="bob", digest=incident.recommendation.digest)
    await handle.execute_update(TrainingJob.decide, request)
