"""Ranks, addresses and reasons become nodes where that can be known, and stay nobody's where it cannot."""

from datetime import UTC, datetime
from typing import Any

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.reading import Reading
from activities.diagnosis.scheduler_facts import SchedulerFacts, facts_of
from activities.diagnosis.signals import LogSource, Signals
from activities.diagnosis.suspects import Whereabouts
from activities.records import Job, JobState, Node, NodeState, SignalSource


def facts(**loose: Any) -> SchedulerFacts:
    return facts_of(Signals(scheduler=loose))


def node_of(rank: int | None, reading: Reading | None = None, told: dict[int, str] | None = None, **loose: Any) -> str | None:
    return Whereabouts(reading or Reading(), facts(**loose), told or {}).node_of_rank(rank)[0]


def test_slurms_block_distribution_maps_ranks() -> None:
    assert node_of(9, nodes="n[1-4]", ntasks=32) == "n2"
    assert node_of(31, nodes="n[1-4]", ntasks=32) == "n4"


def test_an_uneven_or_unknown_distribution_maps_nothing() -> None:
    assert node_of(9, nodes="n[1-4]", ntasks=30) is None
    assert node_of(9, nodes="n[1-4]") is None


def test_who_knows_goes_before_what_is_reckoned() -> None:
    assert node_of(9, nodes="n[1-4]", ntasks=32, told={9: "n4"}) == "n4"
    assert node_of(9, Reading(rank_nodes={9: "n3"}), nodes="n[1-4]", ntasks=32) == "n3"


def test_a_job_of_one_node_needs_no_map() -> None:
    assert node_of(3, nodes="n7") == "n7"
    assert node_of(None, nodes="n7") == "n7"
    assert node_of(None, nodes="n[7-8]") is None


def test_an_address_is_the_node_whose_nccl_said_so() -> None:
    where = Whereabouts(Reading(address_nodes={"10.0.0.4": "n4"}), facts(nodes="n[1-4]"), {})
    assert where.canonical("10.0.0.4") == "n4"
    assert where.canonical("10.0.0.9") == "10.0.0.9"
    assert where.canonical("n2.cluster.example") == "n2"


@pytest.mark.parametrize(
    ("said", "code", "signal"),
    [("1:0", 1, 0), ("0:15", 0, 15), (132, 132, None), ("132", 132, None), (None, None, None), (True, None, None), ("x", None, None)],
)
def test_exit_codes_come_in_many_forms(said: Any, code: int | None, signal: int | None) -> None:
    found = facts(state="FAILED", exit_code=said)
    assert (found.exit_code, found.exit_signal) == (code, signal)


@pytest.mark.parametrize(
    ("state", "bad", "well", "runs"),
    [
        ("FAILED", True, False, False),
        ("CANCELLED by 1000", True, False, False),
        ("COMPLETED", False, True, False),
        ("RUNNING", False, False, True),
        ("", False, False, False),
    ],
)
def test_states_are_read(state: str, bad: bool, well: bool, runs: bool) -> None:
    found = facts(state=state)
    assert (found.ended_badly, found.ended_well, found.is_running) == (bad, well, runs)


def test_a_script_that_ends_well_over_a_failed_step_did_not_end_well() -> None:
    job = Job(job_id="1", numeric_id=1, state=JobState.COMPLETED, exit_code=0, derived_exit_code=134)
    assert facts_of(Signals(job=job)).ended_badly


@pytest.mark.parametrize(
    "history",
    [
        {
            "history": [
                {"job": 1, "node": "n1", "state": "FAILED"},
                {"job": 2, "node": "n1", "result": "5/5 SIGILL"},
                {"node": "n2", "state": "COMPLETED"},
            ]
        },
        {"node_history": {"n1": "4 failures this week", "n2": "passed"}},
        {"node_history": {"n1": 3, "n2": 0}},
        {"recent_failures": ["n1", "n1", "n1"]},
    ],
)
def test_trouble_that_follows_one_node_is_told_from_trouble_everywhere(history: dict[str, Any]) -> None:
    found = facts(nodes="n[1-2]", **history)
    assert found.repeats("n1")
    assert not found.repeats("n2")


def test_trouble_everywhere_follows_nobody() -> None:
    assert not facts(nodes="n[1-2]", node_history={"n1": 3, "n2": 3}).repeats("n1")


def test_lost_nodes_come_from_slurms_node_records_too() -> None:
    found = facts_of(Signals(nodes=(Node(name="n1", state=NodeState.DOWN, reason="Not responding"), Node(name="n2", state=NodeState.IDLE))))
    assert found.lost_nodes == ("n1",)
    assert "Not responding" in found.text


@pytest.mark.parametrize("nodes", ["128 hosts", "48 nodes", "n[1", None, 7])
def test_what_is_no_node_list_names_no_nodes(nodes: Any) -> None:
    assert facts(nodes=nodes).nodes == ()


@pytest.mark.parametrize(
    ("node", "is_stranger"),
    [("n9", True), ("n9.cluster.example", True), ("n2", False), ("n2.cluster.example", False), ("ip-10-0-0-9", False), (None, False)],
)
def test_only_a_name_like_those_of_the_jobs_nodes_is_surely_a_strangers(node: str | None, is_stranger: bool) -> None:
    assert facts(nodes="n[1-4]").is_stranger(node) is is_stranger


