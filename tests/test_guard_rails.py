"""The cluster's guard rails: the ledger, the share of nodes excluded, actions per window, the breaker."""

from datetime import timedelta
from typing import Any

from activities.configuration import Limits
from activities.guard_rails import live_exclusions, reset_breaker, trip_breaker, weigh, with_action, with_incident, without_node
from activities.records import (
    ActionRequest,
    ActionTaken,
    ClusterState,
    Domain,
    LedgerEntry,
    LedgerScope,
    NodeFlag,
    NodeState,
    RecentIncident,
)
from tests.builders import NOON, a_node, after, an_implication, node_names

LIMITS = Limits()


def a_request(number: int = 1, **changes: Any) -> ActionRequest:
    """Job 1 wants to run off node-002, in a partition of 100 nodes."""
    defaults: dict[str, Any] = {
        "job_id": str(number),
        "incident_id": f"i-{number}",
        "partition": "train",
        "exclude_nodes": ("node-002",),
        "suspects": ("node-002",),
        "cause": "ecc_uncorrectable",
        "partition_nodes": 100,
    }
    return ActionRequest(**{**defaults, **changes})


def a_fault(job_id: str, seconds: float = 0, **changes: Any) -> RecentIncident:
    defaults: dict[str, Any] = {"at": after(seconds), "job_id": job_id, "cause": "ib_transport_timeout", "domain": Domain.NETWORK}
    return RecentIncident(**{**defaults, **changes})


def an_entry(node: str, **changes: Any) -> LedgerEntry:
    defaults: dict[str, Any] = {
        "node": node,
        "implicated_at": NOON,
        "job_id": "9",
        "cause": "ecc_uncorrectable",
        "excluded_until": after(3600),
        "partition": "train",
    }
    return LedgerEntry(**{**defaults, **changes})


def after_faults(*faults: RecentIncident, state: ClusterState | None = None) -> ClusterState:
    state = state or ClusterState()
    for fault in faults:
        state = with_incident(state, fault, LIMITS)
    return state


def test_a_first_action_is_granted_and_enters_the_ledger() -> None:
    assert weigh(a_request(), ClusterState(), LIMITS, NOON).granted
    state = with_action(ClusterState(), a_request(), LIMITS, NOON, [a_node("node-002")])
    [entry] = state.entries
    assert (entry.node, entry.excluded_until) == ("node-002", NOON + LIMITS.exclusion_ttl)
    assert entry.booted_at is not None


def test_only_what_this_incident_implicates_enters_the_ledger() -> None:
    request = a_request(exclude_nodes=("node-002", "node-030"))
    assert [entry.node for entry in with_action(ClusterState(), request, LIMITS, NOON).entries] == ["node-002"]


def test_the_same_incident_is_counted_once_and_granted_again() -> None:
    once = with_action(ClusterState(), a_request(), LIMITS, NOON)
    assert with_action(once, a_request(), LIMITS, after(60)) == once
    full = once.model_copy(update={"actions": tuple(once.actions) * LIMITS.actions_per_window})
    assert weigh(a_request(), full, LIMITS, after(1)).granted


def test_actions_per_window_are_bounded_and_the_window_moves_on() -> None:
    actions = tuple(ActionTaken(at=after(number), job_id=str(number), incident_id=f"x-{number}") for number in range(10))
    state = ClusterState(actions=actions)
    refused = weigh(a_request(), state, LIMITS, after(60))
    assert not refused.granted
    assert "10 actions in the last 60 min" in refused.why
    assert "13:00:00Z" in refused.why
    assert weigh(a_request(), state, LIMITS, after(3601)).granted


def test_the_share_of_excluded_nodes_is_bounded_with_the_numbers() -> None:
    state = ClusterState(entries=tuple(an_entry(f"node-{number:03d}") for number in range(10, 15)))
    refused = weigh(a_request(), state, LIMITS, after(60))
    assert not refused.granted
    assert "6 of 100 nodes" in refused.why
    assert "node-010, node-011, node-012, node-013, node-014" in refused.why


def test_one_node_may_always_be_excluded_and_a_plain_restart_adds_none() -> None:
    assert weigh(a_request(partition_nodes=4), ClusterState(), LIMITS, NOON).granted
    state = ClusterState(entries=(an_entry("node-001"), an_entry("node-003")))
    assert weigh(a_request(partition_nodes=4, suspects=(), exclude_nodes=()), state, LIMITS, NOON).granted
    assert not weigh(a_request(partition_nodes=4), state, LIMITS, NOON).granted


def test_a_node_excluded_already_costs_no_more_share() -> None:
    state = ClusterState(entries=(an_entry("node-002"), an_entry("node-003")))
    assert weigh(a_request(partition_nodes=4), state, LIMITS, NOON).granted


def test_exclusions_of_another_partition_or_past_their_time_are_not_counted() -> None:
    state = ClusterState(entries=(an_entry("dbg-1", partition="debug"), an_entry("node-003", excluded_until=NOON)))
    assert weigh(a_request(partition_nodes=4), state, LIMITS, NOON).granted


