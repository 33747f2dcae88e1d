"""A job's life as its workflow tells it, in every mode, on the time-skipping server."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from temporalio import activity
from temporalio.testing import WorkflowEnvironment

from activities.cluster_desk import HistoryQuestion, IncidentReport
from activities.configuration import Limits
from activities.mutation import MutationRequest, MutationResult
from activities.records import (
    Action,
    Breaker,
    ChangeKind,
    ClusterView,
    Cursor,
    DecisionKind,
    Domain,
    FileCursor,
    JobState,
    Mode,
    NodeFault,
    NodeHistory,
    Opinion,
    OutcomeState,
    Progress,
    SymptomKind,
    WatchEnd,
    WatchRequest,
    WatchResult,
    WatchUntil,
)
from activities.reschedule import Reschedule
from activities.slurm.simulated_programs import Exit
from tests.builders import NOON, a_diagnosis, a_judgement, an_application_bug, an_attribution, node_names
from tests.workflows.scripted import (
    ERRORS_END,
    Seen,
    World,
    a_change,
    crashes,
    ends,
    hangs,
    policy,
    reaches,
    recovers,
    requeued_by_another_hand,
    runs,
    step_names,
    the_end_of,
    watched,
)
from workflows.state import Stage, Terms, TrainingJobState
from workflows.training_job import TrainingJob


async def test_auto_restarts_off_the_suspect_and_calls_it_recovered_only_at_a_newer_checkpoint(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), *recovers(checkpoint=120), ends()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.AUTO
    assert step_names(incident) == [
        "detected", "diagnosed", "recommended", "decided", "requeued", "pending", "excluded", "expedited", "running", "stepping",
        "recovered",
    ]  # fmt: skip
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert None not in dict(incident.outcome.milestones).values()
    job = await world.now()
    assert (job.restart_count, job.state, job.excluded_nodes) == (1, JobState.RUNNING, ("node-002",))
    assert "node-002" not in job.nodes
    assert end.history.restarts == 1
    assert end.history.restarts_without_checkpoint == 0
    assert [request.until for request in world.asked] == [
        WatchUntil.SYMPTOM, WatchUntil.RUNNING, WatchUntil.STEPPING, WatchUntil.CHECKPOINT, WatchUntil.SYMPTOM,
    ]  # fmt: skip
    assert world.asked[3].checkpoint_before == 100
    assert world.asked[1].excluded_nodes == ("node-002",)


async def test_the_cluster_is_told_whose_job_it_is_and_where_the_attempt_ran(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), ends()])
    await the_end_of(env, world)
    [report], [asked] = world.reports, world.permissions_asked
    assert (report.user, report.nodes) == ("alice", ("node-001", "node-002"))
    assert (asked.action.user, asked.action.ran_on, asked.action.suspects) == ("alice", ("node-001", "node-002"), ("node-002",))


async def test_the_users_own_list_stays_the_users_through_every_restart(env: WorkflowEnvironment) -> None:
    """Backstay writes its own exclusions into the same list; at the next fault they are still told apart."""
    world = World(policy(Mode.AUTO), exclude=("node-004",))
    world.script.extend([crashes(checkpoint=100), *recovers(checkpoint=120), crashes(checkpoint=120), *recovers(checkpoint=140), ends()])
    end = await the_end_of(env, world)
    assert (await world.now()).excluded_nodes == ("node-002", "node-004")
    told = [incident.recommendation for incident in end.incidents if incident.recommendation is not None]
    assert [(each.backstay_excludes, each.user_excluded) for each in told] == [(("node-002",), ("node-004",))] * 2
    assert [request.action.user_excluded for request in world.permissions_asked] == [("node-004",)] * 2
    assert [past.excluded for past in end.history.incidents] == [("node-002",)] * 2


async def test_an_attempt_that_did_not_load_the_checkpoint_is_told_not_to_have_resumed(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), reaches(), reaches(iteration=9, first_iteration=1), reaches(checkpoint=120), ends()])
    end = await the_end_of(env, world)
    [stepping] = [step.detail for step in end.incidents[0].outcome.steps if step.name == "stepping"]
    assert stepping == "iteration 9, not resumed from checkpoint 100"


async def test_where_an_attempt_that_went_on_from_the_checkpoint_began_is_not_guessed(env: WorkflowEnvironment) -> None:
    """Lines between the end of the attempt before and the first look at the new one are passed over: both may have written them."""
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), reaches(), reaches(iteration=104, first_iteration=104), reaches(checkpoint=120), ends()])
    end = await the_end_of(env, world)
    [stepping] = [step.detail for step in end.incidents[0].outcome.steps if step.name == "stepping"]
    assert stepping == "iteration 104, on from checkpoint 100"


async def test_the_diagnosis_is_given_what_the_cluster_remembers_of_the_attempts_nodes(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    fault = NodeFault(at=NOON, job_id="9", cause="segfault_rank", nodes=("node-001",), was_seen=True)
    world.node_history_told = NodeHistory(nodes=node_names(2), faults=(fault,))
    world.script.extend([crashes(), *recovers(), ends()])
    end = await the_end_of(env, world)
    [asked], [request], [report] = world.histories_asked, world.diagnosed, world.reports
    assert (asked.job_id, asked.user, asked.nodes, asked.restart_count) == (world.job_id, "alice", end.incidents[0].nodes, 0)
    assert request.node_history == world.node_history_told
    primary = end.incidents[0].diagnosis.primary
    assert primary is not None
    assert (report.seen_on, report.rank, report.restart_count) == (primary.node, primary.rank, 0)


class ForgetfulCluster(World):
    """The cluster's memory fails at every question."""

    @activity.defn
    async def node_history(self, question: HistoryQuestion) -> NodeHistory:
        raise OSError("nobody is there")


