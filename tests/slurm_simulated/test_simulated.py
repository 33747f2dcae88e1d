"""What only the simulation has: its clock, its faults on demand, programs, and its price for thousands of jobs."""

import time
from datetime import timedelta
from pathlib import Path

import pytest

from activities.records import JobState, NodeFlag, NodeState
from activities.slurm.clock import ManualClock
from activities.slurm.scheduler import JobUnknown, PermissionDenied, Scheduler, SchedulerUnreachable
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import Exit, Life, Scripted, breaks_on, runs_for
from activities.slurm.simulated_state import NODES_DOWN, Request


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> SimulatedCluster:
    return SimulatedCluster(4, clock=clock)


def test_the_simulation_is_a_scheduler(cluster: SimulatedCluster) -> None:
    scheduler: Scheduler = cluster
    assert scheduler is cluster


async def test_a_scripted_job_ends_when_its_time_has_come_and_is_forgotten_after_min_job_age(
    cluster: SimulatedCluster, clock: ManualClock
) -> None:
    job_id = cluster.submit(runs_for(60, exit_code=3))
    assert (await cluster.job(job_id)).state is JobState.RUNNING
    ended = clock.advance(60)
    job = await cluster.job(job_id)
    assert (job.state, job.is_ending, job.exit_code, job.ended_at) == (JobState.FAILED, True, 3, ended)
    clock.advance(1)
    assert not (await cluster.job(job_id)).is_ending
    clock.advance(301)
    with pytest.raises(JobUnknown, match="MinJobAge"):
        await cluster.job(job_id)


async def test_long_leaps_of_the_clock_are_lived_through_in_order(cluster: SimulatedCluster, clock: ManualClock) -> None:
    first = cluster.submit(runs_for(100), request=Request(node_count=4))
    second = cluster.submit(runs_for(None), request=Request(node_count=4))
    start = clock.now()
    clock.advance(250)
    assert (await cluster.job(first)).ended_at == start + timedelta(seconds=100)
    assert (await cluster.job(second)).started_at == start + timedelta(seconds=101)


async def test_a_program_that_breaks_on_one_node_runs_on_off_it(cluster: SimulatedCluster, clock: ManualClock) -> None:
    job_id = cluster.submit(breaks_on(["node-002"], after=10), request=Request(node_count=2))
    clock.advance(12)
    assert (await cluster.job(job_id)).state is JobState.FAILED
    await cluster.requeue(job_id)
    await cluster.set_excluded_nodes(job_id, ["node-002"])
    await cluster.start_now(job_id)
    clock.advance(1000)
    job = await cluster.job(job_id)
    assert (job.state, job.nodes, job.restart_count) == (JobState.RUNNING, ("node-001", "node-003"), 1)


async def test_each_attempt_has_its_own_life(cluster: SimulatedCluster, clock: ManualClock) -> None:
    job_id = cluster.submit(Scripted((Life(timedelta(seconds=5), Exit(code=1)), Life(timedelta(seconds=5)))))
    clock.advance(10)
    await cluster.requeue(job_id)
    clock.advance(121 + 6)
    assert (await cluster.job(job_id)).state is JobState.COMPLETED


async def test_a_deaf_program_keeps_its_job_completing_until_it_is_killed(cluster: SimulatedCluster, clock: ManualClock) -> None:
    job_id = cluster.submit(Scripted((Life(deaf=True),)))
    await cluster.requeue(job_id)
    clock.advance(29)
    assert (await cluster.job(job_id)).is_ending
    clock.advance(3)
    assert not (await cluster.job(job_id)).is_ending


async def test_a_lost_node_requeues_its_job_without_anybody_asking(cluster: SimulatedCluster, clock: ManualClock) -> None:
    job_id = cluster.submit(request=Request(node_count=2))
    cluster.node_down("node-001")
    clock.advance(2)
    job = await cluster.job(job_id)
    assert (job.state, job.restart_count, job.reason) == (JobState.PENDING, 1, "BeginTime")
    clock.advance(121)
    assert (await cluster.job(job_id)).nodes == ("node-002", "node-003")
    node = (await cluster.nodes())[0]
    assert (node.state, node.flags, node.is_lost) == (NodeState.DOWN, (NodeFlag.NOT_RESPONDING,), True)


async def test_a_lost_node_ends_a_job_that_may_not_be_requeued(cluster: SimulatedCluster) -> None:
    job_id = cluster.submit(requeue=False)
    cluster.node_down("node-001")
    assert (await cluster.job(job_id)).state is JobState.NODE_FAIL


async def test_while_the_controller_is_down_nothing_answers_and_nothing_starts(cluster: SimulatedCluster, clock: ManualClock) -> None:
    running = cluster.submit(runs_for(10))
    cluster.down = True
    with pytest.raises(SchedulerUnreachable):
        await cluster.jobs()
    waiting = cluster.submit()
    clock.advance(60)
    back = clock.now()
    cluster.down = False
    assert (await cluster.job(running)).state is JobState.COMPLETED
    assert (await cluster.job(waiting)).reason == NODES_DOWN, "the nodes have yet to register"
    clock.advance(10)
    assert (await cluster.job(waiting)).started_at == back + timedelta(seconds=3)


async def test_a_weak_credential_is_refused_and_changes_nothing(cluster: SimulatedCluster) -> None:
    job_id = cluster.submit()
    cluster.may_operate = cluster.may_administer = False
    for refused in (
        cluster.requeue(job_id),
        cluster.cancel(job_id),
        cluster.set_admin_comment(job_id, "x"),
        cluster.drain("node-001", "backstay: x"),
    ):
        with pytest.raises(PermissionDenied):
            await refused
    assert (await cluster.job(job_id)).state is JobState.RUNNING
    assert (await cluster.nodes())[0].flags == ()


async def test_an_attempt_that_starts_empties_the_log_of_the_one_before(
    cluster: SimulatedCluster, clock: ManualClock, tmp_path: Path
) -> None:
    job_id = cluster.submit(request=Request(stdout=str(tmp_path / "%j.out")))
    log = tmp_path / f"{job_id}.out"
    log.write_text("the first attempt's last words\n")
    await cluster.requeue(job_id)
    assert log.read_text()
    clock.advance(123)
    await cluster.jobs()
    assert log.read_text() == ""


async def test_two_thousand_jobs_are_listed_at_little_cost() -> None:
    cluster = SimulatedCluster(2000, clock=ManualClock())
    for _ in range(2000):
        cluster.submit()
    await cluster.jobs()
    begin = time.process_time()
    jobs = await cluster.jobs()
    assert len(jobs) == 2000
    assert time.process_time() - begin < 1  # it takes one millisecond; a collection of garbage may fall into it
