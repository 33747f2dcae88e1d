"""A job goes on after an error where the same rank steps, or where the step number goes on: what other ranks held back proves nothing."""

from collections.abc import Mapping
from typing import Any

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.records import Judgement, SymptomKind

FAILED = {"state": "FAILED", "exit_code": "1:0", "nodes": "node-[001-002]", "ntasks": 4}
EXITED = "srun: error: node-001: task 1: Exited with exit code 1\n"
ERROR = "ValueError: bad sample"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def judged(engine: Engine, logs: str | Mapping[str, str], scheduler: Mapping[str, Any]) -> Judgement:
    texts = {"log": logs} if isinstance(logs, str) else logs
    sources = tuple(LogSource(name=name, data=text.encode()) for name, text in texts.items())
    return engine.judge(Signals(logs=sources, scheduler=scheduler))


def bars(first: int, last: int, *, prefix: str = "") -> str:
    done = "#" * 12
    return "".join(f"\r{prefix}{n / 10:3.0f}%|{done}| {n}/1000 [00:{n % 60:02d}<10:00,  1.50it/s, loss=2.1]" for n in range(first, last))


def steps(first: int, last: int, *, prefix: str = "") -> str:
    return "".join(f"{prefix}iteration {n} | elapsed time per iteration (ms): 900.0 | lm loss: 2.{n:04d}\n" for n in range(first, last))


def trace(prefix: str = "", error: str = ERROR) -> str:
    lines = ("Traceback (most recent call last):", '  File "/w/train.py", line 9, in <module>', "    main()", error)
    return "".join(f"{prefix}{line}\n" for line in lines)


HELD_BACK: tuple[tuple[str, str], ...] = (
    ("bars of the same steps, after srun's word", bars(400, 480) + "\n" + trace() + EXITED + bars(440, 480) + "\n"),
    ("and before it", bars(400, 480) + "\n" + trace() + bars(440, 480) + "\n" + EXITED),
    ("two ranks' bars", bars(400, 480) + "\n" + trace() + EXITED + bars(470, 480) + "\n" + bars(460, 480) + "\n"),
    ("bars that come further than what was seen", bars(400, 450) + "\n" + trace() + EXITED + bars(440, 480) + "\n"),
    ("nothing was seen before it", trace() + EXITED + bars(1, 60) + "\n"),
    (
        "lines of other ranks, told apart",
        steps(1, 90, prefix="[rank0]: ") + trace("[rank1]: ") + EXITED + steps(60, 90, prefix="[rank2]: "),
    ),
    ("numbered by srun", steps(1, 90, prefix="0: ") + trace("1: ") + EXITED + steps(60, 90, prefix="2: ") + steps(62, 91, prefix="3: ")),
    (
        "torchrun tells",
        steps(1, 90) + trace("[rank1]: ") + "E failed (exitcode: 1) local_rank: 1 (pid: 71) of binary: /p\n" + steps(60, 91),
    ),
    ("no launcher tells", bars(400, 480) + "\n" + trace() + bars(440, 480) + "\n"),
    ("no launcher tells, and they come further", bars(400, 450) + "\n" + trace() + bars(440, 480) + "\n"),
    (
        "a device's own words",
        bars(400, 480) + "\n" + trace(error="RuntimeError: CUDA error: uncorrectable ECC error encountered") + bars(440, 480),
    ),
    ("an epoch's bars", bars(1, 480, prefix="Epoch 3: ") + "\n" + trace() + EXITED + bars(440, 480, prefix="Epoch 3: ") + "\n"),
)


@pytest.mark.parametrize(("why", "log"), HELD_BACK, ids=[why for why, _ in HELD_BACK])
def test_what_other_ranks_held_back_refutes_no_error(engine: Engine, why: str, log: str) -> None:
    judgement = judged(engine, log, FAILED)
    assert judgement.symptom is SymptomKind.CRASH, why
    expected = "ecc_uncorrectable" if "ECC" in log else "python_exception_rank_logic"
    assert judgement.diagnosis.cause == expected, why


TOLD = [row for row in HELD_BACK if EXITED in row[1] or "exitcode" in row[1]]


@pytest.mark.parametrize(("why", "log"), TOLD, ids=[why for why, _ in TOLD])
def test_nor_where_only_the_launcher_tells_of_the_end(engine: Engine, why: str, log: str) -> None:
    judgement = judged(engine, log, {})
    assert (judgement.symptom, judgement.diagnosis.cause) == (SymptomKind.CRASH, "python_exception_rank_logic"), why


SAVED = "successfully loaded checkpoint from /c at iteration 400\n"
WENT_ON: tuple[tuple[str, str], ...] = (
    ("the number goes on", steps(400, 480) + trace() + steps(480, 500)),
    ("the bar goes on", bars(400, 480) + "\n" + trace() + bars(480, 500) + "\n"),
    ("the same rank steps", steps(1, 90, prefix="[rank0]: ") + trace("[rank1]: ") + steps(80, 90, prefix="[rank1]: ")),
    ("a resume inside the job", steps(400, 480) + trace() + SAVED + steps(401, 460)),
    ("a launcher that starts it again", steps(400, 480) + trace() + EXITED + SAVED + steps(401, 470)),
    ("the next epoch", bars(1, 999, prefix="Epoch 3: ") + "\n" + trace() + bars(1, 200, prefix="Epoch 4: ") + "\n"),
    ("the next epoch's bar, which names none", bars(1, 1001) + "\n" + trace() + bars(1, 200) + "\n"),
    ("a step of the script that failed before it", trace() + EXITED + steps(1, 900)),
    ("an error before the first step", trace() + steps(1, 60)),
)


@pytest.mark.parametrize(("why", "log"), WENT_ON, ids=[why for why, _ in WENT_ON])
@pytest.mark.parametrize("state", [{}, {"state": "RUNNING"}], ids=["nobody tells", "running"])
def test_a_job_that_goes_on_outlived_it(engine: Engine, why: str, log: str, state: dict[str, str]) -> None:
    assert judged(engine, log, state).symptom is SymptomKind.NONE, why


def test_an_error_outlived_long_ago_explains_no_end_without_a_word(engine: Engine) -> None:
    judgement = judged(engine, steps(1, 90) + trace() + steps(90, 900), FAILED)
    assert (judgement.symptom, judgement.diagnosis.cause) == (SymptomKind.CRASH, "unknown")


def test_of_two_errors_the_one_that_the_job_did_not_outlive_ended_it(engine: Engine) -> None:
    first = trace(error="OSError: [Errno 116] Stale file handle: '/x'")
    judgement = judged(engine, steps(1, 90) + first + steps(90, 200) + trace() + EXITED + steps(190, 200), FAILED)
    assert judgement.diagnosis.cause == "python_exception_rank_logic"


def test_stamps_tell_what_was_printed_before_the_error_wherever_it_stands(engine: Engine) -> None:
    def stamped(first: int, last: int) -> str:
        return "".join(f"2026-06-01 10:{n:02d}:00 step {n} loss 2.{n:02d}\n" for n in range(first, last))

    error = trace("2026-06-01 10:40:30 ")
    assert judged(engine, stamped(1, 30) + error + stamped(30, 41), {}).symptom is SymptomKind.CRASH
    assert judged(engine, stamped(1, 30) + error + stamped(41, 55), {}).symptom is SymptomKind.NONE
