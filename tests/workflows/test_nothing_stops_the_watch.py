"""What must not end, wedge or blind a job's workflow: failing watches, cancellations, other hands at the wrong moment, odd ends."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import WorkflowEnvironment

from activities.classify import ClassifyRequest
from activities.cluster_desk import PermissionRequest
from activities.configuration import PolicySection
from activities.mutation import MutationRequest, MutationResult
from activities.recommend import Proposal, RecommendRequest
from activities.records import (
    Action,
    ChangeKind,
    DecisionKind,
    DecisionRequest,
    JobState,
    Judgement,
    Mode,
    OutcomeState,
    Permission,
    SymptomKind,
    WatchEnd,
    WatchRequest,
    WatchResult,
)
from activities.slurm.scheduler import SchedulerUnreachable
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from tests.builders import a_judgement, a_recommendation, a_symptom, an_application_bug, an_attribution, an_incident, some_progress
from tests.workflows.scripted import Seen, World, a_change, crashes, ends, hangs, policy, reaches, recovers, step_names, the_end_of, watched
from workflows.left_alone import kinds_told_by
from workflows.state import Stage
from workflows.training_job import TrainingJob


def fails_for_good() -> Seen:
    """As Temporal's server fails an activity whose result is over the payload limit: not to be retried."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        raise ApplicationError("Complete result exceeds size limit.", non_retryable=True)

    return seen


def fails_as_known() -> Seen:
    """The job ends as a symptom reported before had foretold."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        world.cluster.fail_job(world.job_id)
        world.clock.advance(5)
        return await ends(WatchEnd.ENDED_AS_KNOWN)(world, request)

    return seen


# ------------------------------------------------------------------------------------------------ failing watches


async def test_a_watch_that_fails_for_good_is_started_again_and_says_so(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([fails_for_good(), ends()])
    end = await the_end_of(env, world)
    assert end.stage is Stage.ENDED
    assert any("watch_attempt failed" in warning and "size limit" in warning for warning in end.warnings)


async def test_a_verification_that_fails_for_good_is_started_again_and_stands_in_the_story(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), reaches(), fails_for_good(), reaches(), reaches(checkpoint=120), ends()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert "verify_stepping_failed" in step_names(incident)


async def test_a_failing_look_beside_a_pending_approval_neither_ends_the_wait_nor_blinds_it(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.APPROVE))
    world.script.extend([hangs(), ends()])
    world.changes.append(a_change(ChangeKind.CANCELLED))
    failures = [ApplicationError("cancelled by hand", non_retryable=True)]

    async def fail_once() -> None:
        if failures:
            raise failures.pop()

    world.before_change = fail_once
    end = await the_end_of(env, world)
    decision = end.incidents[0].decision
    assert decision is not None
    assert decision.kind is DecisionKind.SUPERSEDED
    assert any("watch_for_change failed" in warning for warning in end.warnings)


class NeverRecommends(World):
    """Policy cannot be asked: the request is one that this worker's code cannot take."""

    @activity.defn
    async def recommend(self, request: RecommendRequest) -> Proposal:
        raise ApplicationError("no such field", non_retryable=True)

    def activities(self) -> Sequence[Callable[..., Any]]:
        return [*(each for each in super().activities() if each.__name__ != "recommend"), self.recommend]


async def test_where_policy_cannot_be_asked_a_person_decides_whatever_the_mode(env: WorkflowEnvironment) -> None:
    world = NeverRecommends(policy(Mode.AUTO))
    world.script.append(crashes())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    assert end.incidents[0].outcome.state is OutcomeState.HELD
    assert end.mode is Mode.AUTO
    assert any("recommend failed: no such field" in warning for warning in end.warnings)


