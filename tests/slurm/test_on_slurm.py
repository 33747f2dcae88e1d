"""The facts of Slurm that bite, on a real one. What holds for every scheduler of ours stands in tests/contract/."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from activities.configuration import SchedulerSection
from activities.records import Job, JobState, NodeFlag, NodeState
from activities.slurm.commands import CommandScheduler
from activities.slurm.feed import Feed
from activities.slurm.scheduler import (
    JobFinished,
    JobNotPending,
    JobPending,
    JobUnknown,
    NodeNameInvalid,
    NotABatchJob,
    RequeueDisabled,
    SchedulerRefused,
    SchedulerUnreachable,
)
from workers.embedded.private_slurm import PrivateSlurm

pytestmark = pytest.mark.slurm

SLEEP = "sleep 600"
IGNORES_SIGTERM = "trap '' TERM\ntouch deaf-$SLURM_JOB_ID\nfor i in $(seq 600); do sleep 1; done"


@pytest.fixture
def scheduler(idle_slurm: PrivateSlurm) -> CommandScheduler:
    return CommandScheduler(idle_slurm.transport, SchedulerSection.model_validate({"timeout": "20s"}))


async def seen(scheduler: CommandScheduler, job_id: str, wanted: Callable[[Job], bool], within: timedelta = timedelta(seconds=60)) -> Job:
    async with asyncio.timeout(within.total_seconds()):
        while True:
            job = await scheduler.job(job_id)
            if wanted(job):
                return job
            await asyncio.sleep(0.1)


def is_running(job: Job) -> bool:
    return job.state is JobState.RUNNING


def is_pending(job: Job) -> bool:
    """Really pending: newer versions tell PENDING with COMPLETING while the last execution is still being ended."""
    return job.state is JobState.PENDING and not job.is_ending


async def past_the_second_of_its_kill(job: Job) -> None:
    """slurmd refuses a credential made in the second, or before, in which it was told to end the job (slurm_cred_revoked(): `ctime <=
    revoked`): "Job already killed, do not launch batch job", and the job is FAILED with exit code 1. Measured with `StartTime=now` a
    tenth of a second after the kill. SubmitTime of a requeued job is the moment it became pending."""
    assert job.submitted_at is not None
    left = job.submitted_at + timedelta(seconds=2) - datetime.now(UTC)
    await asyncio.sleep(max(0.0, left.total_seconds()))


async def test_requeue_then_exclude_then_start_now_runs_elsewhere_within_seconds(
    idle_slurm: PrivateSlurm, scheduler: CommandScheduler
) -> None:
    job_id = await idle_slurm.submit_text(SLEEP, "--nodes=2", "--exclude=node-004")
    before = await seen(scheduler, job_id, is_running)
    bad, good = before.nodes
    began = datetime.now(UTC)
    await scheduler.requeue(job_id)
    waiting = await seen(scheduler, job_id, is_pending)
    assert waiting.restart_count == before.restart_count + 1
    assert waiting.eligible_at is not None
    assert waiting.eligible_at - began > timedelta(seconds=100), "Slurm's own delay: fail-open, and our time to act"
    await scheduler.set_excluded_nodes(job_id, {*waiting.excluded_nodes, bad})
    assert set((await scheduler.job(job_id)).excluded_nodes) == {"node-004", bad}
    await past_the_second_of_its_kill(waiting)
    await scheduler.start_now(job_id)
    after = await seen(scheduler, job_id, is_running)
    assert bad not in after.nodes
    assert good in after.nodes
    assert datetime.now(UTC) - began < timedelta(seconds=60), "long before Slurm's own delay is over"
    assert after.submitted_at is not None
    assert before.submitted_at is not None
    assert after.submitted_at > before.submitted_at, "a requeue resets SubmitTime"


async def test_the_reason_of_a_requeued_job_is_its_begin_time(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text("exit 3")
    await seen(scheduler, job_id, lambda job: job.state is JobState.FAILED)
    await scheduler.requeue(job_id)
    job = await seen(scheduler, job_id, lambda job: is_pending(job) and job.reason == "BeginTime")
    assert (job.state, job.restart_count, job.is_held) == (JobState.PENDING, 1, False)


async def test_start_now_is_lost_while_the_job_is_still_completing(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(IGNORES_SIGTERM)
    await seen(scheduler, job_id, lambda _: (idle_slurm.directory / f"deaf-{job_id}").exists())
    await scheduler.requeue(job_id)
    job = await scheduler.job(job_id)
    assert job.is_ending, "KillWait gives the job time to end"
    await scheduler.start_now(job_id)
    waiting = await seen(scheduler, job_id, is_pending)
    assert waiting.eligible_at is not None
    assert waiting.eligible_at - datetime.now(UTC) > timedelta(seconds=90), "no error, and no effect"
    await past_the_second_of_its_kill(waiting)
    await scheduler.start_now(job_id)
    await seen(scheduler, job_id, is_running)


async def test_a_start_past_the_second_of_the_kill_is_accepted_by_the_node(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP, "--nodelist=node-001")
    await seen(scheduler, job_id, is_running)
    for restarts in (1, 2, 3):
        await scheduler.requeue(job_id)
        waiting = await seen(scheduler, job_id, is_pending)
        await past_the_second_of_its_kill(waiting)
        await scheduler.start_now(job_id)
        job = await seen(scheduler, job_id, lambda job: job.state not in (JobState.PENDING, JobState.UNKNOWN))
        assert (job.state, job.restart_count, job.nodes) == (JobState.RUNNING, restarts, ("node-001",))


async def test_an_exclusion_replaces_the_one_before(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP, "--hold", "--exclude=node-001,node-002")
    assert (await scheduler.job(job_id)).excluded_nodes == ("node-001", "node-002")
    await scheduler.set_excluded_nodes(job_id, ["node-003"])
    assert (await scheduler.job(job_id)).excluded_nodes == ("node-003",)
    await scheduler.set_excluded_nodes(job_id, [])
    assert (await scheduler.job(job_id)).excluded_nodes == ()


async def test_one_unknown_node_fails_the_whole_exclusion(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP, "--hold", "--exclude=node-002")
    with pytest.raises(NodeNameInvalid):
        await scheduler.set_excluded_nodes(job_id, ["node-001", "node-999"])
    assert (await scheduler.job(job_id)).excluded_nodes == ("node-002",)


async def test_a_running_job_s_exclusion_cannot_be_changed(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP)
    await seen(scheduler, job_id, is_running)
    with pytest.raises(JobNotPending):
        await scheduler.set_excluded_nodes(job_id, ["node-001"])
    with pytest.raises(JobNotPending):
        await scheduler.start_now(job_id)


async def test_no_requeue_is_a_refusal_until_it_is_permitted(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP, "--no-requeue")
    await seen(scheduler, job_id, is_running)
    with pytest.raises(RequeueDisabled):
        await scheduler.requeue(job_id)
    assert (await scheduler.job(job_id)).may_requeue is False
    await scheduler.permit_requeue(job_id)
    assert (await scheduler.job(job_id)).may_requeue is True
    await scheduler.requeue(job_id)
    await seen(scheduler, job_id, is_pending)


async def test_an_allocation_cannot_be_requeued(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    allocation = asyncio.create_task(idle_slurm.run("srun", "--job-name=by-hand", "sleep", "15"))
    job: Job | None = None
    async with asyncio.timeout(20):
        while job is None:
            job = next((job for job in await scheduler.jobs() if job.name == "by-hand" and is_running(job)), None)
    assert job.is_batch is False
    with pytest.raises(NotABatchJob):
        await scheduler.requeue(job.job_id)
    with pytest.raises(NotABatchJob):
        await scheduler.batch_script(job.job_id)
    allocation.cancel()
    await asyncio.gather(allocation, return_exceptions=True)


async def test_a_job_slurm_does_not_know(scheduler: CommandScheduler) -> None:
    questions = (scheduler.job, scheduler.batch_script, scheduler.requeue, scheduler.start_now, scheduler.hold, scheduler.release)
    for ask in (*questions, scheduler.permit_requeue, scheduler.cancel):
        with pytest.raises(JobUnknown):
            await ask("999999")
    with pytest.raises(JobUnknown):
        await scheduler.requeue("999999_3")


async def test_a_job_that_waits_cannot_be_requeued_and_one_that_ended_cannot_be_changed(
    idle_slurm: PrivateSlurm, scheduler: CommandScheduler
) -> None:
    waiting = await idle_slurm.submit_text(SLEEP, "--hold")
    with pytest.raises(JobPending):
        await scheduler.requeue(waiting)
    ended = await idle_slurm.submit_text("exit 3")
    await seen(scheduler, ended, lambda job: job.state is JobState.FAILED)
    for change in (scheduler.start_now, scheduler.hold, scheduler.permit_requeue, scheduler.cancel):
        with pytest.raises(JobFinished):
            await change(ended)


async def test_requeue_hold_waits_for_a_release(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP)
    await seen(scheduler, job_id, is_running)
    await scheduler.requeue(job_id, hold=True)
    held = await seen(scheduler, job_id, is_pending)
    assert held.is_held
    await scheduler.set_admin_comment(job_id, "backstay: held for incident 'x, \"1\"'")
    assert (await scheduler.job(job_id)).admin_comment == "backstay: held for incident 'x, \"1\"'"
    await scheduler.release(job_id)
    released = await scheduler.job(job_id)
    assert not released.is_held
    await scheduler.hold(job_id)
    assert (await scheduler.job(job_id)).reason == "JobHeldUser", "its owner may release it too"


async def test_exit_codes_signals_and_failed_steps(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    exited, killed, hidden = [
        await idle_slurm.submit_text(text) for text in ("exit 3", "kill -9 $$", "srun bash -c 'exit 7'\nexit 0")
    ]  # one after the other: the order of IDs
    job = await seen(scheduler, exited, lambda job: job.state.is_ended)
    assert (job.state, job.exit_code, job.exit_signal) == (JobState.FAILED, 3, None)
    job = await seen(scheduler, killed, lambda job: job.state.is_ended)
    assert (job.state, job.exit_code, job.exit_signal) == (JobState.FAILED, 0, 9)
    job = await seen(scheduler, hidden, lambda job: job.state.is_ended)
    assert (job.state, job.exit_code, job.derived_exit_code) == (JobState.COMPLETED, 0, 7)


async def test_array_tasks_are_jobs_of_their_own(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    array = await idle_slurm.submit_text(SLEEP, "--array=0-5%2")
    first = await seen(scheduler, f"{array}_0", is_running)
    assert (first.array_job_id, first.array_task_id) == (int(array), 0)
    assert (await scheduler.job(f"{array}_5")).state is JobState.PENDING
    with pytest.raises(JobUnknown):
        await scheduler.job(array)
    await scheduler.requeue(f"{array}_0")
    again = await seen(scheduler, f"{array}_0", is_pending)
    assert again.restart_count == 1
    assert (await scheduler.job(f"{array}_1")).restart_count == 0, "the other tasks were left alone"


async def test_a_script_comes_back_as_submitted(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    text = '#!/bin/bash\n#SBATCH --comment=\'{"backstay": {"mode": "approve"}}\'\nsleep 600 # ümlaut\n'
    job_id = await idle_slurm.submit_text(text)
    assert await scheduler.batch_script(job_id) == text
    assert (await scheduler.job(job_id)).comment == '{"backstay": {"mode": "approve"}}'


async def test_a_drain_of_ours_can_be_undone(scheduler: CommandScheduler) -> None:
    await scheduler.drain("node-003", "backstay: Xid 79 on gpu 2")
    (node,) = [node for node in await scheduler.nodes() if node.name == "node-003"]
    assert NodeFlag.DRAIN in node.flags
    assert node.reason == "backstay: Xid 79 on gpu 2"
    assert not node.can_take_jobs
    await scheduler.resume("node-003")
    async with asyncio.timeout(60):
        while not node.can_take_jobs:  # slurmctld first asks the node whether it is there
            (node,) = [node for node in await scheduler.nodes() if node.name == "node-003"]
    assert (node.state, node.flags) == (NodeState.IDLE, ())
    with pytest.raises(NodeNameInvalid):
        await scheduler.drain("node-999", "backstay: x")


async def test_a_job_without_enough_nodes_is_held_by_slurm_itself(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP, "--nodes=4", "--begin=now+1hour")
    await scheduler.set_excluded_nodes(job_id, ["node-001"])
    await scheduler.start_now(job_id)
    job = await seen(scheduler, job_id, lambda job: job.reason == "BadConstraints")
    assert (job.state, job.is_held) == (JobState.PENDING, True), "no warning came of the exclusion"


async def test_settings_of_the_cluster(scheduler: CommandScheduler) -> None:
    settings = await scheduler.settings()
    assert settings.requeue_delay == timedelta(seconds=121)
    assert settings.min_job_age == timedelta(seconds=300)
    assert settings.version.startswith("2")
    assert (settings.accounting, settings.job_requeue) == (False, True)


async def test_a_dead_controller_is_unreachable_whatever_is_asked(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    job_id = await idle_slurm.submit_text(SLEEP)
    await seen(scheduler, job_id, is_running)
    feed = Feed(scheduler, timedelta(milliseconds=200))
    good = await feed.next()
    await idle_slurm.stop_controller()
    questions = (scheduler.jobs, scheduler.nodes, scheduler.settings)
    mutations = (scheduler.job, scheduler.batch_script, scheduler.requeue, scheduler.start_now, scheduler.release, scheduler.cancel)
    answers = await asyncio.gather(
        *(question() for question in questions),
        *(mutation(job_id) for mutation in mutations),
        scheduler.drain("node-001", "backstay: x"),
        return_exceptions=True,  # each waits some seconds for the controller: ask all at once
    )
    assert [type(answer) for answer in answers] == [SchedulerUnreachable] * 10
    silent = await feed.next(feed.latest.number if feed.latest else 0)
    assert silent.unreachable_since is not None
    assert silent.jobs[job_id] == good.jobs[job_id]
    await idle_slurm.start_controller()
    async with asyncio.timeout(60):
        while not silent.is_good:
            silent = await feed.next(silent.number)
    assert silent.jobs[job_id].state is JobState.RUNNING
    await feed.close()


async def test_a_het_job_is_told_by_its_leader(idle_slurm: PrivateSlurm, scheduler: CommandScheduler) -> None:
    leader = await idle_slurm.submit_text(SLEEP, "--nodes=1", ":", "--nodes=1")
    job = await seen(scheduler, leader, is_running)
    assert (job.het_job_id, job.het_offset) == (int(leader), 0)
    assert (await scheduler.job(f"{leader}+1")).het_offset == 1
    with pytest.raises(SchedulerRefused):
        await scheduler.requeue(f"{leader}+1")
