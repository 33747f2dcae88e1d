"""How the job moves, from one of its own lines: iteration, seconds a step, throughput, loss, memory. Pure.

reader.py takes samples of a log (head, tail, windows between), so that a log made of progress lines costs no more than others;
trends.py says what many such lines mean together."""

import re
from dataclasses import dataclass
from datetime import datetime
from math import isfinite

# Lines worth a regular expression; in hyperscan's syntax.
PATTERNS = {
    "counted": r"(?i)(?:^|[^a-z0-9])(?:iteration|iter|global_step|opt_step|num_updates|step_in_slice|steps?|batch|it|update)"
    r"[\"']?\s{0,4}[:=#(\[]?\s{0,8}[\"']?\d+",
    "rated": r"(?i)\d\s?(?:it/s|(?:s|ms)/it|(?:s|ms|sec)/(?:step|batch|iter)|(?:samples|tok|tokens|examples|images|tasks?)/s)",
    "counted_back": r"\d+it/\d|\|\s{1,3}\d+/\d+ \[",
    "took": r"(?i)(?:iteration|step|batch|epoch)\s.{0,20}took\s+[\d.]+",
    "epoch": r"(?i)epoch(?:\[\d+\])? time(?: cost)?\s?[:=]\s?\d",
    "loss": r"(?i)[\"']?(?:\b|entropy)loss[\"']?\s{0,3}[:=]\s{0,3}[\"']?[-+0-9nif]",
    "throughput": r"(?i)throughput\b.{0,30}\d",
    "metered": r"(?i)\btime:?\s{1,4}\d+\.\d+s?(?:, [\d.,]+/s)?\s{1,3}\(\s?\d",
    # Without the word rank, which begins every line of some logs: with it, matching took eight times as long.
    "ranks": r"(?i)\.\d+(?: ?m?s)?[ ,]{1,3}(?:rank ?)?\d{1,5} ?[:=] ?\d+\.\d",
    "extremes": r"MnEtpt/Rank: \d+\.?\d*TF/\d+",
}

