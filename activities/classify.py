"""The step `classify`: capture the evidence while it is still there, then ask the engine what happened first.

Called by `workflows/judging.py` before anything is changed: a requeue truncates the job's stdout.
"""

import asyncio
import io
import os
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pydantic import AwareDatetime, Field
from temporalio import activity

from activities.batch_script import layout_of
from activities.beat import heartbeats
from activities.diagnosis.engine import Engine
from activities.diagnosis.flight_recorder import DumpUnreadable
from activities.diagnosis.signals import LogSource, Signals
from activities.dumps import Dumps, dumps_of
from activities.evidence.capture import EvidenceStore, Material
from activities.logs.follow import goes_on_from, was_last_written_before
from activities.logs.paths import LogRoots, PathRefused, log_path_of
from activities.records import Attempt, Evidence, FileCursor, Job, Judgement, Node, NodeHistory, OptIn, Progress, Record, Symptom
from activities.redaction import is_redacted, redact_record
from activities.scanning.scan import READ_BYTES, blocks, line_breaks
from activities.slurm.clock import Clock
from activities.slurm.scheduler import Scheduler, SchedulerError

TRIES_TO_READ = 4
"""With the pauses between the tries some seven seconds."""

CLOCKS_DIFFER = timedelta(minutes=1)
"""How far a file server's clock may be behind Slurm's at most: no job's last words must pass for an earlier job's."""

DUMPS_SETTLE = timedelta(seconds=15)
"""How long after the first ranks the last ones may still write their flight-recorder dumps: torch waits so long for them before it ends
a process (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC). One not yet written would pass for a rank that left none."""

_REQUEUED = re.compile(rb"CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) DUE TO (?:JOB REQUEUE|PREEMPTION)[^\n]*\n?")
"""slurmstepd's last word to an attempt that was put back into the queue (slurmstepd/req.c), with the node's local time."""

_END_OF_AN_ATTEMPT = timedelta(minutes=10)
"""How long a requeued job may take to be pending, which is when Slurm sets its SubmitTime: KillWait, and the epilogs."""

_ZONES = tuple(timezone(timedelta(minutes=15 * quarters)) for quarters in range(-48, 57))
_IN_SOME_ZONE = timedelta(seconds=90)
"""The same where only another zone than this machine's makes the times fit: quarters of an hour leave no room for more."""


class ClassifyRequest(Record):
    """One fault of one attempt, as it was detected."""

    incident_id: str
    attempt: Attempt
    job: Job
    opt_in: OptIn
    symptom: Symptom
    progress: Progress = Progress()
    logs_began: tuple[FileCursor, ...] = Field(
        default=(),
        description="how far earlier attempts had written the logs that this one goes on with (JobFileAppend, --open-mode=append)",
    )
    silent_since: AwareDatetime | None = Field(
        default=None, description="when the attempt last wrote, by the watch; None: not known, as where its log cannot be read"
    )
    node_history: NodeHistory = Field(
        default=NodeHistory(), description="what the cluster remembers of the attempt's nodes; empty: it was not asked"
    )


