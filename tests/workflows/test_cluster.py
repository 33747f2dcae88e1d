"""The cluster's memory on a real Temporal server: ledger, guard rails, breaker, discovery. Slurm is simulated, its time moved by hand."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment
from temporalio.worker import Worker

from activities.cluster_desk import ClusterDesk, HistoryQuestion, IncidentReport, PermissionRequest, cluster_workflow_id
from activities.configuration import Limits
from activities.discover import DiscoverRequest
from activities.guarding import Guarding
from activities.records import (
    ActionRequest,
    Breaker,
    BreakerReset,
    BreakerTrip,
    ClusterState,
    ClusterView,
    Domain,
    Node,
    NodeClearance,
    NodeHistory,
    Permission,
)
from activities.slurm.clock import ManualClock
from activities.slurm.simulated import SimulatedCluster
from tests.builders import a_suspect, an_attribution, node_names
from tests.e2e.server import Server
from workers.commands.explaining import refusal
from workers.embedded.temporal import EmbeddedTemporal, Origin, Program, find_program
from workflows.cluster import Cluster, ClusterStart

Handle = WorkflowHandle[Cluster, None]


class Site:
    """A cluster of twenty nodes with its workflow, asked as jobs' workflows ask it: through the desk."""

    def __init__(self, client: Client, limits: Limits | None = None, *, cluster: SimulatedCluster | None = None) -> None:
        self.name = f"c{uuid.uuid4().hex[:8]}"
        self.client = client
        self.clock = ManualClock()
        self.cluster = cluster or SimulatedCluster(20, clock=self.clock)
        self.guarding = Guarding(self.cluster, limits or Limits(), clock=self.clock)
        self.handle: Handle = client.get_workflow_handle_for(Cluster.run, cluster_workflow_id(self.name))
        self.discoveries = 0
        self.discovered_again = asyncio.Event()
        self._desk = ClusterDesk(client)

    @activity.defn
    async def discover_jobs(self, request: DiscoverRequest) -> None:
        """Finds nothing, for good."""
        self.discoveries += 1
        if self.discoveries > 1:
            self.discovered_again.set()
        while True:
            activity.heartbeat()
            await asyncio.sleep(1)

    @asynccontextmanager
    async def running(self, state: ClusterState | None = None) -> AsyncIterator["Site"]:
        guarding = self.guarding
        async with Worker(
            self.client,
            task_queue=self.name,
            workflows=[Cluster],
            activities=[
                guarding.note_incident,
                guarding.weigh_action,
                guarding.untrip,
                guarding.trip,
                guarding.clear_node,
                self.discover_jobs,
            ],
        ):
            start = ClusterStart(cluster=self.name, state=state or ClusterState())
            await self.client.start_workflow(Cluster.run, start, id=self.handle.id, task_queue=self.name)
            try:
                yield self
            finally:
                await self.handle.terminate()

    async def report(
        self, job_id: str, *suspects: str, domain: Domain = Domain.NETWORK, incident_id: str | None = None, user: str = ""
    ) -> ClusterView:
        """A fault of an attempt on node-001 to node-009."""
        report = IncidentReport(
            cluster=self.name,
            job_id=job_id,
            incident_id=incident_id or f"{job_id}-1",
            cause="nccl_timeout",
            domain=domain,
            at=self.clock.now(),
            attribution=an_attribution(*(a_suspect(node) for node in suspects)),
            user=user,
            nodes=node_names(9),
        )
        view: ClusterView = await ActivityEnvironment(self.client).run(self._desk.report_incident, report)
        return view

    async def history(self, *nodes: str, job_id: str = "99", user: str = "") -> NodeHistory:
        """What a job on these nodes is answered before its diagnosis."""
        question = HistoryQuestion(cluster=self.name, job_id=job_id, user=user, nodes=nodes, at=self.clock.now())
        history: NodeHistory = await ActivityEnvironment(self.client).run(self._desk.node_history, question)
        return history

    async def told_directly(self, job_id: str) -> ClusterView:
        """A report by another worker's desk, beside ours."""
        report = IncidentReport(
            cluster=self.name, job_id=job_id, incident_id=f"{job_id}-1", cause="oom", domain=Domain.APPLICATION, at=self.clock.now()
        )
        return await self.handle.execute_update(Cluster.report_incident, report, id=f"report-{job_id}")

    async def permit(self, job_id: str, *suspects: str, incident_id: str | None = None, user: str = "alice") -> Permission:
        action = ActionRequest(
            job_id=job_id,
            incident_id=incident_id or f"{job_id}-1",
            partition="train",
            exclude_nodes=suspects,
            suspects=suspects,
            cause="ecc_uncorrectable",
            because=("Xid 94",),
            partition_nodes=20,
            user=user,
            ran_on=node_names(9),
        )
        request = PermissionRequest(cluster=self.name, action=action)
        permission: Permission = await ActivityEnvironment(self.client).run(self._desk.permit_action, request)
        return permission

    async def exclude(self, node: str, job_id: str = "41") -> None:
        """A node that alice's and bob's jobs implicate is kept from every job."""
        await self.report(f"{job_id}1", node, user="bob")
        assert (await self.permit(job_id, node)).granted

    async def storm(self, jobs: int = 5) -> ClusterView:
        """So many jobs fail within a minute, with nothing in common but the cluster."""
        view = ClusterView()
        for number in range(jobs):
            self.clock.advance(10)
            view = await self.report(f"4{number}")
        return view

    async def reset(self, actor: str = "kim") -> ClusterView:
        return await self.handle.execute_update(Cluster.reset_breaker, BreakerReset(actor=actor, reason="switch replaced"))

    async def trip(self, actor: str = "kim", reason: str = "switch maintenance") -> ClusterView:
        return await self.handle.execute_update(Cluster.trip_breaker, BreakerTrip(actor=actor, reason=reason))

    async def clear(self, node: str, actor: str = "kim") -> ClusterView:
        return await self.handle.execute_update(Cluster.clear_node, NodeClearance(node=node, actor=actor, reason="GPU replaced"))

    async def state(self) -> ClusterState:
        return await self.handle.query(Cluster.state)


