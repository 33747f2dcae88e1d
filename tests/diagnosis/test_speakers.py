"""Who tells of a failure is not who failed: cancellations, lost nodes, tasks elsewhere, and names that anyone can print."""

from collections.abc import Mapping
from typing import Any

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.records import Judgement, Node, NodeState

STEPS = "\n".join(f"step {n} loss 2.{n:02d} 1.0 s/step" for n in range(20))
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
TRACE = f'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    main()\n{ECC}'
AT = "CANCELLED AT 2026-01-05T12:00:00"
CANCELLED = f"slurmstepd-node-002: error: *** STEP 71.0 ON node-002 {AT} ***"
NCCL = "node-002:411:411 [0] NCCL INFO Bootstrap : Using ib0:10.20.0.11<0>"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def judged(engine: Engine, logs: str | Mapping[str, str], **scheduler: Any) -> Judgement:
    texts = {"log": logs} if isinstance(logs, str) else logs
    sources = tuple(LogSource(name=name, data=text.encode()) for name, text in texts.items())
    return engine.judge(Signals(logs=sources, scheduler=scheduler))


def blamed(judgement: Judgement) -> list[str]:
    return [str(suspect.node) for suspect in judgement.attribution.suspects]


def of_ranks(**told: str) -> dict[str, str]:
    """Logs as `srun -o rank_%t.log` writes them; `told`: what stands below the steps of some."""
    return {f"rank_{rank}.log": f"{STEPS}\n{told.get(f'r{rank}', '')}" for rank in range(4)}


VICTIMS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("slurmstepd of another rank's node tells of the end", of_ranks(r0=CANCELLED, r2=TRACE)),
    ("without its node before it", of_ranks(r0=f"slurmstepd: error: *** STEP 71.0 ON node-002 {AT} ***", r2=TRACE)),
    ("of the whole job", of_ranks(r2=TRACE, r3=f"slurmstepd: error: *** JOB 71 ON node-002 {AT} ***")),
    ("by syslog", of_ranks(r2=TRACE, r3=f"Jan  5 12:00:00 node-002 slurmstepd[91]: error: *** STEP 71.0 ON node-002 {AT} ***")),
    ("a task that srun ended", of_ranks(r0="srun: error: node-002: task 0: Terminated", r2=TRACE)),
    ("a task that srun killed", of_ranks(r1="srun: error: node-002: tasks 0-1: Killed", r2=TRACE)),
    ("NCCL of another rank alone", of_ranks(r0=NCCL, r2=TRACE)),
    (
        "NCCL of a peer in the log of all errors",
        {"out": f"{STEPS}\n{NCCL}\n{NCCL.replace('002', '004')}", "err": f"{NCCL}\n{TRACE}", "srun": "srun: job 71 queued"},
    ),
    ("in one log of all ranks", {"log": f"{STEPS}\n{TRACE}\n{CANCELLED}"}),
    ("before the error, as buffers had it", {"log": f"{STEPS}\n{CANCELLED}\n{TRACE}"}),
    (
        "and by the launcher's own node",
        {"log": f"{STEPS}\n{TRACE}\nnode-001: srun: Job step aborted: Waiting up to 32 seconds\n{CANCELLED}"},
    ),
    ("by the log server", {"log": f"{TRACE}\nJan  5 12:00:00 loghost01 slurmctld[88]: error: step 71.0 of job 71 ended on a bad node"}),
    ("by mpirun's node", {"log": f"{TRACE}\n[node-002:99] mpirun: Forwarding signal 15 to job"}),
)


@pytest.mark.parametrize(("why", "logs"), VICTIMS, ids=[why for why, _ in VICTIMS])
def test_who_is_told_of_a_cancellation_or_tells_of_it_is_a_victim(engine: Engine, why: str, logs: Mapping[str, str]) -> None:
    judgement = judged(engine, logs)
    assert (judgement.diagnosis.cause, blamed(judgement)) == ("ecc_uncorrectable", []), why


PLACED: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("its own line", of_ranks(r0=CANCELLED, r2=f"node-004: {ECC}")),
    ("NCCL beside it in the same log", of_ranks(r0=CANCELLED, r2=f"{NCCL.replace('002', '004')}\n{TRACE}")),
    ("srun of the only task that ended", {"log": f"{STEPS}\n{TRACE}\nsrun: error: node-004: task 2: Exited with exit code 1"}),
    ("srun of the rank", {"log": f"[rank2]: {ECC}\n{CANCELLED}\nsrun: error: node-004: task 2: Exited with exit code 1"}),
    ("srun seen by pdsh", {"log": f"[rank2]: {ECC}\nnode-001: srun: error: node-004: task 2: Exited with exit code 1"}),
)


@pytest.mark.parametrize(("why", "logs"), PLACED, ids=[why for why, _ in PLACED])
def test_who_failed_is_still_found_where_something_tells(engine: Engine, why: str, logs: Mapping[str, str]) -> None:
    assert "node-002" not in blamed(judged(engine, logs)), why
    assert blamed(judged(engine, logs)) == ["node-004"], why


LOST = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"