class Classify:
    """One instance a worker; the engine is compiled once and shared."""

    def __init__(self, scheduler: Scheduler, engine: Engine, store: EvidenceStore, roots: LogRoots, *, clock: Clock) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._store = store
        self._roots = roots
        self._clock = clock

    @activity.defn
    async def capture_evidence(self, request: ClassifyRequest) -> Evidence:
        """Excerpts of the log, the scheduler's record, node states and the batch script: bounded, redacted, hashed.

        What cannot be read is noted in `unreadable`, never an error."""
        missing: list[str] = []
        async with heartbeats("capturing evidence"):
            nodes = await self._nodes_of(request.attempt, missing)
            script = await self._script(request.job, missing)
            logs = self._logs_of(request, await self._as_named(request.job, missing), missing)
            material = Material(
                job=request.job, nodes=nodes, logs=logs, signals=request.symptom.signals, batch_script=script, unreadable=missing
            )
            return await asyncio.to_thread(
                self._store.capture,
                material,
                key=request.attempt.key,
                incident_id=request.incident_id,
                captured_at=self._clock.now(),
            )

    @activity.defn
    async def diagnose(self, request: ClassifyRequest) -> Judgement:
        """The first cause, the suspects or an honest unknown, by all that this attempt wrote and what Slurm says of the nodes.

        A log that is not there, or cannot be read after `TRIES_TO_READ`, holds nothing up: then the rest has to do.
        `unreadable` of the evidence has told it."""
        missing: list[str] = []
        async with heartbeats("diagnosing"):
            paths = self._logs_of(request, await self._as_named(request.job, missing), missing)
            was_requeued = request.job.restart_count > request.attempt.restart_count
            job, script = _as_it_ran(request), await self._script(request.job, missing)
            dumps = await self._dumps(request, job, script)
            signals = Signals(
                job=job,
                scheduler={"requeued": "yes"} if was_requeued else {},
                flight_recorder=dumps.paths,
                dump_opener=self._opened_dump,
                layout=layout_of(job, script),
                nodes=await self._nodes_of(request.attempt, missing),
                symptom=request.symptom,
                progress=request.progress,
                node_history=request.node_history,
                silent_seconds=_silent_seconds(request),
            )
            try:
                judgement = await asyncio.to_thread(self._judged, signals, paths, request)
            except OSError:
                if activity.info().attempt < TRIES_TO_READ:
                    raise  # a file system in trouble may answer a moment later
                judgement = await asyncio.to_thread(self._engine.judge, signals)
            judgement = judgement.model_copy(update={"notes": (*dumps.notes, *judgement.notes)})
            return redact_record(_of_this_attempt(judgement, _ran_on(request)))

    async def _dumps(self, request: ClassifyRequest, job: Job, script: str | None) -> Dumps:
        """The attempt's flight-recorder dumps, once all of its ranks have written theirs or had the time to."""
        own = job.model_copy(update={"restart_count": request.attempt.restart_count})
        since = request.attempt.started_at
        for _ in range(int(DUMPS_SETTLE.total_seconds())):
            found = await asyncio.to_thread(dumps_of, own, request.opt_in, script, self._roots, since=since)
            tasks = job.task_count or 0
            is_complete = len(found.paths) >= tasks > len(job.nodes)
            if found.newest_at is None or is_complete or self._clock.now() - found.newest_at >= DUMPS_SETTLE:
                break
            await asyncio.sleep(1)
        return found

    def _opened_dump(self, path: Path) -> BinaryIO:
        try:
            return self._roots.open(path)
        except PathRefused as refusal:
            raise DumpUnreadable(str(refusal)) from refusal

    def _judged(self, signals: Signals, paths: Sequence[Path], request: ClassifyRequest) -> Judgement:
        return self._engine.judge(signals.model_copy(update={"logs": tuple(self._log_of_this_attempt(path, request) for path in paths)}))

    def _log_of_this_attempt(self, path: Path, request: ClassifyRequest) -> LogSource:
        """The log from where this attempt began to write it: what ended the one before stands above, and would be found first."""
        at = lines_before = 0
        with self._opened(path) as file:
            if isinstance(file, io.FileIO) and request.attempt.restart_count > 0:
                at = max((cursor.offset_bytes for cursor in request.logs_began if goes_on_from(file, cursor)), default=0)
                if request.job.restart_count == request.attempt.restart_count:  # or the last requeue is this attempt's own end
                    at = _after_the_last_requeue(file, at, request.job.submitted_at, request.attempt.started_at)
            if isinstance(file, io.FileIO) and was_last_written_before(
                os.fstat(file.fileno()), request.attempt.started_at, clocks_differ=CLOCKS_DIFFER
            ):
                at = file.seek(0, io.SEEK_END)
            if at > 0:
                lines_before = _line_breaks_before(file, at)
        return LogSource(name=str(path), path=path, opener=partial(self._opened, at=at), starts_at_line=1 + lines_before)

    def _opened(self, path: Path, at: int = 0) -> BinaryIO:
        """The log, or an empty one where there is none: a job that failed before it wrote anything has no log."""
        try:
            file = self._roots.open(path)
        except (PathRefused, FileNotFoundError, PermissionError):
            return io.BytesIO()
        file.seek(at)
        return file

    async def _as_named(self, job: Job, missing: list[str]) -> Job:
        """The job with the name and paths that Slurm knows: where they held a secret, the history's are not those of any file."""
        if not any(is_redacted(text) for text in (job.name, job.stdout_path, job.stderr_path, job.working_directory)):
            return job
        try:
            now = await self._scheduler.job(job.job_id)
        except SchedulerError as silence:
            missing.append(f"log: its path holds a secret, and Slurm does not tell it again: {silence}")
            return job
        paths = {"stdout_path": now.stdout_path, "stderr_path": now.stderr_path, "working_directory": now.working_directory}
        return job.model_copy(update={"name": now.name, **paths})

    def _logs_of(self, request: ClassifyRequest, job: Job, missing: list[str]) -> tuple[Path, ...]:
        """The job's output and, where it is another file, its error output; each only under an allowed root."""
        named = [log_path_of(job, request.opt_in)]
        if job.stderr_path and job.stderr_path != job.stdout_path:
            named.append(log_path_of(job.model_copy(update={"stdout_path": job.stderr_path}), OptIn()))
        allowed: list[Path] = []
        for path in filter(None, named):
            try:
                allowed.append(self._roots.check(path))
            except (PathRefused, OSError) as refusal:
                missing.append(str(refusal))
        return tuple(dict.fromkeys(allowed))

    async def _nodes_of(self, attempt: Attempt, missing: list[str]) -> tuple[Node, ...]:
        try:
            return tuple(node for node in await self._scheduler.nodes() if node.name in attempt.nodes)
        except SchedulerError as silence:
            missing.append(f"node states: {silence}")
            return ()

    async def _script(self, job: Job, missing: list[str]) -> str | None:
        if job.is_batch is not True:
            return None
        try:
            return await self._scheduler.batch_script(job.job_id)
        except SchedulerError as silence:
            missing.append(f"batch script: {silence}")
            return None


