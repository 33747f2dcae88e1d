"""The node ledger: whose word holds for whom, when a second source agrees, and what Slurm itself says of a
node."""

from datetime import timedelta
from typing import Any

import pytest

from activities.ledger import KEPT, agree, entered, implications_of, live_implications, reviewed, slurms_word, with_implications
from activities.records import (
    ActionRequest,
    ClusterState,
    LedgerEntry,
    LedgerScope,
    Node,
    NodeFlag,
    NodeState,
    SignalSource,
)
from tests.builders import NOON, a_node, a_suspect, after, an_attribution, an_implication

TTL = timedelta(hours=24)
BROKEN = a_node("node-002", state=NodeState.DOWN, reason="Not responding")


def a_request(job_id: str = "17", user: str = "alice", **changes: Any) -> ActionRequest:
    """A job that failed on node-001 and node-002 wants to run off node-002."""
    defaults: dict[str, Any] = {
        "job_id": job_id,
        "incident_id": f"{job_id}-1",
        "partition": "train",
        "suspects": ("node-002",),
        "exclude_nodes": ("node-002",),
        "user": user,
        "ran_on": ("node-001", "node-002"),
        "partition_nodes": 20,
    }
    return ActionRequest(**{**defaults, **changes})


def put(state: ClusterState, request: ActionRequest, *nodes: Node, seconds: float = 0) -> ClusterState:
    return entered(state, request, after(seconds) + TTL, after(seconds), nodes)


def scopes(state: ClusterState) -> list[tuple[str, str, LedgerScope]]:
    return [(entry.node, entry.job_id, entry.scope) for entry in state.entries]


# ------------------------------------------------------------------------------------------------ whose word is enough


@pytest.mark.parametrize(
    ("sources", "enough"),
    [
        ([an_implication()], False),
        ([an_implication(), an_implication(job_id="18")], False),
        ([an_implication(), an_implication(job_id="18", user="bob")], True),
        ([an_implication(user=""), an_implication(job_id="18", user="bob")], False),
        ([an_implication(), an_implication(source=SignalSource.NODE)], True),
        ([an_implication(), an_implication(source=SignalSource.KERNEL)], True),
        ([an_implication(), an_implication(source=SignalSource.GPU)], True),
        ([an_implication(), an_implication(source=SignalSource.SCHEDULER)], False),
        ([an_implication(source=SignalSource.NODE, user="")], True),
        ([], False),
    ],
    ids=[
        "one job", "two jobs of one user", "jobs of two users", "a user nobody knows", "Slurm's node state", "the kernel", "a reading",
        "the job's own exit as Slurm tells it", "Slurm alone", "nobody",
    ],
)  # fmt: skip
def test_more_than_one_users_word_is_needed(sources: list[Any], enough: bool) -> None:
    assert agree(sources) is enough


@pytest.mark.parametrize(
    ("node", "speaks"),
    [
        (a_node(state=NodeState.DOWN), True),
        (a_node(flags=(NodeFlag.NOT_RESPONDING,)), True),
        (a_node(flags=(NodeFlag.FAIL,)), True),
        (a_node(flags=(NodeFlag.DRAIN,), reason="Prolog error"), True),
        (a_node(flags=(NodeFlag.DRAIN,), reason="gres/gpu count reported lower than configured (7 < 8)"), True),
        (a_node(flags=(NodeFlag.DRAIN,), reason="Kill task failed"), False),
        (a_node(flags=(NodeFlag.DRAIN,), reason="new switch on Monday"), False),
        (a_node(flags=(NodeFlag.DRAIN,), reason="backstay: 17-1 ECC"), False),
        (a_node(state=NodeState.UNKNOWN, flags=(NodeFlag.NOT_RESPONDING,)), False),
        (a_node(), False),
    ],
    ids=[
        "down", "silent", "failed", "drained for its prolog", "drained for a GPU", "drained for an unkillable process",
        "drained by a person", "drained by Backstay", "not registered yet", "at work",
    ],
)  # fmt: skip
def test_slurms_own_word_is_told_from_a_persons_and_from_ours(node: Node, speaks: bool) -> None:
    assert (slurms_word(node, NOON) is not None) is speaks


def test_a_fault_is_the_jobs_own_word_and_whatever_else_its_suspects_were_seen_by() -> None:
    attribution = an_attribution(a_suspect("node-002", seen_by=(SignalSource.KERNEL,)), a_suspect("node-001", confidence=0.3))
    told = implications_of(attribution, at_least=0.6, job_id="17", user="alice", at=NOON)
    assert [(one.node, one.source) for one in told] == [("node-002", SignalSource.LOG), ("node-002", SignalSource.KERNEL)]


# ------------------------------------------------------------------------------------------------ entering


