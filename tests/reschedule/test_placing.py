"""From the queue to the start: pending, excluded, expedited, each read back and none done twice."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest

from activities.mutation import (
    ExclusionNotSeen,
    ExpediteNotSeen,
    Loss,
)
from activities.records import JobFlag, JobState, NodeState
from activities.reschedule import PAST_THE_RETURN
from activities.slurm.simulated import SimulatedCluster
from tests.reschedule.site import Site, Witness

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


async def test_exclusions_wait_for_nodes_that_have_yet_to_register_after_a_restart_of_the_controller(site: Site) -> None:
    await site.requeued()
    site.cluster.down = True
    site.cluster.down = False
    assert {node.state for node in await site.cluster.nodes()} == {NodeState.UNKNOWN}
    excluded = await site.run("exclude_nodes", nodes=("node-002",))
    assert (excluded.done, excluded.excluded_nodes) == (True, ("node-002",))


async def test_a_job_that_waits_no_more_supersedes_its_exclusions(site: Site) -> None:
    await site.fail().requeued()
    site.clock.advance(200)
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
    await site.run("requeue_job")
    assert (await site.job()).is_ending
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


# ------------------------------------------------------------------------------------------------ older state


async def test_exclusions_that_slurmctld_lost_are_missed_before_the_start_and_written_again(site: Site) -> None:
    await site.fail().requeued()
    before = site.cluster.saved(site.job_id)
    written = await site.run("exclude_nodes", nodes=("node-002",))
    site.killed_before_it_saved(before)
    asked: dict[str, Any] = {"nodes": ("node-002",), "requeued": True, "controller_start": written.controller_start}
    for step in ("expedite", "release_job"):
        lost = await site.run(step, **asked, excluded=("node-002",))
        assert (lost.lost, lost.detail) == (Loss.PLACEMENT, "Slurm shows the waiting job without the exclusion of node-002")
    assert site.did("start_now") == 0
    assert (await site.run("exclude_nodes", **asked)).excluded_nodes == ("node-002",)
    assert (await site.run("expedite", **asked, excluded=("node-002",))).done
    job = await site.job()
    assert (job.state, "node-002" in job.nodes) == (JobState.RUNNING, False)


async def test_exclusions_that_a_person_lifted_stay_lifted(site: Site) -> None:
    await site.fail().requeued()
    written = await site.run("exclude_nodes", nodes=("node-002",))
    await SimulatedCluster.set_excluded_nodes(site.cluster, site.job_id, [])
    again = await site.run("exclude_nodes", nodes=("node-002",), requeued=True, controller_start=written.controller_start)
    assert again.superseded == "another hand lifted the exclusion of node-002, which is not written again"
    assert site.did("exclude") == 1


async def test_a_start_time_that_slurmctld_lost_is_given_again_and_one_that_a_person_set_stands(site: Site) -> None:
    await site.fail().requeued()
    start = (await site.cluster.settings()).controller_start
    theirs = await site.run("expedite", requeued=True, controller_start=start)
    assert theirs.superseded is not None
    assert "another hand lets the job begin at" in theirs.superseded
    site.killed_before_it_saved(site.cluster.saved(site.job_id))
    assert (await site.run("expedite", requeued=True, controller_start=start)).done
    assert (await site.job()).state is JobState.RUNNING


@pytest.mark.parametrize("step", ["expedite", "release_job"])
async def test_a_restarted_slurmctld_gets_time_to_end_what_it_had_forgotten_before_the_job_is_started_again(step: str) -> None:
    delay = timedelta(seconds=121 if step == "expedite" else 5)
    site = await Site(requeue_delay=delay).submit().fail().requeued()
    start = (await site.cluster.settings()).controller_start
    site.cluster.come_back_with(site.cluster.saved(site.job_id))
    back = site.clock.now()
    assert (await site.run(step, requeued=True, controller_start=start)).done
    assert site.clock.now() >= back + timedelta(seconds=3) + PAST_THE_RETURN


async def test_a_hold_of_ours_that_came_back_without_its_mark_is_marked_and_told() -> None:
    site = Site(requeue_delay=timedelta(seconds=5)).submit().fail()
    await SimulatedCluster.requeue(site.cluster, site.job_id, hold=True)
    assert not (await site.run("confirm_pending")).held
    assert (await site.run("confirm_pending", requeued=True)).held
    assert (await site.run("release_job", requeued=True)).done
