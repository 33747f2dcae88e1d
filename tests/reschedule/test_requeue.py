"""Requeue: once however often it is tried, and never where another hand, the user or Slurm has said otherwise."""

import pytest

from activities.mutation import (
    Loss,
    RequeueNotSeen,
)
from activities.records import JobState
from activities.reschedule import Reschedule
from activities.slurm.scheduler import JobFinished, SchedulerUnreachable
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import Exit
from tests.reschedule.site import Site, Witness


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
async def test_a_requeue_puts_the_job_back_in_the_queue(site: Site, ended: bool) -> None:
    if ended:
        site.fail()
    result = await site.run("requeue_job")
    assert result.done
    assert not result.held
    assert (await site.job()).restart_count == 1
    assert site.cluster.acts == [("requeue",)]


async def test_a_try_after_a_lost_answer_requeues_nothing_twice(site: Site) -> None:
    site.fail()
    await site.run("requeue_job")
    again = await site.run("requeue_job", attempt=2)
    assert again.done
    assert "not repeated" in again.detail
    assert (await site.job()).restart_count == 1
    assert site.did("requeue") == 1


async def test_a_requeue_found_again_by_a_worker_that_was_dead_until_the_job_ran_again_is_our_own(site: Site) -> None:
    site.fail()
    await site.run("requeue_job")
    site.clock.advance(200)
    assert (await site.job()).state is JobState.RUNNING
    again = await site.run("requeue_job", attempt=2)
    assert (again.done, again.held) == (True, False)
    assert "restart count went from 0 to 1; not repeated" in again.detail
    assert site.did("requeue") == 1
    later = await site.run("confirm_pending", requeued=True)
    assert later.superseded == "the next attempt is RUNNING already"


async def test_it_is_told_before_it_is_sent_and_not_sent_where_it_cannot_be_told(site: Site) -> None:
    async def unheard(words: str) -> None:
        assert site.did("requeue") == 0
        raise ConnectionError("no Temporal")

    site.fail()
    site.reschedule = Reschedule(site.cluster, clock=site.clock, tell=unheard)
    with pytest.raises(ConnectionError):
        await site.run("requeue_job")
    assert site.did("requeue") == 0


async def test_a_requeue_of_ours_and_one_more_since_is_not_all_our_own(site: Site) -> None:
    site.fail()
    await site.run("requeue_job")
    site.clock.advance(200)
    await SimulatedCluster.requeue(site.cluster, site.job_id)
    site.clock.advance(200)
    assert (await site.job()).restart_count == 2
    assert (await site.run("requeue_job", attempt=2)).superseded


async def test_what_was_told_of_an_earlier_attempt_of_the_job_proves_nothing(site: Site) -> None:
    site.fail()
    await site.run("requeue_job")
    site.clock.advance(200)
    site.fail()
    await SimulatedCluster.requeue(site.cluster, site.job_id)
    site.clock.advance(200)
    assert (await site.run("requeue_job", attempt=2, restart_count=1)).superseded


async def test_a_requeue_that_slurmctld_lost_is_sent_again_and_one_that_stands_is_not(site: Site) -> None:
    site.fail()
    failed = site.cluster.saved(site.job_id)
    await site.run("requeue_job")
    assert (await site.run("requeue_job", requeued=True)).done
    assert site.did("requeue") == 1
    site.killed_before_it_saved(failed)
    for step in ("confirm_pending", "exclude_nodes", "expedite", "release_job"):
        lost = await site.run(step, nodes=("node-002",), requeued=True)
        assert lost.lost is Loss.REQUEUE
        assert "FAILED with restart count 0 again" in lost.detail
    assert (await site.run("requeue_job", requeued=True)).done
    job = await site.job()
    assert (job.state, job.restart_count) == (JobState.PENDING, 1)


async def test_a_job_that_someone_else_has_requeued_is_not_requeued_again(site: Site) -> None:
    await SimulatedCluster.requeue(site.cluster, site.job_id)
    result = await site.run("requeue_job")
    assert result.superseded == "restart count went from 0 to 1"
    assert site.did("requeue") == 0


async def test_a_next_attempt_that_has_run_supersedes_even_a_second_try(site: Site) -> None:
    await SimulatedCluster.requeue(site.cluster, site.job_id)
    site.clock.advance(200)
    assert (await site.job()).state is JobState.RUNNING
    assert (await site.run("requeue_job", attempt=2)).superseded
    assert site.did("requeue") == 0


@pytest.mark.parametrize(
    ("exit", "words"),
    [(Exit(state=JobState.CANCELLED), "someone cancelled the job"), (Exit(), "the job has completed")],
    ids=["cancelled", "completed"],
)
async def test_a_job_that_was_cancelled_or_completed_meanwhile_is_left_alone(site: Site, exit: Exit, words: str) -> None:
    site.cluster.end_job(site.job_id, exit)
    assert (await site.run("requeue_job")).superseded == words
    assert site.cluster.acts == []