async def test_a_memory_that_cannot_be_asked_holds_no_recovery_up(env: WorkflowEnvironment) -> None:
    world = ForgetfulCluster(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), ends()])
    end = await the_end_of(env, world)
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED
    assert world.diagnosed[0].node_history.unknown


async def test_the_diagnosis_is_given_since_when_the_attempt_was_silent_and_never_an_older_ones(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))

    def hangs_after_writing(restart_count: int, blind: str | None = None) -> Seen:
        async def seen(world: World, request: WatchRequest) -> WatchResult:
            cursor = Cursor(restart_count=restart_count, last_output_at=NOON, blind=blind)
            return (await hangs()(world, request)).model_copy(update={"cursor": cursor})

        return seen

    of_this, of_an_older, unseen = hangs_after_writing(0), hangs_after_writing(0), hangs_after_writing(2, "no log can be read")
    world.script.extend([of_this, *recovers(), of_an_older, *recovers(checkpoint=140), unseen, *recovers(checkpoint=160), ends()])
    await the_end_of(env, world)
    assert [request.silent_since for request in world.diagnosed] == [NOON, None, None]


async def test_a_new_attempt_is_diagnosed_by_what_it_wrote_itself(env: WorkflowEnvironment) -> None:
    read_to = (FileCursor(path="/shared/run1/train.log", inode=7, offset_bytes=4096),)

    async def crashes_after_writing(world: World, request: WatchRequest) -> WatchResult:
        seen = await crashes()(world, request)
        return seen.model_copy(update={"cursor": Cursor(restart_count=request.attempt.restart_count, files=read_to)})

    world = World(policy(Mode.AUTO))
    world.script.extend([crashes_after_writing, crashes(), *recovers(), ends()])
    async with watched(env, world) as handle:
        await handle.result()
    assert [request.logs_began for request in world.diagnosed] == [(), (*read_to, *ERRORS_END)]


async def test_the_state_tells_where_the_new_attempt_runs_while_its_steps_and_checkpoint_are_awaited(env: WorkflowEnvironment) -> None:
    told: list[TrainingJobState] = []

    async def steps(world: World, request: WatchRequest) -> WatchResult:
        told.append(await handle.query(TrainingJob.state))
        return await reaches()(world, request)

    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), reaches(), steps, reaches(checkpoint=120), ends()])
    async with watched(env, world) as handle:
        await handle.result()
    [state] = told
    assert (state.stage, state.attempt.restart_count) == (Stage.VERIFYING, 1)
    assert state.attempt.nodes == (await world.now()).nodes