def test_an_unknown_partition_size_is_not_guessed() -> None:
    state = ClusterState(entries=(an_entry("node-003"),))
    assert not weigh(a_request(partition_nodes=0), state, LIMITS, NOON).granted


def test_a_storm_of_different_jobs_trips_the_breaker_until_a_person_resets_it() -> None:
    faults = [a_fault(str(number), number * 60) for number in range(5)]
    assert after_faults(*faults[:4]).breaker.tripped_at is None
    state = after_faults(*faults)
    assert state.breaker.tripped_at == after(240)
    assert "5 jobs failed within 10 min" in state.breaker.reason
    refused = weigh(a_request(), state, LIMITS, after(86400))
    assert not refused.granted
    assert "backstay breaker" in refused.why
    calm = reset_breaker(state, by="dana", now=after(300))
    assert calm.breaker.reset_by == "dana"
    assert weigh(a_request(), calm, LIMITS, after(301)).granted


def test_faults_a_person_has_seen_do_not_trip_the_breaker_again() -> None:
    storm = after_faults(*[a_fault(str(number), number) for number in range(5)])
    calm = reset_breaker(storm, by="dana", now=after(10))
    assert after_faults(a_fault("6", 20), state=calm).breaker.tripped_at is None
    again = after_faults(*[a_fault(str(number), 20 + number) for number in range(10, 15)], state=calm)
    assert again.breaker.tripped_at == after(34)


def test_one_job_failing_often_is_no_storm() -> None:
    assert after_faults(*[a_fault("1", number) for number in range(20)]).breaker.tripped_at is None


def test_failures_spread_over_a_longer_time_are_no_storm() -> None:
    assert after_faults(*[a_fault(str(number), number * 600) for number in range(20)]).breaker.tripped_at is None


def test_bad_programs_and_preemptions_are_no_storm() -> None:
    bugs = [a_fault(f"1_{number}", number, cause="cuda_oom", domain=Domain.USER) for number in range(20)]
    preempted = [a_fault(str(number), number, cause="preempted", domain=Domain.SCHEDULER) for number in range(20)]
    assert after_faults(*bugs, *preempted).breaker.tripped_at is None


def test_unknown_causes_count_towards_a_storm() -> None:
    unknown = [a_fault(str(number), number, cause="unknown", domain=Domain.UNKNOWN) for number in range(5)]
    assert after_faults(*unknown).breaker.tripped_at is not None


def test_many_jobs_on_one_dead_node_are_one_fault() -> None:
    same = [a_fault(str(number), number, cause="node_failure", domain=Domain.HARDWARE, suspects=("node-007",)) for number in range(9)]
    assert after_faults(*same).breaker.tripped_at is None
    spread = [
        a_fault(str(number), number, cause="node_failure", domain=Domain.HARDWARE, suspects=(name,))
        for number, name in enumerate(node_names(5))
    ]
    assert after_faults(*spread).breaker.tripped_at is not None


def test_an_incident_told_twice_is_known_once() -> None:
    once = after_faults(a_fault("1"))
    assert after_faults(a_fault("1"), state=once) == once


def test_the_state_stays_small_however_long_a_cluster_lives() -> None:
    state = after_faults(*[a_fault(str(number), number, cause="cuda_oom", domain=Domain.USER) for number in range(1500)])
    assert len(state.recent_incidents) <= 1000


def test_exclusions_end_by_time_by_reboot_and_with_the_node() -> None:
    entries = (
        an_entry("node-001", excluded_until=after(60)),
        an_entry("node-002"),
        an_entry("node-003"),
        an_entry("gone-001"),
    )
    nodes = [a_node("node-001"), a_node("node-002", booted_at=after(30)), a_node("node-003")]
    state = ClusterState(entries=entries)
    assert [entry.node for entry in live_exclusions(state, after(59), nodes)] == ["node-001", "node-003"]
    assert [entry.node for entry in live_exclusions(state, after(60), nodes)] == ["node-003"]
    assert [entry.node for entry in live_exclusions(state, after(60), [])] == ["node-002", "node-003", "gone-001"]


def test_a_boot_before_the_fault_clears_nothing() -> None:
    nodes = [a_node("node-002", booted_at=NOON - timedelta(minutes=1))]
    assert live_exclusions(ClusterState(entries=(an_entry("node-002"),)), after(1), nodes)


def test_a_person_may_trip_the_breaker_and_clear_a_node_by_hand() -> None:
    state = trip_breaker(ClusterState(entries=(an_entry("node-002"),)), by="dana", reason="maintenance", now=NOON)
    assert "by dana: maintenance" in weigh(a_request(), state, LIMITS, after(1)).why
    assert without_node(state, "node-002").entries == ()
    assert weigh(a_request(), reset_breaker(state, by="dana", now=after(2)), LIMITS, after(3)).granted


def test_a_breaker_that_is_tripped_keeps_its_first_reason() -> None:
    storm = after_faults(*[a_fault(str(number), number) for number in range(5)])
    assert trip_breaker(storm, by="dana", reason="maintenance", now=after(10)) == storm


# ------------------------------------------------------------------------------------------------ between users


