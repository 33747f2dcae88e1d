"""Progress from a log: each framework's own wordings, the fold over marks, and a user's own expression."""

import math
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.logs.carriers import plain_bytes
from activities.logs.progress import MarkKind, ProgressMark, ProgressPatternRefused, ProgressReader, advance
from activities.logs.progress_rules import RULES
from activities.records import Phase, Progress
from tests.builders import NOON, after

K = MarkKind


def marks_of(*lines: str, pattern: str | None = None) -> tuple[ProgressMark, ...]:
    return ProgressReader(pattern).read(plain_bytes("".join(line + "\n" for line in lines).encode()))


def seen(*lines: str) -> list[tuple[MarkKind, int | None]]:
    return [(mark.kind, mark.iteration) for mark in marks_of(*lines)]


MEGATRON = (
    " [2025-03-02 04:00:05] iteration    31000/  100000 | consumed samples:     15872000 | elapsed time per iteration (ms): 5234.8 |"
    " learning rate: 5.279E-05 | global batch size:  2048 | lm loss: 2.218897E+00 | loss scale: 1.0 | grad norm: 0.232 |"
)


@pytest.mark.parametrize(
    ("line", "iteration", "step_seconds", "loss"),
    [
        (MEGATRON, 31000, 5.2348, 2.218897),
        ("[default7]: iteration 12/ 100 | elapsed time per iteration (s): 105.81 | lm loss: nan | loss scale: 1.0 |", 12, 105.81, math.nan),
        ("\x1b[31mstep: 10  \x1b[32mloss:  8.12345  \x1b[38;2;180;60;0mgrad_norm:  1.0\x1b[39m", 10, None, 8.12345),
        ("steps: 100 loss: 0.0585 iter time (s): 0.186 samples/sec: 53.694", 100, 0.186, 0.0585),
        ("[INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[2e-05], mom=[(0.9, 0.95)]", 10, None, None),
        ("[INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=69.3", 10, None, None),
        ("{'loss': 0.5, 'learning_rate': 1.99e-05, 'epoch': 0.1}", None, None, 0.5),
        ("{'loss': 'nan', 'grad_norm': 'nan', 'learning_rate': 0.0, 'epoch': 0.1}", None, None, math.nan),
        (" 14%|█▍        | 352/2724 [13:10:24<86:33:34, 132.18s/it]", 352, 132.18, None),
        ("Epoch 0:  12%|█▏ | 12/100 [00:12<01:28,  2.0it/s, v_num=0, train_loss=3.5]", 12, 0.5, 3.5),
        ("Epoch 3:  12%|█▏ | 12/100 [00:12<01:28, 1.0it/s, v_num=0]", 312, 1.0, None),
        ("Epoch 0: 100%|█| 9/9 [00:12<00:00, 1.0it/s, reduced_train_loss=10.30, global_step=108.0, consumed_samples=96.0]", 108, 1.0, 10.3),
        ("Training epoch 1, iteration 5/99 | global_step: 105 | reduced_train_loss: 10.3 | train_step_timing in s: 1.9", 105, 1.9, 10.3),
        ("1|3012|Loss: 0.8120942115783691: 100%|██████████| 3012/3012 [6:11:20<00:00,  7.41s/it]", 3012, 7.41, 0.8120942115783691),
        ('2021-12-01 14:01:00 | INFO | train_inner | {"loss": "2.217", "ups": "0.05", "num_updates": "42801"}', 42801, 20.0, 2.217),
        ("I0905 17:16:40.517200  101 train.py:1201] task=0 step=65066 loss=1.7005 step_time=57.4s mfu=0.332", 65066, 57.4, 1.7005),
        ("(TaskRunner pid=2211) step:140 - actor/entropy:0.3254 - timing_s/step:30.44 - perf/throughput:2038.5", 140, 30.44, None),
        ("I20260708 04:40:00 1 l] Progress on:train 62110it/200kit rate:6.92s/it postfix:loss=2.304", 62110, 6.92, 2.304),
        ("2020-06-11 12:22:00.156497: step 12000, loss = 3.16 (1.2 examples/sec; 0.010 sec/batch)", 12000, 0.010, 3.16),
        ("2022-05-17 16:20:41,120 - mmdet - INFO - Epoch [5][50/1487]  e: 1, time: 1.712, data_time: 0.071, loss: 20.9", 7485, 1.712, 20.9),
        ("[node-003:0]: Epoch 2 | batch 20/2101 | loss 6.790 | 321 samples/s", 4222, None, 6.79),
        ('{"step": 9100, "loss": 1.8209, "lr": 3.1e-05, "tps": 3999}', 9100, None, 1.8209),
        ("[2024-10-01 02:00:00] INFO [olmo.train:895, rank=0] [step=2210/739328,epoch=0] train/CrossEntropyLoss=3.082", 2210, None, 3.082),
        ("iter 100: loss 3.2011, time 12.30ms, mfu 3%", 100, 0.0123, 3.2011),
        ("step 100: train loss 3.2, val loss 3.3", 100, None, 3.2),
    ],
)  # fmt: skip
def test_an_iteration_line_tells_its_number_its_time_and_its_loss(
    line: str, iteration: int | None, step_seconds: float | None, loss: float | None
) -> None:
    (mark,) = marks_of(line)
    assert (mark.kind, mark.iteration) == (K.ITERATION, iteration)
    assert mark.step_seconds == (None if step_seconds is None else pytest.approx(step_seconds))
    assert mark.loss == (None if loss is None else pytest.approx(loss, nan_ok=True))


