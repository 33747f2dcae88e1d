"""What happens while a person decides: which acts of others supersede a recommendation, and which looks change nothing."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from activities.records import ChangeKind, ChangeRequest, JobState, SymptomKind, WatchResult
from activities.slurm.simulated_programs import Exit, runs_for
from tests.builders import ECC_LINE
from tests.watching.world import World


async def a_change_request(world: World, *, hours: float = 1.0, **changes: Any) -> ChangeRequest:
    job = await world.job()
    defaults: Mapping[str, Any] = {
        "attempt": await world.attempt(),
        "state_when_asked": job.state,
        "restart_count": job.restart_count,
        "until": world.clock.now() + timedelta(hours=hours),
        "symptom": SymptomKind.CRASH,
    }
    return ChangeRequest(**{**defaults, **changes})


async def a_failed_job(world: World) -> None:
    await world.submit(runs_for(60, exit_code=1))
    world.pass_time(70)
    assert (await world.job()).state is JobState.FAILED


async def test_a_failed_job_that_stays_failed_is_unchanged(world: World) -> None:
    await a_failed_job(world)
    waiting = world.waiting_for_change(await a_change_request(world, hours=1 / 60))
    await world.some_looks()
    assert not waiting.done()
    world.pass_time(61)
    assert (await waiting).kind is ChangeKind.UNCHANGED


async def test_a_failed_job_that_slurm_forgets_is_forgotten(world: World) -> None:
    await a_failed_job(world)
    waiting = world.waiting_for_change(await a_change_request(world))
    await world.some_looks()
    world.pass_time(400)
    change = await waiting
    assert change.kind is ChangeKind.FORGOTTEN
    assert change.job is not None
    assert change.job.state is JobState.FAILED


async def test_a_requeue_by_someone_else_is_seen(world: World) -> None:
    await a_failed_job(world)
    waiting = world.waiting_for_change(await a_change_request(world))
    await world.some_looks()
    await world.cluster.requeue(world.job_id)
    world.pass_time(2)
    change = await waiting
    assert change.kind is ChangeKind.REQUEUED
    assert change.job is not None
    assert change.job.restart_count == 1


async def test_a_running_job_that_ends_or_is_cancelled_is_seen(world: World) -> None:
    await world.submit()
    waiting = world.waiting_for_change(await a_change_request(world, symptom=SymptomKind.HANG))
    await world.some_looks()
    world.cluster.fail_job(world.job_id)
    world.pass_time(2)
    assert (await waiting).kind is ChangeKind.ENDED

    await world.submit()
    waiting = world.waiting_for_change(await a_change_request(world, symptom=SymptomKind.HANG))
    await world.some_looks()
    await world.cluster.cancel(world.job_id)
    world.pass_time(60)
    assert (await waiting).kind is ChangeKind.CANCELLED


async def test_a_job_that_waited_when_asked_and_now_runs_has_started(world: World) -> None:
    await world.submit(hold=True)
    waiting = world.waiting_for_change(await a_change_request(world))
    await world.some_looks()
    await world.cluster.release(world.job_id)
    assert (await waiting).kind is ChangeKind.STARTED


async def test_a_waiting_job_that_is_cancelled_is_seen(world: World) -> None:
    await world.submit(hold=True)
    waiting = world.waiting_for_change(await a_change_request(world))
    await world.some_looks()
    await world.cluster.cancel(world.job_id)
    assert (await waiting).kind is ChangeKind.CANCELLED


async def a_hang_of(world: World) -> WatchResult:
    watching = world.watching(await world.request())
    await world.seen(5)
    world.pass_time(301)
    await world.until(lambda: world.last.suspicion is not None)
    world.pass_time(11)
    return await watching


async def test_a_hang_that_goes_on_by_itself_is_progress_again(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    found = await a_hang_of(world)
    world.heartbeats.clear()
    request = await a_change_request(world, symptom=SymptomKind.HANG, cursor=found.cursor)
    waiting = world.waiting_for_change(request)
    await world.some_looks()
    world.steps(6, 6)  # one may have been on its way
    await world.seen(6)
    assert not waiting.done()
    world.steps(7, 8)
    change = await waiting
    assert change.kind is ChangeKind.RESUMED_PROGRESS
    assert change.cursor is not None
    assert change.cursor.progress.iteration == 8


async def test_iterations_during_a_slow_down_change_nothing(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    waiting = world.waiting_for_change(await a_change_request(world, symptom=SymptomKind.SLOWDOWN))
    await world.seen(5)
    world.steps(6, 20)
    await world.seen(20)
    await world.some_looks()
    assert not waiting.done()
    waiting.cancel()


async def test_a_silent_scheduler_changes_nothing(world: World) -> None:
    await a_failed_job(world)
    waiting = world.waiting_for_change(await a_change_request(world))
    await world.some_looks()
    world.cluster.down = True
    world.pass_time(600)
    await world.until(lambda: world.last.blind is not None)
    await world.some_looks()
    assert not waiting.done()
    waiting.cancel()


async def test_a_crashed_job_that_still_runs_and_then_ends_has_ended(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    world.write(ECC_LINE)
    waiting = world.waiting_for_change(await a_change_request(world))
    await world.seen(5)
    world.cluster.end_job(world.job_id, Exit(code=1))
    world.pass_time(2)
    assert (await waiting).kind is ChangeKind.ENDED


# ------------------------------------------------------------------------------------------------ requeued by Slurm itself


async def a_job_that_lost_a_node(world: World) -> ChangeRequest:
    """Slurm gives the node up and requeues the job; what is asked about is the attempt that it ended."""
    await world.submit()
    request = await a_change_request(world, symptom=SymptomKind.NODE_FAULT)
    world.cluster.node_down("node-001")
    return request


async def test_slurms_own_requeue_off_a_lost_node_leaves_the_recommendation_open_while_the_job_waits(world: World) -> None:
    request = await a_job_that_lost_a_node(world)
    waiting = world.waiting_for_change(request)
    await world.some_looks()
    world.pass_time(60)
    await world.some_looks()
    assert ((await world.job()).state, (await world.job()).restart_count) == (JobState.PENDING, 1)
    assert not waiting.done()
    world.pass_time(62)
    change = await waiting
    assert (change.kind, change.by_slurm) == (ChangeKind.STARTED, True)
    assert "Slurm itself requeued off node-001, has started: its delay was over before anyone decided" in change.summary


async def test_a_node_that_comes_back_while_the_job_waits_changes_nothing(world: World) -> None:
    request = await a_job_that_lost_a_node(world)
    waiting = world.waiting_for_change(request)
    await world.some_looks()
    world.cluster.node_up("node-001")
    world.pass_time(10)
    await world.some_looks()
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.parametrize("act", ["cancel", "hold"])
async def test_whoever_cancels_or_holds_what_slurm_requeued_supersedes_the_recommendation(world: World, act: str) -> None:
    request = await a_job_that_lost_a_node(world)
    waiting = world.waiting_for_change(request)
    await world.some_looks()
    world.pass_time(5)
    await getattr(world.cluster, act)(world.job_id)
    change = await waiting
    assert change.kind is {"cancel": ChangeKind.CANCELLED, "hold": ChangeKind.REQUEUED}[act]
    assert not change.by_slurm


async def test_a_person_who_requeues_what_slurm_requeued_before_supersedes_the_recommendation(world: World) -> None:
    request = await a_job_that_lost_a_node(world)
    world.pass_time(200)
    await world.cluster.requeue(world.job_id)
    change = await world.waiting_for_change(request)
    assert (change.kind, change.by_slurm) == (ChangeKind.REQUEUED, False)