async def test_a_job_that_completed_over_a_failed_step_is_requeued(site: Site) -> None:
    site.cluster.end_job(site.job_id, Exit(code=0, derived_code=1))
    assert (await site.run("requeue_job")).done


async def test_an_interactive_allocation_is_refused() -> None:
    site = Site().submit(batch=False)
    refused = (await site.run("requeue_job")).refused
    assert refused is not None
    assert "srun or salloc" in refused
    assert site.cluster.acts == []


async def test_the_users_no_requeue_is_honoured() -> None:
    site = Site().submit(requeue=False)
    refused = (await site.run("requeue_job")).refused
    assert refused is not None
    assert "policy.override_no_requeue" in refused
    assert site.cluster.acts == []


async def test_policy_may_override_no_requeue_while_the_job_runs() -> None:
    site = Site().submit(requeue=False)
    assert (await site.run("requeue_job", override_no_requeue=True)).done
    assert site.cluster.acts == [("permit_requeue",), ("requeue",)]


async def test_no_requeue_cannot_be_overridden_once_the_job_has_ended() -> None:
    site = Site().submit(requeue=False).fail()
    refused = (await site.run("requeue_job", override_no_requeue=True)).refused
    assert refused is not None
    assert "resubmit" in refused
    assert site.cluster.acts == []


async def test_a_job_that_slurm_has_forgotten_is_refused_by_name(site: Site) -> None:
    site.fail().clock.advance(400)
    refused = (await site.run("requeue_job")).refused
    assert refused is not None
    assert "MinJobAge" in refused


async def test_silence_of_the_controller_is_an_error_to_be_tried_again(site: Site) -> None:
    site.cluster.down = True
    with pytest.raises(SchedulerUnreachable):
        await site.run("requeue_job")


async def test_a_credential_that_may_not_requeue_is_an_answer_not_an_hour_of_trying(site: Site) -> None:
    site.cluster.may_operate = False
    refused = (await site.run("requeue_job")).refused
    assert refused is not None
    assert "permission denied" in refused


class BetweenTwoStates(Witness):
    """As slurmctld answers for a moment while a job ends ("Job/step already completing or completed")."""

    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        raise JobFinished("Job/step already completing or completed")


async def test_a_job_between_two_states_is_tried_again() -> None:
    with pytest.raises(JobFinished):
        await Site(BetweenTwoStates).submit().run("requeue_job")


class AnswersBeforeItActs(Witness):
    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        self.acts.append(("requeue",))


async def test_a_requeue_that_cannot_be_read_back_is_looked_for_again() -> None:
    with pytest.raises(RequeueNotSeen, match="still RUNNING"):
        await Site(AnswersBeforeItActs).submit().run("requeue_job")


class ArrivesTwice(Witness):
    """The first send had arrived though its answer was lost; Slurm refuses the second."""

    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        await super().requeue(job_id, hold=hold)
        await SimulatedCluster.requeue(self, job_id, hold=hold)


async def test_a_refusal_of_the_second_send_is_not_believed_before_a_look() -> None:
    site = Site(ArrivesTwice).submit().fail()
    assert (await site.run("requeue_job")).done
    assert (await site.job()).restart_count == 1


async def test_a_node_that_is_back_before_a_person_approves_was_lost_all_the_same(site: Site) -> None:
    site.cluster.node_down("node-001")
    site.cluster.node_up("node-001")
    site.clock.advance(5)
    result = await site.run("requeue_job", ran_on=("node-001", "node-002"), lost_nodes=("node-001",))
    assert (result.superseded is not None, result.by_slurm) == (True, True)


@pytest.mark.parametrize(
    ("lost", "ran_on", "held", "by_slurm"),
    [
        ("node-001", ("node-001", "node-002"), False, True),
        ("node-001", ("node-001",), True, False),
        ("node-003", ("node-001",), False, False),
    ],
    ids=["off a lost node", "held by a person since", "by another hand: the lost node is not the job's"],
)
async def test_a_requeue_that_was_not_ours_tells_whether_slurm_itself_did_it(
    site: Site, lost: str, ran_on: tuple[str, ...], held: bool, by_slurm: bool
) -> None:
    site.cluster.node_down(lost)
    if lost not in ran_on:
        await site.cluster.requeue(site.job_id)
    if held:
        await site.cluster.hold(site.job_id)
    result = await site.run("requeue_job", ran_on=ran_on)
    assert result.superseded
    assert result.by_slurm is by_slurm
