"""Which of several faults came first: what follows a death is aftermath, what a device does is not."""

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.records import Judgement, SymptomKind

STEPS = "\n".join(f"[2026-06-01 10:{n:02d}:00] step {n} loss 2.0" for n in range(20))
QUOTA = "[rank0]: OSError: [Errno 122] Disk quota exceeded: '/home/u/debug.log'"
ECC = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def raised(at: str) -> str:
    stamp = f"[2026-06-01 {at}] [rank3]:"
    return f'{stamp} Traceback (most recent call last):\n{stamp}   File "/w/train.py", line 9, in <module>\n{stamp} ValueError: bad shape'


def judged(engine: Engine, *lines: str, kernel: str = "", **scheduler: object) -> Judgement:
    said = {"state": "FAILED", "nodes": "n[1-2]", "ntasks": 8} | scheduler
    return engine.judge(
        Signals(logs=(LogSource(data="\n".join(lines).encode()),), scheduler=said, kernel_logs={"": kernel} if kernel else {})
    )


@pytest.mark.parametrize(
    ("later", "cause"),
    [
        (f"[2026-06-01 10:31:00] {QUOTA}", "python_exception_rank_logic"),  # peers that gave up
        (f"[2026-06-01 10:20:10] {QUOTA}", "disk_quota_exceeded"),  # as likely what made the rank raise
        (QUOTA, "disk_quota_exceeded"),  # nobody knows when
        (f"[2026-06-01 10:31:00] {ECC}", "ecc_uncorrectable"),  # a fault of its own
    ],
)
def test_what_is_told_minutes_after_a_death_is_aftermath_unless_a_device_is_at_fault(engine: Engine, later: str, cause: str) -> None:
    assert judged(engine, STEPS, raised("10:20:00"), later).diagnosis.cause == cause


def test_an_exception_that_the_job_outlived_explains_nothing_that_comes_later(engine: Engine) -> None:
    more = STEPS.replace(" 10:", " 11:").replace("step ", "step 1")
    assert judged(engine, STEPS, raised("10:20:00"), more, f"[2026-06-01 11:31:00] {QUOTA}").diagnosis.cause == "disk_quota_exceeded"


@pytest.mark.parametrize(("job_id", "cause"), [(777, "python_exception_rank_logic"), (555, "host_oom_cgroup"), (None, "host_oom_cgroup")])
def test_a_process_killed_for_another_jobs_memory_is_none_of_this_ones(engine: Engine, job_id: int | None, cause: str) -> None:
    kernel = (
        "n1 kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_555,mems_allowed=0,oom_memcg=/slurm/uid_9/job_555,"
        "task_memcg=/slurm/uid_9/job_555/step_0/task_0,task=python,pid=5123,uid=9\n"
        "n1 kernel: Memory cgroup out of memory: Killed process 5123 (python) total-vm:1kB, anon-rss:1kB"
    )
    assert judged(engine, STEPS, raised("10:20:00"), kernel=kernel, job_id=job_id).diagnosis.cause == cause


def test_heartbeats_after_the_last_step_tell_that_a_job_stood_until_somebody_or_its_limit_ended_it(engine: Engine) -> None:
    beats = "\n".join(
        f"[2026-06-01 {hour}:{minute:02d}:30] heartbeat: agents alive" for hour in (10, 11, 12) for minute in range(20, 60, 10)
    )
    limit = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-06-01T12:59:00 DUE TO TIME LIMIT ***"
    for state, end in (("CANCELLED", ""), ("TIMEOUT", limit)):
        assert judged(engine, STEPS, beats, end, state=state).symptom is SymptomKind.HANG
    soon = "[2026-06-01 10:22:30] heartbeat: agents alive"
    assert judged(engine, STEPS, soon, state="CANCELLED").symptom is SymptomKind.NONE
    assert judged(engine, STEPS, soon, limit, state="TIMEOUT").diagnosis.cause == "time_limit"


def test_absent_ranks_are_suspected_with_a_node_that_has_a_record_alone(engine: Engine) -> None:
    waits = "\n".join(f"[rank{n}]: [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=X)" for n in range(4))
    plain = judged(engine, STEPS, waits)
    assert (plain.diagnosis.primary and plain.diagnosis.primary.node, plain.attribution.suspects) == ("n2", ())
    assert "ranks 4, 5, 6, 7, all of n2, did not come" in plain.diagnosis.summary
    known = judged(engine, STEPS, waits, node_history={"n2": ["FAILED: watchdog timeout", "FAILED: watchdog timeout"], "n1": ["COMPLETED"]})
    assert [suspect.node for suspect in known.attribution.suspects] == ["n2"]


def test_of_two_ends_of_a_connection_the_one_with_a_record_is_suspected(engine: Engine) -> None:
    ends = "\n".join(
        f"n{a}:5:9 [3] NCCL WARN NET/IB: Got completion from peer 10.8.0.{b}<41022> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
        for a, b in ((1, 2), (2, 1))
    )
    history = [{"nodes": "n[2-3]", "state": "FAILED"}, {"nodes": "n[2,4]", "state": "FAILED"}, {"nodes": "n[1,3]", "state": "COMPLETED"}]
    assert not judged(engine, STEPS, ends).attribution.suspects
    assert [suspect.node for suspect in judged(engine, STEPS, ends, history=history).attribution.suspects] == ["n2"]


REQUEUES = (
    "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-06-01T10:19:30 DUE TO JOB REQUEUE ***",
    "[rank0]: slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-06-01T10:19:30 DUE TO JOB REQUEUE ***",
    "Job has been requeued",
    "2: INFO job requeued by the queue manager",
    "requeued due to preemption",
)


@pytest.mark.parametrize("word", REQUEUES)
@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY", "RUNNING"])
def test_a_requeue_that_slurm_denies_explains_no_end(engine: Engine, word: str, state: str) -> None:
    for lines in ((STEPS, word, ECC), (STEPS, ECC, word)):
        assert judged(engine, *lines, state=state).diagnosis.cause in ("ecc_uncorrectable", "host_oom_cgroup")


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "CANCELLED", ""])
def test_a_requeue_that_slurm_does_not_deny_is_believed(engine: Engine, state: str) -> None:
    assert judged(engine, STEPS, REQUEUES[0], state=state).diagnosis.cause == "preempted_requeued"
