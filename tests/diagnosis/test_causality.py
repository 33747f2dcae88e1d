"""Which of several faults came first: what follows a death is aftermath, what a device does is not."""

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.records import Judgement

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