def test_what_one_job_printed_keeps_that_job_off_and_no_other() -> None:
    state = put(ClusterState(), a_request())
    [entry] = state.entries
    assert entry.scope is LedgerScope.JOB
    assert (entry.keeps_off("17"), entry.keeps_off("18")) == (True, False)
    assert [(one.source, one.user) for one in entry.sources] == [(SignalSource.LOG, "alice")]


def test_a_node_the_attempt_never_had_does_not_enter_whatever_the_asker_says() -> None:
    state = put(ClusterState(), a_request(suspects=("node-009", "node-002")), a_node("node-009", state=NodeState.DOWN))
    assert [entry.node for entry in state.entries] == ["node-002"]
    assert [one.node for one in state.implications] == ["node-002"]


def test_where_an_attempt_ran_that_nobody_saw_enters_nothing() -> None:
    assert put(ClusterState(), a_request(ran_on=())).entries == ()


def test_an_asker_of_an_older_version_is_believed_for_its_own_job() -> None:
    assert scopes(put(ClusterState(), a_request(ran_on=None, user=""))) == [("node-002", "17", LedgerScope.JOB)]


def test_a_node_that_slurm_lost_is_kept_from_every_job_at_once() -> None:
    state = put(ClusterState(), a_request(), BROKEN)
    [entry] = state.entries
    assert (entry.scope, entry.keeps_off("18")) == (LedgerScope.CLUSTER, True)
    assert [one.source for one in entry.sources] == [SignalSource.LOG, SignalSource.NODE]
    assert entry.sources[1].said == "Slurm says DOWN: Not responding"


def test_another_users_job_that_says_the_same_makes_one_entry_of_two() -> None:
    state = put(put(ClusterState(), a_request()), a_request("18", "bob"), seconds=60)
    assert scopes(state) == [("node-002", "18", LedgerScope.CLUSTER)]
    assert {one.user for one in state.entries[0].sources} == {"alice", "bob"}


def test_a_second_job_of_the_same_user_bears_nothing_out() -> None:
    state = put(put(ClusterState(), a_request()), a_request("18"), seconds=60)
    assert scopes(state) == [("node-002", "17", LedgerScope.JOB), ("node-002", "18", LedgerScope.JOB)]


def test_one_users_word_does_not_lengthen_what_holds_for_every_job() -> None:
    lost = put(ClusterState(), a_request(), BROKEN)
    later = put(lost, a_request("18", "mallory"), seconds=3600).model_copy(update={"implications": ()})
    alone = put(later, a_request("19", "mallory"), seconds=7200)
    ends = {entry.scope: entry.excluded_until for entry in alone.entries}
    assert ends[LedgerScope.CLUSTER] == after(3600) + TTL, "alice and mallory agreed then; mallory alone did not later"


# ------------------------------------------------------------------------------------------------ agreeing later


def test_slurm_agrees_later() -> None:
    state = put(ClusterState(), a_request())
    assert reviewed(state, [a_node("node-002")], after(60)) == state
    raised = reviewed(state, [BROKEN], after(60))
    assert scopes(raised) == [("node-002", "17", LedgerScope.CLUSTER)]
    assert raised.entries[0].excluded_until == state.entries[0].excluded_until
    assert scopes(reviewed(raised, [a_node("node-002")], after(120))) == scopes(raised), "what was borne out stays so"


def test_a_report_of_another_user_agrees_later() -> None:
    state = put(ClusterState(), a_request())
    state = with_implications(state, [an_implication(job_id="18", user="bob", at=after(60))])
    assert scopes(reviewed(state, [], after(60))) == [("node-002", "17", LedgerScope.CLUSTER)]


def test_what_was_said_before_a_boot_or_a_day_ago_counts_no_more() -> None:
    state = ClusterState(implications=(an_implication("node-002"), an_implication("node-003")))
    rebooted = [a_node("node-002", booted_at=after(60)), a_node("node-003")]
    assert [one.node for one in live_implications(state, after(120), TTL, rebooted)] == ["node-003"]
    assert live_implications(state, NOON + TTL, TTL, []) == ()


def test_an_entry_of_an_older_version_holds_for_every_job() -> None:
    old = LedgerEntry.model_validate({"node": "node-002", "implicated_at": NOON, "job_id": "9", "cause": "ecc_uncorrectable"})
    assert old.keeps_off("17")
    assert reviewed(ClusterState(entries=(old,)), [], after(60)).entries == (old,)


def test_the_ledger_stays_small_however_many_jobs_of_a_user_speak() -> None:
    state = put(ClusterState(), a_request("1", "bob"), BROKEN)
    for number in range(KEPT + 20):
        state = put(state, a_request(str(100 + number), suspects=("node-001",)))
    assert len(state.entries) == KEPT + 1
    assert state.entries[0].scope is LedgerScope.CLUSTER, "what holds for every job is not pushed out"
    assert len(state.implications) == 2, "one word a user and node"