async def test_observe_records_the_recommendation_and_changes_nothing_in_slurm(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.script.append(crashes())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.recommendation is not None
    assert incident.recommendation.action is Action.RESTART_EXCLUDING
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.OBSERVED
    assert incident.outcome.state is OutcomeState.NOT_ACTED
    job = await world.now()
    assert (job.state, job.restart_count, job.excluded_nodes) == (JobState.FAILED, 0, ())
    assert world.permissions_asked == []


async def test_observe_previews_what_auto_does_about_a_first_unknown_crash(env: WorkflowEnvironment) -> None:
    unknown = a_judgement(diagnosis=a_diagnosis("unknown", Domain.UNKNOWN, confidence=0.1, primary=None), attribution=an_attribution())
    actions = {}
    for mode in (Mode.OBSERVE, Mode.AUTO):
        world = World(policy(mode), judgement=unknown)
        world.script.extend([crashes(), *recovers(), ends()])
        world.changes.append(a_change(ChangeKind.FORGOTTEN))
        recommendation = (await the_end_of(env, world)).incidents[0].recommendation
        assert recommendation is not None
        actions[mode] = (recommendation.action, recommendation.rule)
    assert actions[Mode.OBSERVE] == actions[Mode.AUTO] == (Action.RESTART, "unknown-once")


async def test_observe_tells_where_the_breaker_would_have_left_it_to_a_person(env: WorkflowEnvironment) -> None:
    class Tripped(World):
        @activity.defn
        async def report_incident(self, report: IncidentReport) -> ClusterView:
            return ClusterView(breaker=Breaker(tripped_at=self.clock.now(), reason="6 jobs failed within 10 min"))

    world = Tripped(policy(Mode.OBSERVE))
    world.script.append(crashes())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    outcome = (await the_end_of(env, world)).incidents[0].outcome
    assert outcome.state is OutcomeState.NOT_ACTED
    assert "would have left it to a person: the breaker is tripped: 6 jobs failed" in outcome.summary


async def test_a_job_whose_user_took_its_comment_back_is_observed_only(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO), comment="mine again")
    world.script.append(crashes())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.OBSERVED
    assert (await world.now()).restart_count == 0


