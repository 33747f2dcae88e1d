"""Which log lines tell that training moves on: frameworks' wordings as rows of a table, and the numbers on such lines.

Each row's expression is used twice: by the multi-pattern matcher to find the lines, and by Python's `re` to take the
numbers off. So it stays within what both understand. Called by `progress.py` only; a new framework is a new row.
"""

import re
from dataclasses import dataclass
from enum import StrEnum


class MarkKind(StrEnum):
    """What one line says about the course of training."""

    ITERATION = "iteration"
    CHECKPOINT_STARTED = "checkpoint_started"
    CHECKPOINT_SAVED = "checkpoint_saved"
    RESUMED = "resumed"
    EVALUATION_STARTED = "evaluation_started"
    EVALUATION_ENDED = "evaluation_ended"
    TRAINING_ENDED = "training_ended"


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording. `pattern` may name groups `iteration`, `total` (of one epoch), `epoch`."""

    id: str
    kind: MarkKind
    pattern: str
    source: str
    needs_payload: bool = False


_STEP_WORD = r"(?:global[_ ]?step|num_updates|[Ss]teps?|[Ii]ters?|[Ii]teration|it|[Uu]pdates?)"
_COUNT = r"""["']?\s{0,8}[:=#]?\s{0,8}["']?\[?(?P<iteration>\d{1,12})"""

RULES: tuple[Rule, ...] = (
    # -- checkpoints: complete
    Rule(
        "megatron saved",
        MarkKind.CHECKPOINT_SAVED,
        r"(?i)successfully saved (?:local )?checkpoint (?:from|at) iteration\s+(?P<iteration>\d+)",
        "Megatron-LM, NeMo: megatron/training/checkpointing.py",
    ),
    Rule(
        "deepspeed ready",
        MarkKind.CHECKPOINT_SAVED,
        r"Checkpoint global_step(?P<iteration>\d+) is ready now",
        "DeepSpeed: checkpoint engine",
    ),
    Rule(
        "nemo async finalized",
        MarkKind.CHECKPOINT_SAVED,
        r"Async checkpoint save for step (?P<iteration>\d+) .{0,400}finalized successfully",
        "NeMo: async checkpoint callback",
    ),
    Rule("torchtitan saved", MarkKind.CHECKPOINT_SAVED, r"Finished saving the checkpoint", "torchtitan: components/checkpoint.py"),
    Rule(
        "fairseq saved",
        MarkKind.CHECKPOINT_SAVED,
        r"Saved checkpoint \S{1,400} \(epoch \d+ @ (?P<iteration>\d+) updates",
        "fairseq: checkpoint_utils.py",
    ),
    Rule(
        "orbax saved",
        MarkKind.CHECKPOINT_SAVED,
        r"Finished (?:asynchronous )?save .{0,200}/(?P<iteration>\d+)\b",
        "JAX Orbax: checkpointer",
    ),
    Rule(
        "generic saved",
        MarkKind.CHECKPOINT_SAVED,
        r"(?i)\b(?:saved|finished saving|finished writing|wrote)\s(?:.{0,30}\s)?checkpoint\b|\bcheckpoint\s(?:.{0,60}\s)?saved\b",
        "the usual words",
    ),
    # -- checkpoints: begun
    Rule(
        "megatron saving",
        MarkKind.CHECKPOINT_STARTED,
        r"(?i)saving checkpoint at (?:iteration|step)\s+(?P<iteration>\d+)",
        "Megatron-LM: megatron/training/checkpointing.py",
    ),
    Rule(
        "megatron async",
        MarkKind.CHECKPOINT_STARTED,
        r"scheduled an async checkpoint save at iteration\s+(?P<iteration>\d+)",
        "Megatron-LM: megatron/training/checkpointing.py",
    ),
    Rule("deepspeed saving", MarkKind.CHECKPOINT_STARTED, r"Checkpoint global_step(?P<iteration>\d+) is about to be saved", "DeepSpeed"),
    Rule("deepspeed shard", MarkKind.CHECKPOINT_STARTED, r"\[Torch\] Saving \S{1,400}global_step(?P<iteration>\d+)/", "DeepSpeed"),
    Rule(
        "lightning saving",
        MarkKind.CHECKPOINT_STARTED,
        r"global step (?P<iteration>\d+): .{0,300}saving model to",
        "Lightning: callbacks/model_checkpoint.py (written before it saves)",
    ),
    Rule(
        "generic saving",
        MarkKind.CHECKPOINT_STARTED,
        r"(?i)\b(?:saving|save)\s(?:.{0,30}\s)?checkpoint\b|\bcheckpoint save for\b",
        "Hugging Face Trainer, torchtitan, torchtune, DeepSpeed and the usual words",
    ),
    # -- resumed: the state is loaded, not merely looked for
    Rule(
        "megatron loaded",
        MarkKind.RESUMED,
        r"successfully loaded checkpoint from .{1,400} at iteration\s+(?P<iteration>\d+)",
        "Megatron-LM",
    ),
    Rule(
        "fairseq loaded", MarkKind.RESUMED, r"Loaded checkpoint \S{1,400} \(epoch \d+ @ (?P<iteration>\d+) updates", "fairseq: trainer.py"
    ),
    Rule("hf resumed", MarkKind.RESUMED, r"Continuing training from global step (?P<iteration>\d+)", "Hugging Face Trainer"),
    Rule("lightning restored", MarkKind.RESUMED, r"Restored all states from the checkpoint", "Lightning: checkpoint_connector.py"),
    Rule(
        "generic resumed",
        MarkKind.RESUMED,
        r"(?i)\bresum(?:ed|ing)(?: training)? (?:from|at)\b.{0,200}\b(?:step|iteration)\b",
        "the usual words",
    ),
    # -- evaluation
    Rule("megatron evaluating", MarkKind.EVALUATION_STARTED, r"Evaluating (?:on \d+ samples|iter \d+/\d+)", "Megatron-LM: training.py"),
    Rule("megatron evaluated", MarkKind.EVALUATION_ENDED, r"validation loss at iteration\s+\d+", "Megatron-LM: training.py"),
    Rule("hf evaluating", MarkKind.EVALUATION_STARTED, r"\*{5} Running (?:[Ee]valuation|[Pp]rediction)", "Hugging Face Trainer"),
    Rule("hf evaluated", MarkKind.EVALUATION_ENDED, r"""\{['"]eval_\w+['"]:""", "Hugging Face Trainer"),
    Rule("torchtitan evaluated", MarkKind.EVALUATION_ENDED, r"\bvalidate step:\s+\d+", "torchtitan: components/metrics.py"),
    Rule("fairseq evaluating", MarkKind.EVALUATION_STARTED, r"begin validation on", "fairseq: train.py"),
    Rule("fairseq evaluated", MarkKind.EVALUATION_ENDED, r"\| valid \| ", "fairseq: progress bar"),
    Rule("openmmlab evaluating", MarkKind.EVALUATION_STARTED, r"\[[> ]{10,}\] \d+/\d+, .{0,40}task/s", "OpenMMLab: mmcv ProgressBar"),
    Rule("dlrm testing", MarkKind.EVALUATION_STARTED, r"^Testing at - \d+/\d+", "DLRM"),
    Rule(
        "generic evaluating",
        MarkKind.EVALUATION_STARTED,
        r"(?i)\b(?:start(?:ing|ed)?|begin(?:ning)?|running) (?:the )?(?:evaluation|validation|eval)\b",
        "the usual words",
    ),
    Rule(
        "generic evaluated",
        MarkKind.EVALUATION_ENDED,
        r"(?i)\b(?:finished|done|completed) (?:the )?(?:evaluation|validation|eval)\b"
        r"|\b(?:evaluation|validation) (?:finished|done|completed?)\b",
        "the usual words",
    ),
    # -- the end
    Rule(
        "megatron ended",
        MarkKind.TRAINING_ENDED,
        r"\[(?:after training is done|exiting program (?:at|after) [^\]]{1,80})\] datetime",
        "Megatron-LM",
    ),
    Rule("hf ended", MarkKind.TRAINING_ENDED, r"""\{['"]train_runtime['"]:""", "Hugging Face Trainer"),
    Rule("lightning ended", MarkKind.TRAINING_ENDED, r"`Trainer\.fit` stopped:", "Lightning: utilities/rank_zero.py"),
    Rule("fairseq ended", MarkKind.TRAINING_ENDED, r"\bdone training in\b", "fairseq: train.py"),
    Rule(
        "generic ended",
        MarkKind.TRAINING_ENDED,
        r"(?i)\btraining (?:is )?(?:completed?|finished|done)\b",
        "torchtitan, Hugging Face, the usual words",
    ),
    # -- iterations, most telling first
    Rule("torchtune", MarkKind.ITERATION, r"^\d{1,6}\|(?P<iteration>\d{1,12})\|Loss: ", "torchtune: recipes"),
    Rule(
        "progress bar",
        MarkKind.ITERATION,
        r"\d+/\d+ \[\d+:\d\d(?::\d\d)?<[^\]]{1,24}, {1,3}[?\d.]+ ?(?:it/s|s/it)",
        "tqdm: Lightning, NeMo, Hugging Face Trainer",
    ),
    Rule(
        "nemo epoch",
        MarkKind.ITERATION,
        r"Training epoch (?P<epoch>\d+), iteration (?P<iteration>\d+)/(?P<total>\d+)",
        "NeMo 2: progress printer (counts from 0 in each epoch)",
    ),
    Rule("slashed", MarkKind.ITERATION, r"\b[Ii]teration:?\s{1,12}(?P<iteration>\d+)\s?/\s{0,12}\d+", "Megatron-LM: training.py"),
    Rule("torchtitan", MarkKind.ITERATION, r"\bstep:\s{1,8}(?P<iteration>\d+)\s{1,8}loss:", "torchtitan: components/metrics.py"),
    Rule("deepspeed pipe", MarkKind.ITERATION, r"\bsteps: (?P<iteration>\d+) loss: ", "DeepSpeed: runtime/pipe/engine.py"),
    Rule("deepspeed step", MarkKind.ITERATION, r"\bstep=(?P<iteration>\d+), skipped=\d+, lr=", "DeepSpeed: runtime/engine.py"),
    Rule("levanter", MarkKind.ITERATION, r"Progress on:train (?P<iteration>\d+)it/", "Levanter (JAX)"),
    Rule(
        "bracketed epoch",
        MarkKind.ITERATION,
        r"[Ee]poch:? ?\[(?P<epoch>\d+)\]\s?\[\s{0,8}(?P<iteration>\d+)/(?P<total>\d+)\]",
        "OpenMMLab, torchvision references",
    ),
    Rule(
        "mnist",
        MarkKind.ITERATION,
        r"Train Epoch: (?P<epoch>\d+) \[(?P<iteration>\d+)/(?P<total>\d+) \(",
        "PyTorch examples (counts samples)",
    ),
    Rule(
        "batch of epoch",
        MarkKind.ITERATION,
        r"[Ee]poch:?\s{1,4}(?P<epoch>\d+)[ ,|:]{1,6}(?:batch|step|iter)\s{1,4}(?P<iteration>\d+)/(?P<total>\d+)",
        "hand-written loops",
    ),
    Rule("step in slice", MarkKind.ITERATION, r"epoch: (?P<epoch>\d+), step_in_slice: (?P<iteration>\d+)/(?P<total>\d+)", "FunASR"),
    Rule(
        "epoch dict",
        MarkKind.ITERATION,
        r"""\{['"]loss['"]: ["']?[-\w.+]+["']?, """,
        "Hugging Face Trainer: no number, a sign of life and a loss",
    ),
    Rule("took", MarkKind.ITERATION, r"\bIteration took [\d.]+ ?s\b", "hand-written loops"),
    Rule("batch", MarkKind.ITERATION, r"\b[Bb]atch:?\s{1,4}(?P<iteration>\d{1,12})\b", "hand-written loops", needs_payload=True),
    Rule(
        "counted",
        MarkKind.ITERATION,
        r"\b" + _STEP_WORD + _COUNT,
        "TensorFlow, JAX, verl, OLMo, fairseq, hand-written loops",
        needs_payload=True,
    ),
)

# A number behind "step" alone is no training step: one of these must be on the line too.
PAYLOAD = re.compile(
    r"(?i)loss|\blr\b|learning.rate|grad|\btok(?:en)?s?\b|samples|reward|it/s|/step|/iter|/it\b|/sec|sec/|throughput|mfu|tflop|ppl"
    r"|perplexity|\beta\b|\bepoch\b|\bep \d|elapsed|\btime\b|speed|accuracy|entropy|\bwps\b|\bups\b|host_mem"
)
# Before the number: then it counts something else than training.
EVALUATING = re.compile(r"(?i)\b(?:eval(?:uat\w+)?|valid(?:ation|ating)?|val|test(?:ing)?|predict\w*|sanity)\b")
NOT_SAVED = re.compile(r"(?i)\b(?:fail(?:ed|ure)?|could not|cannot|can't|unable|error|exception|not sav|without|no checkpoint|skip\w*)\b")
NOT_YET_SAVED = re.compile(r"(?i)\b(?:about to be|will be|to be saved|of size|shard)\b|_states\.pt|-of-\d{5}")

GLOBAL_STEP = re.compile(r"""\b(?:global[_ ]?step|num_updates)["']?\s?[=:]\s?["']?(?P<iteration>\d+)""")
CHECKPOINT_NUMBER = re.compile(
    r"(?i)(?<![a-z])(?:iteration|iter|global_?step|step|updates?)[-_= :]{0,3}\s{0,8}0*(?P<iteration>\d+)|checkpoint[-_]0*(?P<named>\d+)"
)

_LONGEST_COUNT = 15  # digits; no training run counts as far, and JSON for programs ends at 64 bits


def count_in(digits: str | None) -> int | None:
    """An iteration as a log or a file name writes it; None for what is longer than any count (and for None)."""
    return None if digits is None or len(digits) > _LONGEST_COUNT else int(digits)


_BAR_COUNT = re.compile(r"(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[\d+:\d\d(?::\d\d)?<")
_BAR_PERCENT = re.compile(r":?\s{0,4}\d{1,3}%$")
BAR_EPOCH = re.compile(r"(?i)epoch:?\s?\[?(?P<epoch>\d+)")
BAR_OF_TRAINING = re.compile(r"(?i)^\s*$|\bepochs? ?\[?\d|train|\bsteps?\b|\biter|progress")


@dataclass(frozen=True, slots=True)
class Bar:
    """A tqdm bar: `label: 12%|#  | 12/100 [00:12<01:28, ...]`; drawn narrow it has neither label nor per cent."""

    label: str
    done: int
    total: int


def bar_in(text: str) -> Bar | None:
    """The last bar drawn in `text`, or None."""
    last, end_before = None, 0
    for match in _BAR_COUNT.finditer(text):
        last, end_before = match, last.end() if last else 0
    if last is None:
        return None
    before = text[end_before : last.start()].rsplit("|", 2)
    percent = _BAR_PERCENT.search(before[0][-200:]) if len(before) == 3 else None
    label = before[0][-200:][: percent.start()] if percent else ""
    return Bar(label.rpartition("|")[2].rpartition("]")[2], int(last["done"]), int(last["total"]))


_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "ms": 0.001}
_STEP_TIMES: tuple[re.Pattern[str], ...] = (
    re.compile(r"elapsed time per iteration \((?P<unit>ms|s)\):\s{0,8}(?P<time>[\d.]{1,24})"),
    re.compile(r"\biter time \((?P<unit>s)\): (?P<time>[\d.]{1,24})"),
    re.compile(r"train_step_timing in (?P<unit>s)\s?[:=]\s?(?P<time>[\d.]{1,24})"),
    re.compile(
        r"""(?:(?:step|iter|batch)_time|time_per_step|timing_s/step|step time)["']?\s?[:=]\s?(?P<time>[\d.]{1,24})\s?(?P<unit>ms|s)?"""
    ),
    re.compile(r"(?P<time>[\d.]{1,24})\s?(?P<unit>ms|s|secs?)/(?:iter|it|i|step|batch)\b"),
    re.compile(r"\bIteration took (?P<time>[\d.]{1,24}) ?(?P<unit>s)\b"),
    re.compile(r", time: (?P<time>[\d.]{1,24})(?P<unit>), data_time"),
    re.compile(r"\btime (?P<time>[\d.]{1,24})(?P<unit>ms),"),
)
_STEP_RATES: tuple[re.Pattern[str], ...] = (
    re.compile(r"(?P<rate>[\d.]{1,24})\s?(?:it|iters?|steps?|batch(?:es)?)/s(?:ec)?\b"),
    re.compile(r""""ups": "?(?P<rate>[\d.]{1,24})"""),
)
_NUMBER = r"(?P<loss>[-+]?(?:\d{1,24}\.?\d{0,24}(?:e[-+]?\d{1,4})?|nan|inf(?:inity)?))"
_LOSSES: tuple[re.Pattern[str], ...] = (
    re.compile(
        rf"""(?i)(?<!val )(?<!valid )(?<!eval )(?<![\w/])(?:lm )?loss(?:/train)?["']?\s{{0,3}}[:=]?\s{{0,3}}["']?{_NUMBER}(?![\w.])"""
    ),
    re.compile(rf"""(?i)(?<![\w/])(?!val|eval|test)[\w/]{{0,40}}loss["']?\s{{0,3}}[:=]\s{{0,3}}["']?{_NUMBER}(?![\w.])"""),
)


def step_seconds_in(text: str) -> float | None:
    """Seconds per iteration as an iteration line tells, or None."""
    for pattern in _STEP_TIMES:
        match = pattern.search(text)
        if match:
            seconds = _float(match["time"])
            return None if seconds is None or seconds <= 0 else seconds * _SECONDS[match["unit"] or ""]
    for pattern in _STEP_RATES:
        match = pattern.search(text)
        if match:
            rate = _float(match["rate"])
            return None if rate is None or rate <= 0 else 1 / rate
    return None


def loss_in(text: str) -> float | None:
    """The training loss on an iteration line, NaN and infinity included, or None."""
    for pattern in _LOSSES:
        match = pattern.search(text)
        if match:
            return _float(match["loss"])
    return None


def _float(digits: str) -> float | None:
    try:
        return float(digits)
    except ValueError:
        return None  # 1.2.3: looks like a number and is none