@pytest.mark.parametrize(
    "told",
    [
        "2026-11-11T12:58:40",
        "2026-11-11 12:58:40",
        "2026-11-11T13:58:40+01:00",
        1794401920,
        datetime(2026, 11, 11, 12, 58, 40, tzinfo=UTC),
    ],
)
def test_the_start_is_read_in_any_form(told: Any) -> None:
    assert facts(start_time=told).started_at == datetime(2026, 11, 11, 12, 58, 40, tzinfo=UTC)


@pytest.mark.parametrize("told", ["Unknown", "", None, True, 10**30])
def test_a_start_that_is_none_is_not_guessed(told: Any) -> None:
    assert facts(start_time=told).started_at is None


def test_a_node_that_all_failed_jobs_had_in_common_is_followed_and_those_beside_it_are_not() -> None:
    history = [{"nodes": "n[1,3]", "state": "FAILED"}, {"nodes": "n[1,4]", "state": "FAILED"}, {"nodes": "n[3,4]", "state": "COMPLETED"}]
    found = facts(nodes="n[1,9]", history=history)
    assert [node for node in ("n1", "n3", "n4", "n9") if found.repeats(node)] == ["n1"]


@pytest.mark.parametrize(
    "said", ["FAILED: KeyError: 'label'", "CANCELLED by 1001 after an error", "FAILED, time limit", "failed: disk quota exceeded"]
)
def test_failures_that_no_node_brings_about_follow_none(said: str) -> None:
    assert not facts(nodes="n1", history=[{"node": "n1", "result": said}] * 4).repeats("n1")


def table(host: str, rank: int, code: int, time: str) -> str:
    rows = (
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {time}",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: 1)",
    )
    return "\n".join((*rows, f"  exitcode  : {code} (pid: 9)", "  error_file: <N/A>", f"  traceback : Signal {-code} (SIGSEGV)"))


def test_of_several_agents_tables_a_line_belongs_to_its_own_and_others_to_the_earliest() -> None:
    log = "\n".join([table("n1", 2, -6, "2026-07-01_10:12:03").replace("SIGSEGV", "SIGABRT"), table("n2", 13, -11, "2026-07-01_10:02:01")])
    scheduler = {"state": "FAILED", "nodes": "n[1-2]"}
    for before in ("", "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: unknown error\n"):
        primary = Engine().judge(Signals(logs=(LogSource(data=(before + log).encode()),), scheduler=scheduler)).diagnosis.primary
        assert primary is not None
        assert (primary.rank, primary.node) == (13, "n2")


@pytest.mark.parametrize(
    ("rank", "told", "node"),
    [
        (7, {"ntasks": 28, "tasks_per_node": "8(x3),4"}, "n1"),
        (24, {"ntasks": 28, "tasks_per_node": "8(x3),4"}, "n4"),
        (10, {"ntasks": 32, "distribution": "cyclic"}, "n3"),
        (10, {"ntasks": 32, "submit_line": "srun -m cyclic train.sh"}, "n3"),
        (27, {"tasks_per_node": "8(x3),4", "distribution": "cyclic"}, "n3"),
        (10, {"ntasks": 32, "tasks_per_node": 8}, "n2"),
        (10, {"ntasks": 32, "distribution": "arbitrary"}, None),
        (40, {"ntasks": 28, "tasks_per_node": "8(x3),4"}, None),
    ],
)
def test_ranks_follow_the_distribution_that_slurm_tells(rank: int, told: dict[str, Any], node: str | None) -> None:
    reading = Reading()
    reading.ranks["x"] = {rank}
    assert node_of(rank, reading, nodes="n[1-4]", **told) == node


XID = "[  123.456789] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def test_what_the_node_itself_tells_is_beyond_the_job_and_the_same_line_in_its_log_is_not() -> None:
    job = Job(job_id="17", numeric_id=17, state=JobState.FAILED, exit_code=1, nodes=("n1", "n2"), node_count=2)
    on_the_node = Engine().judge(Signals(job=job, kernel_logs={"n2": XID}))
    in_its_log = Engine().judge(Signals(job=job, logs=(LogSource(data=f"n2: {XID}\n".encode()),)))
    assert [(suspect.node, suspect.seen_by) for suspect in on_the_node.attribution.suspects] == [("n2", (SignalSource.KERNEL,))]
    assert [(suspect.node, suspect.seen_by) for suspect in in_its_log.attribution.suspects] == [("n2", ())]


def test_a_node_called_like_the_jobs_that_is_none_of_them_is_not_suspected() -> None:
    job = Job(job_id="17", numeric_id=17, state=JobState.FAILED, exit_code=1, nodes=("n1", "n2"), node_count=2)
    judged = Engine().judge(Signals(job=job, logs=(LogSource(data=b"ssh: connect to host n7 port 22: No route to host\n"),)))
    assert judged.attribution.suspects == ()
    assert "n7" not in judged.diagnosis.summary