async def test_observe_verifies_and_compares_what_the_team_did(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.before_change = lambda: world.cluster.requeue(world.job_id)
    world.script.extend([crashes(), *recovers(), ends()])
    world.changes.append(a_change(ChangeKind.REQUEUED))
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert {"restarted_by_another_hand", "recovered", "compared"} <= set(step_names(incident))
    assert "not by Backstay" in incident.outcome.summary
    assert end.history.restarts == 0


async def test_what_slurm_itself_requeued_off_a_lost_node_is_not_requeued_again_but_gets_its_delay_back(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(kind=SymptomKind.NODE_FAULT, node_lost=True), *recovers(), ends()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    steps = [step.name for step in incident.outcome.steps]
    assert steps[4:8] == ["requeued_by_slurm", "pending", "excluded", "expedited"]
    assert incident.outcome.state is OutcomeState.RECOVERED
    assert "requeued by Slurm itself" in incident.outcome.summary
    assert ((await world.now()).restart_count, end.history.restarts) == (1, 0)


async def test_what_slurm_requeued_and_started_before_backstay_could_place_it_is_not_credited_to_backstay(env: WorkflowEnvironment) -> None:
    class Hasty(World):
        async def _pause(self, seconds: float) -> None:
            self.clock.advance(300)

    async def still_ending(world: World, request: WatchRequest) -> WatchResult:
        return await crashes(kind=SymptomKind.NODE_FAULT, node_lost=True, seen_after=0)(world, request)

    world = Hasty(policy(Mode.AUTO))
    world.script.extend([still_ending, *recovers(), ends()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert {"requeued_by_slurm", "superseded"} <= set(step_names(incident))
    assert "expedited" not in step_names(incident)
    assert "not by Backstay" in incident.outcome.summary
    assert [asked.excluded_nodes for asked in world.asked if asked.until is not WatchUntil.SYMPTOM] == [()] * 3


async def test_what_slurm_requeued_off_a_lost_node_and_a_person_holds_is_left_to_that_person(env: WorkflowEnvironment) -> None:
    async def held_after_its_loss(world: World, request: WatchRequest) -> WatchResult:
        seen = await crashes(kind=SymptomKind.NODE_FAULT, node_lost=True)(world, request)
        await world.cluster.hold(world.job_id)
        return seen

    world = World(policy(Mode.AUTO))
    world.script.extend([held_after_its_loss, *recovers(), ends()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert "superseded" in [step.name for step in incident.outcome.steps]
    assert (await world.now()).is_held
    assert not (await world.now()).excluded_nodes


async def test_three_restarts_without_a_new_checkpoint_end_in_stop(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO, limits=Limits(excluded_fraction=0.5, restarts_without_checkpoint=3)))
    world.script.append(crashes(checkpoint=100))
    for _ in range(3):
        world.script.extend([reaches(), reaches(), crashes(checkpoint=100)])
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    assert [incident.outcome.state for incident in end.incidents] == [OutcomeState.NO_PROGRESS] * 3 + [OutcomeState.STOPPED]
    assert (await world.now()).restart_count == 3
    last = end.incidents[-1].recommendation
    assert last is not None
    assert last.action is Action.STOP
    assert "checkpoint" in last.why


async def test_an_application_bug_is_stopped_with_its_reason(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO), judgement=a_judgement(diagnosis=an_application_bug(), attribution=an_attribution()))
    for _ in range(4):
        world.script.extend([crashes(), reaches(), reaches()])
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    assert end.incidents[-1].outcome.state in (OutcomeState.STOPPED, OutcomeState.HELD)
    assert (await world.now()).restart_count <= 2


async def test_no_requeue_is_honoured_unless_policy_overrides_it(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO), requeue=False)
    world.script.append(crashes())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    assert (await world.now()).restart_count == 0
    assert end.incidents[0].outcome.state is OutcomeState.HELD
    assert "--no-requeue" in end.incidents[0].outcome.summary


async def test_policy_may_override_no_requeue_while_the_job_still_runs(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO, override_no_requeue=True), requeue=False)
    world.script.extend([hangs(), *recovers(), ends()])
    end = await the_end_of(env, world)
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED


async def test_an_opinion_that_never_comes_delays_nothing_and_leaves_a_note(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.opinions["ask_attrsvc"] = Opinion(source="attrsvc", note="timed out after 60 s")
    world.script.extend([crashes(), *recovers(), ends()])
    end = await the_end_of(env, world, terms=Terms(opinions=("ask_attrsvc",)))
    assert end.incidents[0].opinions[0].note == "timed out after 60 s"
    assert end.incidents[0].outcome.state is OutcomeState.RECOVERED


async def test_memory_survives_continue_as_new(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), *recovers(checkpoint=120), crashes(checkpoint=120), *recovers(checkpoint=140), ends()])
    async with watched(env, world) as handle:
        end = await handle.result()
        first = await handle.describe()
    assert [incident.id.rpartition("-")[2] for incident in end.incidents] == ["1", "2"]
    assert end.history.restarts == 2
    assert first.run_id != handle.first_execution_run_id


async def test_an_attempt_that_ends_well_before_a_checkpoint_is_not_called_recovered(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), reaches(), reaches(), ends()])
    end = await the_end_of(env, world)
    assert end.incidents[0].outcome.state is OutcomeState.NO_PROGRESS
    assert end.incidents[0].outcome.milestones.recovered is None


