"""`failopen` releases what Backstay holds, and nothing else, with Slurm alone."""

from activities.mutation import HOLD_MARK
from activities.slurm.clock import ManualClock
from activities.slurm.simulated import SimulatedCluster
from workers.commands.failopen import Ending, is_held_by_us, release_all


async def a_job_held_by_us(cluster: SimulatedCluster) -> str:
    job_id = cluster.submit(hold=True)
    await cluster.set_admin_comment(job_id, f"{HOLD_MARK} 1-1")
    return job_id


async def test_a_job_held_by_us_is_released_and_runs() -> None:
    cluster = SimulatedCluster()
    job_id = await a_job_held_by_us(cluster)
    [release] = await release_all(cluster)
    assert (release.job_id, release.ending) == (job_id, Ending.RELEASED)
    assert not (await cluster.job(job_id)).is_held


async def test_a_hold_of_someone_else_is_left_alone() -> None:
    cluster = SimulatedCluster()
    theirs = cluster.submit(hold=True)
    assert list(await release_all(cluster)) == []
    assert (await cluster.job(theirs)).is_held


async def test_a_job_that_carries_our_mark_but_runs_is_left_alone() -> None:
    cluster = SimulatedCluster()
    job_id = cluster.submit()
    await cluster.set_admin_comment(job_id, f"{HOLD_MARK} 1-1")
    assert not is_held_by_us(await cluster.job(job_id))
    assert list(await release_all(cluster)) == []


async def test_a_job_that_is_still_cleaned_up_before_its_hold_is_not_passed_over() -> None:
    clock = ManualClock()
    cluster = SimulatedCluster(clock=clock)
    job_id = cluster.submit()
    await cluster.set_admin_comment(job_id, f"{HOLD_MARK} 1-1")
    await cluster.requeue(job_id, hold=True)
    assert (await cluster.job(job_id)).is_ending
    [told] = await release_all(cluster)
    assert (told.ending, "again in a moment" in told.detail) == (Ending.REFUSED, True)
    clock.advance(60)
    [release] = await release_all(cluster)
    assert release.ending is Ending.RELEASED


async def test_a_refusal_is_told_with_the_command_to_try_and_the_others_are_still_released() -> None:
    cluster = SimulatedCluster()
    job_id = await a_job_held_by_us(cluster)
    cluster.may_operate = False
    [release] = await release_all(cluster)
    assert release.ending is Ending.REFUSED
    assert f"scontrol release {job_id}" in release.detail


async def test_a_job_once_released_belongs_to_its_user_again() -> None:
    """The mark goes with the hold: a hold that the user makes afterwards is not ours to release."""
    cluster = SimulatedCluster(1)
    cluster.submit()  # keeps the only node, so that the released job waits
    job_id = await a_job_held_by_us(cluster)
    await release_all(cluster)
    await cluster.hold(job_id)
    assert list(await release_all(cluster)) == []
    assert (await cluster.job(job_id)).is_held


async def test_doing_it_twice_does_nothing_the_second_time() -> None:
    cluster = SimulatedCluster()
    await a_job_held_by_us(cluster)
    assert len(await release_all(cluster)) == 1
    assert list(await release_all(cluster)) == []
