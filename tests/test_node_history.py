"""The memory of faults by node: what enters it, what is answered of it, and that it stays small."""

from datetime import timedelta

from activities.cluster_desk import HistoryQuestion, IncidentReport
from activities.node_history import (
    KEPT,
    KEPT_A_NODE,
    MOST_CANDIDATES,
    MOST_NAMES,
    REMEMBERED_FOR,
    history_of,
    with_fault,
    without_faults_of,
)
from activities.records import ClusterState, Domain
from tests.builders import NOON, a_suspect, after, an_attribution, node_names


def a_report(job_id: str = "41", **changes: object) -> IncidentReport:
    """A segfault of a job on node-001 and node-002 that nobody saw on either."""
    defaults = {
        "cluster": "alpha", "job_id": job_id, "incident_id": f"{job_id}-1", "cause": "segfault_rank", "domain": Domain.APPLICATION,
        "at": NOON, "user": "alice", "nodes": node_names(2), "restart_count": 0,
    }  # fmt: skip
    return IncidentReport.model_validate({**defaults, **changes})


def remembered(*reports: IncidentReport) -> ClusterState:
    state = ClusterState()
    for report in reports:
        state = with_fault(state, report)
    return state


def a_question(*nodes: str, **changes: object) -> HistoryQuestion:
    return HistoryQuestion.model_validate({"cluster": "alpha", "job_id": "50", "nodes": nodes, "at": after(60), **changes})


def test_a_fault_is_remembered_with_job_user_cause_attempt_and_where_it_was_seen() -> None:
    [fault] = remembered(a_report(seen_on="node-002", rank=1, restart_count=2)).node_faults
    assert (fault.at, fault.job_id, fault.user, fault.cause, fault.restart_count) == (NOON, "41", "alice", "segfault_rank", 2)
    assert (fault.nodes, fault.was_seen, fault.rank, fault.node_count) == (("node-002",), True, 1, 2)


def test_a_fault_that_named_no_suspect_is_remembered_with_all_nodes_of_its_attempt() -> None:
    [fault] = remembered(a_report()).node_faults
    assert (fault.nodes, fault.was_seen) == (node_names(2), False)


def test_a_node_that_the_attempt_did_not_have_is_never_remembered_whatever_its_log_says() -> None:
    forged = a_report(seen_on="node-009", attribution=an_attribution(a_suspect("node-008")))
    [fault] = remembered(forged).node_faults
    assert fault.nodes == node_names(2)
    assert remembered(a_report(nodes=())).node_faults == ()
    assert remembered(a_report(nodes=None)).node_faults == ()


def test_a_report_counts_once_and_what_a_person_has_to_change_says_nothing_of_a_node() -> None:
    assert len(remembered(a_report(), a_report()).node_faults) == 1
    assert remembered(a_report(domain=Domain.USER), a_report(cause="unknown")).node_faults == ()


def test_the_answer_tells_of_the_nodes_asked_about_and_counts_what_was_elsewhere() -> None:
    state = remembered(
        a_report("41", seen_on="node-002"),
        a_report("42", at=after(1)),
        a_report("43", at=after(2), nodes=("node-007", "node-008"), seen_on="node-007", user="bob"),
    )
    history = history_of(state, a_question("node-002", "node-003"))
    assert [(fault.job_id, fault.nodes) for fault in history.faults] == [("41", ("node-002",)), ("42", ("node-002",))]
    assert [(told.user, told.cause, told.times) for told in history.elsewhere] == [("bob", "segfault_rank", 1)]
    assert history.nodes == ("node-002", "node-003")


def test_what_is_older_than_a_week_is_neither_told_nor_kept() -> None:
    state = remembered(a_report())
    later = NOON + REMEMBERED_FOR + timedelta(seconds=1)
    assert history_of(state, a_question("node-001", at=later)).faults == ()
    assert [fault.job_id for fault in with_fault(state, a_report("42", at=later)).node_faults] == ["42"]


def test_the_memory_stays_small_however_many_jobs_fail_and_keeps_the_newest() -> None:
    wide = tuple(f"node-{number:04d}" for number in range(MOST_CANDIDATES))
    state = remembered(*(a_report(str(number), at=after(number), nodes=wide) for number in range(20)))
    assert sum(len(fault.nodes) for fault in state.node_faults) <= MOST_NAMES
    assert state.node_faults[-1].job_id == "19"
    assert remembered(a_report(nodes=(*wide, "node-9999"))).node_faults == (), "one of 513 is nobody"

    state = remembered(*(a_report(str(number), at=after(number), nodes=(f"n{number}",)) for number in range(KEPT + 10)))
    assert len(state.node_faults) == KEPT
    assert len(state.model_dump_json()) < 200_000


def test_one_bad_node_does_not_push_out_what_is_known_of_the_others() -> None:
    other = a_report("1", seen_on="node-001")
    state = remembered(other, *(a_report(str(n), at=after(n), seen_on="node-002") for n in range(2, KEPT_A_NODE + 20)))
    assert state.node_faults[0].job_id == "1"
    assert len([fault for fault in state.node_faults if fault.nodes == ("node-002",)]) == KEPT_A_NODE


def test_what_was_said_of_a_node_that_a_person_cleared_no_longer_counts() -> None:
    state = remembered(a_report("41", seen_on="node-002"), a_report("42", at=after(1)), a_report("43", at=after(2), seen_on="node-001"))
    assert [fault.job_id for fault in without_faults_of(state, "node-002").node_faults] == ["43"]
