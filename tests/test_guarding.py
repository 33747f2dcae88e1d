"""The cluster's judgement as activities: memory in, memory and answer out, over a look at Slurm that may fail."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.cluster_desk import IncidentReport
from activities.configuration import Limits
from activities.guarding import ActionQuestion, ClearanceOrder, Guarding, IncidentNote, ResetOrder, TripOrder, Weighed
from activities.records import (
    ActionRequest,
    Breaker,
    BreakerReset,
    BreakerTrip,
    ClusterState,
    Domain,
    LedgerEntry,
    LedgerScope,
    NodeClearance,
    SignalSource,
    Suspect,
)
from activities.slurm.clock import ManualClock
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from tests.builders import a_suspect, an_attribution


class Site:
    def __init__(self, limits: Limits | None = None, *, approvers: tuple[str, ...] = ()) -> None:
        self.clock = ManualClock()
        self.cluster = SimulatedCluster(20, clock=self.clock)
        self.guarding = Guarding(self.cluster, limits or Limits(), clock=self.clock, approvers=approvers)

    async def _run(self, step: Any, question: Any) -> Weighed:
        weighed: Weighed = await ActivityEnvironment().run(step, question)
        return weighed

    async def note(
        self, state: ClusterState, *suspects: Suspect, job_id: str = "41", user: str = "", nodes: tuple[str, ...] | None = None
    ) -> Weighed:
        report = IncidentReport(
            cluster="alpha",
            job_id=job_id,
            incident_id=f"{job_id}-1",
            cause="nccl_timeout",
            domain=Domain.NETWORK,
            at=self.clock.now(),
            attribution=an_attribution(*suspects),
            user=user,
            nodes=nodes,
        )
        return await self._run(self.guarding.note_incident, IncidentNote(state=state, report=report))

    async def weigh(self, state: ClusterState, *suspects: str, job_id: str = "41", user: str = "alice") -> Weighed:
        request = ActionRequest(
            job_id=job_id,
            incident_id=f"{job_id}-1",
            partition="train",
            exclude_nodes=suspects,
            suspects=suspects,
            partition_nodes=20,
            user=user,
            ran_on=("node-001", "node-002", "node-003"),
        )
        return await self._run(self.guarding.weigh_action, ActionQuestion(state=state, request=request))

    async def trip(self, state: ClusterState, actor: str = "kim") -> Weighed:
        return await self._run(self.guarding.trip, TripOrder(state=state, trip=BreakerTrip(actor=actor, reason="switch maintenance")))

    async def clear(self, state: ClusterState, node: str, actor: str = "kim") -> Weighed:
        return await self._run(self.guarding.clear_node, ClearanceOrder(state=state, clearance=NodeClearance(node=node, actor=actor)))

    async def untrip(self, state: ClusterState, actor: str = "kim") -> Weighed:
        return await self._run(self.guarding.untrip, ResetOrder(state=state, reset=BreakerReset(actor=actor)))


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_grant_enters_the_ledger_with_the_boot_it_was_given_under(site: Site) -> None:
    weighed = await site.weigh(ClusterState(), "node-002")
    assert weighed.permission is not None
    assert weighed.permission.granted
    [entry] = weighed.state.entries
    booted = {node.name: node.booted_at for node in await site.cluster.nodes()}
    assert (entry.node, entry.booted_at) == ("node-002", booted["node-002"])
    assert len(weighed.state.actions) == 1


async def test_a_refusal_changes_nothing_but_what_time_has_cleared(site: Site) -> None:
    tripped = ClusterState(breaker=Breaker(tripped_at=site.clock.now(), reason="a storm"))
    weighed = await site.weigh(tripped, "node-002")
    assert weighed.permission is not None
    assert not weighed.permission.granted
    assert weighed.state == tripped


async def test_each_look_clears_what_has_expired_or_rebooted(site: Site) -> None:
    state = (await site.weigh(ClusterState(), "node-002")).state
    site.clock.advance(10)
    site.cluster.node_down("node-002")
    assert [entry.node for entry in (await site.note(state)).view.excluded] == ["node-002"], "Slurm agrees"
    site.cluster.node_up("node-002", rebooted=True)
    assert (await site.note(state)).view.excluded == ()
    site.clock.advance(timedelta(hours=25))
    assert (await site.note(state)).state.entries == ()


async def test_silence_of_slurm_clears_by_time_only(site: Site) -> None:
    state = (await site.weigh(ClusterState(), "node-002")).state
    site.cluster.down = True
    assert [entry.node for entry in (await site.note(state)).view.excluded] == ["node-002"]
    assert (await site.weigh(state, job_id="42")).permission is not None
    site.clock.advance(timedelta(hours=25))
    assert (await site.note(state)).view.excluded == ()


async def test_a_node_that_left_the_cluster_leaves_the_ledger(site: Site) -> None:
    gone = LedgerEntry(node="node-999", implicated_at=site.clock.now(), job_id="1", cause="ecc_uncorrectable")
    assert (await site.note(ClusterState(entries=(gone,)))).view.excluded == ()


async def test_a_storm_shows_in_the_view_of_the_report_that_completes_it(site: Site) -> None:
    state = ClusterState()
    for number in range(5):
        noted = await site.note(state, job_id=str(number))
        state = noted.state
    assert noted.view.breaker.tripped_at is not None


async def test_jobs_that_share_a_vague_suspicion_are_a_storm_all_the_same(site: Site) -> None:
    state = ClusterState()
    for number in range(5):
        noted = await site.note(state, a_suspect("node-002", confidence=0.59), job_id=str(number))
        state = noted.state
    assert noted.view.breaker.tripped_at is not None
    assert {incident.suspects for incident in state.recent_incidents} == {()}


async def test_jobs_traced_to_one_node_are_one_fault_whatever_else_is_suspected(site: Site) -> None:
    state = ClusterState()
    for number in range(9):
        vague = a_suspect(f"node-{number:03}", confidence=0.3)
        noted = await site.note(state, a_suspect("node-012", confidence=0.6), vague, job_id=str(number))
        state = noted.state
    assert noted.view.breaker.tripped_at is None


async def test_a_reset_names_who_and_when(site: Site) -> None:
    tripped = ClusterState(breaker=Breaker(tripped_at=site.clock.now(), reason="a storm"))
    weighed = await site.untrip(tripped)
    assert weighed.view.breaker.tripped_at is None
    assert (weighed.state.breaker.reset_by, weighed.state.breaker.reset_at) == ("kim", site.clock.now())


async def test_a_person_stops_all_acting_and_the_refusal_says_who_and_why(site: Site) -> None:
    tripped = (await site.trip(ClusterState())).state
    assert (tripped.breaker.tripped_by, tripped.breaker.tripped_at) == ("kim", site.clock.now())
    permission = (await site.weigh(tripped)).permission
    assert permission is not None
    assert "by kim: switch maintenance" in permission.why


async def test_a_cleared_node_leaves_the_ledger_alone_of_all(site: Site) -> None:
    state = (await site.weigh(ClusterState(), "node-002")).state
    state = state.model_copy(update={"entries": (*state.entries, state.entries[0].model_copy(update={"node": "node-003"}))})
    cleared = await site.clear(state, "node-002")
    assert [entry.node for entry in cleared.view.excluded] == ["node-003"]


async def test_where_approvers_are_named_the_guard_rails_are_theirs_too() -> None:
    site = Site(approvers=("kim",))
    tripped = (await site.trip(ClusterState(), actor="kim")).state
    excluding = (await site.weigh(ClusterState(), "node-002")).state
    for refused in (
        site.trip(ClusterState(), actor="mallory"),
        site.untrip(tripped, actor="mallory"),
        site.clear(excluding, "node-002", actor="mallory"),
    ):
        with pytest.raises(ApplicationError, match=r"mallory is not among policy\.approvers") as error:
            await refused
        assert error.value.non_retryable
    assert (await site.untrip(tripped, actor="kim")).state.breaker.tripped_at is None


async def test_every_step_gives_the_same_answer_when_it_is_run_again_on_its_result(site: Site) -> None:
    granted = await site.weigh(ClusterState(), "node-002")
    again = await site.weigh(granted.state, "node-002")
    assert again.state == granted.state
    assert again.permission is not None
    assert again.permission.granted
    noted = await site.note(granted.state)
    assert (await site.note(noted.state)).state == noted.state
    tripped = await site.trip(noted.state)
    assert (await site.trip(tripped.state, actor="lee")).state == tripped.state
    cleared = await site.clear(tripped.state, "node-002")
    assert (await site.clear(cleared.state, "node-002")).state == cleared.state
    untripped = await site.untrip(noted.state)
    assert (await site.untrip(untripped.state)).state == untripped.state


# ------------------------------------------------------------------------------------------------ whose word


HAD = ("node-001", "node-002")
"""Nodes of the attempts of this section."""


async def test_a_node_that_the_attempt_never_had_is_no_suspect_whatever_the_report_says(site: Site) -> None:
    site.cluster.node_down("node-009")
    noted = await site.note(ClusterState(), a_suspect("node-009"), user="mallory", nodes=HAD)
    assert noted.state.recent_incidents[0].suspects == ()
    assert (noted.state.implications, noted.view.corroborated) == ((), ())
    assert (await site.weigh(noted.state, "node-009", user="mallory")).state.entries == ()


async def test_what_one_users_job_printed_is_told_to_that_job_and_to_no_other(site: Site) -> None:
    state = (await site.weigh(ClusterState(), "node-002")).state
    assert [entry.node for entry in (await site.note(state, job_id="41")).view.excluded] == ["node-002"]
    assert (await site.note(state, job_id="42", user="bob")).view.excluded == ()


async def test_a_report_of_another_users_job_bears_an_exclusion_out(site: Site) -> None:
    state = (await site.weigh(ClusterState(), "node-002")).state
    site.clock.advance(60)
    noted = await site.note(state, a_suspect("node-002"), job_id="42", user="bob", nodes=HAD)
    assert noted.view.corroborated == ("node-002",)
    assert [entry.scope for entry in noted.view.excluded] == [LedgerScope.CLUSTER]
    assert [entry.node for entry in (await site.note(noted.state, job_id="43", user="carol")).view.excluded] == ["node-002"]


async def test_a_vague_suspicion_of_another_users_job_bears_nothing_out(site: Site) -> None:
    state = (await site.weigh(ClusterState(), "node-002")).state
    noted = await site.note(state, a_suspect("node-002", confidence=0.3), job_id="42", user="bob", nodes=HAD)
    assert noted.view.excluded == ()


async def test_slurms_state_at_the_grant_or_later_bears_an_exclusion_out(site: Site) -> None:
    state = (await site.weigh(ClusterState(), "node-002")).state
    site.cluster.node_down("node-002")
    at_once = (await site.weigh(ClusterState(), "node-002")).state
    later = (await site.note(state, job_id="42", user="bob")).state
    assert [entry.scope for entry in (*at_once.entries, *later.entries)] == [LedgerScope.CLUSTER] * 2


async def test_what_the_watch_saw_of_a_node_counts_though_it_is_back(site: Site) -> None:
    """A node that did not respond for a minute, and does now."""
    noted = await site.note(ClusterState(), a_suspect("node-002", seen_by=(SignalSource.NODE,)), user="alice", nodes=HAD)
    assert noted.view.corroborated == ("node-002",)
    [entry] = (await site.weigh(noted.state, "node-002")).state.entries
    assert entry.scope is LedgerScope.CLUSTER


async def failing(site: Site, users: Sequence[str]) -> ClusterState:
    """One job of each of these users fails."""
    state = ClusterState()
    for number, user in enumerate(users):
        state = (await site.note(state, job_id=f"9{number}", user=user, nodes=HAD)).state
    return state


async def test_a_storm_is_a_share_of_the_watched_jobs_that_run() -> None:
    site = Site(Limits(breaker_fraction=0.5))
    users = ("alice", "bob", "carol", "dora", "emil")
    assert (await failing(site, users)).breaker.tripped_at is not None, "five of five"
    for number in range(15):
        site.cluster.submit(request=Request(user=f"u{number}", comment="backstay"))
    assert (await failing(site, users)).breaker.tripped_at is None, "five of twenty"
    site.cluster.down = True
    assert (await failing(site, users)).breaker.tripped_at is not None, "where nobody can count, five are enough"


async def test_jobs_that_nobody_watches_do_not_raise_what_makes_a_storm() -> None:
    site = Site(Limits(breaker_fraction=0.5))
    for number in range(15):
        site.cluster.submit(request=Request(user=f"u{number}", comment=""))
    assert (await failing(site, ("alice", "bob", "carol", "dora", "emil"))).breaker.tripped_at is not None


async def test_one_users_storm_is_reset_like_any_other(site: Site) -> None:
    state = await failing(site, ["mallory"] * 9)
    assert (state.breaker.tripped_at, [stop.user for stop in state.breaker.users]) == (None, ["mallory"])
    refused = (await site.weigh(state, job_id="99", user="mallory")).permission
    assert refused is not None
    assert not refused.granted
    untripped = (await site.untrip(state)).state
    assert not untripped.breaker.holds_somebody
    assert "9 jobs" not in untripped.breaker.reason
    assert "5 jobs of mallory" in untripped.breaker.reason
