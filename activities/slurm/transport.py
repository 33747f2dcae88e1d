"""The one place that runs commands: a narrow protocol and its local implementation.

Callers: `commands.py` for Slurm's programs, the private cluster of tests and demo. Commands are argument lists, never
shell strings. Another way to reach a head node is another `Transport`; nothing here knows what the commands mean.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

# Slurm's programs read these to change their own output (squeue(1), sinfo(1), scontrol(1) "ENVIRONMENT VARIABLES"). A login
# environment that sets one must not change what we read, so all of them are dropped before ours are set.
_OUTPUT_CHANGING_PREFIXES = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SBATCH_", "SLURM_")
_FIXED = {"LC_ALL": "C", "LANG": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}


@dataclass(frozen=True)
class Completed:
    """How a command ended. `returncode` is negative for a signal, as in `subprocess`."""

    returncode: int
    stdout: bytes
    stderr: bytes


class TransportError(Exception):
    """The command could not be run to its end: nothing is known about its effect."""


class ProgramMissing(TransportError):
    """There is no such program on that machine."""


class ConfigurationMissing(TransportError):
    """There is no file where SLURM_CONF points."""


class CommandTimedOut(TransportError):
    """No end within the time given; the command was killed."""


class Transport(Protocol):
    """Runs one command somewhere and returns all of its output."""

    async def run(self, argv: Sequence[str], *, timeout: timedelta, stdin: bytes | None = None) -> Completed:  # noqa: ASYNC109
        """Runs `argv` (program first) to its end.

        Raises:
            ProgramMissing: there is no such program.
            CommandTimedOut: it did not end within `timeout`.
            TransportError: the machine could not be reached, or refused to start it.
        """


class LocalTransport:
    """Commands on this machine, each in a process group of its own that dies with the wait for it.

    Args:
        slurm_conf: sets SLURM_CONF; None keeps the one of our own environment, or Slurm's own search.
        bin_directory: looked in before PATH.
    """

    def __init__(self, *, slurm_conf: Path | None = None, bin_directory: Path | None = None) -> None:
        self._environment = command_environment(os.environ, slurm_conf=slurm_conf, bin_directory=bin_directory)
        self._bin_directory = bin_directory

    async def run(self, argv: Sequence[str], *, timeout: timedelta, stdin: bytes | None = None) -> Completed:  # noqa: ASYNC109
        conf = self._environment.get("SLURM_CONF")
        if conf is not None and not await asyncio.to_thread(os.path.exists, conf):
            # Slurm's programs wait for a minute and more that it may appear (slurm_conf_init(), read_config.c), and say nothing of it.
            raise ConfigurationMissing(f"no Slurm configuration at {conf}: mend cluster.scheduler.slurm_conf or the variable SLURM_CONF")
        program = argv[0]
        if self._bin_directory is not None and "/" not in program:
            program = str(self._bin_directory / program)
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *argv[1:],
                stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ProgramMissing(f"no program {program} on this machine: install Slurm's client commands or set bin_directory") from error
        except OSError as error:
            raise TransportError(f"{program} could not be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                stdout, stderr = await process.communicate(stdin)
        except TimeoutError as error:
            raise CommandTimedOut(f"{' '.join(argv)}: no answer within {timeout.total_seconds():g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return Completed(process.returncode if process.returncode is not None else -signal.SIGKILL, stdout, stderr)


def command_environment(own: Mapping[str, str], *, slurm_conf: Path | None = None, bin_directory: Path | None = None) -> dict[str, str]:
    """The environment Slurm's commands get: ours without what changes their output, times in UTC and seconds."""
    kept = {name: value for name, value in own.items() if not name.startswith(_OUTPUT_CHANGING_PREFIXES)}
    if slurm_conf is not None:
        kept["SLURM_CONF"] = str(slurm_conf)
    elif "SLURM_CONF" in own:
        kept["SLURM_CONF"] = own["SLURM_CONF"]
    if bin_directory is not None:
        kept["PATH"] = f"{bin_directory}:{kept.get('PATH', os.defpath)}"
    return kept | _FIXED