@pytest.mark.parametrize(
    ("line", "kind", "iteration"),
    [
        ("saving checkpoint at iteration   31200 to /data/ckpt/main", K.CHECKPOINT_STARTED, 31200),
        ("[2026-01-01 00:00:00.1] saving checkpoint at iteration     500 to /c in torch_dist format", K.CHECKPOINT_STARTED, 500),
        ("  [2026-01-01 00:00:00.1] scheduled an async checkpoint save at iteration     500 to /c", K.CHECKPOINT_STARTED, 500),
        ("  successfully saved checkpoint at iteration   31200 to /data/ckpt/main", K.CHECKPOINT_SAVED, 31200),
        ("  [2026-01-01 00:00:00.1] successfully saved checkpoint from iteration     500 to /c [ t 1/8, p 1/1 ]", K.CHECKPOINT_SAVED, 500),
        ("[Torch] Checkpoint global_step500 is about to be saved!", K.CHECKPOINT_STARTED, 500),
        ("[Torch] Checkpoint global_step500 is ready now!", K.CHECKPOINT_SAVED, 500),
        ("[Rank 0] Saving model checkpoint: /c/global_step31200/layer_01-model_00-model_states.pt", K.CHECKPOINT_STARTED, 31200),
        ("Saving model checkpoint to /out/checkpoint-500", K.CHECKPOINT_STARTED, 500),
        ("Saving the checkpoint (or staging if async is enabled).", K.CHECKPOINT_STARTED, None),
        ("Finished saving the checkpoint (or staging if async is enabled)in 3.20 seconds.", K.CHECKPOINT_SAVED, None),
        ("Saved checkpoint /c/checkpoint_1_500.pt (epoch 1 @ 500 updates, score 3.2) (writing took 4.2 seconds)", K.CHECKPOINT_SAVED, 500),
        ('Epoch 97, global step 34691: val_wer reached 0.1 (best 0.1), saving model to "/c/x.ckpt" as top 1', K.CHECKPOINT_STARTED, 34691),
        ("Async checkpoint save for step 500 (/c/x) finalized successfully.", K.CHECKPOINT_SAVED, 500),
        ("2022-05-17 17:02:22,640 - mmdet - INFO - Saving checkpoint at 5 epochs", K.CHECKPOINT_STARTED, None),
        ("  successfully loaded checkpoint from /c [ t 1/8, p 1/1 ] at iteration 500", K.RESUMED, 500),
        ("Loaded checkpoint /c/checkpoint_42800.pt (epoch 1 @ 42800 updates)", K.RESUMED, 42800),
        ("  Continuing training from global step 500", K.RESUMED, 500),
        ("Restored all states from the checkpoint at /c/epoch=0-step=500.ckpt", K.RESUMED, 500),
        ("Evaluating iter 1/10", K.EVALUATION_STARTED, None),
        (" validation loss at iteration 1000 | lm loss value: 2.1 | lm loss PPL: 8.1", K.EVALUATION_ENDED, None),
        ("***** Running Evaluation *****", K.EVALUATION_STARTED, None),
        ("{'eval_loss': 1.2, 'eval_runtime': 3.1, 'epoch': 1.0}", K.EVALUATION_ENDED, None),
        ("Validation DataLoader 0:  10%|█| 1/10 [00:01<00:09, 1.0it/s]", K.EVALUATION_STARTED, None),
        ("Validation DataLoader 0: 100%|█| 10/10 [00:10<00:00, 1.0it/s]", K.EVALUATION_ENDED, None),
        ("validate step: 10  loss: 3.2", K.EVALUATION_ENDED, None),
        ("[>>>>>>>>>>>>        ] 312/500, 0.3 task/s, elapsed: 1101s, ETA:   663", K.EVALUATION_STARTED, None),
        ("[after training is done] datetime: 2026-01-01 00:00:00", K.TRAINING_ENDED, None),
        ("[exiting program after 1190.03 minutes] datetime: 2021-08-08 01:00:51", K.TRAINING_ENDED, None),
        ("{'train_runtime': 100.1, 'train_samples_per_second': 3.1}", K.TRAINING_ENDED, None),
        ("Training completed", K.TRAINING_ENDED, None),
        ("`Trainer.fit` stopped: `max_steps=100` reached.", K.TRAINING_ENDED, None),
    ],
)  # fmt: skip
def test_checkpoints_resumes_evaluations_and_the_end_are_told(line: str, kind: MarkKind, iteration: int | None) -> None:
    assert seen(f"[rank0]: {line}") == [(kind, iteration)]


