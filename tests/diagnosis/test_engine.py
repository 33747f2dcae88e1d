"""What the engine promises for any input: an answer, bounded; benign stays benign however it is cut; noise changes nothing."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from activities.diagnosis.casefile import signals_of
from activities.diagnosis.causes import UNKNOWN, causes
from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.records import Domain, SymptomKind

HERE = Path(__file__).parent
KINDS: list[dict[str, Any]] = YAML(typ="safe").load((HERE / "kinds.yaml").read_text())
NOISE = (
    "INFO: heartbeat from the data service",
    "memory allocated 41.2 GiB, cached 44.0 GiB",
    "[2030-01-01 00:00:00] cron: rotated 3 files",
    "\x1b[32mall good\x1b[0m",
    "",
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def cases() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for path in sorted((HERE.parent / "cases" / "dev").glob("*.yaml")):
        document = YAML(typ="safe").load(path.read_text())
        yield path.stem, document["signals"], document["expected"]


BENIGN = [(name, signals) for name, signals, expected in cases() if expected["domain"] == "none"]
BENIGN += [(kind["id"], kind) for kind in KINDS if kind["expect"].get("symptom") == "none" and kind["expect"]["cause"] in causes()]
BENIGN = [(name, signals) for name, signals in BENIGN if "drained" not in name]


def waiting(rank: int) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000)\n"
    )


def log_of(text: str, **more: Any) -> Signals:
    return signals_of({"log": text, **more})


@pytest.mark.parametrize(("name", "loose"), BENIGN, ids=[name for name, _ in BENIGN])
@pytest.mark.parametrize("with_scheduler", [True, False])
def test_cutting_a_benign_log_at_any_line_never_makes_an_incident(
    name: str, loose: dict[str, Any], with_scheduler: bool, engine: Engine
) -> None:
    lines = str(loose["log"]).splitlines(keepends=True)
    step = max(1, len(lines) // 40)
    for end in sorted({*range(0, len(lines) + 1, step), *range(max(0, len(lines) - 12), len(lines) + 1)}):
        signals = (
            {key: value for key, value in loose.items() if key in ("scheduler", "kernel_log", "gpu_metrics")} if with_scheduler else {}
        )
        judgement = engine.judge(signals_of({**signals, "log": "".join(lines[:end])}))
        assert judgement.symptom is SymptomKind.NONE, f"cut after line {end}: {judgement.diagnosis}"
        assert judgement.attribution.suspects == ()


STEPS = "step 1 loss 2.3\nstep 2 loss 2.2\n"
UNCAUGHT = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    main()\nValueError: bad sample 12\n'
CAUGHT = 'Traceback (most recent call last):\n  File "/w/data.py", line 3, in get\nValueError: bad sample 12\n'


@pytest.mark.parametrize(
    ("log", "symptom"),
    [
        (STEPS + UNCAUGHT, SymptomKind.CRASH),
        (STEPS + CAUGHT, SymptomKind.NONE),
        (CAUGHT, SymptomKind.CRASH),  # it never made a step
        (STEPS + CAUGHT + "srun: error: n1: task 0: Exited with exit code 1\n", SymptomKind.CRASH),
        (STEPS + CAUGHT + UNCAUGHT, SymptomKind.CRASH),
        (STEPS + "Error executing job with overrides: []\n" + CAUGHT, SymptomKind.CRASH),
    ],
    ids=["uncaught", "caught", "before any step", "a launcher saw it end", "both", "hydra takes its own frames off"],
)
def test_a_plain_log_that_ends_with_an_exception_is_a_crash_unless_somebody_caught_it(
    log: str, symptom: SymptomKind, engine: Engine
) -> None:
    assert engine.judge(log_of(log)).symptom is symptom


def test_an_exception_that_somebody_caught_is_shown_all_the_same(engine: Engine) -> None:
    judgement = engine.judge(log_of(STEPS + CAUGHT))
    assert judgement.diagnosis.primary is not None
    assert judgement.diagnosis.primary.text == "ValueError: bad sample 12"
    assert "caught" in judgement.diagnosis.summary


def test_a_caught_exception_at_the_end_of_a_log_is_a_crash_where_slurm_says_that_the_job_failed(engine: Engine) -> None:
    assert engine.judge(log_of(STEPS + CAUGHT, scheduler={"state": "FAILED"})).symptom is SymptomKind.CRASH


def test_steps_after_a_kernel_line_that_only_sometimes_ends_a_job_tell_that_it_did_not(engine: Engine) -> None:
    line = "Mar  2 09:00:05 n2 kernel: NVRM: Xid (PCI:0000:5d:00): 109, pid=779, name=nvtop, errorString CTX SWITCH TIMEOUT"
    steps = [f"2026-03-02 09:00:{second:02d} step {second} loss 2.1\n" for second in range(0, 60, 10)]
    before, after = (log_of("".join(log), kernel_log=[line]) for log in (steps[:1], steps))
    assert engine.judge(before).symptom is SymptomKind.CRASH
    assert engine.judge(after).symptom is SymptomKind.NONE
    assert engine.judge(after).attribution.suspects == ()


@pytest.mark.parametrize("kind", KINDS, ids=[kind["id"] for kind in KINDS])
def test_unrelated_lines_never_change_the_verdict(kind: dict[str, Any], engine: Engine) -> None:
    dice = random.Random(kind["id"])
    before = engine.judge(signals_of(kind))
    lines = str(kind["log"]).splitlines()
    noisy = [line for original in lines for line in (*(dice.choices(NOISE, k=dice.randint(0, 2))), original)] + [NOISE[0]]
    after = engine.judge(signals_of({**kind, "log": "\n".join(noisy) + "\n"}))
    assert (after.symptom, after.diagnosis.cause) == (before.symptom, before.diagnosis.cause)
    assert {suspect.node for suspect in after.attribution.suspects} == {suspect.node for suspect in before.attribution.suspects}


WORDS = st.sampled_from(
    [line.encode() for kind in KINDS for line in str(kind["log"]).splitlines() if line]
    + [b"\xff\xfe\x00", b"\r", b"iteration 3 / 4 loss: nan"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=200), WORDS), max_size=40))
def test_any_bytes_give_an_answer_within_the_vocabulary(engine: Engine, parts: list[bytes]) -> None:
    data = b"\n".join(parts)
    started = time.monotonic()
    judgement = engine.judge(Signals(logs=(LogSource(data=data),)))
    assert time.monotonic() - started < 10
    assert judgement.diagnosis.cause in {*causes(), UNKNOWN}
    assert (judgement.diagnosis.domain is Domain.UNKNOWN) == (judgement.diagnosis.cause == UNKNOWN)
    assert all(suspect.node for suspect in judgement.attribution.suspects)
    engine.fatal_lines(data)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["state", "nodes", "node_state", "history", "exit_code", "node", "x"]), inner, max_size=4)
        ),
        max_leaves=12,
    ).filter(lambda value: isinstance(value, dict))
)
def test_any_scheduler_mapping_gives_an_answer(engine: Engine, loose: dict[str, Any]) -> None:
    engine.judge(Signals(scheduler=loose, gpu_snapshots=loose))


def test_nothing_at_all_is_no_incident(engine: Engine) -> None:
    judgement = engine.judge(Signals())
    assert judgement.symptom is SymptomKind.NONE
    assert judgement.attribution.abstained


def test_a_job_that_failed_without_a_word_is_unknown_and_blames_nobody(engine: Engine) -> None:
    judgement = engine.judge(log_of("step 1 loss 2.0\n", scheduler={"state": "FAILED", "exit_code": "1:0", "nodes": "gpu-[01-04]"}))
    assert (judgement.symptom, judgement.diagnosis.cause, judgement.attribution.suspects) == (SymptomKind.CRASH, UNKNOWN, ())
    assert judgement.diagnosis.confidence <= 0.3


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "srun: error: n1: task 3: Exited with exit code 1",
        "[2024-01-24 02:07:56,014] [ERROR] [launch.py:322:sigkill_handler] ['python', 'x.py'] exits with return code = 1",
    ],
)
def test_a_launcher_that_saw_a_process_fail_is_believed_where_nobody_else_tells(line: str, engine: Engine) -> None:
    assert engine.judge(log_of(STEPS + line + "\n")).symptom is SymptomKind.CRASH
    assert (
        engine.judge(log_of(STEPS + line + "\n" + "".join(f"step {step} loss 2.1\n" for step in range(3, 9)))).symptom is SymptomKind.NONE
    )


def test_colours_hide_nothing(engine: Engine) -> None:
    log = STEPS + "\x1b[31m[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\x1b[0m\n"
    judgement = engine.judge(log_of(log, scheduler={"state": "FAILED", "nodes": "n1"}))
    assert (judgement.diagnosis.cause, judgement.diagnosis.primary and judgement.diagnosis.primary.rank) == ("ecc_uncorrectable", 3)
    coloured = [f"step:\x1b[32m {step}  \x1b[33mloss: {2.1 if step < 20 else 'nan'}\x1b[39m\n" for step in range(40)]
    assert engine.judge(log_of("".join(coloured))).diagnosis.cause == "loss_divergence_nan"


def test_the_primary_line_carries_its_number_time_and_rank(engine: Engine) -> None:
    judgement = engine.judge(log_of("a\nb\n[rank3]:[2024-05-02 07:00:00] OSError: [Errno 122] Disk quota exceeded\n"))
    primary = judgement.diagnosis.primary
    assert primary is not None
    assert (primary.line, primary.rank) == (3, 3)


def test_an_endless_line_is_no_problem(engine: Engine) -> None:
    data = b"x" * (20 << 20) + b" CUDA out of memory. Tried to allocate 2 GiB " + b"y" * (20 << 20)
    judgement = engine.judge(Signals(logs=(LogSource(data=data),)))
    assert judgement.diagnosis.cause == "cuda_oom"
    assert judgement.diagnosis.primary is not None
    assert len(judgement.diagnosis.primary.text) <= 600


def test_a_log_made_of_one_failure_is_counted_not_kept(engine: Engine) -> None:
    data = b"[rank1]: OSError: [Errno 28] No space left on device\n" * 200_000
    started = time.monotonic()
    judgement = engine.judge(Signals(logs=(LogSource(data=data),)))
    assert judgement.diagnosis.cause == "disk_full_checkpoint_save"
    assert time.monotonic() - started < 20  # well under a second where nothing else runs


def test_fatal_lines_name_their_signature_and_flag_consequences(engine: Engine) -> None:
    found = engine.fatal_lines(
        b"step 3 loss 2.1\n[rank7]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
        b"[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        b"wandb: Network error (ConnectionError), entering retry loop.\n"
    )
    assert [(line.signature, line.is_primary, line.rank) for line in found] == [
        ("cuda_ecc_uncorrectable", True, 7),
        ("nccl_remote_error", False, 1),
    ]


def test_two_faults_of_one_attempt_are_told_apart(engine: Engine) -> None:
    # The first was survived: the run went on for hundreds of steps; the second ended it.
    steps = "".join(f"step {n} loss 2.{n % 10}\n" for n in range(1, 200))
    text = (
        "[rank1]: OSError: [Errno 116] Stale file handle\n"
        + steps
        + "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )
    judgement = engine.judge(log_of(text, scheduler={"state": "FAILED", "nodes": "gpu-[01-02]"}))
    assert judgement.diagnosis.cause == "illegal_memory_access_app_bug"


def test_the_cause_before_the_cascade_wins_also_when_it_is_one_line_among_many(engine: Engine) -> None:
    waits = "".join(waiting(rank) for rank in range(64) if rank != 17)
    judgement = engine.judge(log_of("[rank17]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n" + waits))
    assert judgement.diagnosis.cause == "cuda_oom"
    assert judgement.diagnosis.primary is not None
    assert judgement.diagnosis.primary.rank == 17
    assert judgement.diagnosis.cascades == 63


def test_the_rank_that_is_silent_is_named_not_those_that_wait(engine: Engine) -> None:
    waits = "".join(waiting(rank) for rank in range(8) if rank != 5)
    judgement = engine.judge(log_of("step 3 loss 2.0\n" + waits, scheduler={"state": "FAILED", "nodes": "gpu-[01-02]", "ntasks": 8}))
    assert judgement.diagnosis.primary is not None
    assert (judgement.diagnosis.primary.rank, judgement.diagnosis.primary.node) == (5, "gpu-02")
    assert judgement.diagnosis.cause == UNKNOWN
    assert judgement.attribution.abstained


def timed_out(*ranks: int, seq: int = 900) -> str:
    words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=ALLREDUCE, Timeout(ms)=600000)"
    return "".join(f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] {words.format(seq)}\n" for rank in ranks)


def test_only_a_rank_that_ran_out_of_data_after_the_last_step_explains_why_the_others_wait(engine: Engine) -> None:
    steps = "".join(f"step {number} loss 2.{number} 3.1 s/step\n" for number in range(100, 110))
    ended = "[rank3] train loader exhausted after 110 batches\n"
    late = engine.judge(log_of(steps + ended + timed_out(0, 1, 2), scheduler={"state": "FAILED"}))
    early = engine.judge(log_of(ended + steps + timed_out(0, 1, 2), scheduler={"state": "FAILED"}))
    assert late.diagnosis.cause == "uneven_data_deadlock"
    assert early.diagnosis.cause == UNKNOWN


def test_memory_that_a_cut_line_does_not_tell_of_is_nobodys(engine: Engine) -> None:
    line = (
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which"
    )
    judgement = engine.judge(log_of(f"{line} 1.01 GiB is free.\n", scheduler={"state": "FAILED", "nodes": "n[1-2]"}))
    assert judgement.diagnosis.cause == "cuda_oom"
    assert judgement.attribution.suspects == ()


def test_the_way_to_the_adapter_explains_no_slow_down_that_came_later(engine: Engine) -> None:
    far = "node-1:1:9 [0] NCCL INFO GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (distance SYS > PHB)\n"
    fast = "".join(f"step {number} loss 2.1 {3 + number % 3 / 100:.2f} s/step\n" for number in range(100, 120))
    slow = "".join(f"step {number} loss 2.1 {9 + number % 3 / 100:.2f} s/step\n" for number in range(120, 140))
    running = {"state": "RUNNING", "nodes": "node-[1-2]"}
    assert engine.judge(log_of(far + fast + slow, scheduler=running)).diagnosis.cause == "slow_gpu_straggler"
    assert engine.judge(log_of(fast + far + slow, scheduler=running)).diagnosis.cause == "nic_gpu_topology_slow"


def test_a_silent_evaluation_is_waited_for_until_somebody_takes_stacks(engine: Engine) -> None:
    steps = "".join(f"step {number} loss 2.1 3.1 s/step\n" for number in range(100, 110))
    stacks = "[monitor] py-spy rank 0: all_gather (distributed_c10d.py:2501)\n"
    silent = {"state": "RUNNING", "last_output_age_s": 1800}
    waited = engine.judge(log_of(stacks + steps + "Running evaluation\n", scheduler=silent))
    stuck = engine.judge(log_of(steps + "Running evaluation\n" + stacks, scheduler=silent))
    assert waited.symptom is SymptomKind.NONE
    assert (stuck.symptom, stuck.diagnosis.cause) == (SymptomKind.HANG, "rank_deadlock_in_eval")


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"note": "no output for 2 hours"}, SymptomKind.HANG),
        ({"last_output": "45 min ago"}, SymptomKind.HANG),
        ({"comment": "no output for 20 s"}, SymptomKind.NONE),
        ({"comment": "no limit for 2 hours"}, SymptomKind.NONE),
    ],
)
def test_how_long_nothing_was_printed_may_be_told_in_words(told: dict[str, str], kind: SymptomKind, engine: Engine) -> None:
    log = "".join(f"step {step} loss 2.1 1.2 s/it\n" for step in range(1, 9))
    assert engine.judge(log_of(log, scheduler={"state": "RUNNING", "nodes": "n[1-2]"} | told)).symptom is kind


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        ("srun: error: n3: task 19: Aborted (core dumped)\nsrun: error: n1: task 2: Terminated\n", ["n3"]),
        ("srun: error: n3: task 19: Aborted (core dumped)\nsrun: error: n1: task 2: Aborted (core dumped)\n", []),
        (waiting(4) + waiting(5) + "srun: error: n3: task 19: Aborted (core dumped)\n", []),
        ("srun: error: n3: task 19: Killed\n", []),
    ],
)
def test_a_process_that_died_of_itself_tells_where_a_broken_gpu_is(ends: str, blamed: list[str], engine: Engine) -> None:
    log = STEPS + "HW Exception by GPU node-7 (Agent handle: 0x55d1f0a1b2c0) reason :GPU Hang\n" + ends
    judgement = engine.judge(log_of(log, scheduler={"state": "FAILED", "nodes": "n[1-4]"}))
    assert [suspect.node for suspect in judgement.attribution.suspects] == blamed