@pytest.mark.parametrize(
    "line",
    [
        f"slurmstepd: error: *** JOB 71 ON node-002 {AT} {LOST}",
        f"slurmstepd-node-002: error: *** STEP 71.0 ON node-002 {AT} {LOST}",
        f"0: slurmstepd: error: *** JOB 71 ON node-002 {AT} {LOST}",
        f"[2026-01-05T12:00:00.102] error: *** JOB 71 ON node-002 {AT} {LOST}",
        f"node-002: slurmstepd: error: *** STEP 71.0 ON node-002 {AT} {LOST}",
        f"Jan  5 12:00:00 node-002 slurmstepd[42]: error: *** JOB 71 ON node-002 {AT} {LOST}",
    ],
)
def test_who_tells_of_a_node_failure_is_not_the_lost_node(engine: Engine, line: str) -> None:
    told = judged(engine, f"{STEPS}\n{line}", state="NODE_FAIL", nodes="node-[001-004]")
    assert (told.diagnosis.cause, blamed(told)) == ("node_failure", [])
    assert blamed(judged(engine, f"{STEPS}\n{line}")) == [], "nor where the scheduler tells nothing"
    lost = judged(engine, f"{STEPS}\n{line}", state="NODE_FAIL", nodes="node-[001-004]", nodes_down="node-003")
    assert blamed(lost) == ["node-003"], "Slurm knows which it was"


def test_srun_names_the_lost_node_whoever_prints_it(engine: Engine) -> None:
    told = f"{STEPS}\nnode-001: srun: error: Node failure on node-003\nslurmstepd: error: *** JOB 71 ON node-001 {AT} {LOST}"
    assert blamed(judged(engine, told, state="NODE_FAIL", nodes="node-[001-004]")) == ["node-003"]


FOREIGN = (
    "srun: error: Task launch for StepId=71.0 failed on node node-999: Job credential expired",
    "srun: error: Task launch for StepId=71.0 failed on node node-999: Invalid job credential",
    "ssh: connect to host node-999 port 22: No route to host",
    "Normal  NodeNotReady  node/node-999  Node node-999 status is now: NodeNotReady",
    "srun: error: Node failure on node-999",
    f"node-999: {ECC}",
    "Jan  5 12:00:00 node-999 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.",
    "[node-999:71:0:71] Caught signal 4 (Illegal instruction: illegal operand)",
    "slurmstepd-node-999: error: Detected 1 oom-kill event(s) in StepId=71.0.",
    "srun: error: bigmem: task 0: Bus error",
    "Message from syslogd@node-999 at Jan  5 12:00:00 ...\n kernel:NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "STRAGGLER DETECTED: rank=0 on node-999 score=0.61",
)


@pytest.mark.parametrize("line", FOREIGN)
@pytest.mark.parametrize("nodes", ["node-001", "node-[001-004]"])
def test_a_node_that_the_job_never_had_is_implicated_by_no_line(engine: Engine, line: str, nodes: str) -> None:
    judgement = judged(engine, f"{STEPS}\n{line}", state="FAILED", exit_code="1:0", nodes=nodes)
    assert set(blamed(judgement)) <= {"node-001"} if nodes == "node-001" else not blamed(judgement)
    assert "node-999" not in blamed(judgement)


def test_what_is_told_of_a_foreign_node_stays_evidence(engine: Engine) -> None:
    judgement = judged(engine, f"{STEPS}\n{FOREIGN[0]}", state="FAILED", exit_code="1:0", nodes="node-001")
    assert blamed(judgement) == []
    assert any("node-999 is none of this job's nodes" in note and "credential expired" in note for note in judgement.notes)


def test_a_name_that_is_none_of_the_jobs_and_not_like_them_implicates_nobody_though_its_line_counts(engine: Engine) -> None:
    line = "srun: error: Task launch for StepId=71.0 failed on node worker-a: Job credential expired"
    judgement = judged(engine, line, state="FAILED", nodes="node-[001-004]")
    assert (judgement.diagnosis.cause, blamed(judgement)) == ("clock_skew", [])


@pytest.mark.parametrize("name", ["node-003", "node-3", "node-003.cluster.example"])
def test_a_node_of_the_job_is_implicated_however_it_is_written(engine: Engine, name: str) -> None:
    line = f"srun: error: Task launch for StepId=71.0 failed on node {name}: Job credential expired"
    assert blamed(judged(engine, line, state="FAILED", nodes="node-[001-004]")) == ["node-003"]


def test_a_kernel_log_of_a_node_the_job_never_had_implicates_nobody(engine: Engine) -> None:
    xid = "Jan  5 12:00:00 loghost kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus."
    signals = Signals(kernel_logs={"": xid}, scheduler={"state": "FAILED", "nodes": "node-[001-004]"})
    assert blamed(engine.judge(signals)) == []


def test_a_lost_node_is_a_suspect_by_slurms_word_though_no_line_names_it(engine: Engine) -> None:
    nodes = (Node(name="node-003", state=NodeState.DOWN),)
    log = LogSource(data=f"{STEPS}\nslurmstepd: error: *** JOB 71 ON node-001 {AT} {LOST}".encode())
    signals = Signals(logs=(log,), nodes=nodes, scheduler={"state": "NODE_FAIL", "nodes": "node-[001-004]"})
    assert blamed(engine.judge(signals)) == ["node-003"]


def test_a_live_fatal_line_names_the_node_it_is_about(engine: Engine) -> None:
    lines = [
        f"slurmstepd: error: *** JOB 71 ON node-002 {AT} {LOST}",
        "node-001: srun: error: node-004: task 2: Segmentation fault",
        f"node-004: {ECC}",
    ]
    found = engine.fatal_lines("".join(f"{line}\n" for line in lines).encode())
    assert [line.node for line in found] == [None, "node-004", "node-004"]
