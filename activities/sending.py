"""A proof that a change of Slurm was about to be sent, kept where it outlives the worker: in the heartbeat of its step.

Slurm does not say who requeued a job. A worker that dies after the send leaves the next try to find the job requeued, perhaps running
again; what it told Temporal before the send says that it was ours. Used by `reschedule.py`.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from pydantic import AwareDatetime, ValidationError
from temporalio import activity

from activities.beat import Beat
from activities.records import Record

LONGEST_TELLING = timedelta(seconds=10)
"""One write of Temporal's database. Where it takes longer nothing is sent: the step fails, and is tried again."""


class Sending(Record):
    """What is about to be sent, for which attempt of the job."""

    sending: str
    restart_count: int
    at: AwareDatetime


Tell = Callable[[Sending], Awaitable[None]]


async def told_to_temporal(sending: Sending) -> None:
    """Returns once Temporal has it. An ordinary heartbeat is kept back by the SDK for seconds, and is lost with the worker.

    Raises what Temporal's client raises; nothing may be sent then.
    """
    handle = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
    await handle.heartbeat(sending, rpc_timeout=LONGEST_TELLING)


async def about_to_send(sending: Sending, beat: Beat, tell: Tell) -> None:
    """Tells it durably, and goes on telling it: a later heartbeat takes the place of an earlier one."""
    beat.says = sending
    activity.heartbeat(sending)  # in place of one that the SDK still keeps back, which would arrive after ours
    await tell(sending)


def sent_before(step: str, restart_count: int) -> Sending | None:
    """What an earlier try of this step told before it sent; None: none came so far, as far as anyone knows."""
    for detail in activity.info().heartbeat_details:
        try:
            told = Sending.model_validate(detail)
        except ValidationError:
            continue
        if (told.sending, told.restart_count) == (step, restart_count):
            return told
    return None
