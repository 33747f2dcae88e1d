"""A kernel line that the job outlived is noise, or a notice about a device; one that may have ended it counts."""

from typing import Any

import pytest

from activities.diagnosis.casefile import signals_of
from activities.diagnosis.engine import Engine
from activities.records import Judgement, SymptomKind

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=9, name=python, GPU has fallen off the bus."
XID_109 = "NVRM: Xid (PCI:0000:3b:00): 109, pid=779, name=nvtop, errorString CTX SWITCH TIMEOUT"
RESET = "NVRM: Xid (PCI:0000:3b:00): 154, pid=779, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:99]"
SERVER = "nfs: server fs01 not responding, still trying"
PORT = "bond0: link status definitely down for interface eth1, disabling it"
FOREIGN = "Memory cgroup out of memory: Killed process 4451 (jupyter-lab) total-vm:1kB, anon-rss:1kB"
AT = "n2 Mar  2 09:00:35 kernel: "  # between the fourth and the fifth step
LATER = "n2 Mar  2 10:30:00 kernel: "  # another zone's clock, or after the last step
UPTIME = "n2 kernel: [81.5] "


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def judged(engine: Engine, *kernel: str, end: str = "", **scheduler: Any) -> Judgement:
    steps = "".join(
        f"2026-03-02 09:{number // 6:02d}:{number % 6 * 10:02d} step {number} loss 2.1 time 10.0 s/step\n" for number in range(24)
    )
    return engine.judge(signals_of({"log": steps + end, "scheduler": {"nodes": "n[1-2]", **scheduler}, "kernel_log": list(kernel)}))


def blamed(judgement: Judgement) -> list[str]:
    return [str(suspect.node) for suspect in judgement.attribution.suspects]


@pytest.mark.parametrize("line", [XID_109, LOCKUP, SERVER, FOREIGN])
@pytest.mark.parametrize("state", [{}, {"state": "RUNNING"}], ids=["nobody tells", "running"])
def test_what_the_job_stepped_on_after_is_noise(line: str, state: dict[str, Any], engine: Engine) -> None:
    judgement = judged(engine, AT + line, **state)
    assert (judgement.symptom, judgement.diagnosis.cause, blamed(judgement)) == (SymptomKind.NONE, "kernel_log_noise", [])


def test_a_device_that_the_kernel_condemned_is_told_though_the_job_goes_on(engine: Engine) -> None:
    for line in (XID_79, f"{XID_109}\n{AT}{RESET}"):
        judgement = judged(engine, *(AT + line).split("\n"), state="RUNNING")
        assert (judgement.symptom, blamed(judgement)) == (SymptomKind.NONE, ["n2"])


@pytest.mark.parametrize("stamp", [LATER, UPTIME])
def test_a_stamp_that_cannot_be_placed_among_the_steps_proves_nothing(stamp: str, engine: Engine) -> None:
    assert judged(engine, stamp + SERVER, state="RUNNING").symptom is SymptomKind.HANG
    assert judged(engine, stamp + XID_79, state="RUNNING").symptom is SymptomKind.CRASH


def test_a_job_that_ended_well_was_ended_by_nothing(engine: Engine) -> None:
    for line in (XID_109, SERVER, FOREIGN, LOCKUP):
        assert judged(engine, UPTIME + line, state="COMPLETED", exit_code="0:0").symptom is SymptomKind.NONE
    assert blamed(judged(engine, UPTIME + XID_79, state="COMPLETED", exit_code="0:0")) == ["n2"]


def test_steps_after_it_excuse_nothing_in_a_job_that_failed(engine: Engine) -> None:
    judgement = judged(engine, AT + XID_109, state="FAILED")
    assert (judgement.symptom, blamed(judgement)) == (SymptomKind.CRASH, ["n2"])


def test_an_error_in_the_log_keeps_the_kernels_word(engine: Engine) -> None:
    judgement = judged(engine, UPTIME + XID_109, end="RuntimeError: CUDA error: unknown error\n", state="RUNNING")
    assert (judgement.symptom, blamed(judgement)) == (SymptomKind.CRASH, ["n2"])


def test_a_port_that_is_down_while_the_pace_stays_is_no_slow_down(engine: Engine) -> None:
    assert judged(engine, UPTIME + PORT, state="RUNNING").symptom is SymptomKind.NONE