async def connected(server: Server | EmbeddedTemporal) -> Client:
    return await Client.connect(server.address, data_converter=pydantic_data_converter)


@pytest.fixture
async def site(server: Server) -> AsyncIterator[Site]:
    async with Site(await connected(server)).running() as site:
        yield site


def names(view: ClusterView) -> Sequence[str]:
    return [entry.node for entry in view.excluded]


# ------------------------------------------------------------------------------------------------ the ledger


async def test_a_granted_action_excludes_its_suspects_for_its_own_job(site: Site) -> None:
    assert names(await site.report("41", "node-002", user="alice")) == [], "a report alone excludes nobody"
    assert (await site.permit("41", "node-002")).granted
    assert names(await site.report("41", incident_id="41-2", user="alice")) == ["node-002"]
    assert names(await site.report("42", user="bob")) == []


async def test_a_node_that_jobs_of_two_users_implicate_is_kept_from_the_jobs_that_fail_next(site: Site) -> None:
    await site.report("41", "node-002", user="alice")
    assert (await site.permit("41", "node-002")).granted
    assert names(await site.report("42", user="bob")) == []
    assert names(await site.report("43", "node-002", user="bob")) == ["node-002"]
    assert names(await site.report("44", user="carol")) == ["node-002"]
    [entry] = (await site.state()).entries
    assert (entry.job_id, entry.cause, entry.because) == ("41", "ecc_uncorrectable", ("Xid 94",))
    assert entry.excluded_until == site.clock.now() + timedelta(hours=24)


async def test_a_node_that_slurm_lost_is_kept_from_every_job_at_once(site: Site) -> None:
    site.cluster.node_down("node-002")
    assert (await site.permit("41", "node-002")).granted
    assert names(await site.report("42", user="bob")) == ["node-002"]


