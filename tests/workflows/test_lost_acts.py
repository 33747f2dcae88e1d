"""A slurmctld that comes back with older state in the middle of a recovery: what it lost is done again, in bounds, as one restart."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.testing import WorkflowEnvironment

from activities.configuration import PolicySection
from activities.mutation import MutationRequest, MutationResult
from activities.records import ChangeKind, JobState, Mode, OutcomeState, WatchEnd, WatchRequest, WatchResult
from activities.reschedule import Reschedule
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request, SimulatedJob
from tests.workflows.scripted import (
    Seen,
    World,
    a_change,
    crashes,
    ends,
    policy,
    reaches,
    recovers,
    step_names,
    the_end_of,
)
from workflows.recovery import MOST_LOSSES

REGISTERED = 4  # seconds until nodes have registered with a controller just started


class Forgetful(World):
    """Its slurmctld is killed the moment after a step, and comes back with what it had saved before another one."""

    def __init__(self, section: PolicySection, *, saved_before: str, killed_after: str = "", times: int = 1, **job: Any) -> None:
        super().__init__(section, **job)
        self.saved: SimulatedJob | None = None
        self._saved_before, self._killed_after, self._times = saved_before, killed_after, times

    def comes_back(self) -> None:
        assert self.saved is not None
        self.cluster.come_back_with(self.saved)
        self.clock.advance(REGISTERED)

    def activities(self) -> Sequence[Callable[..., Any]]:
        steps = Reschedule(self.cluster, clock=self.clock, pause=self._pause)
        names = ("requeue_job", "confirm_pending", "exclude_nodes", "expedite", "release_job")
        others = [each for each in super().activities() if each.__name__ not in names]
        return [*others, *(self._struck(getattr(steps, name)) for name in names)]

    def _struck(self, step: Callable[[MutationRequest], Awaitable[MutationResult]]) -> Callable[..., Any]:
        name = step.__name__

        @activity.defn(name=name)
        async def struck(request: MutationRequest) -> MutationResult:
            if name == self._saved_before and self.saved is None:
                self.saved = self.cluster.saved(self.job_id)
            result = await step(request)
            if name == self._killed_after and self._times > 0 and self.saved is not None:
                self._times -= 1
                self.comes_back()
            return result

        struck.__name__ = name
        return struck


def finds_it_lost() -> Seen:
    """The watch that verifies looks, and Slurm has come back."""

    async def seen(world: World, request: WatchRequest) -> WatchResult:
        assert isinstance(world, Forgetful)
        assert request.placement is not None
        assert request.placement.requeued
        world.comes_back()
        result = await ends(WatchEnd.ACT_LOST)(world, request)
        return result.model_copy(update={"summary": "Slurm shows an older state"})

    return seen


@pytest.mark.parametrize(
    ("saved_before", "killed_after", "told"),
    [
        ("requeue_job", "requeue_job", "requeue_lost"),
        ("requeue_job", "exclude_nodes", "requeue_lost"),
        ("exclude_nodes", "exclude_nodes", "placement_lost"),
    ],
)
async def test_what_is_lost_between_two_steps_is_done_again(
    env: WorkflowEnvironment, saved_before: str, killed_after: str, told: str
) -> None:
    world = Forgetful(policy(Mode.AUTO), saved_before=saved_before, killed_after=killed_after)
    world.script.extend([crashes(), *recovers(), ends()])
    end = await the_end_of(env, world)
    await _recovered_off_the_suspect_in_one_restart(world, end.history.restarts)
    assert step_names(end.incidents[0]).count(told) == 1
    assert step_names(end.incidents[0]).count("recovered") == 1


@pytest.mark.parametrize("saved_before", ["requeue_job", "exclude_nodes", "expedite"])
@pytest.mark.parametrize("reached", [0, 1], ids=["while it waits", "when it had run already"])
async def test_what_a_watch_finds_lost_is_done_again(env: WorkflowEnvironment, saved_before: str, reached: int) -> None:
    world = Forgetful(policy(Mode.AUTO), saved_before=saved_before)
    world.script.extend([crashes(), *([reaches()] * reached), finds_it_lost(), *recovers(), ends()])
    end = await the_end_of(env, world)
    await _recovered_off_the_suspect_in_one_restart(world, end.history.restarts)
    assert "act_lost" in step_names(end.incidents[0])
    again = world.asked[2 + reached]
    assert again.cursor is None or (again.cursor.restart_count, again.cursor.progress.iteration) == (0, None)


async def test_a_hold_that_is_back_is_released_again(env: WorkflowEnvironment) -> None:
    world = Forgetful(policy(Mode.AUTO), saved_before="release_job")
    world.cluster = SimulatedCluster(4, clock=world.clock, requeue_delay=timedelta(seconds=5))
    world.job_id = world.cluster.submit(request=Request(node_count=2, comment="backstay"))
    world.script.extend([crashes(), finds_it_lost(), *recovers(), ends()])
    end = await the_end_of(env, world)
    await _recovered_off_the_suspect_in_one_restart(world, end.history.restarts)
    assert step_names(end.incidents[0]).count("released") == 2


async def test_an_exclusion_that_a_person_lifted_is_not_written_again(env: WorkflowEnvironment) -> None:
    async def lifted(world: World, request: WatchRequest) -> WatchResult:
        assert request.placement is not None
        assert request.placement.excluded == ("node-002",)
        await world.cluster.set_excluded_nodes(world.job_id, [])
        return await ends(WatchEnd.ACT_LOST)(world, request)

    world = World(policy(Mode.AUTO))
    for nodes in (2, 1):  # others take what the crash leaves, so that the job still waits
        world.cluster.submit(request=Request(node_count=nodes))
    world.script.extend([crashes(), lifted, *recovers(), ends()])
    end = await the_end_of(env, world)
    steps = {step.name: step.detail for step in end.incidents[0].outcome.steps}
    assert "another hand lifted the exclusion of node-002" in steps["superseded"]
    assert (await world.now()).excluded_nodes == ()
    assert [asked.placement.excluded for asked in world.asked if asked.placement is not None] == [("node-002",), (), (), ()]


async def test_a_slurmctld_that_loses_the_requeue_time_and_again_is_told_of_and_not_fought(env: WorkflowEnvironment) -> None:
    world = Forgetful(policy(Mode.AUTO), saved_before="requeue_job", killed_after="requeue_job", times=100)
    world.script.append(crashes())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    end = await the_end_of(env, world)
    [incident] = end.incidents
    assert incident.outcome.state is OutcomeState.FAILED
    assert "without the requeue" in incident.outcome.summary
    assert step_names(incident).count("requeue_lost") == MOST_LOSSES + 1
    assert end.history.restarts == 1


async def _recovered_off_the_suspect_in_one_restart(world: World, restarts: int) -> None:
    job = await world.now()
    assert (job.state, job.restart_count, job.excluded_nodes, job.is_held) == (JobState.RUNNING, 1, ("node-002",), False)
    assert "node-002" not in job.nodes
    assert restarts == 1