@pytest.mark.parametrize(
    "line",
    [
        "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.",
        "slurmstepd: error: *** STEP 8216227.0 ON node-006 CANCELLED AT 2023-03-05T02:41:19 DUE TO NODE FAILURE ***",
        "srun: launch/slurm: _step_signal: Terminating StepId=2163717.0",
        "0: preprocessing shard   0/64: 100%|██████████| 200000/200000 [00:54<00:00, 3425.08it/s]",
        "Loading checkpoint shards:  25%|██▌       | 1/4 [00:10<00:30, 10.0s/it]",
        "Downloading (…)model: 10%|█| 10/100 [00:01<00:10, 9.0MB/s]",
        "Model checkpoint of size 4.98 GB saved to /c/epoch_0/ft-model-00001-of-00030.safetensors",
        "Failed to save checkpoint at iteration 500",
        "time (ms) | save-checkpoint: 40117.32",
        "    self._save_checkpoint(model, trial, metrics=metrics)",
        "at opt_step 833",
        '  File "/opt/deepspeed/runtime/engine.py", line 2005, in _take_model_step',
    ],
)
def test_what_only_sounds_like_progress_is_none(line: str) -> None:
    assert seen(line) == []


def test_a_shorter_bar_without_a_label_while_a_longer_one_runs_is_evaluation() -> None:
    bars = [f"  {n}%|█| {n}/100 [00:12<01:28, 1.0it/s]" for n in (1, 2)]
    evaluation = [" 50%|█| 5/10 [00:01<00:01, 5.0it/s]", "100%|█| 10/10 [00:02<00:00, 5.0it/s]"]
    assert seen(*bars, *evaluation, "  3%|█| 3/100 [00:15<01:28, 1.0it/s]") == [
        (K.ITERATION, 1), (K.ITERATION, 2), (K.EVALUATION_STARTED, None), (K.EVALUATION_ENDED, None), (K.ITERATION, 3),
    ]  # fmt: skip


def test_a_long_bar_that_was_given_up_does_not_hide_training() -> None:
    """Tokenizing stopped early, then a hand-written loop with one unlabelled bar an epoch."""
    epoch = ["  1%|█| 1/100 [00:01<01:28, 1.0it/s]", "100%|█| 100/100 [01:40<00:00, 1.0it/s]"]
    assert seen("  1%|█| 10/5000 [00:01<01:28, 10.0it/s]", *epoch, *epoch)[-2:] == [(K.ITERATION, 1), (K.ITERATION, 100)]


def test_the_matchers_reading_and_pythons_agree_on_every_rule() -> None:
    """Every rule's own expression compiles in both engines; its number is named `iteration`."""
    assert len({rule.id for rule in RULES}) == len(RULES)
    ProgressReader().read(b"warm up\n")


# ------------------------------------------------------------------------------------------- a user's own expression


