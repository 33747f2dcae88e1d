"""What a watch that verifies says of a slurmctld that was killed before it saved what Backstay had done."""

from typing import Any

import pytest

from activities.mutation import HOLD_MARK
from activities.records import JobFlag, JobState, Placement, WatchEnd, WatchUntil
from activities.slurm.scheduler import REQUEUED_HELD
from activities.watching.lost_acts import lost_act
from tests.builders import NOON, a_job, after, an_attempt
from tests.watching.world import World

PLACED = Placement(requeued=True, excluded=("node-002",), start_given=True, controller_start="start 1")
ATTEMPT = an_attempt(restart_count=1, nodes=(), started_at=None)


@pytest.mark.parametrize(
    ("job", "placement", "words"),
    [
        ({}, PLACED, None),
        ({"excluded_nodes": ("node-004",)}, PLACED, "without the exclusion of node-002"),
        ({"excluded_nodes": ()}, Placement(requeued=True), None),
        ({"excluded_nodes": (), "flags": (JobFlag.COMPLETING,)}, PLACED, None),
        ({"excluded_nodes": (), "state": JobState.RUNNING}, PLACED, None),
        ({"eligible_at": after(100)}, PLACED, "waiting for its begin time again"),
        ({"eligible_at": after(2)}, PLACED, None),
        ({"eligible_at": after(100)}, Placement(requeued=True, excluded=("node-002",)), None),
        ({"is_held": True, "reason": "JobHeldUser"}, PLACED, None),
        ({"is_held": True, "reason": "JobHeldUser", "admin_comment": f"{HOLD_MARK} i-1"}, PLACED, "in our hold again"),
        ({"is_held": True, "reason": REQUEUED_HELD}, PLACED, "in our hold again"),
        ({"restart_count": 0, "state": JobState.FAILED}, PLACED, "FAILED with restart count 0 again"),
        ({"restart_count": 0, "state": JobState.RUNNING}, PLACED, "RUNNING with restart count 0 again"),
        ({"restart_count": 0, "state": JobState.CANCELLED}, PLACED, None),
        ({"restart_count": 0, "state": JobState.FAILED}, Placement(excluded=("node-002",)), None),
        ({"restart_count": 2, "excluded_nodes": ()}, PLACED, None),
    ],
)
def test_what_a_look_no_longer_shows_of_a_placement(job: dict[str, Any], placement: Placement, words: str | None) -> None:
    seen = a_job(**{"state": JobState.PENDING, "restart_count": 1, "excluded_nodes": ("node-002",), "eligible_at": NOON, **job})
    said = lost_act(seen, ATTEMPT, placement, looked_at=NOON)
    assert (said is None) if words is None else words in (said or "")


async def a_restarted_job(world: World) -> None:
    """Its attempt 1 waits in the queue, off node-002."""
    await world.submit()
    world.cluster.fail_job(world.job_id)
    world.pass_time(2)
    await world.cluster.requeue(world.job_id)
    await world.cluster.set_excluded_nodes(world.job_id, ["node-002"])


async def test_the_watch_of_a_waiting_attempt_ends_when_its_exclusions_are_gone(world: World) -> None:
    await a_restarted_job(world)
    watching = world.watching(await world.request(until=WatchUntil.RUNNING, placement=PLACED.model_copy(update={"start_given": False})))
    await world.some_looks()
    assert not watching.done()
    world.pass_time(1)
    await world.cluster.set_excluded_nodes(world.job_id, [])
    world.pass_time(1)
    result = await watching
    assert (result.kind, "without the exclusion of node-002" in result.summary) == (WatchEnd.ACT_LOST, True)


@pytest.mark.parametrize("until", [WatchUntil.RUNNING, WatchUntil.STEPPING, WatchUntil.CHECKPOINT])
async def test_the_watch_of_an_attempt_ends_when_slurm_shows_the_one_before_again(world: World, until: WatchUntil) -> None:
    await world.submit()
    world.cluster.fail_job(world.job_id)
    world.pass_time(2)
    failed = world.cluster.saved(world.job_id)
    await world.cluster.requeue(world.job_id)
    if until is not WatchUntil.RUNNING:
        await world.cluster.start_now(world.job_id)
        assert (await world.job()).state is JobState.RUNNING
    watching = world.watching(await world.request(until=until, placement=Placement(requeued=True)))
    await world.some_looks()
    world.cluster.come_back_with(failed)
    world.pass_time(10)
    result = await watching
    assert (result.kind, "FAILED with restart count 0 again" in result.summary) == (WatchEnd.ACT_LOST, True)


async def test_an_attempt_before_the_one_asked_for_that_runs_again_reaches_nothing(world: World) -> None:
    await world.submit()
    request = await world.request(until=WatchUntil.RUNNING)
    watching = world.watching(request.model_copy(update={"attempt": request.attempt.model_copy(update={"restart_count": 1})}))
    await world.some_looks()
    world.pass_time(70)  # longer than a look is taken for an old one
    await world.some_looks(6)
    assert not watching.done()
    watching.cancel()