def _ran_on(request: ClassifyRequest) -> tuple[str, ...]:
    """The attempt's nodes; empty where nobody saw them."""
    ran = request.job.nodes if request.job.restart_count == request.attempt.restart_count else ()
    return request.attempt.nodes or ran


def _silent_seconds(request: ClassifyRequest) -> float | None:
    """How long the attempt had been silent when its fault was seen."""
    if request.silent_since is None:
        return None
    return max(0.0, (request.symptom.detected_at - request.silent_since).total_seconds())


def _as_it_ran(request: ClassifyRequest) -> Job:
    """The job with the attempt's own nodes: one that Slurm has requeued meanwhile shows none, or the next attempt's."""
    nodes = _ran_on(request)
    return request.job.model_copy(update={"nodes": nodes, "node_count": len(nodes) or request.job.node_count})


def _of_this_attempt(judgement: Judgement, nodes: Collection[str]) -> Judgement:
    """The judgement with suspects among the attempt's nodes only. A log can name any node, by mistake or on purpose."""
    own = judgement.attribution.only_on(nodes)
    left_out = sorted(set(judgement.attribution.nodes) - set(own.nodes))
    if not left_out:
        return judgement
    ran = f"ran on {', '.join(sorted(nodes))}" if nodes else "ran on nodes that nobody saw"
    note = f"not suspected: {', '.join(left_out)}, which the evidence names; this attempt {ran}"
    return judgement.model_copy(update={"attribution": own, "notes": (*judgement.notes, note)})


def _after_the_last_requeue(file: BinaryIO, at: int, requeued_at: datetime | None, started_at: datetime | None) -> int:
    """Where what comes after the last requeue begins, from offset `at` on; `at` itself where no requeue is told that Slurm knows of.

    Args:
        requeued_at: Slurm's SubmitTime, which a requeue resets.
        started_at: of the attempt; what it printed itself ended no attempt before it.
    """
    file.seek(at)
    begins = at
    for offset, block in blocks(file):
        if b" DUE TO " in block:
            words = (word for word in _REQUEUED.finditer(block) if _is_of_the_requeue(word[1].decode(), requeued_at, started_at))
            begins = max([begins, *(at + offset + word.end() for word in words)])
    return begins


def _is_of_the_requeue(told: str, requeued_at: datetime | None, started_at: datetime | None) -> bool:
    """Whether a word with this local time may be the last requeue's: any program can print one, and Slurm knows when it requeued."""
    if requeued_at is None and started_at is None:
        return True  # nothing to compare with, and the restart count agrees
    try:
        naive = datetime.fromisoformat(told)
    except ValueError:
        return False
    latest = min(moment for moment in (requeued_at, started_at) if moment is not None) + timedelta(seconds=2)
    if any(latest - _END_OF_AN_ATTEMPT <= at <= latest for at in (naive.astimezone(), naive.replace(tzinfo=UTC))):
        return True
    return any(latest - _IN_SOME_ZONE <= naive.replace(tzinfo=zone) <= latest for zone in _ZONES)


def _line_breaks_before(file: BinaryIO, offset: int) -> int:
    """How many lines end in the first `offset` bytes."""
    file.seek(0)
    breaks = 0
    while offset > 0 and (block := file.read(min(offset, READ_BYTES))):
        breaks += line_breaks(block, 0, len(block))
        offset -= len(block)
    return breaks
