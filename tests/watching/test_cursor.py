"""What one watch leaves for the next: no line is read twice, none is missed, and an absence is not taken for silence."""

import asyncio
from pathlib import Path

import pytest

from activities.configuration import OptInBy, PolicySection, WatchSection
from activities.records import Cursor, Mode
from tests.builders import ECC_LINE
from tests.watching.test_changes import a_change_request
from tests.watching.world import TICK, World, a_world


async def test_a_cancelled_watch_leaves_a_cursor_from_which_another_goes_on(world: World) -> None:
    await world.submit()
    world.steps(1, 50)
    request = await world.request()
    watching = world.watching(request)
    await world.seen(50)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    left = Cursor.model_validate(world.last.model_dump(mode="json"))
    assert left.files[0].offset_bytes == world.log.stat().st_size

    world.heartbeats.clear()
    world.steps(51, 52)
    watching = world.watching(request, heartbeat=left)
    await world.seen(52)
    assert world.last.progress.first_iteration == 1
    assert world.last.progress.steps_seen == 52
    watching.cancel()


async def test_a_watch_that_was_away_for_long_reads_before_it_judges(world: World) -> None:
    watching = await world.watched()
    request = await world.request()
    watching.cancel()
    left = world.last
    world.pass_time(7200)
    world.steps(6, 7200)
    world.heartbeats.clear()
    watching = world.watching(request, heartbeat=left)
    await world.seen(7200)
    world.pass_time(15)
    await world.some_looks()
    assert not watching.done()
    watching.cancel()


async def test_an_absence_of_ours_is_no_pause_of_the_jobs(world: World) -> None:
    watching = await world.watched()
    request = await world.request()
    watching.cancel()
    left = world.last
    world.write(ECC_LINE)
    world.pass_time(7200)
    world.steps(6, 7200)
    world.heartbeats.clear()
    watching = world.watching(request, heartbeat=left)
    await world.seen(7200)
    assert world.last.line_gap_seconds == 1.0
    world.pass_time(301)
    await world.until(lambda: world.last.suspicion is not None)
    watching.cancel()


async def test_a_fatal_line_left_by_another_worker_is_judged_after_reading_on(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    world.write(ECC_LINE)
    request = await world.request()
    watching = world.watching(request)
    await world.until(lambda: world.last.fatal is not None)
    watching.cancel()
    left = world.last
    world.pass_time(600)
    world.steps(6, 20_000)
    world.heartbeats.clear()
    watching = world.watching(request, heartbeat=left)
    await world.seen(20_000)
    assert world.last.fatal is None
    assert not watching.done()
    watching.cancel()


async def test_what_an_older_attempt_appended_is_not_this_attempts(world: World) -> None:
    await world.submit()
    world.steps(1, 50)
    watching = world.watching(await world.request())
    await world.seen(50)
    watching.cancel()
    earlier = world.last
    world.write(ECC_LINE)
    await world.cluster.requeue(world.job_id)
    world.pass_time(150)
    request = await world.request(cursor=earlier)
    assert request.attempt.restart_count == 1
    world.heartbeats.clear()
    watching = world.watching(request)
    await world.until(lambda: world.last.restart_count == 1)
    world.pass_time(60)
    await world.some_looks()
    assert not watching.done()
    world.steps(41, 42)
    await world.seen(42)
    assert world.last.progress.first_iteration == 41
    watching.cancel()


@pytest.mark.parametrize("mode", list(Mode))
async def test_the_heartbeat_tells_the_mode_that_the_watching_workers_configuration_sets(tmp_path: Path, mode: Mode) -> None:
    """Not the one under which the job was first seen: that worker may have been another, before the configuration changed."""
    section = WatchSection(log_interval=TICK, poll_interval=TICK, opt_in=OptInBy.ALL)
    async with a_world(tmp_path, patience=section, policy=PolicySection(mode=mode)) as world:
        watching = await world.watched()
        assert world.last.mode is mode
        waiting = world.waiting_for_change(await a_change_request(world))
        world.heartbeats.clear()
        await world.some_looks()
        assert world.last.mode is mode
        watching.cancel()
        waiting.cancel()