async def test_what_one_users_jobs_print_holds_and_excludes_nothing_for_another(site: Site) -> None:
    """Ten jobs of one user name a node they never had, and one they had."""
    for number in range(10):
        site.clock.advance(10)
        await site.report(f"6{number}", "node-019", f"node-00{number % 9 + 1}", user="mallory")
        await site.permit(f"6{number}", "node-019", f"node-00{number % 9 + 1}", user="mallory")
    view = await site.report("41", "node-002", user="alice")
    assert [entry.node for entry in view.excluded if entry.node != "node-002"] == []
    assert view.breaker.tripped_at is None
    assert (await site.permit("41", "node-002")).granted
    assert not (await site.permit("69", user="mallory", incident_id="69-2")).granted
    assert "node-019" not in {entry.node for entry in (await site.state()).entries}
    assert not (await site.reset()).breaker.holds_somebody


async def test_an_exclusion_expires(site: Site) -> None:
    await site.exclude("node-002")
    site.clock.advance(timedelta(hours=23))
    assert names(await site.report("42")) == ["node-002"]
    site.clock.advance(timedelta(hours=2))
    assert names(await site.report("43")) == []
    assert (await site.state()).entries == ()


async def test_a_reboot_clears_a_node(site: Site) -> None:
    await site.permit("41", "node-002")
    site.clock.advance(60)
    site.cluster.node_down("node-002")
    assert names(await site.report("42")) == ["node-002"], "down is not mended"
    site.cluster.node_up("node-002", rebooted=True)
    assert names(await site.report("43")) == []


async def test_silence_of_slurm_clears_nobody_and_holds_up_no_answer(site: Site) -> None:
    await site.exclude("node-002")
    site.cluster.down = True
    assert names(await site.report("42")) == ["node-002"]
    assert not (await site.permit("42", "node-003")).granted


# ------------------------------------------------------------------------------------------------ the guard rails


async def test_the_share_of_excluded_nodes_is_kept_with_the_numbers(site: Site) -> None:
    await site.exclude("node-002")
    second = await site.permit("42", "node-003")
    assert not second.granted
    assert "2 of 20 nodes of partition train" in second.why
    assert "allows 1" in second.why
    assert (await site.permit("43")).granted, "a restart that excludes nobody needs no share"


async def test_an_action_granted_once_stays_granted_and_counts_once(site: Site) -> None:
    assert (await site.permit("41", "node-002")).granted
    again = await site.permit("41", "node-002")
    assert again.granted
    assert "granted before" in again.why
    assert len((await site.state()).actions) == 1


async def test_actions_are_counted_in_their_window(server: Server) -> None:
    limits = Limits(actions_per_window=2, window=timedelta(hours=1))
    async with Site(await connected(server), limits).running() as site:
        assert (await site.permit("41")).granted
        site.clock.advance(600)
        assert (await site.permit("42")).granted
        third = await site.permit("43")
        assert not third.granted
        assert "actions_per_window allows 2" in third.why
        site.clock.advance(3001)
        assert (await site.permit("43")).granted


async def test_a_report_that_is_sent_twice_counts_once(site: Site) -> None:
    for _ in range(6):
        view = await site.report("41")
    assert view.breaker.tripped_at is None
    assert len((await site.state()).recent_incidents) == 1


class SlowToAnswer(SimulatedCluster):
    """A controller busy enough for two questions to overlap."""

    async def nodes(self) -> Sequence[Node]:
        await asyncio.sleep(0.05)
        return await super().nodes()


async def test_two_jobs_cannot_both_take_the_last_share(server: Server) -> None:
    cluster = SlowToAnswer(20, clock=ManualClock())
    site = Site(await connected(server), cluster=cluster)
    async with site.running():
        for number in range(1, 6):  # bob's jobs say the same of each
            await site.report(f"5{number}", f"node-00{number}", user="bob")
        granted = await asyncio.gather(*(site.permit(f"4{number}", f"node-00{number}") for number in range(1, 6)))
        assert [permission.granted for permission in granted].count(True) == 1
        assert len((await site.state()).entries) == 1


# ------------------------------------------------------------------------------------------------ the breaker


