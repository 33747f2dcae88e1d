"""How workflows run the long watches. A watch is all that looks at a job, so its failure must never be the workflow's.

Temporal retries what fails inside a watch, without a line of history. What it will not retry (a result over the payload
limit, an activity failed or cancelled by hand) is said once and started again here, after a pause.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

WATCH_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=10))

LONGEST_WATCH = timedelta(days=3650)

AGAIN_AFTER = timedelta(minutes=5)
"""A dozen events of history for each failure: two weeks of failing stay under a third of the limit of 51,200."""


async def keep_watching(
    name: str,
    request: RequestT,
    answer: type[AnswerT],
    *,
    heartbeat_timeout: timedelta,
    summary: str,
    failed: Callable[[str], None],
) -> AnswerT:
    """What the watch `name` found. `failed` is told, in a sentence, of each failure that Temporal does not retry."""
    while True:
        try:
            found: AnswerT = await workflow.execute_activity(
                name,
                request,
                result_type=answer,
                start_to_close_timeout=LONGEST_WATCH,
                heartbeat_timeout=heartbeat_timeout,
                retry_policy=WATCH_RETRIES,
                summary=summary,
            )
        except ActivityError as error:
            raise_if_cancelled(error)
            failed(f"{name} failed and is started again every {AGAIN_AFTER}: {error.cause or error}"[:300])
            await workflow.sleep(AGAIN_AFTER, summary=f"{name} failed; it is started again after this")
        else:
            return found


def raise_if_cancelled(error: ActivityError) -> None:
    """Lets a cancellation pass that was asked of this workflow (or of this part of it): it reaches us as a failed activity, and taken
    for one it would be swallowed.

    Raises:
        asyncio.CancelledError: whoever runs this was told to stop.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        raise asyncio.CancelledError from error
