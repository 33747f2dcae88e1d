"""Kinds of logs that were judged wrongly once: any exception class, a clean end, non-fatal Xids, what is full, who holds a GPU."""

import pytest

from activities.diagnosis.casefile import signals_of
from activities.diagnosis.engine import Engine
from activities.records import Domain, Judgement, SymptomKind

STEPS = "".join(f"step {n} loss 2.{n:02d} 1.0 s/step\n" for n in range(20))
FAILED = {"state": "FAILED", "exit_code": "1:0", "nodes": "n-[1-2]"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def judged(engine: Engine, log: str, scheduler: object = None, **more: object) -> Judgement:
    return engine.judge(signals_of({"log": log, "scheduler": FAILED if scheduler is None else scheduler, **more}))


def trace(last: str, prefix: str = "", between: str = "") -> str:
    lines = ("Traceback (most recent call last):", '  File "/w/train.py", line 9, in <module>', "    main()", last)
    return "".join(f"{prefix}{line}\n{between}" for line in lines)


CLASSES = (
    "wandb.errors.Error: You must call wandb.init() before wandb.log()",
    "binascii.Error: Incorrect padding",
    "subprocess.TimeoutExpired: Command '['gsutil']' timed out after 600 seconds",
    "_queue.Empty",
    "omegaconf.errors.MissingMandatoryValue: Missing mandatory value: model.dim",
    "StopTraining: the loss has not moved",
    "my_project.data.Corrupt: shard 17",
    "StopIteration: no batch is left",
)


@pytest.mark.parametrize("last", CLASSES)
@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "1: ", "2026-06-01 10:00:00 "])
def test_an_exception_is_one_whatever_its_class_is_called(engine: Engine, last: str, prefix: str) -> None:
    judgement = judged(engine, STEPS + trace(last, prefix))
    assert (judgement.diagnosis.cause, judgement.symptom) == ("python_exception_rank_logic", SymptomKind.CRASH)
    assert judgement.diagnosis.primary is not None
    assert judgement.diagnosis.primary.text == last


def test_of_ranks_that_print_over_each_other_each_ends_its_own_traceback(engine: Engine) -> None:
    judgement = judged(engine, STEPS + trace("_queue.Empty", "[rank1]: ", between="[rank0]: step 20 loss 2.2\n"))
    assert judgement.diagnosis.primary is not None
    assert (judgement.diagnosis.primary.rank, judgement.diagnosis.primary.text) == (1, "_queue.Empty")
    assert judgement.diagnosis.primary.line == STEPS.count("\n") + 7


@pytest.mark.parametrize("last", ["Killed", "[W] done", "", "  File cut off", "SystemExit: 0"])
def test_what_follows_a_traceback_that_was_cut_off_is_no_exception(engine: Engine, last: str) -> None:
    assert judged(engine, STEPS + trace(last)).diagnosis.cause != "python_exception_rank_logic"


ALARMING = (
    "slurmstepd: error: Exceeded step memory limit at some point. Step may have been partially swapped out to disk.",
    "OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache'",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=71.0. Some of the step tasks have been OOM Killed.",
    "OSError: [Errno 28] No space left on device",
    "srun: error: n-1: task 3: Segmentation fault",
)


@pytest.mark.parametrize("line", ALARMING)
def test_a_clean_end_outranks_every_line(engine: Engine, line: str) -> None:
    judgement = judged(engine, f"{STEPS}{line}\n", {"state": "COMPLETED", "exit_code": "0:0", "nodes": "n-[1-2]"})
    assert (judgement.symptom, judgement.diagnosis.domain, judgement.attribution.suspects) == (SymptomKind.NONE, Domain.NONE, ())


def test_an_exit_code_behind_a_completed_job_is_no_clean_end(engine: Engine) -> None:
    judgement = judged(engine, f"{STEPS}{ALARMING[2]}\n", {"state": "COMPLETED", "exit_code": "1:0", "nodes": "n-1"})
    assert judgement.diagnosis.cause == "ecc_uncorrectable"


NONFATAL = (
    "144, SAW_EGR Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)",
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x00000004)",
    "146, TLW_RX Nonfatal XC0 i0 Link 03 (0x00000004)",
    "149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 14 (0x004505c6)",
    "150, MSE Non-fatal XC0 i0 Link 02 (0x00000004)",
)


@pytest.mark.parametrize("xid", NONFATAL)
@pytest.mark.parametrize("last", ["ValueError: shapes do not fit", "wandb.errors.Error: call init", "KeyError: 'text'"])
def test_a_nonfatal_xid_never_goes_before_the_jobs_own_error(engine: Engine, xid: str, last: str) -> None:
    kernel = [f"n-1 kernel: [Mon Dec  1 18:03:11 2025] NVRM: Xid (PCI:0000:01:00): {xid}"]
    judgement = judged(engine, STEPS + trace(last, "[rank1]: "), kernel_log=kernel)
    assert judgement.diagnosis.domain in (Domain.APPLICATION, Domain.USER)
    assert judgement.attribution.suspects == ()


FULL = "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        ('  File "/usr/lib/python3.10/multiprocessing/synchronize.py", line 57, in __init__\n    sl = SemLock(', "shm_too_small_container"),
        ('  File "/usr/lib/python3.12/multiprocessing/shared_memory.py", line 121, in __init__', "shm_too_small_container"),
        ('  File "/usr/lib/python3.11/multiprocessing/heap.py", line 83, in __init__', "shm_too_small_container"),
        ('  File "/v/torch/multiprocessing/reductions.py", line 3\n    storage._share_filename_cpu_()', "shm_too_small_container"),
        ('  File "/v/torch/serialization.py", line 440, in save\n    self.file.write(data)', "disk_full_checkpoint_save"),
    ],
)
def test_what_is_full_is_told_by_who_wanted_room(engine: Engine, frames: str, cause: str) -> None:
    log = f'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n{frames}\n{FULL}\n'
    assert judged(engine, log).diagnosis.cause == cause


def out_of_memory(held: float, free: str = "51.38 MiB", gpu: int = 0) -> str:
    sizes = f"39.39 GiB total capacity; {held:.2f} GiB already allocated; {free} free; {held:.2f} GiB reserved in total by PyTorch"
    return f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU {gpu}; {sizes})"


@pytest.mark.parametrize(
    ("held", "cause"),
    [
        ([10.1, 10.0, 9.4, 9.6], "gpu_mapping_config"),
        ([13.0, 13.1, 12.9], "gpu_mapping_config"),
        ([5.0] * 8, "gpu_mapping_config"),
        ([39.0, 39.0, 39.0, 39.0], "cuda_oom"),  # each has its own, and filled it
        ([6.0, 6.1, 6.0], "gpu_not_clean_at_start"),  # something else has the rest
    ],
)
def test_ranks_that_fill_one_gpu_together_are_on_the_wrong_ones(engine: Engine, held: list[float], cause: str) -> None:
    log = "".join(f"[rank{rank}]: {out_of_memory(size)}\n" for rank, size in enumerate(held))
    assert judged(engine, log, {"state": "FAILED"}).diagnosis.cause == cause