async def test_a_storm_trips_the_breaker_and_only_a_person_resets_it(site: Site) -> None:
    assert (await site.storm(4)).breaker.tripped_at is None
    view = await site.report("99")
    assert view.breaker.tripped_at is not None
    assert "5 jobs failed within 10 min" in view.breaker.reason
    refused = await site.permit("41", "node-002")
    assert not refused.granted
    assert "backstay breaker" in refused.why
    site.clock.advance(timedelta(days=1))
    assert not (await site.permit("41", "node-002")).granted, "time does not reset it"

    assert (await site.reset()).breaker.tripped_at is None
    assert (await site.permit("41", "node-002")).granted
    breaker = (await site.state()).breaker
    assert (breaker.reset_by, breaker.reset_at) == ("kim", site.clock.now())


async def test_a_breaker_that_is_not_tripped_cannot_be_reset(site: Site) -> None:
    with pytest.raises(WorkflowUpdateFailedError) as refusal:
        await site.reset()
    assert "not tripped" in str(refusal.value.cause)


async def test_a_reset_without_an_actor_is_refused_before_it_stands_in_the_history(site: Site) -> None:
    await site.storm()
    with pytest.raises(WorkflowUpdateFailedError) as refusal:
        await site.reset(actor=" ")
    assert "--actor" in str(refusal.value.cause)
    assert (await site.state()).breaker.tripped_at is not None
    history = await site.handle.fetch_history()
    assert not any(b"switch replaced" in event.SerializeToString() for event in history.events)


async def test_what_failed_before_a_reset_does_not_trip_the_breaker_again(site: Site) -> None:
    await site.storm()
    await site.reset()
    site.clock.advance(1)
    assert (await site.report("98")).breaker.tripped_at is None


async def test_a_person_stops_all_acting_until_a_reset(site: Site) -> None:
    assert (await site.trip()).breaker.tripped_by == "kim"
    refused = await site.permit("41", "node-002")
    assert not refused.granted
    assert "by kim: switch maintenance" in refused.why
    await site.reset()
    assert (await site.permit("41", "node-002")).granted


async def test_a_node_that_was_mended_is_taken_off_the_ledger(site: Site) -> None:
    await site.permit("41", "node-002")
    assert names(await site.clear("node-002")) == []
    assert names(await site.report("42")) == []


@pytest.mark.parametrize(
    ("order", "mend"),
    [
        (BreakerTrip(actor="", reason="maintenance"), "--actor"),
        (BreakerTrip(actor="kim\x1b[2J", reason="maintenance"), "printable"),
        (BreakerTrip(actor="kim", reason=" "), "--reason"),
        (BreakerTrip(actor="kim", reason="long" * 600), "say it in 2000"),
        (NodeClearance(node="node-002", actor=" "), "--actor"),
        (NodeClearance(node="node-999", actor="kim"), "node-999 is not on the ledger; it holds node-002"),
    ],
    ids=["nobody trips", "an actor that moves the cursor", "no reason", "a reason without end", "nobody clears", "a node not held"],
)
async def test_what_cannot_stand_in_the_history_is_refused_before(site: Site, order: BreakerTrip | NodeClearance, mend: str) -> None:
    await site.permit("41", "node-002")
    before = await site.state()
    update = "trip_breaker" if isinstance(order, BreakerTrip) else "clear_node"
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await site.handle.execute_update(update, order)
    assert mend in refusal(refused.value)
    assert await site.state() == before


async def test_a_breaker_that_is_tripped_keeps_its_first_reason(site: Site) -> None:
    await site.trip()
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await site.trip("lee", "me too")
    assert "tripped already" in refusal(refused.value)
    assert (await site.state()).breaker.tripped_by == "kim"


# ------------------------------------------------------------------------------------------------ lasting


def suggesting_early(directory: Path) -> Program:
    """The server's program with a history so short that continue-as-new is suggested within a test."""
    found = find_program()
    assert found is not None
    script = directory / "temporal"
    script.write_text(f'#!/bin/sh\nexec {found.path} "$@" --dynamic-config-value limit.historyCount.suggestContinueAsNew=40\n')
    script.chmod(0o755)
    return Program(script, Origin.PATH)


