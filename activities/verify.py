"""The step `verify`: the attempt that follows must run, step, and write a checkpoint newer than the one before the fault.

Three activities, so that each milestone stands in the history by its name; each is the same watch with another goal, and
each also ends at a fault of the new attempt. Called by `workflows/recovery.py`.
"""

from temporalio import activity

from activities.detect import Detect
from activities.records import WatchRequest, WatchResult


class Verify:
    """One instance a worker, over the worker's one watch."""

    def __init__(self, detect: Detect) -> None:
        self._detect = detect

    @activity.defn
    async def verify_running(self, request: WatchRequest) -> WatchResult:
        """Waits in the queue with the job, as long as the deadline allows, until the attempt runs."""
        return await self._detect.watch_attempt(request)

    @activity.defn
    async def verify_stepping(self, request: WatchRequest) -> WatchResult:
        """Until the attempt reports an iteration of its own."""
        return await self._detect.watch_attempt(request)

    @activity.defn
    async def verify_checkpoint(self, request: WatchRequest) -> WatchResult:
        """Until a checkpoint newer than `checkpoint_before` is complete."""
        return await self._detect.watch_attempt(request)