async def test_reading_evidence_may_hold_a_recovery_up_for_minutes_and_a_silent_slurm_for_an_hour(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.append(crashes())
    world.changes.extend([a_change(ChangeKind.UNCHANGED), a_change(ChangeKind.FORGOTTEN)])
    world.permission = Permission(granted=False, why="a test")
    async with watched(env, world) as handle:
        await handle.result()
        history = await handle.fetch_history()
    scheduled = (event.activity_task_scheduled_event_attributes for event in history.events)
    within = {each.activity_type.name: each.schedule_to_close_timeout.ToTimedelta() for each in scheduled if each.activity_id}
    assert within["capture_evidence"] == within["diagnose"] == timedelta(minutes=10)
    assert within["recommend"] == within["permit_action"] == timedelta(hours=1)


async def test_an_earlier_fault_that_is_found_later_does_not_make_a_known_one_news_again(env: WorkflowEnvironment) -> None:
    async def no_checkpoint_since_before_the_hang(world: World, request: WatchRequest) -> WatchResult:
        seen = await hangs()(world, request)
        assert seen.symptom is not None
        earlier = a_symptom(SymptomKind.NO_CHECKPOINT, onset=seen.symptom.onset - timedelta(minutes=30))
        return seen.model_copy(update={"symptom": earlier})

    world = World(policy(Mode.OBSERVE))
    world.script.extend([hangs(), no_checkpoint_since_before_the_hang, ends()])
    end = await the_end_of(env, world)
    hang = end.incidents[0].symptom
    assert world.asked[-1].known_symptoms == (SymptomKind.HANG, SymptomKind.NO_CHECKPOINT)
    assert world.asked[-1].known_onset == hang.onset


@pytest.mark.parametrize("kind", [SymptomKind.CRASH, SymptomKind.NODE_FAULT])
async def test_a_job_that_stands_still_after_a_fault_told_of_has_no_second_one(env: WorkflowEnvironment, kind: SymptomKind) -> None:
    async def seen_while_it_runs(world: World, request: WatchRequest) -> WatchResult:
        seen = await hangs()(world, request)
        assert seen.symptom is not None
        return seen.model_copy(update={"symptom": seen.symptom.model_copy(update={"kind": kind})})

    world = World(policy(Mode.OBSERVE))
    world.script.extend([seen_while_it_runs, ends()])
    async with watched(env, world) as handle:
        await handle.result()
    assert world.asked[-1].known_symptoms == (kind, SymptomKind.HANG)


def test_standing_still_is_news_after_what_was_judged_harmless() -> None:
    fault = an_incident(symptom=a_symptom(SymptomKind.CRASH), recommendation=a_recommendation(action=Action.NONE))
    assert kinds_told_by(fault) == (SymptomKind.CRASH,)


# ------------------------------------------------------------------------------------------------ cancelling the workflow


class NeverDiagnosed(World):
    """The diagnosis fails at every try, as over a file system that is away."""

    diagnosing: asyncio.Event

    @activity.defn
    async def diagnose(self, request: ClassifyRequest) -> Judgement:
        self.diagnosing.set()
        raise OSError("the file system does not answer")


async def test_cancelling_the_workflow_ends_it_and_does_not_pass_for_a_failed_diagnosis(env: WorkflowEnvironment) -> None:
    world = NeverDiagnosed(policy(Mode.AUTO))
    world.diagnosing = asyncio.Event()
    world.script.extend([crashes()])
    async with watched(env, world) as handle:
        await world.diagnosing.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await handle.result()
    assert isinstance(ended.value.cause, CancelledError)
    assert (await world.now()).restart_count == 0


class ShortDelay(World):
    """A site whose requeue delay is too short for an exclusion: the job is requeued held, and released."""

    def __init__(self, policy: PolicySection) -> None:
        super().__init__(policy)
        self.cluster = SimulatedCluster(4, clock=self.clock, requeue_delay=timedelta(seconds=5))
        self.job_id = self.cluster.submit(request=Request(node_count=2, comment="backstay"))


class StuckBehindAHold(ShortDelay):
    """The job is requeued held, and then the controller takes no exclusions."""

    excluding: asyncio.Event

    @activity.defn
    async def exclude_nodes(self, request: MutationRequest) -> MutationResult:
        self.excluding.set()
        raise SchedulerUnreachable("slurmctld does not answer")

    def activities(self) -> Sequence[Callable[..., Any]]:
        return [*(each for each in super().activities() if each.__name__ != "exclude_nodes"), self.exclude_nodes]


async def test_cancelling_the_workflow_leaves_no_hold_of_ours_behind(env: WorkflowEnvironment) -> None:
    world = StuckBehindAHold(policy(Mode.AUTO))
    world.excluding = asyncio.Event()
    world.script.append(crashes())
    async with watched(env, world) as handle:
        await world.excluding.wait()
        assert (await world.now()).is_held
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await handle.result()
    assert isinstance(ended.value.cause, CancelledError)
    job = await world.now()
    assert (job.is_held, job.admin_comment) == (False, "")


# ------------------------------------------------------------------------------------------------ other hands


class Meddled(World):
    """Another hand acts: `at_permission` just before we act, `at_pause` while the job is COMPLETING after our requeue."""

    async def at_permission(self) -> None: ...

    async def at_pause(self) -> None: ...

    @activity.defn
    async def permit_action(self, request: PermissionRequest) -> Permission:
        await self.at_permission()
        return await super().permit_action(request)

    async def _pause(self, seconds: float) -> None:
        await self.at_pause()
        await super()._pause(seconds)


class CancelledMeanwhile(Meddled):
    async def at_pause(self) -> None:
        if (await self.now()).state is not JobState.CANCELLED:
            await self.cluster.cancel(self.job_id)


async def test_a_cancel_after_our_requeue_is_the_users_word_and_no_restart_by_another_hand(env: WorkflowEnvironment) -> None:
    world = CancelledMeanwhile(policy(Mode.AUTO))
    world.script.append(hangs())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    assert "superseded" in incident.outcome.summary
    assert "restarted_by_another_hand" not in step_names(incident)
    assert (end.attempt.restart_count, end.history.restarts) == (1, 1)
    assert world.changes_asked[-1].restart_count == 1


class CrowdedOut(Meddled):
    """The user excludes so many nodes meanwhile that Slurm finds none for the job."""

    async def at_pause(self) -> None:
        await self.cluster.set_excluded_nodes(self.job_id, ["node-001", "node-003", "node-004"])


async def test_a_job_that_slurm_cannot_place_any_more_is_held_for_a_person(env: WorkflowEnvironment) -> None:
    world = CrowdedOut(policy(Mode.AUTO))
    world.script.extend([hangs(), ends(WatchEnd.FORGOTTEN)])
    async with watched(env, world) as handle:
        async with asyncio.timeout(60):
            end = await handle.result()
    [incident] = end.incidents
    steps = {step.name: step.detail for step in incident.outcome.steps}
    assert "of 4 usable nodes" in steps["exclusion_refused"]
    assert "BadConstraints" in steps["refused"]
    assert (await world.now()).excluded_nodes == ("node-001", "node-003", "node-004")


class RequeuedBeforeTheCancel(Meddled):
    async def at_permission(self) -> None:
        await self.cluster.requeue(self.job_id)


async def test_a_stop_that_comes_after_the_users_own_restart_cancels_nothing_and_claims_nothing(env: WorkflowEnvironment) -> None:
    rules = PolicySection.model_validate({"rules": [{"name": "stop", "when": {"domain": "application"}, "do": "stop"}]}).rules
    bug = a_judgement(diagnosis=an_application_bug(), attribution=an_attribution())
    world = RequeuedBeforeTheCancel(policy(Mode.AUTO, stop_cancels_running=True, rules=rules), judgement=bug)
    world.script.extend([hangs(), ends()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.recommendation is not None
    assert incident.recommendation.action is Action.STOP
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    assert (await world.now()).state is not JobState.CANCELLED


# ------------------------------------------------------------------------------------------------ what is counted


async def test_a_job_that_starts_over_after_a_crash_before_its_first_checkpoint_must_still_exceed_the_old_one(
    env: WorkflowEnvironment,
) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), reaches(), crashes(checkpoint=None), *recovers(checkpoint=120), ends()])
    end = await the_end_of(env, world)
    assert len(end.incidents) == 2
    assert [request.checkpoint_before for request in world.asked if request.until == "checkpoint"] == [100]


