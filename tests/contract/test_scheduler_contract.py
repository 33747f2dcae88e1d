"""What every scheduler must do, asked of the simulation and of real Slurm. Where they differ the simulation is wrong."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from activities.records import Job, JobState, NodeFlag, NodeState
from activities.reschedule import PAST_THE_KILL
from activities.slurm.scheduler import (
    REQUEUED_HELD,
    JobFinished,
    JobNotPending,
    JobPending,
    JobUnknown,
    NodeNameInvalid,
    NotABatchJob,
    PermissionDenied,
    RequeueDisabled,
    SchedulerRefused,
    SchedulerUnreachable,
)
from tests.contract.places import Place, RealPlace, SimulatedPlace, job_in, node_of, until
from workers.embedded.private_slurm import PrivateSlurm
from workers.embedded.slurm_programs import why_not

PENDING, RUNNING, FAILED = JobState.PENDING, JobState.RUNNING, JobState.FAILED


@pytest.fixture(params=["simulated", "simulated-as-22.05", pytest.param("real", marks=pytest.mark.slurm)])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param != "real":
        yield SimulatedPlace(lone_flags=request.param == "simulated-as-22.05")
        return
    slurm: PrivateSlurm = request.getfixturevalue("private_slurm")
    await slurm.clear()
    real = RealPlace(slurm)
    yield real
    await slurm.clear()
    await real.close()


async def running(place: Place, job_id: str) -> Job:
    return await job_in(place, job_id, RUNNING)


async def waiting(place: Place, job_id: str, reason: str) -> Job:
    """The job once it is pending for that reason."""
    look = place.scheduler.job
    return await until(place, lambda: look(job_id), lambda job: job.state is PENDING and not job.is_ending and job.reason == reason)


async def startable(place: Place, job_id: str) -> Job:
    """The requeued job once it is pending and past the second of its kill, which is the caller's to wait out: started within it, the
    attempt is lost (reschedule.py says why)."""
    await job_in(place, job_id, PENDING)
    look = place.scheduler.job
    return await until(
        place, lambda: look(job_id), lambda job: job.submitted_at is not None and place.now() - job.submitted_at >= PAST_THE_KILL
    )


# ------------------------------------------------------------------------------------------------------- questions


async def test_the_settings_tell_the_times_that_matter(place: Place) -> None:
    settings = await place.scheduler.settings()
    assert settings.requeue_delay == timedelta(seconds=121)
    assert settings.min_job_age == timedelta(seconds=300)
    assert settings.job_requeue is True
    assert settings.accounting is False


async def test_a_running_job_tells_what_it_is(place: Place) -> None:
    before = place.now().replace(microsecond=0)
    job_id = await place.submit(nodes=2, exclude=["node-001"], comment='{"backstay": {"mode": "auto"}}')
    job = await running(place, job_id)
    assert (job.job_id, job.numeric_id, job.name, job.user, job.partition) == (job_id, int(job_id), "contract", "root", "train")
    assert (job.nodes, job.node_count, job.task_count, job.excluded_nodes) == (("node-002", "node-003"), 2, 2, ("node-001",))
    assert (job.is_batch, job.may_requeue, job.is_held, job.restart_count, job.reason) == (True, True, False, 0, "")
    assert job.comment == '{"backstay": {"mode": "auto"}}'
    assert (job.stdout_path, job.working_directory) == ("/dev/null", "/")
    assert job.submitted_at is not None
    assert job.started_at is not None
    assert before <= job.submitted_at <= job.started_at <= place.now()
    assert (job.ended_at, job.exit_code, job.exit_signal) == (None, None, None)
    assert job in await place.scheduler.jobs()


@pytest.mark.parametrize(
    ("does", "state", "exit_code", "exit_signal"),
    [("fails", FAILED, 3, None), ("succeeds", JobState.COMPLETED, 0, None), ("dies", FAILED, 0, 9)],
)
async def test_an_ended_job_is_remembered_with_its_exit(
    place: Place, does: str, state: JobState, exit_code: int, exit_signal: int | None
) -> None:
    job_id = await place.submit(does)
    job = await job_in(place, job_id, state)
    assert (job.exit_code, job.exit_signal, job.nodes) == (exit_code, exit_signal, ("node-001",))
    assert job.reason == ("NonZeroExitCode" if state is FAILED and exit_code else job.reason)
    assert job.ended_at is not None
    assert job.started_at is not None
    assert job.started_at <= job.ended_at
    assert job_id in [job.job_id for job in await place.scheduler.jobs()]


async def test_a_job_nobody_has_is_unknown_to_every_question_and_mutation(place: Place) -> None:
    scheduler = place.scheduler
    for ask in (
        scheduler.job("99999"),
        scheduler.batch_script("99999"),
        scheduler.requeue("99999"),
        scheduler.permit_requeue("99999"),
        scheduler.set_excluded_nodes("99999", ["node-001"]),
        scheduler.start_now("99999"),
        scheduler.hold("99999"),
        scheduler.release("99999"),
        scheduler.set_admin_comment("99999", "x"),
        scheduler.cancel("99999"),
    ):
        with pytest.raises(JobUnknown):
            await ask


async def test_the_batch_script_is_given_back_as_submitted(place: Place) -> None:
    job_id = await place.submit()
    assert await place.scheduler.batch_script(job_id) == "#!/bin/bash\nsleep 600\n"


async def test_nodes_tell_whether_they_work(place: Place) -> None:
    nodes = await place.scheduler.nodes()
    assert [node.name for node in nodes] == ["node-001", "node-002", "node-003", "node-004"]
    assert all(node.state is NodeState.IDLE and node.can_take_jobs and "train" in node.partitions for node in nodes)
    await running(place, await place.submit())
    assert (await node_of(place, "node-001")).state is NodeState.ALLOCATED


# --------------------------------------------------------------------------------------------------------- requeue


async def test_a_requeued_job_waits_out_a_delay_with_one_restart_more(place: Place) -> None:
    job_id = await place.submit(nodes=2)
    first = await running(place, job_id)
    await place.pause()
    await place.scheduler.requeue(job_id)
    assert (await place.scheduler.job(job_id)).restart_count == 1
    job = await waiting(place, job_id, "BeginTime")
    assert (job.restart_count, job.nodes, job.started_at, job.ended_at) == (1, (), None, None)
    assert job.eligible_at is not None
    assert timedelta(seconds=90) < job.eligible_at - place.now() <= timedelta(seconds=121), "less what it took to look"
    assert job.submitted_at is not None
    assert first.submitted_at is not None
    assert job.submitted_at >= first.submitted_at
    late = job.submitted_at - (job.eligible_at - timedelta(seconds=121))  # Slurm writes them one after the other, in whole seconds
    assert timedelta(0) <= late <= timedelta(seconds=1)


async def test_a_failed_job_can_be_requeued_while_it_is_remembered(place: Place) -> None:
    job_id = await place.submit("fails")
    await job_in(place, job_id, FAILED)
    await place.scheduler.requeue(job_id)
    job = await waiting(place, job_id, "BeginTime")
    assert (job.restart_count, job.exit_code) == (1, None)


async def test_start_now_gives_the_delay_back_once_the_job_is_pending(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    await place.scheduler.requeue(job_id)
    await startable(place, job_id)
    await place.scheduler.start_now(job_id)
    job = await job_in(place, job_id, RUNNING)
    assert job.restart_count == 1


async def test_start_now_is_lost_without_an_error_while_the_job_is_completing(place: Place) -> None:
    job_id = await place.submit("deaf")
    await running(place, job_id)
    await place.until_deaf(job_id)
    await place.scheduler.requeue(job_id)
    assert (await place.scheduler.job(job_id)).is_ending
    await place.scheduler.start_now(job_id)
    assert (await place.scheduler.job(job_id)).is_ending
    job = await waiting(place, job_id, "BeginTime")
    assert job.eligible_at is not None
    assert job.eligible_at - place.now() > timedelta(seconds=100)


async def test_what_is_excluded_and_held_while_completing_stays_so(place: Place) -> None:
    job_id = await place.submit("deaf")
    await running(place, job_id)
    await place.until_deaf(job_id)
    await place.scheduler.requeue(job_id)
    await place.scheduler.set_excluded_nodes(job_id, ["node-001"])
    await place.scheduler.hold(job_id)
    assert (await place.scheduler.job(job_id)).is_ending
    job = await job_in(place, job_id, PENDING)
    assert (job.excluded_nodes, job.is_held) == (("node-001",), True)


async def test_a_job_that_waits_is_not_requeued_again(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    await place.scheduler.requeue(job_id)
    for _ in range(2):
        with pytest.raises(JobPending):
            await place.scheduler.requeue(job_id)
        await job_in(place, job_id, PENDING)
    assert (await place.scheduler.job(job_id)).restart_count == 1


async def test_no_requeue_is_honoured_until_requeue_is_permitted(place: Place) -> None:
    job_id = await place.submit(requeue=False)
    assert (await running(place, job_id)).may_requeue is False
    with pytest.raises(RequeueDisabled):
        await place.scheduler.requeue(job_id)
    await place.scheduler.permit_requeue(job_id)
    assert (await place.scheduler.job(job_id)).may_requeue is True
    await place.scheduler.requeue(job_id)
    assert (await job_in(place, job_id, PENDING)).restart_count == 1


async def test_an_ended_job_can_no_longer_be_permitted_to_requeue(place: Place) -> None:
    job_id = await place.submit("fails", requeue=False)
    await job_in(place, job_id, FAILED)
    with pytest.raises(RequeueDisabled):
        await place.scheduler.requeue(job_id)
    with pytest.raises(JobFinished):
        await place.scheduler.permit_requeue(job_id)


async def test_an_allocation_without_a_script_is_never_requeued(place: Place) -> None:
    job_id = await place.submit_interactive()
    assert (await place.scheduler.job(job_id)).is_batch is False
    with pytest.raises(NotABatchJob):
        await place.scheduler.requeue(job_id)
    with pytest.raises(NotABatchJob):
        await place.scheduler.batch_script(job_id)


async def test_requeued_and_held_it_waits_for_its_release_even_past_its_begin_time(place: Place) -> None:
    job_id = await place.submit("fails")
    await job_in(place, job_id, FAILED)
    await place.scheduler.requeue(job_id, hold=True)
    job = await job_in(place, job_id, PENDING)
    assert (job.is_held, job.restart_count) == (True, 1)
    await place.scheduler.start_now(job_id)
    for _ in range(12):
        await place.pause()
    assert (await place.scheduler.job(job_id)).is_held
    await place.scheduler.release(job_id)
    await running(place, job_id)


async def test_release_alone_does_not_give_the_requeue_delay_back(place: Place) -> None:
    job_id = await place.submit("fails")
    await job_in(place, job_id, FAILED)
    await place.scheduler.requeue(job_id, hold=True)
    await job_in(place, job_id, PENDING)
    await place.scheduler.release(job_id)
    job = await waiting(place, job_id, "BeginTime")
    assert not job.is_held


async def test_a_lost_node_is_told_and_slurm_itself_requeues_its_job_elsewhere(place: Place) -> None:
    job_id = await place.submit(nodes=2)
    single = await place.submit(requeue=False, nodelist=["node-003"])
    await running(place, job_id)
    await running(place, single)
    await place.lose_node("node-002")
    await place.lose_node("node-003")
    node = await until(place, lambda: node_of(place, "node-002"), lambda node: node.state is NodeState.DOWN)
    assert (node.is_lost, node.can_take_jobs, NodeFlag.NOT_RESPONDING in node.flags, node.reason) == (True, False, True, "Not responding")
    job = await waiting(place, job_id, "BeginTime")
    assert job.restart_count == 1
    ended = await job_in(place, single, JobState.NODE_FAIL)
    assert (ended.nodes, ended.exit_code, ended.reason) == (("node-003",), 0, "NodeDown")
    await startable(place, job_id)
    await place.scheduler.start_now(job_id)
    assert (await running(place, job_id)).nodes == ("node-001", "node-004")


# ------------------------------------------------------------------------------------------------------ exclusions


async def test_exclusions_replace_each_other_and_bind_the_next_attempt(place: Place) -> None:
    job_id = await place.submit(nodes=2, exclude=["node-004"])
    await running(place, job_id)
    await place.scheduler.requeue(job_id)
    await startable(place, job_id)
    await place.scheduler.set_excluded_nodes(job_id, ["node-003"])
    assert (await place.scheduler.job(job_id)).excluded_nodes == ("node-003",)
    await place.scheduler.set_excluded_nodes(job_id, ["node-002", "node-001"])
    await place.scheduler.start_now(job_id)
    job = await running(place, job_id)
    assert (job.nodes, job.excluded_nodes) == (("node-003", "node-004"), ("node-001", "node-002"))


async def test_exclusions_survive_a_requeue_and_can_be_lifted(place: Place) -> None:
    job_id = await place.submit(exclude=["node-001"])
    assert (await running(place, job_id)).nodes == ("node-002",)
    await place.scheduler.requeue(job_id)
    assert (await startable(place, job_id)).excluded_nodes == ("node-001",)
    await place.scheduler.set_excluded_nodes(job_id, [])
    await place.scheduler.start_now(job_id)
    job = await running(place, job_id)
    assert (job.nodes, job.excluded_nodes) == (("node-001",), ())


async def test_one_unknown_node_fails_the_whole_update(place: Place) -> None:
    job_id = await place.submit(hold=True, exclude=["node-004"])
    with pytest.raises(NodeNameInvalid):
        await place.scheduler.set_excluded_nodes(job_id, ["node-001", "node-999"])
    assert (await place.scheduler.job(job_id)).excluded_nodes == ("node-004",)


async def test_a_running_job_refuses_what_only_a_pending_one_takes(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    with pytest.raises(JobNotPending):
        await place.scheduler.set_excluded_nodes(job_id, ["node-001"])
    with pytest.raises(JobNotPending):
        await place.scheduler.start_now(job_id)
    assert (await place.scheduler.job(job_id)).excluded_nodes == ()


async def test_an_ended_job_refuses_every_update(place: Place) -> None:
    job_id = await place.submit("fails")
    await job_in(place, job_id, FAILED)
    for late in (
        place.scheduler.set_excluded_nodes(job_id, ["node-001"]),
        place.scheduler.start_now(job_id),
        place.scheduler.hold(job_id),
        place.scheduler.release(job_id),
        place.scheduler.set_admin_comment(job_id, "backstay: x"),
    ):
        with pytest.raises(JobFinished):
            await late


async def test_an_exclusion_that_leaves_too_few_nodes_is_taken_and_blocks_the_job_until_lifted(place: Place) -> None:
    job_id = await place.submit(nodes=3)
    await running(place, job_id)
    await place.scheduler.requeue(job_id)
    await startable(place, job_id)
    await place.scheduler.set_excluded_nodes(job_id, ["node-001", "node-002"])
    await place.scheduler.start_now(job_id)
    job = await waiting(place, job_id, "BadConstraints")
    assert job.is_held
    await place.scheduler.set_excluded_nodes(job_id, ["node-001"])
    assert (await running(place, job_id)).nodes == ("node-002", "node-003", "node-004")


# ------------------------------------------------------------------------------------------- hold, comment, cancel


async def test_a_held_job_starts_when_it_is_released(place: Place) -> None:
    job_id = await place.submit(hold=True)
    job = await waiting(place, job_id, "JobHeldUser")
    assert job.is_held
    await place.scheduler.release(job_id)
    await running(place, job_id)


async def test_a_hold_keeps_a_requeued_job_from_starting(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    await place.scheduler.requeue(job_id)
    await startable(place, job_id)
    await place.scheduler.hold(job_id)
    job = await place.scheduler.job(job_id)
    assert (job.is_held, job.reason) == (True, "JobHeldUser")
    await place.scheduler.start_now(job_id)
    await place.scheduler.release(job_id)
    await running(place, job_id)


async def test_holding_a_running_job_lets_it_run_and_holds_it_once_requeued(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    assert not (await place.scheduler.job(job_id)).is_held_once_requeued
    await place.scheduler.hold(job_id)
    job = await place.scheduler.job(job_id)
    assert (job.is_held, job.is_held_once_requeued) == (False, True)
    await place.scheduler.requeue(job_id)
    job = await job_in(place, job_id, PENDING)
    assert (job.is_held, job.is_held_once_requeued, job.reason) == (True, False, "JobHeldUser")


async def test_a_hold_outlives_the_end_of_the_job(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    await place.scheduler.hold(job_id)
    await place.scheduler.cancel(job_id)
    assert (await job_in(place, job_id, JobState.CANCELLED)).is_held_once_requeued


async def test_a_job_requeued_with_a_hold_tells_that_hold_from_a_persons(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    await place.scheduler.requeue(job_id, hold=True)
    job = await job_in(place, job_id, PENDING)
    assert (job.is_held, job.reason) == (True, REQUEUED_HELD)


async def test_the_admin_comment_is_kept_through_a_requeue(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    await place.scheduler.set_admin_comment(job_id, "backstay: held, see incident i-1")
    await place.scheduler.requeue(job_id)
    assert (await job_in(place, job_id, PENDING)).admin_comment == "backstay: held, see incident i-1"


async def test_a_cancelled_job_ends_for_good(place: Place) -> None:
    job_id = await place.submit()
    await running(place, job_id)
    await place.scheduler.cancel(job_id)
    job = await job_in(place, job_id, JobState.CANCELLED)
    assert job.restart_count == 0
    with pytest.raises(JobFinished):
        await place.scheduler.cancel(job_id)


async def test_a_pending_job_can_be_cancelled(place: Place) -> None:
    job_id = await place.submit(hold=True)
    await place.scheduler.cancel(job_id)
    job = await job_in(place, job_id, JobState.CANCELLED)
    assert job.nodes == ()


# --------------------------------------------------------------------------------------------- placement and nodes


async def test_a_job_waits_for_the_nodes_another_one_holds(place: Place) -> None:
    first = await place.submit(nodes=4)
    await running(place, first)
    second = await place.submit(nodes=1)
    await waiting(place, second, "Resources")
    await place.scheduler.cancel(first)
    await running(place, second)


async def test_required_nodes_are_used(place: Place) -> None:
    job = await running(place, await place.submit(nodes=2, nodelist=["node-003"]))
    assert "node-003" in job.nodes
    assert job.required_nodes == ("node-003",)


async def test_a_drained_node_takes_no_new_work_until_it_is_resumed(place: Place) -> None:
    await place.scheduler.drain("node-001", "backstay: gpu fault, job 17")
    node = await node_of(place, "node-001")
    assert (NodeFlag.DRAIN in node.flags, node.can_take_jobs, node.reason) == (True, False, "backstay: gpu fault, job 17")
    assert (await running(place, await place.submit())).nodes == ("node-002",)
    await place.scheduler.resume("node-001")
    node = await until(place, lambda: node_of(place, "node-001"), lambda node: node.can_take_jobs)
    assert (node.flags, node.reason) == ((), "")
    assert (await running(place, await place.submit())).nodes == ("node-001",)


async def test_draining_needs_a_known_node_and_a_reason(place: Place) -> None:
    with pytest.raises(NodeNameInvalid):
        await place.scheduler.drain("node-999", "backstay: x")
    with pytest.raises(SchedulerRefused):
        await place.scheduler.drain("node-001", "")
    assert (await node_of(place, "node-001")).flags == ()


# -------------------------------------------------------------------------------------- arrays, het jobs, no answer


async def test_array_tasks_are_jobs_of_their_own(place: Place) -> None:
    array = await place.submit(array=[1, 3])
    first, second = await running(place, f"{array}_1"), await running(place, f"{array}_3")
    assert (first.array_job_id, first.array_task_id, second.array_task_id) == (int(array), 1, 3)
    await place.scheduler.requeue(f"{array}_3")
    assert (await job_in(place, f"{array}_3", PENDING)).restart_count == 1
    assert (await place.scheduler.job(f"{array}_1")).state is RUNNING
    with pytest.raises(JobUnknown):
        await place.scheduler.job(array)


async def test_tasks_still_queued_are_listed_together_and_answered_one_by_one(place: Place) -> None:
    array = await place.submit(array=[1, 3], hold=True)
    assert [job.job_id for job in await place.scheduler.jobs() if job.array_job_id == int(array)] == [f"{array}_[1,3]"]
    job = await place.scheduler.job(f"{array}_3")
    assert (job.job_id, job.array_task_id, job.state) == (f"{array}_3", 3, PENDING)


async def test_a_het_job_is_requeued_by_its_leader_and_by_nobody_else(place: Place) -> None:
    leader = await place.submit_het(1, 2)
    job = await running(place, leader)
    component = next(other for other in await place.scheduler.jobs() if other.het_job_id == int(leader) and other.het_offset == 1)
    assert (job.het_job_id, job.het_offset, job.nodes) == (int(leader), 0, ("node-001",))
    assert (component.job_id, component.nodes) == (f"{leader}+1", ("node-002", "node-003"))
    with pytest.raises(SchedulerRefused):
        await place.scheduler.requeue(str(component.numeric_id))
    await place.scheduler.requeue(leader)
    await startable(place, leader)
    await place.scheduler.set_excluded_nodes(leader, ["node-001"])
    await place.scheduler.start_now(leader)
    assert (await running(place, leader)).nodes == ("node-002",)
    components = [job for job in await place.scheduler.jobs() if job.het_job_id == int(leader)]
    assert [job.restart_count for job in components] == [1, 1]


async def test_a_credential_without_rights_may_look_and_is_refused_the_rest(place: Place) -> None:
    job_id, held = await place.submit(), await place.submit(hold=True)
    await running(place, job_id)
    weak = place.weak()
    assert (await weak.job(job_id)).state is RUNNING
    assert len(await weak.nodes()) == 4
    for refused in (
        weak.requeue(job_id),
        weak.permit_requeue(job_id),
        weak.set_excluded_nodes(held, ["node-001"]),
        weak.start_now(held),
        weak.hold(job_id),
        weak.release(held),
        weak.set_admin_comment(job_id, "backstay: x"),
        weak.cancel(job_id),
        weak.drain("node-001", "backstay: x"),
        weak.resume("node-001"),
        weak.batch_script(job_id),
    ):
        with pytest.raises(PermissionDenied):
            await refused
    job = await weak.job(job_id)
    assert (job.state, job.admin_comment, (await weak.job(held)).is_held) == (RUNNING, "", True)


async def test_without_a_controller_nothing_is_known_and_jobs_run_on(place: Place) -> None:
    job_id = await place.submit()
    before = await running(place, job_id)
    await place.stop_controller()
    scheduler = place.scheduler
    for ask in (scheduler.jobs(), scheduler.job(job_id), scheduler.requeue(job_id)):
        with pytest.raises(SchedulerUnreachable):
            await ask
    await place.start_controller()
    after = await place.scheduler.job(job_id)
    assert (after.state, after.started_at, after.restart_count) == (RUNNING, before.started_at, 0)


async def test_a_controller_just_started_does_not_know_its_nodes_until_they_register_and_starts_nothing_on_them(place: Place) -> None:
    await place.stop_controller()
    starting = asyncio.create_task(place.start_controller())
    await asyncio.sleep(0)  # lets it begin: the simulation never waits
    seen: set[NodeState] = set()

    async def states() -> set[NodeState]:
        try:
            found = {node.state for node in await place.scheduler.nodes()}
        except SchedulerUnreachable:
            found = set()
        seen.update(found)
        return found

    await until(place, states, lambda found: found == {NodeState.IDLE})
    await starting
    assert seen == {NodeState.UNKNOWN, NodeState.IDLE}


# ----------------------------------------------------------------------------------------------------- slow: a cluster of its own


@pytest.mark.slurm
async def test_real_slurm_forgets_an_ended_job_and_starts_a_requeued_one_by_itself_after_its_delay() -> None:
    """The simulation's side of this is in tests/slurm_simulated: there the times cost nothing."""
    if reason := why_not():
        pytest.skip(reason)
    async with PrivateSlurm(2, min_job_age=timedelta(seconds=2), requeue_delay=timedelta(seconds=11)) as slurm:
        place = RealPlace(slurm)
        forgotten = await place.submit("fails")
        requeued = await place.submit()
        await running(place, requeued)
        await place.scheduler.requeue(requeued)
        waits = await job_in(place, requeued, PENDING)
        job = await running(place, requeued)
        assert waits.submitted_at is not None
        assert waits.eligible_at is not None
        assert job.started_at is not None
        assert waits.eligible_at - waits.submitted_at >= timedelta(seconds=10)  # of eleven: written one after the other, in whole seconds
        assert job.started_at >= waits.eligible_at
        assert job.restart_count == 1
        await until(place, place.scheduler.jobs, lambda jobs: forgotten not in [job.job_id for job in jobs], within=60)
        with pytest.raises(JobUnknown):
            await place.scheduler.job(forgotten)
