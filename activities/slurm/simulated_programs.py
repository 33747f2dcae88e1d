"""What a simulated job does while it runs: a scripted life that only costs a timer, or a real process of this machine.

Used by `simulated.py` and by those who submit to it (tests, benches, the demo on a laptop without Slurm).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Protocol

from activities.records import JobState


@dataclass(frozen=True, slots=True)
class Execution:
    """What Slurm tells an attempt about itself. Paths are already expanded."""

    job_id: str
    numeric_id: int
    restart_count: int
    nodes: tuple[str, ...]
    task_count: int
    stdout: Path | None = None
    stderr: Path | None = None
    append: bool = False
    working_directory: Path | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended. `state` None: told from the code and signal, as Slurm does."""

    code: int = 0
    signal: int | None = None
    state: JobState | None = None
    derived_code: int | None = None

    @property
    def final_state(self) -> JobState:
        if self.state is not None:
            return self.state
        return JobState.FAILED if self.code or self.signal else JobState.COMPLETED


class Running(Protocol):
    """An attempt in flight."""

    fate: tuple[datetime, Exit] | None
    """When and how a scripted life will end by itself; None when only `poll` can tell, or never."""
    is_process: bool

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs."""

    def end(self, *, force: bool) -> None:
        """SIGTERM, or SIGKILL with `force`, to all of it. Harmless when it has ended."""


class Program(Protocol):
    def start(self, execution: Execution, at: datetime) -> Running:
        """Begins one attempt."""


@dataclass(frozen=True, slots=True)
class Life:
    """One attempt's fate. `runs_for` None: runs until it is ended from outside. `broken` nodes end it with `exit` after
    `runs_for`, whatever the exit is; an attempt that avoids them goes on for ever. `deaf`: ignores SIGTERM."""

    runs_for: timedelta | None = None
    exit: Exit = Exit()
    broken: frozenset[str] = frozenset()
    deaf: bool = False


class ScriptedRun:
    is_process = False

    def __init__(self, life: Life, at: datetime) -> None:
        self.fate = None if life.runs_for is None else (at + life.runs_for, life.exit)
        self._deaf = life.deaf
        self._ended = False

    def poll(self) -> Exit | None:
        return Exit(signal=signal.SIGTERM) if self._ended else None

    def end(self, *, force: bool) -> None:
        self._ended = self._ended or force or not self._deaf


@dataclass(frozen=True, slots=True)
class Scripted:
    """A life per attempt, in order; the last one repeats."""

    lives: Sequence[Life] = (Life(),)

    def start(self, execution: Execution, at: datetime) -> Running:
        life = self.lives[min(execution.restart_count, len(self.lives) - 1)]
        if life.broken and not life.broken & set(execution.nodes):
            life = Life(deaf=life.deaf)
        return ScriptedRun(life, at)


def runs_for(duration: timedelta | float | None, exit_code: int = 0) -> Scripted:
    """Every attempt runs this long (bare numbers are seconds, None is for ever) and ends with this code."""
    return Scripted((Life(_duration(duration), Exit(code=exit_code)),))


def breaks_on(nodes: Collection[str], *, after: timedelta | float = 0.0, exit_code: int = 1) -> Scripted:
    """Fails on these nodes and runs for ever elsewhere: the plain bad-node story."""
    return Scripted((Life(_duration(after), Exit(code=exit_code), frozenset(nodes)),))


def _duration(value: timedelta | float | None) -> timedelta | None:
    return value if value is None or isinstance(value, timedelta) else timedelta(seconds=value)


class ProcessRun:
    """A process group of this machine. It leads its own group, so that ending it ends its children too."""

    fate: tuple[datetime, Exit] | None = None
    is_process = True

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> Exit | None:
        code = self._process.poll()
        if code is None:
            return None
        return Exit(code=code) if code >= 0 else Exit(signal=-code)

    def end(self, *, force: bool) -> None:
        if self._process.poll() is not None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL if force else signal.SIGTERM)
        except ProcessLookupError:
            return  # it ended between the two lines: what was wanted


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """Runs `argv` once per attempt, with the environment a batch script would see. One process plays all nodes and ranks."""

    argv: Sequence[str] = (sys.executable, "-c", "pass")
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, execution: Execution, at: datetime) -> Running:
        stdout, stderr = _outputs(execution)
        try:
            process = subprocess.Popen(
                list(self.argv),
                env={**os.environ, **slurm_environment(execution), **self.environment},
                cwd=execution.working_directory,
                stdin=subprocess.DEVNULL,
                stdout=stdout or subprocess.DEVNULL,
                stderr=stderr or (subprocess.STDOUT if stdout else subprocess.DEVNULL),
                start_new_session=True,
            )
        finally:
            for output in (stdout, stderr):
                if output is not None:
                    output.close()
        return ProcessRun(process)


def slurm_environment(execution: Execution) -> dict[str, str]:
    """The variables sbatch sets that training scripts read."""
    variables = {
        "SLURM_JOB_ID": str(execution.numeric_id),
        "SLURM_JOB_NODELIST": ",".join(execution.nodes),
        "SLURM_NNODES": str(len(execution.nodes)),
        "SLURM_NTASKS": str(execution.task_count),
    }
    if execution.restart_count:
        variables["SLURM_RESTART_COUNT"] = str(execution.restart_count)  # Slurm leaves it unset the first time
    if execution.array_task_id is not None:
        variables |= {"SLURM_ARRAY_JOB_ID": str(execution.array_job_id), "SLURM_ARRAY_TASK_ID": str(execution.array_task_id)}
    return variables


def prepare_output(execution: Execution) -> None:
    """What Slurm does to the log as an attempt starts: made if missing, and emptied unless `--open-mode=append`."""
    for output in _outputs(execution):
        if output is not None:
            output.close()


def _outputs(execution: Execution) -> tuple[IO[bytes] | None, IO[bytes] | None]:
    mode = "ab" if execution.append else "wb"
    stdout = execution.stdout.open(mode) if execution.stdout is not None else None
    separate = execution.stderr is not None and execution.stderr != execution.stdout
    return stdout, execution.stderr.open(mode) if separate and execution.stderr is not None else None
