"""When no line tells of a failure: slower (slowness.py), standing still, wrong numbers, ended without a word, or nothing wrong. Pure.

choosing.py calls it, with the case whose signals are looked at."""

import re
from itertools import pairwise

from activities.diagnosis import trends
from activities.diagnosis.case import Case
from activities.diagnosis.causality import Verdict
from activities.diagnosis.causes import UNKNOWN, cause_of
from activities.diagnosis.concluding import finish, of_primary
from activities.diagnosis.context import Refined
from activities.diagnosis.flight_recorder import Analysis, Finding
from activities.diagnosis.going_on import FAILED_EXIT, tells_of_a_bad_end
from activities.diagnosis.pace import Mark
from activities.diagnosis.reading import Observation
from activities.diagnosis.shown import short, shown_lines
from activities.diagnosis.signatures import Doing, Role, Turn
from activities.diagnosis.slowness import of_slowness
from activities.gpu.findings import Role as GpuRole
from activities.records import Attribution, Diagnosis, Domain, Judgement, PrimaryEvent, SymptomKind

_SILENT_SECONDS = 600.0  # a running job that printed nothing for so long, told by nobody else, stands still
# A kernel line with such a word was read, and says nothing that matters here.
_ALARMING_SIGHT = re.compile(r"(?i)error|fail|fatal|warn|critical|NVRM|mlx5|\blink is (?:up|down)|disconnect|too long")
_PAUSES = (Doing.CHECKPOINT, Doing.EVALUATION)
_ENDED_FROM_OUTSIDE = ("CANCELLED", "TIMEOUT", "DEADLINE")
_CERTAINLY_STEPLESS = 1800.0  # the same of a job that has ended: nobody can look any more whether it would have gone on
_STEPLESS_SECONDS = 300.0  # the same where lines go on, told by their stamps
_SILENT_IN_A_PHASE = 3600.0  # saving or evaluating a large model takes its time without a word


def of_no_event(case: Case, verdict: Verdict) -> Judgement:
    slow = of_slowness(case)
    if slow is not None and not case.facts.ended_badly and not case.facts.ended_well:
        return slow
    bad = _bad_numbers(case)
    if bad is not None:
        return bad
    hang = of_a_hang(case)
    if hang is not None:
        return hang
    if ended_badly(case):
        return _unexplained(case, verdict)
    notice = max(case.notices, key=lambda item: item.weight, default=None)
    recovered = [item for item in verdict.recovered if (cause := cause_of(item.cause or "")) and cause.symptom is SymptomKind.NONE]
    if notice is None and recovered:
        notice = recovered[0]
    if notice is not None:
        return finish(case, Refined(notice.cause or UNKNOWN, notice.weight), notice, symptom=SymptomKind.NONE)
    return _benign(case)


def ended_badly(case: Case) -> bool:
    """By Slurm's word or a launcher's; somebody's wish is no fault."""
    seen = case.facts.ended_badly or (_launcher_saw_it_fail(case) and not case.facts.ended_well)
    return seen and case.facts.state != "CANCELLED"


def _bad_numbers(case: Case) -> Judgement | None:
    # Detection speaks after three bad losses in a row, when the end of a long log does not show it yet. A spike may be over since.
    symptom = case.signals.symptom
    told = symptom if symptom is not None and symptom.kind is SymptomKind.BAD_NUMBERS and not case.numbers.spike_recovered else None
    if case.numbers.is_nan:
        text = "the loss is not a number"
    elif case.numbers.diverged:
        text = "the loss has diverged"
    elif told:
        text = told.summary or "the loss is not a number or has diverged"
    else:
        return None
    line = case.numbers.line or next((mark.line for mark in reversed(case.reading.marks) if mark.loss is not None), None)
    item = Observation("numbers", Role.PRIMARY, 0.75, text, "loss_divergence_nan", line=line, position=case.reading.bytes)
    return of_primary(case, item, Verdict(item, (), 0, False, ()))


def of_a_hang(case: Case) -> Judgement | None:
    """A job that stands still, or stood so until somebody or its limit ended it: its own later stamps tell, not the silence since."""
    ended = case.facts.state in _ENDED_FROM_OUTSIDE
    if (case.facts.ended_badly and not ended) or case.facts.ended_well:
        return None
    last = next((mark for mark in reversed(case.reading.marks) if mark.iteration is not None), None)
    told = case.signals.symptom is not None and case.signals.symptom.kind in (SymptomKind.HANG, SymptomKind.NO_CHECKPOINT)
    phase = case.phase_at(case.reading.bytes + 1)
    if not told and not (_stood_until_the_end(case, last) if ended else _is_silent_too_long(case, last, phase)):
        return None
    flight = case.flight if case.flight is not None and case.flight.finding is not Finding.NOTHING else None
    found = _why_it_stands(case, flight, last, phase, told=told)
    if found is None:
        return None
    rank = flight.ranks[0] if flight is not None and len(flight.ranks) == 1 else None
    text = "no step since" if last is None else f"no step after iteration {last.iteration}"
    since_step = _since_step(case, last)
    if since_step is not None and since_step > _STEPLESS_SECONDS:
        text += f", and lines for {since_step / 60:.0f} minutes more"
    line, at = (last.line, last.at) if last else (None, None)
    item = Observation("no_progress", Role.PRIMARY, found.confidence, text, found.cause, line=line, at=at, rank=rank)
    return finish(case, found, item, symptom=SymptomKind.HANG)