# Bounded, and with one way to match: a line of nothing but digits took minutes to be no figure.
_NUMBER = r"[-+]?(?:\d[\d,]{0,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
_ITS_NUMBER = r"[\"']?\s{0,20}[:=#(\[]?\s{0,20}[\"']?(\d+)"
_ITERATION = (
    re.compile(r"(?i)(?:^|[^a-z0-9_])(?:iteration|iter|global_step|global step|opt_step|num_updates|step_in_slice)" + _ITS_NUMBER),
    re.compile(r"(?i)(?:^|[^a-z0-9_/])(?:steps?|time step)" + _ITS_NUMBER),
    re.compile(r"(?:^|\s)(\d+)it/\d"),
    re.compile(r"\|\s*(\d+)/\d+ \["),
    re.compile(r"(?i)(?:^|[^a-z0-9_/])(?:batch|update|it)" + _ITS_NUMBER),
)
# Of each row: words of which the line must have one, in small letters. They spare most lines expressions that begin with a number
# and so are tried from each letter on.
_SECONDS = (
    (("elapsed time",), re.compile(rf"(?i)elapsed time per iteration \((ms|s)\):\s*({_NUMBER})"), "named"),
    (
        ("tim", "took", "(t)"),
        re.compile(
            r"(?i)(?:step[_ ]?time|train_step_timing in s|timing_s/step"
            r"|time[/_ ]per[_ ](?:step|iteration)|(?:iteration|step|batch)\s+(?:\d+\s+)?took|iter(?:ation)?[_ ]time(?: \(s\))?|batch \(t\))"
            rf"[\"']?\s{{0,20}}[:=]?\s{{0,20}}({_NUMBER})\s*(ms|s)?"
        ),
        "after",
    ),
    (
        ("/it", "/ it", "/step", "/ step", "/batch", "/ batch"),
        re.compile(rf"({_NUMBER})\s?(ms|s|sec|seconds)\s?/ ?(?:it|step|iter|iteration|batch)\b"),
        "after",
    ),
    (("it/s",), re.compile(rf"({_NUMBER})\s?it/s\b"), "per"),
    (("data_time",), re.compile(rf"(?i)\btime:\s*({_NUMBER}), data_time"), "after"),
    (("|",), re.compile(rf"\|\s*({_NUMBER})\s?(s)\s*$"), "after"),
)
# A field called time and no more (nanoGPT, timm, detectron2, torchvision's meters); a clock's reading has a colon or a dash in it.
# After one space it is a field of its own where the one before ended in a figure ("data time" is another).
_BARE_TIME = re.compile(rf"(?i)(?:(?:[,|;\t]|\s\s)\s{{0,4}}|(?<=[\d\])%] ))time(?:=|:?\s{{1,4}})({_NUMBER})\s?(ms|s)?(?![\d:/-])")
# nnU-Net, MXNet's callbacks: where nothing tells of steps.
_OF_EPOCH = re.compile(rf"(?i)epoch(?:\[\d{{1,6}}\])? time(?: cost)?\s?[:=]\s?({_NUMBER})")
_EPOCH = re.compile(r"(?i)\bepoch[\"']?\s{0,4}[:=#(\[]?\s{0,4}[\"']?(\d{1,6}(?:\.\d{1,6})?)(?![\d.])")
_ITS_RATE = rf"[^\d\n]{{0,40}}?[\"']?[:=]\s*[\"']?({_NUMBER})"
# What measures work goes before what counts samples: a sample may be made longer (sequence-length warm-up, answers that grow).
_RATE = (
    (
        ("throughput", "tok", "tps", "wps", "flop"),
        re.compile(r"(?i)(?:throughput(?!\S{0,20}batches)|tokens[_ ]per[_ ]second|tok/s/gpu|tokens/s|\btps|\bwps|tflops?\b)" + _ITS_RATE),
    ),
    (
        ("speed", "second", "/s", "persec"),
        re.compile(r"(?i)(?:speed|samples per second|(?:samples|examples|images|imgs|steps)/s(?:ec)?|samplespersec)" + _ITS_RATE),
    ),
    (("steps/s",), re.compile(rf"(?i)\bsteps/s(?:ec)? ({_NUMBER})")),
    (("/s",), re.compile(rf"(?i)({_NUMBER})\s?(?:samples|examples|tokens|tok|images|imgs|seqs)/s(?:ec)?")),
    (("algbw",), re.compile(rf"(?i)algbw\s+({_NUMBER})")),
)
_LOSS = re.compile(
    r"(?i)(?:^|[\s\"'|,(\[{/_:])(?:lm |train |training |per_token_|ce_|crossentropy|total_)?loss(?:_avg_rank)?[\"']?"
    rf"\s{{0,20}}[:=]?\s{{0,20}}[\"']?({_NUMBER})(?![\w/])"
)
_GRADIENT = re.compile(rf"(?i)(?:grad[ _]?norm|gnorm)[\"']?\s{{0,20}}[:=]?\s{{0,20}}[\"']?({_NUMBER})")
_RANKWISE = re.compile(r"(?:^|[\s,(\[{])(?:rank ?)?(\d{1,5}) ?[:=] ?(\d+\.\d+)(?=\s?m?s?(?:[\s,)\]}]|$))")
# Megatron's straggler report names only the extremes: the rank with the least throughput and the one with the most.
_EXTREMES = re.compile(r"MnEtpt/Rank: (\d+\.?\d*)TF/(\d{1,6}) \| MxEtpt/Rank: (\d+\.?\d*)TF/(\d{1,6})\b")
# What such a line by itself must speak of: memory and losses differ between ranks by right.
_OF_TIME = re.compile(r"(?i)\btimes?\b|step_?time|seconds|\bm?s\b|comput|forward|elapsed|latency|duration")
# Steps of an evaluation, beside which those of the training have another pace.
_EVALUATES = re.compile(r"(?i)^\W{0,3}(?:eval(?:uat\w{1,4})?|valid(?:at\w{1,4})?|test(?:ing)?|predict\w{0,4}|sanity check\w{0,3})\b")
_OF_TOTAL = re.compile(r"(?:^|[\s|(\[])(\d+)\s*/\s*(\d+)(?=[\s\])|,]|$)")
_HOST_MEMORY = re.compile(r"(?i)\b(?:host_?mem\w*|mem_used|cpu_?mem\w*|ram(?:_used)?|rss|host memory)\b\D{0,14}([\d.]+)\s?(?:%|[GT]i?B)")
_NOT_PROGRESS = re.compile(r"slurmstepd|srun: |StepId=|NCCL (?:INFO|WARN)|Traceback|^\s*File \"|frame #|Xid|WorkNCCL")


