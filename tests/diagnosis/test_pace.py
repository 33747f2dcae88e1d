"""What one line of progress tells, and what is none."""

import time

import pytest

from activities.diagnosis.pace import mark_of


@pytest.mark.parametrize(
    ("line", "iteration", "seconds", "loss"),
    [
        ("iteration    31196/  115311 | elapsed time per iteration (s): 105.81 | lm loss: 2.218897E+00 |", 31196, 105.81, 2.218897),
        ("iteration 33150/ 311541 | elapsed time per iteration (ms): 23677.5 | lm loss: 2.7 |", 33150, 23.6775, 2.7),
        ("step=1200 loss=1.8741 grad_norm=0.508 tok/s/gpu=6154", 1200, None, 1.8741),
        ("{'loss': 2.4100, 'learning_rate': 0.000100, 'epoch': 3.100}", None, None, 2.41),
        ("task=0 step=65066 loss=1.7005 step_time=57.4s mfu=0.332", 65066, 57.4, 1.7005),
        ("Progress on:train 62110it/200kit rate:6.92s/it remaining:1 postfix:loss=2.304", 62110, 6.92, 2.304),
        ("Epoch 0:   1%|          | 5/1430 [00:01<18:11, 2.0it/s, loss=1.080, v_num=3]", 5, 0.5, 1.08),
        ("2015-11-21 05:50:30,259: Iteration took 30.848 s.", None, 30.848, None),
        ("step 3000, loss = 4.43 (13049.0 examples/sec; 0.010 sec/batch)", 3000, 0.01, 4.43),
        ("    train/CrossEntropyLoss=2.512", None, None, 2.512),
        ("Finished training it 371744/2048000 of epoch 0, 9.29 ms/it, loss 0.126013", 371744, 0.00929, 0.126013),
    ],
)
def test_the_usual_lines_are_read(line: str, iteration: int | None, seconds: float | None, loss: float | None) -> None:
    mark = mark_of(line, position=0, line=1, at=None, stream="")
    assert mark is not None
    assert (mark.iteration, mark.loss) == (iteration, loss)
    assert mark.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("2023-04-27 10:02:00.13: Epoch time: 152.33 s", 152.33),
        ("INFO:root:Epoch[3] Time cost=25.134", 25.134),
        ("epoch 3 time 10:20", None),
    ],
)
def test_how_long_an_epoch_took_is_no_time_of_a_step(line: str, seconds: float | None) -> None:
    mark = mark_of(line, position=0, line=1, at=None, stream="")
    assert (mark.epoch_seconds if mark else None) == seconds
    assert mark is None or mark.seconds is None


@pytest.mark.parametrize(
    "line", ["srun: error: node-1: task 3: Killed", "slurmstepd: error: *** STEP 2163717.0 ON node-1 CANCELLED ***", "all good"]
)
def test_lines_of_launchers_are_no_progress(line: str) -> None:
    assert mark_of(line, position=0, line=1, at=None, stream="") is None


@pytest.mark.parametrize("low", ["1.2.3", ".", "0"])
def test_a_figure_of_megatrons_report_that_is_no_throughput_tells_nothing(low: str) -> None:
    text = f"| MnEtpt/Rank: {low}TF/5 | MxEtpt/Rank: 415.22TF/9"
    assert mark_of(text, position=0, line=1, at=None, stream="") is None