def completes(*, iteration: int | None = None) -> Seen:
    """The attempt ends with exit code 0, having reported so many iterations."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        world.cluster.end_job(world.job_id, Exit())
        world.clock.advance(5)
        result = await ends()(world, request)
        return result.model_copy(update={"progress": Progress(iteration=iteration)})

    return seen


@pytest.mark.parametrize("reached", [1, 2], ids=["no step was seen", "it stepped"])
async def test_a_restarted_job_without_checkpoints_that_completes_has_recovered(env: WorkflowEnvironment, reached: int) -> None:
    world = World(policy(Mode.AUTO))
    steps = [reaches(checkpoint=None)] * reached
    world.script.extend([crashes(checkpoint=None), *steps, completes()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert (incident.outcome.state, incident.outcome.summary) == (OutcomeState.RECOVERED, "completed after the restart")
    assert step_names(incident)[-1] == "completed"
    assert incident.outcome.milestones.recovered is not None


@pytest.mark.parametrize(
    ("iteration", "state", "words"),
    [
        (130, OutcomeState.RECOVERED, "completed after the restart, no checkpoint newer than 100 seen"),
        (None, OutcomeState.NO_PROGRESS, "the job ended (COMPLETED) before it was stepping"),
    ],
)
async def test_one_that_had_checkpoints_must_have_gone_on_from_there(
    env: WorkflowEnvironment, iteration: int | None, state: OutcomeState, words: str
) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=100), reaches(), completes(iteration=iteration)])
    end = await the_end_of(env, world)
    assert (end.incidents[0].outcome.state, end.incidents[0].outcome.summary) == (state, words)


async def test_a_restart_found_again_by_a_worker_that_was_dead_meanwhile_is_counted_and_its_exclusions_told_missing(
    env: WorkflowEnvironment,
) -> None:
    class DiesInItsFirstTry(World):
        """What follows the send: the worker is gone, and Slurm's delay is over before another looks."""

        def activities(self) -> Sequence[Callable[..., Any]]:
            steps = Reschedule(self.cluster, clock=self.clock, pause=self._pause)

            @activity.defn(name="requeue_job")
            async def dies(request: MutationRequest) -> MutationResult:
                result = await steps.requeue_job(request)
                if activity.info().attempt == 1:
                    self.clock.advance(200)
                    raise ConnectionError("the worker is gone")
                return result

            return [*(each for each in super().activities() if each.__name__ != "requeue_job"), dies]

    world = DiesInItsFirstTry(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), ends()])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    steps = {step.name: step.detail for step in incident.outcome.steps}
    assert "not repeated" in steps["requeued"]
    assert steps["superseded"] == "the next attempt is RUNNING already"
    assert steps["not_excluded"] == "node-002: the exclusion was not written"
    assert "not by Backstay" not in incident.outcome.summary
    assert ((await world.now()).restart_count, end.history.restarts) == (1, 1)


async def test_a_job_that_is_restarted_healthy_by_someone_is_no_incident(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([ends(WatchEnd.REQUEUED), ends()])
    end = await the_end_of(env, world)
    assert end.incidents == ()
    assert end.stage is Stage.ENDED


async def test_an_unknown_cause_is_held_and_blames_nobody(env: WorkflowEnvironment) -> None:
    unknown = a_diagnosis("unknown", Domain.UNKNOWN, confidence=0.1, primary=None)
    world = World(policy(Mode.AUTO), judgement=a_judgement(diagnosis=unknown, attribution=an_attribution()))
    world.script.extend([crashes(), *recovers(), ends()])
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    assert (await world.now()).excluded_nodes == ()
    assert end.incidents[0].recommendation is not None
    assert end.incidents[0].recommendation.exclude_nodes == ()


async def test_an_attempt_requeued_by_another_hand_is_watched_until_it_runs_so_that_its_nodes_are_known(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.script.extend([requeued_by_another_hand(), runs(), crashes(node_lost=True), ends()])
    world.changes.extend([a_change(ChangeKind.FORGOTTEN)])
    end = await the_end_of(env, world)
    assert [request.until for request in world.asked[:3]] == [WatchUntil.SYMPTOM, WatchUntil.RUNNING, WatchUntil.SYMPTOM]
    assert world.asked[1].attempt.nodes == ()
    nodes = world.asked[2].attempt.nodes
    assert len(nodes) == 2
    [incident] = end.incidents
    assert (incident.restart_count, incident.nodes) == (1, nodes)
    assert world.diagnosed[0].attempt.nodes == nodes


async def test_the_nodes_a_watch_saw_count_though_slurm_shows_the_next_attempt(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.OBSERVE))
    world.script.extend([requeued_by_another_hand(), crashes(node_lost=True, told_with_nodes=True), ends()])
    world.changes.extend([a_change(ChangeKind.FORGOTTEN)])
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.nodes == ("node-003", "node-004")
    assert world.diagnosed[0].attempt.nodes == ("node-003", "node-004")


async def test_a_watch_is_told_whether_the_attempt_before_stepped(env: WorkflowEnvironment) -> None:
    world = World(policy(Mode.AUTO))
    silent = Progress()
    world.script.extend(
        [
            requeued_by_another_hand(progress=silent), runs(progress=silent),  # it never stepped, and no hang was called
            requeued_by_another_hand(), runs(progress=silent),  # it stepped
            requeued_by_another_hand(progress=silent), runs(progress=silent),  # it ended before it stepped
            hangs(progress=silent), *recovers(checkpoint=120), ends(),  # it stood still at its start
        ]
    )  # fmt: skip
    await the_end_of(env, world)
    told = {request.attempt.restart_count: request.earlier_attempts_stepped for request in world.asked}
    assert told == {0: False, 1: False, 2: True, 3: True, 4: False}
