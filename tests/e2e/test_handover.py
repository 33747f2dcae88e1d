"""A worker that is stopped hands its watches over: another goes on within a heartbeat timeout, with no symptom and no line lost."""

from datetime import UTC, datetime

from activities.records import Cursor
from tests.e2e.conftest import MakeSite
from tests.e2e.site import Site, Training, eventually
from workers.commands.facts import decoded


async def watch_of(site: Site, run: Training) -> tuple[int, datetime, Cursor] | None:
    """The try of the watch in flight, when it began, and the cursor that stands in its heartbeat; None before the first."""
    description = await (await site.handle(run.job_id)).describe()
    for pending in description.raw_description.pending_activities:
        for detail in decoded(pending.heartbeat_details):
            began = pending.last_started_time.ToDatetime(UTC)
            return pending.attempt, began, Cursor.model_validate(detail)
    return None


async def test_a_stopped_worker_hands_its_watch_to_another_which_misses_no_line(make_site: MakeSite) -> None:
    # A stopping worker keeps its watches for its grace of five seconds: six, as elsewhere, leave a busy machine too little for the rest.
    site = make_site({"worker": {"heartbeat_timeout": "20s"}})
    first = await site.start_worker()
    run = await site.submit()
    await site.training(run)
    events = [len(history.events) for history in await site.histories(run.job_id)]
    await site.start_worker()
    stopped_at = datetime.now(UTC)
    assert await first.stop() == 0

    async def taken_up() -> tuple[datetime, Cursor] | None:
        seen = await watch_of(site, run)
        return (seen[1], seen[2]) if seen and seen[0] > 1 and (seen[2].progress.iteration or 0) > at_handover else None

    before = await watch_of(site, run)
    at_handover = (before[2].progress.iteration or 0) if before else 0
    began, cursor = await eventually(taken_up, what="iterations seen by the other worker")
    assert began - stopped_at < site.configuration.worker.heartbeat_timeout
    progress = cursor.progress
    assert (progress.first_iteration, progress.steps_seen) == (1, progress.iteration)  # none twice, none missed
    state = await site.watched(run)
    assert (state.incidents, state.warnings) == ((), ())
    assert [len(history.events) for history in await site.histories(run.job_id)] == events