@pytest.mark.parametrize("end", ["", " samples/s", "s/it", " it/s", "s |", ".", ","])
@pytest.mark.parametrize("begin", ["throughput", "iteration took", "step", "grad norm", "loss"])
@pytest.mark.parametrize("filler", ["1", " ", "\t", "1,"])
def test_an_endless_figure_or_gap_is_done_with_at_once(begin: str, filler: str, end: str) -> None:
    text = begin + " 1 " + filler * 1900 + end
    begun = time.process_time()
    mark_of(text[:2000], position=0, line=1, at=None, stream="")
    assert time.process_time() - begun < 5  # it took minutes


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("iter 36298: loss 5.8465, time 148.74ms, mfu 0.01%", 0.14874),
        ("Epoch: [12][200/1250]\tTime 0.311 ( 0.322)\tData 0.010 ( 0.020)\tLoss 1.91 (1.92)", 0.311),
        ("Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.95)  Time: 0.432s,  592.48/s", 0.432),
        (" eta: 3:10:11  iter: 19  total_loss: 1.2  time: 0.2310  last_time: 0.2310  data_time: 0.0094", 0.231),
        ("step 12, loss 2.3, time: 10:22:01", None),
        ("step 12, loss 2.3, time: 2025-03-14", None),
        ("step 12, loss 2.3, total time 88.1", None),
        ("step 12: loss=2.0014 time=4.12s", 4.12),
        ("step 12 loss 2.1 data time=0.12s", None),
    ],
)
def test_a_field_called_time_and_no_more_is_read_where_it_is_no_clock(line: str, seconds: float | None) -> None:
    mark = mark_of(line, position=0, line=1, at=None, stream="")
    assert mark is not None
    assert mark.bare_time == (pytest.approx(seconds) if seconds is not None else None)


def test_a_rate_behind_its_name_is_not_the_figure_before_it() -> None:
    mark = mark_of("steps: 100 loss: 2.4 iter time (s): 1.210 samples/sec: 105.7", position=0, line=1, at=None, stream="")
    assert mark is not None
    assert (mark.seconds, mark.rate) == (1.21, 105.7)


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        # tokens and operations tell of work, samples may be longer than they were
        (" iteration 10/ 50 | elapsed time per iteration (ms): 400.0 | samples per second: 19.3 | tokens per second: 60000.0 |", 60000.0),
        ("completed step: 7, seconds: 1.2, TFLOP/s/device: 400.1, Tokens/s/device: 9000.5, loss: 2.1", 400.1),
        ("    throughput/device/tokens_per_second=8000.0", 8000.0),
        ("step 7, loss 2.1, steps/sec 0.833", 0.833),
    ],
)
def test_a_rate_is_read_by_its_name(line: str, rate: float) -> None:
    mark = mark_of(line, position=0, line=1, at=None, stream="")
    assert mark is not None
    assert mark.rate == rate


def test_a_second_throughput_in_other_units_is_not_mixed_with_the_first() -> None:
    assert mark_of("    throughput/device/batches_per_second=0.83", position=0, line=1, at=None, stream="") is None


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Train Epoch: 0 [ 1024/90000 (1%)] Data (t): 0.012 Batch (t): 1.204, 853.3/s Loss: 6.9", 1.204),
        ("Epoch 1 | iter 100 step 100 | loss train: 1.543, val: n/a | iter time: 4401.19 ms (step)", 4.40119),
    ],
)
def test_seconds_of_a_step_are_read_by_their_name(line: str, seconds: float) -> None:
    mark = mark_of(line, position=0, line=1, at=None, stream="")
    assert mark is not None
    assert mark.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    "line",
    [
        "Validation DataLoader 0:  36%|███       | 324/900 [03:10<08:22,  1.20it/s]",
        "[eval] step 40/200 time: 0.81 s/it",
        "Test: [ 10/196]  Time  0.110 ( 0.130)  Loss 1.91 (1.92)",
    ],
)
def test_steps_of_an_evaluation_tell_that_it_moves_and_nothing_of_the_trainings_pace(line: str) -> None:
    mark = mark_of(line, position=0, line=1, at=None, stream="")
    assert mark is not None
    assert (mark.seconds, mark.rate, mark.bare_time) == (None, None, None)


def test_ranks_times_alone_on_a_line_are_read_and_their_memory_is_not() -> None:
    figures = " ".join(f"{rank}:{1.02 + rank / 100:.2f}" for rank in range(8))
    timed = mark_of(f"per-rank compute (s): {figures}", position=0, line=1, at=None, stream="")
    assert timed is not None
    assert [rank for rank, _ in timed.by_rank] == list(range(8))
    assert mark_of(f"per-rank memory (GiB): {figures}", position=0, line=1, at=None, stream="") is None
    assert mark_of(f"latency percentiles (s): {figures}", position=0, line=1, at=None, stream="") is None, "no ranks are named"
