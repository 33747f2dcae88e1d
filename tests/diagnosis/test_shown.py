"""What a person is shown of the evidence: where each line is from and when, and nothing twice."""

from activities.diagnosis.engine import Engine
from activities.diagnosis.reading import Observation
from activities.diagnosis.shown import shown_lines
from activities.diagnosis.signals import LogSource, Signals
from activities.diagnosis.signatures import Role
from activities.records import Judgement, SignalSource


def seen(line: int, text: str, source: SignalSource = SignalSource.LOG, stamp: str = "") -> Observation:
    return Observation("x", Role.PRIMARY, 0.9, text, None, source, line=line, stamp=stamp)


def judged(log: str, **scheduler: object) -> Judgement:
    return Engine().judge(Signals(logs=(LogSource(data=log.encode()),), scheduler=scheduler))


def test_a_text_is_shown_once_with_its_first_line_and_how_many_say_the_same() -> None:
    assert shown_lines([seen(4, "boom"), seen(5, "boom"), seen(9, "boom"), seen(6, "bang")]) == (
        "4: boom (and 2 more lines alike)",
        "6: bang",
    )


def test_a_line_of_another_source_says_so_and_when() -> None:
    assert shown_lines([seen(1, "Xid", SignalSource.KERNEL, "Oct 08 02:25:41")]) == ("kernel 1 Oct 08 02:25:41: Xid",)


def test_a_rank_that_stayed_away_is_not_told_to_have_printed_what_others_printed() -> None:
    waits = "\n".join(
        f"[rank{n}]: [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)" for n in range(7)
    )
    primary = judged(waits, state="FAILED", nodes="n1", ntasks=8).diagnosis.primary
    assert primary is not None
    assert primary.rank == 7
    assert primary.text.startswith("did not come; another rank: ")


def test_trouble_on_every_node_is_told_of_all_of_them() -> None:
    log = "\n".join(f"step {n} loss 2.0 {3.0 if n < 20 else 4.2} s/step" for n in range(40))
    hot = {f"n{n}": {"clocks_event_reasons": "HW Thermal Slowdown: Active"} for n in (1, 2, 3)}
    judgement = Engine().judge(
        Signals(logs=(LogSource(data=log.encode()),), gpu_snapshots=hot, scheduler={"state": "RUNNING", "nodes": "n[1-3]"})
    )
    assert judgement.diagnosis.summary == "clocks reduced by heat or power on all 3 nodes"
    assert not judgement.attribution.suspects


def test_a_death_before_the_time_limit_tells_of_the_wait_and_a_limit_with_a_process_that_would_not_die_does_not() -> None:
    limit = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-10-08T12:00:21 DUE TO TIME LIMIT ***"
    died = judged(
        f"step 1 loss 2\n[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n{limit}", state="TIMEOUT", nodes="n1"
    )
    assert died.diagnosis.summary.endswith("the job stood still until its time limit")
    drained = judged(f"step 1 loss 2\n{limit}", state="TIMEOUT", nodes="n1", node_reason="Kill task failed")
    assert "stood still" not in drained.diagnosis.summary


def test_a_place_that_is_not_blamed_is_told_as_where_it_was_seen() -> None:
    oom = "step 1 loss 2\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert judged(oom, state="FAILED", nodes="n1").diagnosis.summary == "out of GPU memory by configuration (seen first on n1)"
    ecc = "step 1 loss 2\n[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert judged(ecc, state="FAILED", nodes="n1").diagnosis.summary == "uncorrectable memory error of a GPU ended the context on n1"


def test_where_nothing_says_why_the_first_end_a_launcher_tells_of_is_shown() -> None:
    log = "0: step 1 loss 2\nsrun: error: n7: task 55: Exited with exit code 1\nsrun: error: n1: task 0: Killed"
    primary = judged(log, state="FAILED", nodes="n[1-8]", ntasks=64).diagnosis.primary
    assert primary is not None
    assert (primary.rank, primary.node, primary.line) == (55, "n7", 2)


def test_a_device_that_failed_besides_is_told_and_not_blamed() -> None:
    oom = "[2026-06-01 10:20:40] [rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    lost = "2026-06-01T10:37:41+00:00 n1 kernel: NVRM: Xid (PCI:0000:5d:00): 79, pid=0, GPU has fallen off the bus."
    scheduler = {"state": "FAILED", "nodes": "n1"}
    judgement = Engine().judge(Signals(logs=(LogSource(data=oom.encode()),), kernel_logs={"": lost}, scheduler=scheduler))
    assert (judgement.diagnosis.cause, judgement.attribution.suspects) == ("cuda_oom", ())
    assert [note.partition(";")[0] for note in judgement.notes] == ["besides, on n1: the driver lost the device"]
    assert not judged(oom, **scheduler).notes
