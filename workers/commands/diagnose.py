"""`backstay diagnose PATH…`: the engine on logs, with nothing else running: no Temporal, no Slurm, no configuration."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from activities.configuration import PolicySection
from activities.diagnosis.engine import Engine
from activities.policy import Situation, recommend
from activities.records import Judgement, Recommendation, Symptom, SymptomKind
from activities.redaction import redact_record
from workers.commands.capture import captured, job_of
from workers.commands.errors import ExitCode
from workers.commands.options import ConfigOption, JsonOption, open_configuration
from workers.commands.shapes import judgement_document
from workers.commands.terminal import print_json, printable, tell
from workers.commands.words import action_in_words, diagnosis_in_words, suspects_in_words


def diagnose(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Logs, directories of logs, a case file, or - for standard input.")],
    *,
    config: ConfigOption = None,
    scheduler: Annotated[
        Path | None, typer.Option("--scheduler", metavar="FILE", help="JSON of what the scheduler said.", show_default=False)
    ] = None,
    kernel_log: Annotated[
        list[str] | None,
        typer.Option("--kernel-log", metavar="[NODE=]FILE", help="Kernel log of a node; may be given again.", show_default=False),
    ] = None,
    gpu: Annotated[Path | None, typer.Option("--gpu", metavar="FILE", help="JSON of GPU readings.", show_default=False)] = None,
    dumps: Annotated[
        Path | None, typer.Option("--dumps", metavar="DIRECTORY", help="NCCL flight-recorder dumps.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what happened first, why, who is suspected, what was a mere consequence, and what to do. Exit code 1: a failure was found,
    0: none."""
    configuration = open_configuration(config) if config else None
    policy = configuration.policy if configuration else PolicySection()
    engine = Engine(configuration.attribution.signatures if configuration else ())
    with captured(paths, scheduler=scheduler, kernel_logs=kernel_log or (), gpu=gpu, dumps=dumps) as signals:
        judgement = redact_record(engine.judge(signals))  # it is pasted into tickets and chats
        job = job_of(signals)
    now = datetime.now(UTC)
    symptom = Symptom(kind=judgement.symptom, onset=now, detected_at=now, summary=judgement.diagnosis.summary)
    recommendation = recommend(
        Situation(
            symptom=symptom,
            diagnosis=judgement.diagnosis,
            attribution=judgement.attribution,
            job=job,
            progress=judgement.progress,
            mode=policy.mode if configuration else None,
            now=now,
            is_offline=True,
        ),
        policy,
    )
    if as_json:
        print_json(judgement_document(judgement, recommendation))
    else:
        for line in in_words(judgement, recommendation):
            tell(line)
    if judgement.symptom is not SymptomKind.NONE:
        raise typer.Exit(ExitCode.BAD)


def in_words(judgement: Judgement, recommendation: Recommendation) -> Iterator[str]:
    """The judgement for a person: what, why, who, what to do, on which lines."""
    if judgement.symptom is SymptomKind.NONE:
        yield "No failure found."
    else:
        yield f"{judgement.symptom.value.replace('_', ' ')}"
    yield from diagnosis_in_words(judgement.diagnosis)
    for line in suspects_in_words(judgement.attribution.suspects):
        yield f"  suspect: {line}"
    if not judgement.attribution.suspects:
        yield "  suspect: none named"
    progress = judgement.progress
    if progress.iteration is not None:
        step = f", {progress.step_seconds:.3g} s each" if progress.step_seconds is not None else ""
        saved = f"; newest checkpoint at {progress.checkpoint_iteration}" if progress.checkpoint_iteration is not None else ""
        yield f"  progress: iteration {progress.iteration}{step}{saved}"
    # What happened stands above already; the policy's sentence repeats it for those who read nothing else.
    reason = recommendation.why.removeprefix(judgement.diagnosis.summary).partition("): ")[2] or recommendation.why
    yield f"  what to do: {action_in_words(recommendation)}; {reason} [rule {recommendation.rule}]"
    if judgement.diagnosis.lines:
        yield "  it rests on:"
        for line in judgement.diagnosis.lines:
            yield f"    {printable(line)}"
    for note in judgement.notes:
        yield f"  note: {note}"