async def test_a_checkpoint_that_comes_after_its_deadline_still_ends_the_row_of_fruitless_restarts(env: WorkflowEnvironment) -> None:
    async def crashes_later(world: World, request: WatchRequest) -> WatchResult:
        seen = await crashes()(world, request)
        late = some_progress(checkpoint_iteration=140, checkpoint_at=world.clock.now())
        return seen.model_copy(update={"progress": late})

    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), reaches(), reaches(), ends(WatchEnd.DEADLINE), crashes_later, reaches(), ends()])
    end = await the_end_of(env, world)
    assert [incident.outcome.state for incident in end.incidents] == [OutcomeState.NO_PROGRESS] * 2
    assert (end.history.restarts, end.history.restarts_without_checkpoint) == (2, 1)


# ------------------------------------------------------------------------------------------------ messages and ends


async def test_a_signal_that_comes_when_nothing_is_pending_leaves_its_answer_in_the_warnings(env: WorkflowEnvironment) -> None:
    told = asyncio.Event()

    async def healthy_until_told(world: World, request: WatchRequest) -> WatchResult:
        await told.wait()
        return await ends()(world, request)

    world = World(policy(Mode.APPROVE))
    world.script.append(healthy_until_told)
    async with watched(env, world) as handle:
        await handle.signal(TrainingJob.approve, DecisionRequest(approve=True, actor="bob", digest="0123456789ab"))
        while not (state := await handle.query(TrainingJob.state)).warnings:  # noqa: ASYNC110 - the workflow tells nobody
            await asyncio.sleep(0.05)
        told.set()
        await handle.result()
    assert any("approval by bob refused: no recommendation is waiting" in warning for warning in state.warnings)


async def test_a_job_that_ends_as_foretold_is_followed_until_someone_restarts_it(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.script.extend([hangs(), fails_as_known(), *recovers(), ends()])
    world.changes.append(a_change(ChangeKind.REQUEUED))
    world.before_change = lambda: world.cluster.requeue(world.job_id)
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert {"restarted_by_another_hand", "recovered"} <= set(step_names(incident))
    assert (end.history.restarts, end.attempt.restart_count) == (0, 1)


async def test_an_end_as_known_without_any_incident_is_followed_as_well(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.script.append(fails_as_known())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    assert (end.stage, end.incidents) == (Stage.ENDED, ())
