"""A job's output in several files: no order joins their lines, and the verdict is that of one file."""

from collections.abc import Mapping

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.records import Judgement, SymptomKind

STEPS = "\n".join(f"step {n} loss 2.0 1.0 s/step" for n in range(20))
TIMED = "\n".join(f"[2026-06-01 10:{n:02d}:00] step {n} loss 2.0" for n in range(20))
ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def judged(engine: Engine, logs: Mapping[str, str], state: str = "FAILED") -> Judgement:
    sources = tuple(LogSource(name=name, data=text.encode()) for name, text in logs.items())
    return engine.judge(Signals(logs=sources, scheduler={"state": state, "nodes": "n1"}))


@pytest.mark.parametrize("names", [("out", "err"), ("err", "out")])
def test_an_error_in_a_file_of_its_own_is_not_taken_for_outlived_whichever_comes_first(engine: Engine, names: tuple[str, str]) -> None:
    texts = {"out": STEPS, "err": ECC}
    judgement = judged(engine, {name: texts[name] for name in names})
    assert (judgement.diagnosis.cause, judgement.diagnosis.primary and judgement.diagnosis.primary.line) == ("ecc_uncorrectable", 1)
    assert judgement.progress.iteration == 19


def test_steps_of_another_rank_after_it_in_the_order_of_files_are_no_progress(engine: Engine) -> None:
    assert judged(engine, {"log.0": STEPS, "log.3": f"{STEPS}\n{ECC}", "log.7": STEPS}).diagnosis.cause == "ecc_uncorrectable"


def test_stamps_tell_that_a_job_went_on_in_its_other_file(engine: Engine) -> None:
    early = f"[2026-06-01 10:03:10] {ECC}"
    assert judged(engine, {"err": early, "out": TIMED}, state="RUNNING").symptom is SymptomKind.NONE
    late = f"[2026-06-01 10:30:10] {ECC}"
    assert judged(engine, {"err": late, "out": TIMED}, state="RUNNING").diagnosis.cause == "ecc_uncorrectable"


def test_an_exception_is_not_taken_for_a_consequence_of_what_stands_in_another_file(engine: Engine) -> None:
    trace = (
        '[rank5]: Traceback (most recent call last):\n[rank5]:   File "/w/train.py", line 8, in <module>\n[rank5]: ValueError: bad sample'
    )
    peers = "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    assert judged(engine, {"log.0": f"{STEPS}\n{peers}", "log.5": trace}).diagnosis.cause == "python_exception_rank_logic"


def test_of_errors_alike_in_several_files_the_earliest_by_its_stamp_is_the_first(engine: Engine) -> None:
    logs = {f"log.{rank}": f"[2026-06-01 10:20:0{second}.500] [rank{rank}]: {ECC[9:]}" for rank, second in ((1, 3), (2, 2), (4, 4))}
    primary = judged(engine, logs).diagnosis.primary
    assert primary is not None
    assert primary.rank == 2
