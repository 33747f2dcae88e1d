"""Each mutation: check → act → verify, once however often it is tried, and silent about nothing. On the simulated cluster."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.mutation import (
    HOLD_MARK,
    CancelNotSeen,
    ExclusionNotSeen,
    ExpediteNotSeen,
    MutationRequest,
    MutationResult,
    ReleaseNotSeen,
    RequeueNotSeen,
)
from activities.records import Job, JobFlag, JobState, Node, NodeFlag, NodeState
from activities.reschedule import DRAIN_PREFIX, Reschedule
from activities.slurm.clock import ManualClock
from activities.slurm.scheduler import JobFinished, PermissionDenied, SchedulerUnreachable
from activities.slurm.simulated import REQUEUE_DELAY, SimulatedCluster
from activities.slurm.simulated_programs import Exit, Program, runs_for
from activities.slurm.simulated_state import Request

SHORT_DELAY = timedelta(seconds=5)
"""A site with `AuthInfo=cred_expire=4`: a requeued job would start before its exclusions are written."""


class Witness(SimulatedCluster):
    """A simulated cluster that writes down what it was told to change."""

    acts: list[tuple[str, ...]]

    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        self.acts.append(("requeue", "hold") if hold else ("requeue",))
        await super().requeue(job_id, hold=hold)

    async def permit_requeue(self, job_id: str) -> None:
        self.acts.append(("permit_requeue",))
        await super().permit_requeue(job_id)

    async def set_excluded_nodes(self, job_id: str, nodes: Collection[str]) -> None:
        self.acts.append(("exclude", *nodes))
        await super().set_excluded_nodes(job_id, nodes)

    async def start_now(self, job_id: str) -> None:
        self.acts.append(("start_now",))
        await super().start_now(job_id)

    async def release(self, job_id: str) -> None:
        self.acts.append(("release",))
        await super().release(job_id)

    async def set_admin_comment(self, job_id: str, comment: str) -> None:
        self.acts.append(("mark", comment))
        await super().set_admin_comment(job_id, comment)

    async def cancel(self, job_id: str) -> None:
        self.acts.append(("cancel",))
        await super().cancel(job_id)

    async def drain(self, node: str, reason: str) -> None:
        self.acts.append(("drain", node))
        await super().drain(node, reason)


class Site:
    """Four nodes, one job on node-001 and node-002, and the mutations, tried as Temporal tries them."""

    def __init__(self, cluster: type[Witness] = Witness, *, requeue_delay: timedelta = REQUEUE_DELAY) -> None:
        self.clock = ManualClock()
        self.cluster = cluster(4, clock=self.clock, requeue_delay=requeue_delay)
        self.cluster.acts = []
        self.reschedule = Reschedule(self.cluster, clock=self.clock, pause=self._pause)
        self.heartbeats: list[str] = []
        self.job_id = ""

    async def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def submit(self, program: Program | None = None, *, batch: bool = True, **changes: Any) -> "Site":
        request = Request(node_count=2, batch=batch, comment="backstay")
        self.job_id = self.cluster.submit(program or runs_for(None), request=request, **changes)
        return self

    def fail(self) -> "Site":
        self.cluster.fail_job(self.job_id)
        self.clock.advance(3)
        return self

    async def job(self) -> Job:
        return await self.cluster.job(self.job_id)

    async def run(self, step: str, *, attempt: int = 1, **changes: Any) -> MutationResult:
        """One try of one mutation; `attempt` 2 is the try after a worker died in the first."""
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=attempt)
        environment.on_heartbeat = lambda *details: self.heartbeats.append(str(details[0]))
        request = MutationRequest(**{"job_id": self.job_id, "incident_id": "i-1", "restart_count": 0, **changes})
        result: MutationResult = await environment.run(getattr(self.reschedule, step), request)
        told = [bool(result.done), result.superseded is not None, result.refused is not None]
        assert told.count(True) == 1, "exactly one of done, superseded and refused tells the story"
        return result

    async def requeued(self) -> "Site":
        """Requeued by us and really pending."""
        assert (await self.run("requeue_job")).done
        assert (await self.run("confirm_pending")).done
        self.cluster.acts.clear()
        return self

    def did(self, act: str) -> int:
        return sum(1 for done in self.cluster.acts if done[0] == act)


@pytest.fixture
def site() -> Site:
    return Site().submit()


# ------------------------------------------------------------------------------------------------ requeue_job


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


# ------------------------------------------------------------------------------------------------ short delays: held


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


# ------------------------------------------------------------------------------------------------ confirm_pending


async def test_pending_is_awaited_while_slurm_cleans_up_and_each_look_heartbeats(site: Site) -> None:
    await site.run("requeue_job")
    assert (await site.job()).flags == (JobFlag.COMPLETING,)
    site.heartbeats.clear()
    result = await site.run("confirm_pending")
    assert result.done
    assert "pending (BeginTime)" in result.detail
    assert site.heartbeats
    assert "COMPLETING" in site.heartbeats[0]


async def test_a_next_attempt_that_runs_already_supersedes_the_wait(site: Site) -> None:
    await site.fail().requeued()
    site.clock.advance(200)
    assert (await site.run("confirm_pending")).superseded == "the next attempt is RUNNING already"


async def test_a_cancel_while_we_wait_supersedes(site: Site) -> None:
    await site.run("requeue_job")
    await site.cluster.cancel(site.job_id)
    assert (await site.run("confirm_pending")).superseded == "someone cancelled the job"


@pytest.mark.parametrize("step", ["confirm_pending", "exclude_nodes", "expedite", "release_job", "cancel_job"])
async def test_a_job_forgotten_meanwhile_supersedes_every_later_step(site: Site, step: str) -> None:
    site.fail().clock.advance(400)
    superseded = (await site.run(step, nodes=("node-001",))).superseded
    assert superseded is not None
    assert "no longer knows the job" in superseded


# ------------------------------------------------------------------------------------------------ exclude_nodes


async def test_exclusions_are_united_with_the_users_own() -> None:
    site = await Site().submit(exclude=("node-004",)).fail().requeued()
    result = await site.run("exclude_nodes", nodes=("node-001",))
    assert result.excluded_nodes == ("node-001", "node-004")
    assert (await site.job()).excluded_nodes == ("node-001", "node-004")


async def test_a_name_the_cluster_does_not_have_is_dropped_and_told(site: Site) -> None:
    await site.fail().requeued()
    result = await site.run("exclude_nodes", nodes=("node-002", "gpu-host-9"))
    assert (await site.job()).excluded_nodes == ("node-002",)
    assert "dropped unknown names gpu-host-9" in result.detail


async def test_exclusions_that_stand_already_are_not_written_again(site: Site) -> None:
    await site.fail().requeued()
    await site.run("exclude_nodes", nodes=("node-002",))
    again = await site.run("exclude_nodes", attempt=2, nodes=("node-002",))
    assert again.done
    assert "excluded already" in again.detail
    assert site.did("exclude") == 1


async def test_too_few_nodes_left_is_refused_with_the_numbers_and_nothing_is_written(site: Site) -> None:
    await site.fail().requeued()
    refused = (await site.run("exclude_nodes", nodes=("node-001", "node-002", "node-003"))).refused
    assert refused == "1 of 4 usable nodes in partition train would remain, the job needs 2"
    assert (await site.job()).excluded_nodes == ()
    assert site.did("exclude") == 0


async def test_nodes_that_cannot_take_jobs_do_not_count_as_left(site: Site) -> None:
    await site.fail().requeued()
    site.cluster.node_down("node-004")
    assert (await site.run("exclude_nodes", nodes=("node-002",))).done
    refused = (await site.run("exclude_nodes", nodes=("node-002", "node-003"))).refused
    assert refused is not None
    assert refused.startswith("1 of 3 usable nodes")


async def test_spare_nodes_of_the_policy_count_as_needed(site: Site) -> None:
    await site.fail().requeued()
    refused = (await site.run("exclude_nodes", nodes=("node-002",), spare_nodes=2)).refused
    assert refused is not None
    assert "policy keeps 2 spare" in refused


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


async def test_exclusions_wait_for_nodes_that_have_yet_to_register_after_a_restart_of_the_controller(site: Site) -> None:
    await site.requeued()
    site.cluster.down = True
    site.cluster.down = False
    assert {node.state for node in await site.cluster.nodes()} == {NodeState.UNKNOWN}
    excluded = await site.run("exclude_nodes", nodes=("node-002",))
    assert (excluded.done, excluded.excluded_nodes) == (True, ("node-002",))


async def test_a_job_that_waits_no_more_supersedes_its_exclusions(site: Site) -> None:
    assert (await site.run("exclude_nodes", nodes=("node-002",))).superseded
    assert site.did("exclude") == 0


class StartsBetweenLookAndAct(Witness):
    async def set_excluded_nodes(self, job_id: str, nodes: Collection[str]) -> None:
        await self.start_now(job_id)
        await super().set_excluded_nodes(job_id, nodes)


async def test_a_job_that_starts_between_look_and_act_supersedes_its_exclusions() -> None:
    site = await Site(StartsBetweenLookAndAct).submit().fail().requeued()
    superseded = (await site.run("exclude_nodes", nodes=("node-002",))).superseded
    assert superseded == "the job became RUNNING before its exclusions were written"


class LosesExclusions(Witness):
    """As slurmctld does with an update that arrives while the job is COMPLETING: accepted, and lost."""

    async def set_excluded_nodes(self, job_id: str, nodes: Collection[str]) -> None:
        self.acts.append(("exclude", *nodes))


async def test_exclusions_that_cannot_be_read_back_are_written_again() -> None:
    site = await Site(LosesExclusions).submit().fail().requeued()
    with pytest.raises(ExclusionNotSeen, match="ExcNodeList reads empty"):
        await site.run("exclude_nodes", nodes=("node-002",))


# ------------------------------------------------------------------------------------------------ expedite


async def test_expediting_gives_the_requeue_delay_back(site: Site) -> None:
    await site.fail().requeued()
    assert (await site.job()).state is JobState.PENDING
    assert (await site.run("expedite")).done
    assert (await site.job()).state is JobState.RUNNING


async def test_expediting_waits_until_the_second_of_the_kill_is_past(site: Site) -> None:
    await site.fail().requeued()
    submitted_at = (await site.job()).submitted_at
    assert submitted_at is not None
    await site.run("expedite")
    assert site.clock.now() >= submitted_at + timedelta(seconds=2)


async def test_expediting_a_job_that_runs_already_does_nothing(site: Site) -> None:
    await site.fail().requeued()
    await site.run("expedite")
    again = await site.run("expedite", attempt=2)
    assert again.done
    assert "already RUNNING" in again.detail
    assert site.did("start_now") == 1


async def test_the_users_own_hold_is_respected(site: Site) -> None:
    await site.fail().requeued()
    await site.cluster.hold(site.job_id)
    superseded = (await site.run("expedite")).superseded
    assert superseded is not None
    assert "someone holds the job (JobHeldUser)" in superseded
    assert site.did("start_now") == 0


async def test_a_job_that_is_not_pending_is_not_expedited(site: Site) -> None:
    assert (await site.run("expedite")).superseded
    assert site.did("start_now") == 0


async def test_a_job_no_node_satisfies_is_refused_and_not_taken_for_held(site: Site) -> None:
    await site.fail().requeued()
    await SimulatedCluster.set_excluded_nodes(site.cluster, site.job_id, ["node-001", "node-002", "node-003"])
    first = await site.run("expedite")
    assert first.refused is not None
    assert "BadConstraints" in first.refused
    assert site.did("start_now") == 1, "Slurm tells it only once the job is eligible"
    second = await site.run("expedite", attempt=2)
    assert second.refused == first.refused
    assert site.did("start_now") == 1


class LosesTheStartTime(Witness):
    async def start_now(self, job_id: str) -> None:
        self.acts.append(("start_now",))


async def test_a_start_time_that_cannot_be_read_back_is_written_again() -> None:
    site = await Site(LosesTheStartTime).submit().fail().requeued()
    with pytest.raises(ExpediteNotSeen, match="not eligible before"):
        await site.run("expedite")


# ------------------------------------------------------------------------------------------------ cancel_job


async def test_cancelling_ends_a_running_job_once(site: Site) -> None:
    assert (await site.run("cancel_job")).done
    assert (await site.run("cancel_job", attempt=2)).done
    assert (await site.job()).state is JobState.CANCELLED
    assert site.did("cancel") == 1


async def test_a_job_that_was_requeued_meanwhile_is_not_cancelled(site: Site) -> None:
    await SimulatedCluster.requeue(site.cluster, site.job_id)
    assert (await site.run("cancel_job")).superseded
    assert site.did("cancel") == 0


class DoesNotCancel(Witness):
    async def cancel(self, job_id: str) -> None:
        self.acts.append(("cancel",))


async def test_a_cancel_that_cannot_be_read_back_is_tried_again() -> None:
    with pytest.raises(CancelNotSeen, match="still RUNNING after scancel"):
        await Site(DoesNotCancel).submit().run("cancel_job")


# ------------------------------------------------------------------------------------------------ drain_nodes


async def node(site: Site, name: str) -> Node:
    return next(node for node in await site.cluster.nodes() if node.name == name)


async def test_draining_gives_a_reason_that_carries_our_prefix(site: Site) -> None:
    await site.run("drain_nodes", nodes=("node-002",), reason="ECC")
    drained = await node(site, "node-002")
    assert NodeFlag.DRAIN in drained.flags
    assert drained.reason == f"{DRAIN_PREFIX}i-1 ECC"


async def test_a_node_that_someone_else_drained_keeps_its_reason(site: Site) -> None:
    await SimulatedCluster.drain(site.cluster, "node-002", "fan swap, ask Kim")
    result = await site.run("drain_nodes", nodes=("node-002",))
    assert "already (fan swap, ask Kim)" in result.detail
    assert (await node(site, "node-002")).reason == "fan swap, ask Kim"


async def test_draining_twice_drains_once(site: Site) -> None:
    await site.run("drain_nodes", nodes=("node-002",))
    await site.run("drain_nodes", attempt=2, nodes=("node-002",))
    assert site.did("drain") == 1


async def test_a_credential_that_may_not_drain_is_told_and_holds_up_nothing(site: Site) -> None:
    site.cluster.may_administer = False
    result = await site.run("drain_nodes", nodes=("node-002", "gpu-host-9"))
    assert result.done
    assert "node-002 not drained: Access/permission denied" in result.detail
    assert "gpu-host-9 unknown" in result.detail
    assert (await node(site, "node-002")).state is NodeState.ALLOCATED


# ------------------------------------------------------------------------------------------------ all of it


async def walked(site: Site, steps: Sequence[str], *, tries: int) -> None:
    for step in steps:
        for attempt in range(1, tries + 1):
            assert (await site.run(step, attempt=attempt, nodes=("node-002",))).done, step


@pytest.mark.parametrize("delay", [REQUEUE_DELAY, SHORT_DELAY], ids=["delayed", "held"])
@pytest.mark.parametrize("tries", [1, 2], ids=["once", "every step killed after its act"])
async def test_the_whole_reschedule_restarts_the_job_once_off_the_suspect(delay: timedelta, tries: int) -> None:
    site = Site(requeue_delay=delay).submit().fail()
    last = "expedite" if delay == REQUEUE_DELAY else "release_job"
    await walked(site, ("requeue_job", "confirm_pending", "exclude_nodes", last), tries=tries)
    site.clock.advance(10)
    job = await site.job()
    assert (job.state, job.restart_count, job.is_held) == (JobState.RUNNING, 1, False)
    assert "node-002" not in job.nodes
    assert site.did("requeue") == 1
    assert site.did("exclude") == 1