def _stood_until_the_end(case: Case, last: Mark | None) -> bool:
    since_step = _since_step(case, last)
    told_at = [mark.at for mark in case.reading.marks if mark.at is not None and mark.iteration is not None]
    between = max(((after - before).total_seconds() for before, after in pairwise(told_at)), default=0.0)  # few steps may be told of
    patience = max(_CERTAINLY_STEPLESS, 10 * _usual(case), 3 * between)
    return since_step is not None and since_step > patience and case.training_ended_at is None


def _usual(case: Case) -> float:
    step = trends.step_seconds(case.reading.marks)
    return sorted(value for _, value in step)[len(step) // 2] if step else 60.0


def _since_step(case: Case, last: Mark | None) -> float | None:
    """Seconds between the last step and the last line, by the log's own stamps."""
    return (case.reading.last_at - last.at).total_seconds() if last and last.at and case.reading.last_at else None


def _is_silent_too_long(case: Case, last: Mark | None, phase: Doing | None) -> bool:
    """True when the log, or its steps, stopped for longer than what the job does at its end may take."""
    usual = _usual(case)
    stacks = (item for item in case.observations if item.signature in ("dataloader_stuck", "stacks_taken"))
    lost_patience = any(not case.steps.went_on_after(item) for item in stacks)  # whoever takes stacks has
    is_waited_for = phase in (*_PAUSES, Doing.PREPROCESS) and not lost_patience
    patience = _SILENT_IN_A_PHASE if is_waited_for else _SILENT_SECONDS
    silent = case.facts.silent_seconds
    since_step = _since_step(case, last)
    return (silent is not None and silent > max(patience, 10 * usual)) or (
        since_step is not None and since_step > max(_STEPLESS_SECONDS, 10 * usual)
    )


def _why_it_stands(case: Case, flight: Analysis | None, last: Mark | None, phase: Doing | None, *, told: bool) -> Refined | None:
    """What names the reason, from the surest on; None where what was seen is no standing still after all."""
    told_or_silent = told or bool(case.facts.silent_seconds)
    if flight is not None and flight.finding is Finding.MISMATCH:
        return Refined("collective_mismatch", 0.85, flight.because)
    if flight is not None and flight.ranks:
        return Refined(UNKNOWN, 0.5, f"ranks {short(flight.ranks)} of group {flight.group}: {flight.because}")
    if any(item.signature == "prolog_running" for item in case.observations):
        return Refined("prolog_hung", 0.7, "Slurm still waits for the prolog")
    if case.training_ended_at is not None:
        return Refined("launcher_teardown_hang", 0.7, "the training had ended, its launcher has not")
    if phase is Doing.EVALUATION and told_or_silent:
        stuck = case.seen("dataloader_stuck")
        return Refined("dataloader_deadlock_eval" if stuck else "rank_deadlock_in_eval", 0.6, "evaluation had begun")
    if not told_or_silent and (phase in _PAUSES or _did_something_else_since(case, last)):
        return None
    if case.seen("dataloader_stuck"):
        return Refined("dataloader_deadlock_eval", 0.55, "a data loader stands still")
    if _hardware_is_clean(case):
        return Refined("nccl_library_bug_hang", 0.55, "kernel logs and GPUs of all nodes are clean, so a collective is stuck")
    return Refined(UNKNOWN, 0.3, "nothing tells why")


def _launcher_saw_it_fail(case: Case) -> bool:
    """True when a launcher tells of a process that ended with an error, and no step follows."""
    return any(FAILED_EXIT.search(item.text) for item in case.observations if _tells_of_an_end(case, item))


def _tells_of_an_end(case: Case, item: Observation) -> bool:
    """A launcher's word of a process that ended badly, and no step follows."""
    return tells_of_a_bad_end(item) and not case.steps.went_on_after(item)


def _did_something_else_since(case: Case, last: Mark | None) -> bool:
    """True when the last step was followed by a save or an evaluation, begun or ended: that time was not spent standing still."""
    return last is not None and any(told.position > last.position and told.turn.doing in _PAUSES for told in case.reading.phases)


def _hardware_is_clean(case: Case) -> bool:
    """Looked at and clean, which is more than not looked at."""
    readings = case.signals.gpu_snapshots
    looked = bool(readings) and (bool(case.signals.kernel_logs) or any("xid" in str(name).lower() for name in readings))
    return (
        looked
        and not any(finding.role is GpuRole.PRIMARY for finding in case.kernel)
        and not any(finding.role is GpuRole.PRIMARY for finding in case.gpu)
    )


def _unexplained(case: Case, verdict: Verdict) -> Judgement:
    recovered = [item for item in verdict.recovered if item.role is Role.PRIMARY]
    ended = [item for item in case.observations if _tells_of_an_end(case, item)]
    last = ended[0] if ended else recovered[-1] if recovered else None
    node = case.whereabouts.locate(last)[0] if last else None
    summary = f"the job ended as {case.facts.state or 'failed'} and nothing says why" + (
        "; the launcher first saw this process end" if ended else ""
    )
    return Judgement(
        symptom=case.symptom(None, None, default=SymptomKind.CRASH),
        diagnosis=Diagnosis(
            cause=UNKNOWN,
            confidence=0.2,
            summary=summary,
            primary=PrimaryEvent(text=last.text, line=last.line, at=last.at, rank=last.rank, node=node) if last else None,
            cascades=case.count(Role.CASCADE),
            benign=case.count(Role.BENIGN),
        ),
        attribution=Attribution(abstained=True, sources=("signatures",)),
        progress=case.progress(),
    )


def _benign(case: Case) -> Judgement:
    """Nothing is wrong; the most alarming of the harmless things is named."""
    scores: dict[str, float] = {"nothing_alarming": 0.0}
    if case.numbers.spike_recovered:
        scores["loss_spike_recovered"] = 1.0
    for finding in case.kernel:
        if (
            finding.role in (GpuRole.BENIGN, GpuRole.CONSEQUENCE)
            and (cause := cause_of(finding.cause)) is not None
            and cause.domain is Domain.NONE
        ):
            scores[cause.slug] = max(scores.get(cause.slug, 0), 0.9)
    if any(_ALARMING_SIGHT.search(lines) for lines in case.signals.kernel_logs.values()):
        scores["kernel_log_noise"] = 0.2  # whatever else is known to be harmless says more
    for item in case.outlived:
        scores["xid_145_nvlink_nonfatal" if "nonfatal" in item.text.lower() else "kernel_log_noise"] = 0.9
    for item in case.reading.observations:
        if item.role in (Role.BENIGN, Role.HINT) and (cause := cause_of(item.cause or "")) is not None and cause.domain is Domain.NONE:
            scores[cause.slug] = max(scores.get(cause.slug, 0), item.weight)
    for told in case.reading.phases:
        match told.turn:
            case Turn.TRAINING_ENDS if "exiting program" in told.text:
                scores["graceful_exit_duration"] = 0.95
            case Turn.TRAINING_ENDS:
                scores["graceful_exit_duration"] = max(scores.get("graceful_exit_duration", 0), 0.45)
            case Turn.CHECKPOINT_ENDS:
                scores["checkpoint_save_pause"] = 0.6
            case Turn.CHECKPOINT_BEGINS:
                scores.setdefault("checkpoint_save_pause", 0.55)
            case Turn.EVALUATION_BEGINS | Turn.EVALUATION_ENDS:
                scores["evaluation_phase"] = max(scores.get("evaluation_phase", 0), 0.58)
            case Turn.TRAINING_BEGINS | Turn.PREPROCESS_BEGINS | Turn.PREPROCESS_ENDS:
                continue
    slug = max(scores, key=lambda name: scores[name])
    cause = cause_of(slug)
    shown = next((item for item in case.reading.observations if item.cause == slug), None)
    if shown is None and slug == "kernel_log_noise":
        shown = next(iter(case.outlived), None)
    means = cause.means if cause else ""
    if shown is None and case.caught:
        shown = case.caught[-1]
        means = f"{means}; an exception at the end was printed by what caught it, and nothing says that the job ended"
    return Judgement(
        symptom=SymptomKind.NONE,
        diagnosis=Diagnosis(
            domain=Domain.NONE,
            cause=slug,
            confidence=0.5 if case.caught or not (case.facts.says_anything or case.reading.marks) else 0.8,
            summary=means,
            primary=PrimaryEvent(text=shown.text, line=shown.line, at=shown.at, rank=shown.rank, node=shown.node) if shown else None,
            benign=case.count(Role.BENIGN),
            lines=shown_lines([shown] if shown else []),
        ),
        attribution=Attribution(abstained=True, sources=("signatures",)),
        progress=case.progress(),
    )
