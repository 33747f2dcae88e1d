"""A proof that a change of Slurm was about to be sent, kept where it outlives the worker: in the heartbeat of its step.

Slurm does not say who requeued a job. A worker that dies after the send leaves the next try to find the job requeued, perhaps running
again; what it told Temporal before the send says that it was ours. Used by `reschedule.py`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio import activity

from activities.beat import Beat

LONGEST_TELLING = timedelta(seconds=10)
"""One write of Temporal's database. Where it takes longer nothing is sent: the step fails, and is tried again."""


@dataclass(frozen=True)
class Sending:
    """What is about to be sent, for which attempt of the job."""

    step: str
    restart_count: int
    at: datetime

    @property
    def in_words(self) -> str:
        """As the heartbeat tells it: a line of text, which no reader of heartbeats takes for a watch's cursor."""
        return f"sending {self.step} for restart count {self.restart_count}, {self.at.isoformat()}"

    @property
    def same(self) -> str:
        """What the lines of all tries of this sending begin with."""
        return f"sending {self.step} for restart count {self.restart_count},"


Tell = Callable[[str], Awaitable[None]]


async def told_to_temporal(words: str) -> None:
    """Returns once Temporal has it. An ordinary heartbeat is kept back by the SDK for seconds, and is lost with the worker.

    Raises what Temporal's client raises; nothing may be sent then.
    """
    handle = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
    await handle.heartbeat(words, rpc_timeout=LONGEST_TELLING)


async def about_to_send(sending: Sending, beat: Beat, tell: Tell) -> None:
    """Tells it durably, and goes on telling it: a later heartbeat takes the place of an earlier one."""
    beat.says = sending.in_words
    activity.heartbeat(sending.in_words)  # in place of one that the SDK still keeps back, which would arrive after ours
    await tell(sending.in_words)


def told_before(sending: Sending) -> str:
    """What an earlier try of this step told before it sent the same; empty: none came so far, as far as anyone knows."""
    told = (detail for detail in activity.info().heartbeat_details if isinstance(detail, str))
    return next((words for words in told if words.startswith(sending.same)), "")