@dataclass(frozen=True, slots=True)
class Mark:
    """One line that tells how the job moves. None: the line does not say."""

    position: int
    line: int
    iteration: int | None
    seconds: float | None
    rate: float | None
    loss: float | None
    gradient: float | None
    at: datetime | None
    stream: str = ""
    by_rank: tuple[tuple[int, float], ...] = ()
    share_done: float | None = None
    bare_time: float | None = None  # seconds of a step, or since the start
    host_memory: float | None = None
    log: str = ""
    epoch_seconds: float | None = None
    rank: int | None = None  # who printed it
    epoch: float | None = None  # the epoch that the line names, within which it may count its steps


def mark_of(text: str, *, position: int, line: int, at: datetime | None, stream: str) -> Mark | None:
    """The mark a line makes; None when it has none."""
    text = text[:2000]
    if _NOT_PROGRESS.search(text):
        return None
    epoch = _number(found[1]) if "epoch" in text.lower() and (found := _OF_EPOCH.search(text)) else None
    iteration = next((int(found[1]) for pattern in _ITERATION if (found := pattern.search(text)) and len(found[1]) < 12), None)
    lowered = text.lower()
    seconds = _seconds_of(text, lowered)
    rates = (pattern.search(text) for words, pattern in _RATE if any(word in lowered for word in words))
    rate = next((value for found in rates if found and (value := _number(found[1])) is not None), None)
    loss = _number(found[1]) if (found := _LOSS.search(text)) else None
    gradient = _number(found[1]) if (found := _GRADIENT.search(text)) else None
    total = _OF_TOTAL.search(text)
    share = int(total[1]) / int(total[2]) if total and len(total[1]) < 12 and len(total[2]) < 12 and int(total[2]) > 0 else None
    memory = _number(found[1]) if (found := _HOST_MEMORY.search(text)) else None
    by_rank = tuple((int(rank), float(value)) for rank, value in _RANKWISE.findall(text)) if text.count(":") + text.count("=") >= 4 else ()
    by_rank = by_rank if len(by_rank) >= 4 and len({rank for rank, _ in by_rank}) == len(by_rank) else ()
    if (extremes := _EXTREMES.search(text)) and float(extremes[1]) > 0 < float(extremes[3]):
        by_rank = ((int(extremes[2]), 1 / float(extremes[1])), (int(extremes[4]), 1 / float(extremes[3])))
    elif iteration is seconds is loss is rate is share is epoch is None and not (by_rank and "rank" in lowered and _OF_TIME.search(text)):
        return None
    if epoch is not None:
        return Mark(position, line, None, None, None, None, None, at, stream, epoch_seconds=epoch)
    if _EVALUATES.match(text):
        return Mark(position, line, iteration, None, None, loss, gradient, at, stream, (), share, None, memory)
    named = _number(found[1]) if "epoch" in lowered and (found := _EPOCH.search(text)) else None
    bare = _BARE_TIME.search(text) if seconds is None and "time" in lowered else None
    bare_time = _number(bare[1]) if bare else None
    if bare and bare[2] == "ms" and bare_time is not None:
        bare_time /= 1000
    return Mark(position, line, iteration, seconds, rate, loss, gradient, at, stream, by_rank, share, bare_time, memory, epoch=named)


def _seconds_of(text: str, lowered: str) -> float | None:
    for words, pattern, form in _SECONDS:
        if not any(word in lowered for word in words) or not (found := pattern.search(text)):
            continue
        groups = [group for group in found.groups() if group]
        unit = next((group for group in groups if group.lower() in ("ms", "s", "sec", "seconds")), "s").lower()
        value = next((number for group in groups if (number := _number(group)) is not None), None)
        if value is None or not isfinite(value) or value <= 0:
            continue
        if form == "per":
            return 1 / value
        return value / 1000 if unit == "ms" else value
    return None


def _number(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