def test_what_other_jobs_printed_counts_neither_in_the_share_nor_against_anyone() -> None:
    alone = tuple(an_entry(f"node-{number:03d}", scope=LedgerScope.JOB, job_id=str(number), user="mallory") for number in range(10, 40))
    assert weigh(a_request(user="alice"), ClusterState(entries=alone), LIMITS, NOON).granted
    own = tuple(entry.model_copy(update={"job_id": "1"}) for entry in alone)
    assert not weigh(a_request(user="alice"), ClusterState(entries=own), LIMITS, NOON).granted, "its own count"


def test_the_users_own_list_is_not_what_backstay_excludes() -> None:
    own = node_names(50)[10:]
    state = ClusterState(entries=(an_entry("node-002"),))
    kept_off = a_request(suspects=(), exclude_nodes=("node-002", *own), user_excluded=own)
    assert weigh(kept_off, state, LIMITS, NOON).granted
    assert "1 of at most 5 nodes excluded by Backstay" in weigh(kept_off, state, LIMITS, NOON).why
    assert not weigh(kept_off.model_copy(update={"user_excluded": ()}), state, LIMITS, NOON).granted


def test_nodes_out_of_service_cost_no_share_but_those_backstay_drained_do() -> None:
    state = ClusterState(entries=tuple(an_entry(name) for name in ("node-003", "node-004")))
    request = a_request(partition_nodes=4)
    healthy = [a_node(name) for name in node_names(4)]
    assert not weigh(request, state, LIMITS, NOON, healthy).granted
    out = [a_node("node-003", state=NodeState.DOWN), a_node("node-004", flags=(NodeFlag.DRAIN,), reason="new switch on Monday")]
    assert weigh(request, state, LIMITS, NOON, [*healthy[:2], *out]).granted
    ours = a_node("node-004", flags=(NodeFlag.DRAIN,), reason="backstay: i-1 ECC")
    assert not weigh(request, state, LIMITS, NOON, [*healthy[:2], out[0], ours]).granted
    unregistered = [a_node(name, state=NodeState.UNKNOWN, flags=(NodeFlag.NOT_RESPONDING,)) for name in node_names(4)]
    assert not weigh(request, state, LIMITS, NOON, unregistered).granted, "what Slurm does not know is not lost"


def test_one_users_storm_holds_that_users_jobs_and_nobody_elses() -> None:
    state = after_faults(*[a_fault(str(number), number, user="mallory") for number in range(30)])
    assert state.breaker.tripped_at is None
    refused = weigh(a_request(user="mallory"), state, LIMITS, after(60))
    assert not refused.granted
    assert "tripped for the jobs of mallory" in refused.why
    assert weigh(a_request(user="alice"), state, LIMITS, after(60)).granted
    calm = reset_breaker(state, by="dana", now=after(70))
    assert weigh(a_request(user="mallory"), calm, LIMITS, after(80)).granted
    assert after_faults(a_fault("31", 80, user="mallory"), state=calm).breaker.users == (), "what a person has seen does not count again"


def test_a_stop_of_one_user_outlives_a_trip_by_hand_and_both_go_with_a_reset() -> None:
    state = after_faults(*[a_fault(str(number), number, user="mallory") for number in range(9)])
    state = trip_breaker(state, by="dana", reason="maintenance", now=after(60))
    assert (state.breaker.tripped_by, state.breaker.stopped("mallory") is not None) == ("dana", True)
    assert not reset_breaker(state, by="dana", now=after(70)).breaker.holds_somebody


def test_a_storm_of_several_users_holds_everybody() -> None:
    faults = [a_fault(str(number), number, user=user) for number, user in enumerate(("alice", "bob", "carol", "alice", "bob"))]
    assert not weigh(a_request(user="dora"), after_faults(*faults), LIMITS, after(60)).granted


def test_the_restarts_of_one_user_leave_room_for_another_users() -> None:
    full = tuple(ActionTaken(at=after(number), job_id=str(number), incident_id=f"x-{number}", user="mallory") for number in range(10))
    state = ClusterState(actions=full)
    refused = weigh(a_request(user="mallory"), state, LIMITS, after(60))
    assert not refused.granted
    assert "10 of them for mallory" in refused.why
    assert weigh(a_request(user="alice"), state, LIMITS, after(60)).granted
    shared = (*full, *(ActionTaken(at=after(20 + n), job_id=f"a{n}", incident_id=f"a-{n}", user="alice") for n in range(5)))
    assert not weigh(a_request(user="alice"), ClusterState(actions=shared), LIMITS, after(60)).granted, "an equal share, and no more"
    assert weigh(a_request(user="bob"), ClusterState(actions=shared), LIMITS, after(60)).granted
    assert not weigh(a_request(user=""), state, LIMITS, after(60)).granted, "a user nobody knows has no share"


def test_a_cleared_node_is_judged_afresh() -> None:
    state = ClusterState(entries=(an_entry("node-002"),), implications=(an_implication("node-002"), an_implication("node-003")))
    assert [one.node for one in without_node(state, "node-002").implications] == ["node-003"]
