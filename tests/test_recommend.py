"""The step `recommend`: the situation is gathered afresh, and the terms are read from the configuration at that moment."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.configuration import ClusterSection, Configuration, Limits, PolicySection
from activities.placement import REGISTRATION_PATIENCE
from activities.recommend import Proposal, Recommend, RecommendRequest
from activities.records import Action, ClusterView, Job, JobHistory, LedgerEntry, Mode, NodeState
from activities.slurm.clock import ManualClock
from activities.slurm.scheduler import SchedulerUnreachable
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from tests.builders import a_diagnosis, a_suspect, an_application_bug, an_attempt, an_attribution, an_incident


class Site:
    """Four nodes, one job on node-001 and node-002; node-002 is the suspect."""

    def __init__(self, comment: str = "backstay", registration_time: timedelta = timedelta(seconds=3), **policy: Any) -> None:
        self.clock = ManualClock()
        self.cluster = SimulatedCluster(4, clock=self.clock, registration_time=registration_time)
        section = PolicySection(**{"mode": Mode.AUTO, "limits": Limits(excluded_fraction=0.5), **policy})
        configuration = Configuration(cluster=ClusterSection(name="alpha"), policy=section)
        self.recommend = Recommend(self.cluster, configuration, clock=self.clock, pause=self._pause)
        self.job_id = self.cluster.submit(request=Request(node_count=2, comment=comment))

    async def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def job(self) -> Job:
        return await self.cluster.job(self.job_id)

    def fail(self) -> "Site":
        self.cluster.fail_job(self.job_id)
        self.clock.advance(3)
        return self

    async def propose(self, *, job: Job | None = None, view: ClusterView | None = None, **incident: Any) -> Proposal:
        seen = job or await self.job()
        request = RecommendRequest(
            incident=an_incident(recommendation=None, **incident),
            attempt=an_attempt(),
            job=seen,
            history=JobHistory(),
            view=view or ClusterView(),
        )
        proposal: Proposal = await ActivityEnvironment().run(self.recommend.recommend, request)
        return proposal


async def test_a_broken_node_is_left_out_and_the_recommendation_is_sealed() -> None:
    proposal = await Site().fail().propose()
    recommendation = proposal.recommendation
    assert (recommendation.action, recommendation.exclude_nodes) == (Action.RESTART_EXCLUDING, ("node-002",))
    assert recommendation.digest == recommendation.sealed(incident_id="i-1", restart_count=0).digest
    assert proposal.changes_slurm


async def test_the_job_is_judged_as_it_is_now_not_as_it_was_seen() -> None:
    site = Site()
    as_seen = await site.job()
    site.fail()
    proposal = await site.propose(job=as_seen)
    ended_at = (await site.job()).ended_at
    assert ended_at is not None
    assert proposal.recommendation.expires_at == ended_at + timedelta(seconds=290)
    assert "MinJobAge" in proposal.recommendation.expiry_reason


async def test_nodes_that_have_yet_to_register_after_a_restart_of_the_controller_are_waited_for() -> None:
    site = Site().fail()
    site.cluster.down = True
    site.clock.advance(60)
    site.cluster.down = False
    assert {node.state for node in await site.cluster.nodes()} == {NodeState.UNKNOWN}
    recommendation = (await site.propose()).recommendation
    assert (recommendation.action, recommendation.exclude_nodes) == (Action.RESTART_EXCLUDING, ("node-002",))


async def test_nodes_that_never_register_are_not_waited_for_for_ever_and_the_hold_says_how_many_they_are() -> None:
    site = Site(registration_time=timedelta(hours=1)).fail()
    site.cluster.down = True
    site.cluster.down = False
    began = site.clock.now()
    recommendation = (await site.propose()).recommendation
    assert recommendation.action is Action.HOLD
    assert "0 of 0 usable nodes" in recommendation.why
    assert "of 4 more Slurm does not know the state" in recommendation.why
    assert site.clock.now() - began == REGISTRATION_PATIENCE


async def test_a_job_that_slurm_has_forgotten_is_judged_by_its_last_look() -> None:
    site = Site().fail()
    as_seen = await site.job()
    site.clock.advance(600)
    assert (await site.propose(job=as_seen)).recommendation.action is Action.RESTART_EXCLUDING


async def test_only_nodes_blamed_with_confidence_are_named_for_the_ledger_though_more_are_excluded_or_suspected() -> None:
    site = Site()
    site.job_id = site.cluster.submit(request=Request(node_count=1), exclude=["node-001"])
    vague = a_suspect("node-001", confidence=0.2)
    proposal = await site.fail().propose(attribution=an_attribution(a_suspect("node-002"), vague))
    assert proposal.recommendation.exclude_nodes == ("node-001", "node-002")
    assert proposal.suspects == ("node-002",)


async def test_nodes_that_the_ledger_excludes_are_kept_out_of_the_next_attempt_too() -> None:
    site = Site().fail()
    entry = LedgerEntry(node="node-003", implicated_at=site.clock.now(), job_id="9", cause="ecc_uncorrectable")
    assert (await site.propose(view=ClusterView(excluded=(entry,)))).recommendation.exclude_nodes == ("node-002", "node-003")


async def test_the_users_own_list_is_told_apart_at_each_restart() -> None:
    site = Site(limits=Limits(excluded_fraction=0.25))
    site.job_id = site.cluster.submit(request=Request(node_count=1), exclude=["node-001"])
    recommendation = (await site.fail().propose()).recommendation
    assert (recommendation.action, recommendation.backstay_excludes, recommendation.user_excluded) == (
        Action.RESTART_EXCLUDING,
        ("node-002",),
        ("node-001",),
    )


async def test_silence_of_slurm_is_an_error_to_be_tried_again() -> None:
    site = Site()
    job = await site.job()
    site.cluster.down = True
    with pytest.raises(SchedulerUnreachable):
        await site.propose(job=job)


async def test_the_jobs_own_wish_lowers_the_mode_but_not_what_is_recommended() -> None:
    assert (await Site("backstay").fail().propose()).mode is Mode.AUTO
    lowered = await Site("backstay:mode=observe").fail().propose()
    assert lowered.mode is Mode.OBSERVE
    assert lowered.recommendation.action is Action.RESTART_EXCLUDING


async def test_a_job_whose_comment_no_longer_asks_for_backstay_is_only_observed() -> None:
    assert (await Site("").fail().propose()).mode is Mode.OBSERVE


async def test_the_terms_come_from_the_configuration() -> None:
    limits = Limits(excluded_fraction=0.5, spare_nodes=1)
    proposal = await Site(approvers=("kim",), override_no_requeue=True, limits=limits).fail().propose()
    assert (proposal.approvers, proposal.override_no_requeue, proposal.spare_nodes, proposal.partition_nodes) == (("kim",), True, 1, 4)


@pytest.mark.parametrize(
    ("running", "cancels", "changes"),
    [(True, True, True), (True, False, False), (False, True, False)],
    ids=["runs, and policy cancels", "runs, and policy leaves it", "has ended"],
)
async def test_a_stop_changes_something_only_where_policy_cancels_what_still_runs(running: bool, cancels: bool, changes: bool) -> None:
    rules = PolicySection.model_validate({"rules": [{"when": {"domain": "application"}, "do": "stop"}]}).rules
    site = Site(rules=rules, stop_cancels_running=cancels)
    if not running:
        site.fail()
    proposal = await site.propose(diagnosis=an_application_bug(), attribution=an_attribution())
    assert proposal.recommendation.action is Action.STOP
    assert proposal.changes_slurm is changes


async def test_a_hold_changes_nothing() -> None:
    rules = PolicySection.model_validate({"rules": [{"do": "hold"}]}).rules
    proposal = await Site(rules=rules).fail().propose(diagnosis=a_diagnosis())
    assert (proposal.recommendation.action, proposal.changes_slurm) == (Action.HOLD, False)