def test_a_users_own_expression_replaces_the_built_in_ones() -> None:
    pattern = r"batch no\. (?P<iteration>\d+) took (?P<step_seconds>[\d.]+) err (?P<loss>\S+)"
    marks = marks_of("batch no. 12 took 3.5 err 0.25", "step 99 loss 3.1", "Saving checkpoint at step 12", pattern=pattern)
    assert [(mark.kind, mark.iteration, mark.step_seconds, mark.loss) for mark in marks] == [
        (K.ITERATION, 12, 3.5, 0.25),
        (K.CHECKPOINT_STARTED, 12, None, None),
    ]


@pytest.mark.parametrize(
    ("pattern", "mend"),
    [
        (r"step (\d+)", "no group named iteration"),
        (r"step (?P<iteration>\d+", "not a regular expression"),
        (r"(?P<iteration>\d+)(?=x)", "no look-around"),
        (r"(?<!val )step (?P<iteration>\d+)", "no look-around"),
        (r"(\d+) \1 (?P<iteration>\d+)", "no back-references"),
        (r"(?P<iteration>\d++)", "no look-around, no back-references"),
        (r"step (?P<iteration>\d+)\Z", "RE2's syntax"),
        ("x" * 600 + r"(?P<iteration>\d+)", "at most 500"),
        (r"(?:.{0,1000}){1000}(?P<iteration>\d+)", "counted repeat up to 1000"),
        (r".{1000}.{1000}.{1000}(?P<iteration>\d+)", "smaller counted repeats"),
        (r"(?:\pL|\pN){900}(?P<iteration>\d+)", "smaller counted repeats"),
        (r"(?P<iteration>\d*)", "every line"),
        ("\ud800(?P<iteration>\\d+)", "surrogate"),
    ],
)
def test_a_bad_expression_is_one_clear_error(pattern: str, mend: str) -> None:
    with pytest.raises(ProgressPatternRefused, match=mend):
        ProgressReader(pattern)


@given(st.text(max_size=80))
def test_any_expression_is_used_or_refused(pattern: str) -> None:
    with suppress(ProgressPatternRefused):
        ProgressReader(pattern)


@given(st.binary(max_size=500))
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    ProgressReader().read(data)


# ------------------------------------------------------------------------------------------- the fold


def iteration(number: int | None, *, step_seconds: float | None = None, at: datetime | None = None) -> ProgressMark:
    return ProgressMark(kind=K.ITERATION, iteration=number, step_seconds=step_seconds, at=at)


def of(kind: MarkKind, number: int | None = None) -> ProgressMark:
    return ProgressMark(kind=kind, iteration=number)


def test_the_first_iteration_is_where_the_attempt_resumed() -> None:
    progress = advance(Progress(), [iteration(501), iteration(502)], NOON)
    assert (progress.phase, progress.first_iteration, progress.iteration, progress.iteration_at) == (Phase.TRAINING, 501, 502, NOON)


def test_the_same_iteration_from_another_rank_is_no_progress() -> None:
    progress = advance(advance(Progress(), [iteration(10)], NOON), [iteration(10), iteration(9)], after(60))
    assert (progress.iteration, progress.iteration_at) == (10, NOON)


def test_going_far_back_is_taken_as_a_new_count() -> None:
    progress = advance(advance(Progress(), [iteration(500)], NOON), [iteration(400)], after(60))
    assert (progress.iteration, progress.iteration_at, progress.first_iteration) == (400, after(60), 500)


def test_step_time_and_baseline_are_medians_without_the_first_two_steps() -> None:
    marks = [iteration(n, step_seconds=seconds) for n, seconds in enumerate([90.0, 40.0, 2.0, 2.1, 1.9, 2.0, 2.2])]
    progress = advance(Progress(), marks, NOON)
    assert progress.baseline_step_seconds == pytest.approx(2.0)
    slow = advance(progress, [iteration(n, step_seconds=6.0) for n in range(7, 80)], after(60))
    assert slow.step_seconds == 6.0
    assert slow.baseline_step_seconds is not None
    assert slow.baseline_step_seconds == advance(slow, [iteration(80, step_seconds=9.0)], after(70)).baseline_step_seconds


def test_without_a_step_time_the_logs_own_clock_tells() -> None:
    marks = [iteration(n * 10, at=after(n * 30)) for n in range(4)]
    assert advance(Progress(), marks, after(3600)).step_seconds == pytest.approx(3.0)