async def test_the_memory_survives_continue_as_new_and_discovery_goes_on(tmp_path: Path) -> None:
    server = EmbeddedTemporal(tmp_path / "temporal.db", program=suggesting_early(tmp_path))
    async with server, Site(await connected(server)).running() as site:
        await site.permit("41", "node-002")
        await site.storm()
        before = await site.state()
        first = (await site.handle.describe()).run_id
        number = 0
        while (await site.handle.describe()).run_id == first:
            number += 1
            assert not (await site.permit("41", "node-003", incident_id=f"41-{number + 1}")).granted
        after = await site.state()
        assert (after.entries, after.breaker, after.actions) == (before.entries, before.breaker, before.actions)
        assert (await site.reset()).breaker.tripped_at is None
        await asyncio.wait_for(site.discovered_again.wait(), timeout=60)


async def test_no_answer_is_lost_when_the_memory_is_passed_on_among_questions(tmp_path: Path) -> None:
    """Several workers ask at once: reports in flight meet continue-as-new again and again, and each is answered and counted once."""
    server = EmbeddedTemporal(tmp_path / "temporal.db", program=suggesting_early(tmp_path))
    async with server, Site(await connected(server)).running() as site:
        first = (await site.handle.describe()).run_id
        runs, number = {first}, 0
        while len(runs) < 4:
            views = await asyncio.gather(*(site.told_directly(f"{number + one}") for one in range(8)))
            assert len(views) == 8
            number += 8
            runs.add((await site.handle.describe()).run_id)
        counted = [incident.job_id for incident in (await site.state()).recent_incidents]
        assert sorted(counted, key=int) == [str(one) for one in range(number)]


class FailsToDiscover(Site):
    @activity.defn
    async def discover_jobs(self, request: DiscoverRequest) -> None:
        if not self.discoveries:
            self.discoveries += 1
            raise ApplicationError("failed by hand", non_retryable=True)
        await super().discover_jobs(request)


async def _skip(env: WorkflowEnvironment) -> None:
    """Lets time fly whenever no activity runs: all of one skip may be over before the first discovery has failed."""
    while True:
        await env.sleep(timedelta(minutes=1))


async def test_a_discovery_that_fails_for_good_is_started_again_and_forgets_nothing(env: WorkflowEnvironment) -> None:
    tripped = ClusterState(breaker=Breaker(tripped_at=ManualClock().now(), reason="a storm"))
    async with FailsToDiscover(env.client).running(tripped) as site:
        skipping = asyncio.create_task(_skip(env))
        await asyncio.wait_for(site.discovered_again.wait(), timeout=60)
        skipping.cancel()
        assert (await site.state()).breaker.reason == "a storm"


async def test_a_storm_of_reports_is_taken_one_after_the_other_and_a_person_still_gets_in(site: Site) -> None:
    """Temporal refuses the eleventh Update in flight: a failed array of 300 tasks once locked itself out of its own breaker."""
    reports = asyncio.gather(*(site.report(f"7{number}") for number in range(60)))
    while (await site.state()).breaker.tripped_at is None:  # noqa: ASYNC110 - the server's state; there is no event to await
        await asyncio.sleep(0.01)
    assert (await site.reset()).breaker.tripped_at is None
    await reports
    history = await site.handle.fetch_history()
    accepted = [event for event in history.events if event.HasField("workflow_execution_update_accepted_event_attributes")]
    assert len(accepted) == 61, "each was asked once, and none was refused"


async def test_what_failed_on_a_node_is_told_to_the_next_job_there_and_to_no_other(site: Site) -> None:
    await site.report("41", "node-002", user="alice")
    [fault] = (await site.history("node-002", "node-015")).faults
    assert (fault.job_id, fault.user, fault.cause, fault.nodes, fault.was_seen) == ("41", "alice", "nccl_timeout", ("node-002",), True)
    elsewhere = await site.history("node-014", "node-015")
    assert (elsewhere.faults, [told.times for told in elsewhere.elsewhere]) == ((), [1])
    assert (await site.permit("41", "node-002")).granted
    await site.clear("node-002")
    assert (await site.history("node-002")).faults == (), "a person cleared it"


async def test_a_cluster_that_does_not_answer_is_no_history_and_no_error(site: Site) -> None:
    history = await Site(site.client).history("node-002")  # of a cluster that has no workflow
    assert history.faults == ()
    assert "does not answer" in history.unknown
