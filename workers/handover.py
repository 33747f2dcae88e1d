"""Handing in-flight activities over when a worker stops: they fail as retryable, so that another worker goes on at once.

Without this an `asyncio.CancelledError` at shutdown would reach the server as a *cancelled* activity, which Temporal never
retries (server, `isRetryable`), and a watch would end with its worker. Used by `worker.py` only.
"""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

AT_ONCE = timedelta(milliseconds=100)


class Handover(Interceptor):
    """Wraps every activity of a worker."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Handover(next)


class _Handover(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError as cancelled:
            details = activity.cancellation_details()
            if details and (details.not_found or details.timed_out) and not details.cancel_requested:
                # Another worker has it by now (this one was silent too long), or its workflow is gone: nobody waits for our answer.
                raise ApplicationError(
                    "this worker lost the activity", type="ActivityLost", category=ApplicationErrorCategory.BENIGN
                ) from cancelled
            if activity.is_worker_shutdown() and not (details and details.cancel_requested):
                raise ApplicationError(
                    "this worker is stopping; handed over",
                    type="WorkerStopping",
                    category=ApplicationErrorCategory.BENIGN,
                    next_retry_delay=AT_ONCE,
                ) from cancelled
            raise
