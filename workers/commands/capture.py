"""What `diagnose` was given on the command line, as the engine's `Signals`: logs, directories, standard input, case files,
and beside them scheduler JSON, kernel logs, GPU snapshots and flight-recorder dumps.

The paths are the caller's own words on his own machine, so they are opened as they are; a worker never comes here.
"""

import json
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from activities.diagnosis.casefile import CaseUnreadable, read_case
from activities.diagnosis.signals import LogSource, Signals
from activities.outside_text import TextRefused, json_value
from activities.records import Job, JobState
from activities.slurm.hostlist import HostlistInvalid, expand
from activities.slurm.parsing import jobs_from
from activities.slurm.scheduler import SchedulerUnreadable
from workers.commands.errors import BadUsage, CommandFailed

LOG_SUFFIXES = frozenset({"", ".log", ".out", ".err", ".txt", ".stdout", ".stderr"})
CASE_SUFFIXES = frozenset({".yaml", ".yml"})
DUMP_MARK = "trace_rank"  # TORCH_NCCL_DEBUG_INFO_TEMP_FILE's default is /tmp/nccl_trace_rank_<n>
STANDARD_INPUT = "-"


@contextmanager
def captured(
    paths: Sequence[str],
    *,
    scheduler: Path | None = None,
    kernel_logs: Sequence[str] = (),
    gpu: Path | None = None,
    dumps: Path | None = None,
) -> Iterator[Signals]:
    """The signals, for as long as the context is open (standard input is kept in a temporary file meanwhile).

    Args:
        paths: logs, directories of logs, case files, or `-`.
        scheduler: JSON of what the scheduler said.
        kernel_logs: `NODE=FILE`, or `FILE` where each line begins with its node.
        gpu: JSON of GPU readings.
        dumps: directory of NCCL flight-recorder dumps.

    Raises:
        BadUsage: an option cannot be what it says.
        CommandFailed: a path cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="backstay-diagnose-") as directory:
        signals = Signals()
        for path in paths:
            signals = _joined(signals, _of_path(path, Path(directory)))
        if scheduler is not None:
            signals = _with_scheduler(signals, _mapping(scheduler))
        if kernel_logs:
            signals = signals.model_copy(update={"kernel_logs": {**signals.kernel_logs, **dict(map(_kernel_log, kernel_logs))}})
        if gpu is not None:
            signals = signals.model_copy(update={"gpu_snapshots": _mapping(gpu)})
        if dumps is not None:
            signals = signals.model_copy(update={"flight_recorder": (*signals.flight_recorder, *_dumps_in(dumps))})
        yield signals


def job_of(signals: Signals) -> Job:
    """The job as far as the signals tell; a batch job that may be requeued where they say nothing."""
    if signals.job is not None:
        return signals.job
    said = signals.scheduler
    state = str(said.get("state", "")).partition(" ")[0]
    return Job(
        job_id=str(said.get("job_id", "unknown")),
        numeric_id=0,
        state=JobState(state) if state in JobState.__members__ else JobState.UNKNOWN,
        nodes=_nodes(said.get("nodes")),
        is_batch=True,
        may_requeue=True,
    )


# ---------------------------------------------------------------------------------------------------------------- paths


def _of_path(name: str, directory: Path) -> Signals:
    if name == STANDARD_INPUT:
        return Signals(logs=(LogSource(name="standard input", path=_kept_standard_input(directory)),))
    path = Path(name)
    if path.is_dir():
        files = _files_in(path)
        dumps = tuple(file for file in files if DUMP_MARK in file.name)
        logs = tuple(file for file in files if file not in dumps and file.suffix in LOG_SUFFIXES)
        if not logs and not dumps:
            raise CommandFailed(f"{path} holds no log ({', '.join(sorted(LOG_SUFFIXES - {''}))} or no suffix); name the files themselves")
        return Signals(logs=tuple(LogSource(name=str(file), path=file) for file in logs), flight_recorder=dumps)
    _check_readable(path)
    if path.suffix in CASE_SUFFIXES and (case := _case(path)) is not None:
        return case
    return Signals(logs=(LogSource(name=str(path), path=path),))


def _files_in(directory: Path) -> tuple[Path, ...]:
    """Every regular file below, hidden ones left out, in the order of their names."""
    try:
        found = sorted(file for file in directory.rglob("*") if file.is_file())
    except OSError as error:
        raise CommandFailed(f"cannot read {directory}: {error.strerror}") from error
    return tuple(file for file in found if not any(part.startswith(".") for part in file.relative_to(directory).parts))


def _dumps_in(directory: Path) -> tuple[Path, ...]:
    """What the directory holds; where that is nothing, the directory itself, so that whoever reads dumps says so."""
    try:
        if not stat.S_ISDIR(directory.stat().st_mode):
            raise BadUsage(f"--dumps {directory} is no directory; name the one that holds one dump a rank")
    except OSError as error:
        raise CommandFailed(f"cannot read {directory}: {error.strerror}") from error
    return _files_in(directory) or (directory,)


def _check_readable(path: Path) -> None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # /dev/zero has no end, and a FIFO is waited for and cannot be read twice
            raise BadUsage(f"{path} is no plain file; name one, or pipe it in and name {STANDARD_INPUT}")
        with path.open("rb"):
            return
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}") from error


def _kept_standard_input(directory: Path) -> Path:
    """A pipe cannot be read twice, and may be longer than memory."""
    kept = directory / "stdin"
    with kept.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return kept


# ----------------------------------------------------------------------------------------------------------- case files


def _case(path: Path) -> Signals | None:
    """A recorded case, or None when the YAML file is none (then it is read as a log)."""
    try:
        signals, _ = read_case(path)
    except CaseUnreadable as refusal:
        if refusal.is_beyond_bounds:
            raise BadUsage(f"{refusal}; to have it read as a log, pipe it in and name {STANDARD_INPUT}") from refusal
        return None
    # The reader keeps what the scheduler said in its own words; the job it describes is made here, as for `--scheduler`.
    return _with_scheduler(signals, signals.scheduler)


# -------------------------------------------------------------------------------------------------------------- options


def _with_scheduler(signals: Signals, said: Mapping[str, Any]) -> Signals:
    """What the scheduler said: Slurm's own JSON (`squeue --json`, `scontrol show job --json`) as the job it tells of, anything
    else in its own words. The job's nodes help to map ranks, so they are expanded here."""
    if isinstance(said.get("jobs"), list):
        return signals.model_copy(update={"job": _first_job(said)})
    joined = signals.model_copy(update={"scheduler": {**signals.scheduler, **said}})
    return joined.model_copy(update={"job": job_of(joined)}) if said.get("nodes") or said.get("state") else joined


