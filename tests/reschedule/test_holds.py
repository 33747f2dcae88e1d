"""Where the requeue delay is short: held, marked as ours, released; and holds of others, which stay."""

from datetime import timedelta

import pytest

from activities.mutation import (
    HOLD_MARK,
    ReleaseNotSeen,
)
from activities.records import JobState
from activities.slurm.scheduler import PermissionDenied
from activities.slurm.simulated import REQUEUE_DELAY, SimulatedCluster
from tests.reschedule.site import SHORT_DELAY, Site, Witness


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
async def test_where_the_delay_is_short_the_job_is_requeued_held_and_marked_as_ours(ended: bool) -> None:
    site = Site(requeue_delay=SHORT_DELAY).submit()
    if ended:
        site.fail()
    result = await site.run("requeue_job")
    assert result.held
    assert (await site.run("confirm_pending")).held
    site.clock.advance(60)
    job = await site.job()
    assert (job.state, job.is_held, job.admin_comment) == (JobState.PENDING, True, f"{HOLD_MARK} i-1")


async def test_a_running_job_is_marked_before_it_is_held_so_that_no_hold_is_ever_without_its_mark() -> None:
    site = Site(requeue_delay=SHORT_DELAY).submit()
    await site.run("requeue_job")
    assert [act[0] for act in site.cluster.acts] == ["mark", "requeue"]


async def test_a_worker_that_died_between_hold_and_mark_leaves_a_mark_to_the_next_one() -> None:
    site = Site(requeue_delay=SHORT_DELAY).submit().fail()
    await SimulatedCluster.requeue(site.cluster, site.job_id, hold=True)
    result = await site.run("requeue_job", attempt=2)
    assert (result.done, result.held) == (True, True)
    assert (await site.job()).admin_comment.startswith(HOLD_MARK)
    assert site.did("requeue") == 0


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("requeue_delay", [SHORT_DELAY, REQUEUE_DELAY])
async def test_a_hold_that_was_on_the_job_before_outlives_our_requeue_whatever_the_delay(requeue_delay: timedelta, *, ended: bool) -> None:
    site = Site(requeue_delay=requeue_delay).submit()
    await site.cluster.hold(site.job_id)
    if ended:
        site.fail()
    result = await site.run("requeue_job")
    assert (result.done, result.held) == (True, False)
    again = await site.run("requeue_job", attempt=2)
    assert (again.done, again.held) == (True, False)
    assert not (await site.run("confirm_pending")).held
    assert "someone holds the job (JobHeldUser)" in ((await site.run("expedite")).superseded or "")
    job = await site.job()
    assert (job.is_held, job.admin_comment) == (True, "")
    assert site.did("release") == 0


class MayNotMark(Witness):
    """A credential that owns the job but is no operator: it may requeue and release, not write AdminComment."""

    async def set_admin_comment(self, job_id: str, comment: str) -> None:
        raise PermissionDenied(f"Access/permission denied for job {job_id}")


async def test_a_hold_that_may_not_be_marked_is_not_left_behind() -> None:
    site = Site(MayNotMark, requeue_delay=SHORT_DELAY).submit().fail()
    result = await site.run("requeue_job")
    assert (result.done, result.held) == (True, False)
    assert not (await site.job()).is_held


async def test_a_refused_requeue_leaves_no_mark_on_the_job() -> None:
    class Refuses(Witness):
        async def requeue(self, job_id: str, *, hold: bool = False) -> None:
            raise PermissionDenied("Access/permission denied")

    site = Site(Refuses, requeue_delay=SHORT_DELAY).submit()
    assert (await site.run("requeue_job")).refused
    assert (await site.job()).admin_comment == ""


async def test_releasing_gives_the_job_back_and_takes_the_mark_away() -> None:
    site = await Site(requeue_delay=SHORT_DELAY).submit().fail().requeued()
    assert (await site.run("release_job")).done
    job = await site.job()
    assert (job.is_held, job.admin_comment) == (False, "")
    site.clock.advance(1)
    assert (await site.job()).state is JobState.RUNNING, "the delay is given back, however long it is"


async def test_releasing_twice_releases_once() -> None:
    site = await Site(requeue_delay=SHORT_DELAY).submit().fail().requeued()
    await site.run("release_job")
    assert (await site.run("release_job", attempt=2)).done
    assert site.did("release") == 1


async def test_a_worker_that_died_after_the_release_leaves_the_mark_to_the_next_one() -> None:
    site = await Site(requeue_delay=SHORT_DELAY).submit().fail().requeued()
    await SimulatedCluster.release(site.cluster, site.job_id)
    assert (await site.run("release_job", attempt=2)).done
    assert (await site.job()).admin_comment == ""


async def test_a_hold_of_someone_else_is_not_released(site: Site) -> None:
    await site.fail().requeued()
    await site.cluster.hold(site.job_id)
    superseded = (await site.run("release_job")).superseded
    assert superseded is not None
    assert "JobHeldUser" in superseded
    assert site.did("release") == 0


class DoesNotRelease(Witness):
    async def release(self, job_id: str) -> None:
        self.acts.append(("release",))


async def test_a_release_that_cannot_be_read_back_is_tried_again() -> None:
    site = await Site(DoesNotRelease, requeue_delay=SHORT_DELAY).submit().fail().requeued()
    with pytest.raises(ReleaseNotSeen):
        await site.run("release_job")
    assert (await site.job()).admin_comment.startswith(HOLD_MARK), "the mark stays while the hold does"