def test_without_any_clock_the_time_between_reads_tells_and_lines_of_one_read_do_not() -> None:
    progress = advance(Progress(), [iteration(1), iteration(2), iteration(3)], NOON)
    assert progress.step_seconds is None
    progress = advance(progress, [iteration(4), iteration(5)], after(7))
    assert progress.step_samples == (3.5,)
    assert advance(progress, [iteration(None)] * 2, after(11)).step_samples == (3.5, 2.0)


def test_phases_follow_the_marks() -> None:
    progress = advance(Progress(), [iteration(10)], NOON)
    saving = advance(progress, [of(K.CHECKPOINT_STARTED, 10), iteration(10)], after(1))
    assert (saving.phase, saving.phase_since) == (Phase.CHECKPOINTING, after(1))
    assert advance(saving, [of(K.CHECKPOINT_SAVED, 10)], after(2)).phase is Phase.TRAINING
    assert advance(saving, [iteration(11)], after(2)).phase is Phase.TRAINING  # an asynchronous save
    evaluating = advance(progress, [of(K.EVALUATION_STARTED)], after(1))
    assert evaluating.phase is Phase.EVALUATING
    assert advance(evaluating, [of(K.EVALUATION_ENDED)], after(2)).phase is Phase.TRAINING
    assert advance(progress, [of(K.TRAINING_ENDED)], after(2)).phase is Phase.FINISHING


def test_before_the_first_iteration_a_sanity_evaluation_ends_in_starting() -> None:
    progress = advance(Progress(), [of(K.EVALUATION_STARTED), of(K.EVALUATION_ENDED)], NOON)
    assert progress.phase is Phase.STARTING
    assert advance(Progress(), [of(K.CHECKPOINT_STARTED, 0), of(K.CHECKPOINT_SAVED, 0)], NOON).phase is Phase.STARTING


def test_checkpoints_count_once_and_tell_their_usual_interval() -> None:
    progress = Progress()
    for number in range(4):
        saved = [of(K.CHECKPOINT_SAVED, 100 * number)] * 2  # two ranks say so
        progress = advance(progress, saved, after(600 * number))
    assert (progress.checkpoint_iteration, progress.checkpoint_at) == (300, after(1800))
    assert progress.checkpoint_interval_seconds == pytest.approx(600)


def test_a_checkpoint_without_a_number_holds_at_most_the_last_iteration() -> None:
    assert advance(Progress(), [iteration(42), of(K.CHECKPOINT_SAVED)], NOON).checkpoint_iteration == 42


def test_what_was_resumed_from_is_a_complete_checkpoint_of_unknown_age() -> None:
    progress = advance(Progress(), [of(K.RESUMED, 500)], NOON)
    assert (progress.checkpoint_iteration, progress.checkpoint_at, progress.phase) == (500, None, Phase.STARTING)


@given(
    st.lists(
        st.builds(
            ProgressMark,
            kind=st.sampled_from(MarkKind),
            iteration=st.none() | st.integers(0, 10**9),
            step_seconds=st.none() | st.floats(0, 1e6),
            at=st.none() | st.integers(0, 10**6).map(lambda s: NOON + timedelta(seconds=s)),
        ),
        max_size=60,
    )
)
def test_the_fold_is_the_same_in_one_read_or_bounded_whatever_comes(marks: list[ProgressMark]) -> None:
    progress = advance(Progress(), marks, NOON)
    assert len(progress.step_samples) <= 40
    assert len(progress.checkpoint_times) <= 8
    assert Progress.model_validate_json(progress.model_dump_json()).iteration == progress.iteration


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 4000])
@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        (" iteration {}/ 100000 | elapsed time per iteration (ms): 1000.0 |", None),
        ("epoch {}: 12%|#1        | 12/100 [00:12<01:28,  1.00it/s]", None),
        ("Saving checkpoint at iteration {}: successfully saved", None),
        ("{{'loss': 1.0, 'global_step': {}}} step: 3 loss: 2.0", None),
        ("at {} of all", r"at (?P<iteration>\d+) of all"),
    ],
)
def test_a_number_longer_than_any_count_is_no_iteration(line: str, pattern: str | None, digits: str) -> None:
    assert all(mark.iteration is None or mark.iteration < 10**15 for mark in marks_of(line.format(digits), pattern=pattern))