def _first_job(document: Mapping[str, Any]) -> Job:
    try:
        jobs = jobs_from(json.dumps(document, default=str).encode())
    except SchedulerUnreadable as error:
        raise BadUsage(f"the scheduler's JSON cannot be understood: {error}") from error
    if not jobs:
        raise BadUsage("the scheduler's JSON tells of no job; ask for one, such as `scontrol show job 1234 --json`")
    return jobs[0]


def _nodes(value: Any) -> tuple[str, ...]:
    """Node names out of a hostlist or a list; prose such as '128 hosts' names none."""
    names = value if isinstance(value, list) else [value] if isinstance(value, str) and " " not in value else []
    try:
        return tuple(node for name in names for node in expand(str(name)))
    except HostlistInvalid:
        return ()


def _kernel_log(option: str) -> tuple[str, str]:
    node, separator, file = option.rpartition("=")
    path = Path(file)
    _check_readable(path)
    return (node if separator else ""), path.read_text(encoding="utf-8", errors="replace")


def _mapping(path: Path) -> Mapping[str, Any]:
    try:
        value = json_value(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}") from error
    except TextRefused as refusal:
        raise BadUsage(f"{path}: {refusal}") from refusal
    if not isinstance(value, dict):
        raise BadUsage(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def _joined(one: Signals, other: Signals) -> Signals:
    return one.model_copy(
        update={
            "logs": (*one.logs, *other.logs),
            "job": other.job or one.job,
            "scheduler": {**one.scheduler, **other.scheduler},
            "kernel_logs": {**one.kernel_logs, **other.kernel_logs},
            "gpu_snapshots": {**one.gpu_snapshots, **other.gpu_snapshots},
            "flight_recorder": (*one.flight_recorder, *other.flight_recorder),
        }
    )
