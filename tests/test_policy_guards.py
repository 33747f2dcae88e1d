"""What the guards refuse whatever a rule says: nodes that must remain, the user's wishes, limits, the time left."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.configuration import Limits, PolicySection, Rule
from activities.diagnosis.causes import causes
from activities.policy import recommend, suspect_nodes
from activities.records import (
    Action,
    Domain,
    JobHistory,
    JobState,
    NodeFlag,
    NodeState,
)
from tests.builders import (
    NOON,
    a_diagnosis,
    a_job,
    a_node,
    a_past_incident,
    a_suspect,
    after,
    an_application_bug,
    an_attribution,
    node_names,
    some_progress,
)
from tests.situations import NO_BLAME, POLICY, a_situation, an_entry, some_nodes


def test_a_suspect_below_the_threshold_is_not_excluded() -> None:
    said = recommend(a_situation(attribution=an_attribution(a_suspect(confidence=0.4))), POLICY)
    assert (said.action, said.exclude_nodes) == (Action.HOLD, ())


def test_a_lost_node_that_cannot_be_named_is_restarted_all_the_same() -> None:
    said = recommend(a_situation(diagnosis=a_diagnosis("node_failure"), attribution=NO_BLAME), POLICY)
    assert said.action is Action.RESTART


def test_names_the_cluster_does_not_have_are_dropped() -> None:
    both = an_attribution(a_suspect("node-002"), a_suspect("storage-gw"))
    said = recommend(a_situation(attribution=both, job=a_job(excluded_nodes=("node-030", "gone-001"))), POLICY)
    assert said.exclude_nodes == ("node-002", "node-030")
    assert suspect_nodes(a_situation(attribution=both), POLICY) == ("node-002",)


def test_a_name_that_is_no_node_alone_leaves_nothing_to_exclude() -> None:
    assert recommend(a_situation(attribution=an_attribution(a_suspect("storage-gw"))), POLICY).action is Action.HOLD


def test_a_plain_restart_keeps_off_nodes_excluded_for_earlier_faults() -> None:
    transient = a_diagnosis("nfs_stale_handle", Domain.STORAGE)
    said = recommend(a_situation(diagnosis=transient, attribution=NO_BLAME, ledger=(an_entry("node-007"),)), POLICY)
    assert (said.action, said.exclude_nodes) == (Action.RESTART_EXCLUDING, ("node-007",))
    assert "node-007" in said.why


def test_the_ledger_of_another_partition_does_not_matter() -> None:
    nodes = (*some_nodes(40), a_node("other-001", partitions=("debug",)))
    said = recommend(a_situation(nodes=nodes, ledger=(an_entry("other-001"),)), POLICY)
    assert said.exclude_nodes == ("node-002",)


def test_too_few_nodes_left_is_held_with_the_numbers() -> None:
    said = recommend(a_situation(nodes=some_nodes(2)), POLICY)
    assert said.action is Action.HOLD
    assert said.rule == "enough-nodes-left (over broken-device)"
    assert said.short_of_nodes
    assert "1 of 2 usable nodes" in said.why
    assert "needs 2" in said.why
    assert said.exclude_nodes == ()


def test_spare_nodes_count_as_needed() -> None:
    policy = PolicySection(limits=Limits(spare_nodes=2))
    assert recommend(a_situation(nodes=some_nodes(4)), policy).action is Action.HOLD
    assert recommend(a_situation(nodes=some_nodes(5)), policy).action is Action.RESTART_EXCLUDING


def test_a_node_the_user_asked_for_by_name_is_not_excluded() -> None:
    said = recommend(a_situation(job=a_job(required_nodes=("node-002",))), POLICY)
    assert said.action is Action.HOLD
    assert "--nodelist" in said.why


def test_drained_nodes_are_not_counted_as_left() -> None:
    nodes = (*some_nodes(3), a_node("node-004", state=NodeState.DOWN))
    assert recommend(a_situation(nodes=nodes, job=a_job(node_count=3)), POLICY).action is Action.HOLD


def test_more_than_the_allowed_share_of_a_partition_is_held_with_the_numbers() -> None:
    ledger = (an_entry("node-010"), an_entry("node-011"))
    said = recommend(a_situation(ledger=ledger), POLICY)
    assert said.action is Action.HOLD
    assert "3 of 40 nodes (node-002, node-010, node-011)" in said.why
    assert "allows 2" in said.why


def test_one_node_may_always_be_excluded() -> None:
    assert recommend(a_situation(nodes=some_nodes(4)), POLICY).action is Action.RESTART_EXCLUDING


def test_the_users_own_exclusions_do_not_count_towards_the_share() -> None:
    said = recommend(a_situation(nodes=some_nodes(20), job=a_job(excluded_nodes=node_names(20)[10:])), POLICY)
    assert said.action is Action.RESTART_EXCLUDING
    assert len(said.exclude_nodes) == 11


def test_the_users_own_list_is_told_apart_from_what_backstay_excludes() -> None:
    said = recommend(a_situation(job=a_job(excluded_nodes=("node-030", "node-031"))), POLICY)
    assert said.exclude_nodes == ("node-002", "node-030", "node-031")
    assert (said.backstay_excludes, said.user_excluded) == (("node-002",), ("node-030", "node-031"))
    assert said.in_short == "restart excluding node-002 (beside the user's own node-030, node-031)"


def test_what_backstay_wrote_into_the_list_at_an_earlier_fault_is_not_the_users_own() -> None:
    earlier = a_past_incident(cause="nccl_timeout", suspects=("node-010",), excluded=("node-010", "node-011"))
    older = a_past_incident(cause="nccl_timeout", suspects=("node-012",))
    job = a_job(excluded_nodes=("node-010", "node-011", "node-012", "node-013", "node-030"))
    ledger = (an_entry("node-013", job_id="17"),)
    said = recommend(a_situation(job=job, history=JobHistory(incidents=(earlier, older)), ledger=ledger), POLICY)
    assert said.user_excluded == ("node-030",)


def test_nodes_that_are_down_or_drained_already_do_not_count_towards_the_share() -> None:
    ledger = (an_entry("node-010"), an_entry("node-011"))
    nodes = {node.name: node for node in some_nodes(40)}
    nodes["node-010"] = a_node("node-010", state=NodeState.DOWN)
    assert recommend(a_situation(ledger=ledger, nodes=tuple(nodes.values())), POLICY).action is Action.RESTART_EXCLUDING
    nodes["node-010"] = a_node("node-010", flags=(NodeFlag.DRAIN,), reason="fan")
    assert recommend(a_situation(ledger=ledger, nodes=tuple(nodes.values())), POLICY).action is Action.RESTART_EXCLUDING
    nodes["node-010"] = a_node("node-010", flags=(NodeFlag.DRAIN,), reason="backstay: i-0 ECC")
    assert recommend(a_situation(ledger=ledger, nodes=tuple(nodes.values())), POLICY).action is Action.HOLD, "Backstay's drains do"


@given(
    partition_size=st.integers(1, 60),
    needed=st.integers(1, 20),
    suspects=st.lists(st.tuples(st.sampled_from([*node_names(60), "storage-gw"]), st.floats(0, 1)), max_size=6),
    excluded=st.lists(st.sampled_from(node_names(60)), max_size=6),
    own=st.lists(st.sampled_from([*node_names(60), "gone-001"]), max_size=6),
    down=st.lists(st.integers(0, 59), max_size=6),
    cause=st.sampled_from(sorted(causes())),
    rules=st.sampled_from([None, [Rule(do=Action.RESTART_EXCLUDING)], [Rule(do=Action.RESTART)]]),
)
def test_whatever_is_known_an_exclusion_is_small_known_and_leaves_enough_nodes(
    *,
    partition_size: int,
    needed: int,
    suspects: list[tuple[str, float]],
    excluded: list[str],
    own: list[str],
    down: list[int],
    cause: str,
    rules: list[Rule] | None,
) -> None:
    nodes = [
        a_node(name, state=NodeState.DOWN if number in down else NodeState.IDLE) for number, name in enumerate(node_names(partition_size))
    ]
    situation = a_situation(
        nodes=tuple(nodes),
        job=a_job(node_count=needed, excluded_nodes=tuple(own)),
        attribution=an_attribution(*(a_suspect(name, confidence=confidence) for name, confidence in suspects)),
        ledger=tuple(an_entry(name) for name in dict.fromkeys(excluded)),
        diagnosis=a_diagnosis(cause, causes()[cause].domain),
    )
    said = recommend(situation, POLICY, rules)
    assert (said.action is Action.RESTART_EXCLUDING) == bool(said.exclude_nodes)
    if said.action is not Action.RESTART_EXCLUDING:
        return
    kept_off = set(said.exclude_nodes)
    assert kept_off <= {node.name for node in nodes}
    assert {name for name in own if name in node_names(partition_size)} <= kept_off
    assert {name for name in excluded if name in node_names(partition_size)} <= kept_off
    blamed = {name for name, confidence in suspects if confidence >= POLICY.limits.suspect_confidence}
    assert kept_off <= blamed | set(excluded) | set(own)
    out = {node.name for node in nodes if node.state is NodeState.DOWN}
    assert len(kept_off - set(own) - out) <= max(1, int(partition_size * 0.05))
    assert sum(1 for node in nodes if node.can_take_jobs and node.name not in kept_off) >= needed


def test_unknown_nodes_of_the_cluster_ask_for_a_person() -> None:
    said = recommend(a_situation(nodes=()), POLICY)
    assert (said.action, said.exclude_nodes, said.needs_approval) == (Action.RESTART_EXCLUDING, ("node-002",), True)


def test_interactive_allocations_are_only_watched() -> None:
    said = recommend(a_situation(job=a_job(is_batch=False)), POLICY)
    assert said.action is Action.HOLD
    assert said.rule.startswith("batch-jobs-only")


def test_a_bare_array_is_never_requeued() -> None:
    said = recommend(a_situation(job=a_job("20", array_job_id=20)), POLICY)
    assert said.action is Action.HOLD
    assert "20_1" in said.why
    assert recommend(a_situation(job=a_job("20_3")), POLICY).action is Action.RESTART_EXCLUDING


def test_a_het_component_moves_only_with_its_leader() -> None:
    assert recommend(a_situation(job=a_job("21", het_job_id=20, het_offset=1)), POLICY).action is Action.HOLD
    assert recommend(a_situation(job=a_job("20", het_job_id=20, het_offset=0)), POLICY).action is Action.RESTART_EXCLUDING


def test_exit_code_93_is_left_to_a_person() -> None:
    assert recommend(a_situation(job=a_job(exit_code=93)), POLICY).rule.startswith("exit-code-93")


def test_no_requeue_is_honoured_unless_the_operator_overrides_it() -> None:
    situation = a_situation(job=a_job(may_requeue=False))
    said = recommend(situation, POLICY)
    assert said.action is Action.HOLD
    assert "Requeue=1" in said.why
    assert recommend(situation, PolicySection(override_no_requeue=True)).action is Action.RESTART_EXCLUDING


@pytest.mark.parametrize("policy", [POLICY, PolicySection(override_no_requeue=True)])
def test_an_ended_job_that_must_not_be_requeued_can_only_be_resubmitted(policy: PolicySection) -> None:
    ended = a_job(may_requeue=False, state=JobState.NODE_FAIL, ended_at=NOON)
    said = recommend(a_situation(job=ended, incident_id="1-1-1"), policy)
    assert (said.action, said.rule.partition(" ")[0]) == (Action.HOLD, "no-requeue")
    assert "Requeue=1" not in said.why
    assert "resubmit it: `sbatch` the batch script captured with the evidence of incident 1-1-1" in said.why


def test_the_restart_limit_stops() -> None:
    assert recommend(a_situation(history=JobHistory(restarts=7)), POLICY).action is Action.RESTART_EXCLUDING
    said = recommend(a_situation(history=JobHistory(restarts=8)), POLICY)
    assert said.action is Action.STOP
    assert "restarted this job 8 times" in said.why


def test_restarts_without_a_checkpoint_stop_at_the_bound() -> None:
    said = recommend(a_situation(history=JobHistory(restarts=3, restarts_without_checkpoint=3)), POLICY)
    assert said.action is Action.STOP
    assert said.why == "no checkpoint in 3 restarts"


@pytest.mark.parametrize(("checkpoint", "action"), [(100, Action.STOP), (None, Action.STOP), (140, Action.RESTART)])
def test_a_program_that_fails_the_same_way_is_stopped_unless_it_got_further(checkpoint: int | None, action: Action) -> None:
    always = [Rule(do=Action.RESTART)]
    bug = an_application_bug()
    earlier = a_past_incident(cause=bug.cause, domain=bug.domain, action=Action.RESTART, checkpoint_iteration=100)
    situation = a_situation(
        diagnosis=bug,
        attribution=NO_BLAME,
        history=JobHistory(incidents=(earlier, earlier), restarts=2),
        progress=some_progress(checkpoint_iteration=checkpoint),
    )
    assert recommend(situation, POLICY, always).action is action


def test_hardware_that_fails_the_same_way_is_not_stopped_by_the_programs_bound() -> None:
    history = JobHistory(incidents=(a_past_incident(), a_past_incident()), restarts=2)
    assert recommend(a_situation(history=history), POLICY).action is Action.RESTART_EXCLUDING


def test_an_approval_never_outlives_slurms_memory_of_the_job() -> None:
    said = recommend(a_situation(), POLICY)
    assert said.expires_at == after(61 + 300 - 10)
    assert "MinJobAge (300 s)" in said.expiry_reason
    assert "sbatch" in said.expiry_reason


def test_a_job_that_still_runs_is_bound_only_by_the_operators_patience() -> None:
    said = recommend(a_situation(job=a_job()), PolicySection(approval_expiry=timedelta(minutes=5)))
    assert said.expires_at == after(65 + 300)
    assert said.expiry_reason == "policy.approval_expiry"
