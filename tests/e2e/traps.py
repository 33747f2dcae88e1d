"""A `scontrol` of the test's own, in front of the real one: it can end the worker that called it, or keep Slurm's answer back.

Used by `test_worker_killed.py`, by way of `cluster.scheduler.bin_directory`.
"""

import os
import shutil
from enum import StrEnum
from pathlib import Path

PROGRAMS = ("squeue", "sinfo", "scancel", "scontrol")

SCRIPT = """#!/bin/bash
# A trap springs once, at the first command that holds its word: whoever moves the file away has it.
if [[ -e {trap} ]] && read -r when word < {trap} && [[ "$*" == *"$word"* ]] && mv {trap} {sprung} 2> /dev/null; then
  [[ $when == before ]] || {scontrol} "$@" > /dev/null 2>&1
  [[ $when == silent ]] && exec sleep 600
  kill -KILL $PPID
  exit 1
fi
exec {scontrol} "$@"
"""


class When(StrEnum):
    """What the trap does to the command that springs it."""

    BEFORE = "before"
    """The worker dies, and the command never reaches Slurm."""
    AFTER = "after"
    """Slurm has done it, and the worker dies before it hears so."""
    SILENT = "silent"
    """Slurm has done it, and the answer never comes."""


class Traps:
    """The directory of programs, and the one trap that may be set in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        path = f"{os.environ.get('PATH', '')}:/usr/local/bin:/usr/bin:/bin"
        real = {name: found for name in PROGRAMS if (found := shutil.which(name, path=path))}
        for name, program in real.items():
            if name != "scontrol":
                (directory / name).symlink_to(program)
        script = directory / "scontrol"
        script.write_text(SCRIPT.format(trap=self._trap, sprung=self._sprung, scontrol=real["scontrol"]))
        script.chmod(0o755)

    @property
    def _trap(self) -> Path:
        return self.directory / "trap"

    @property
    def _sprung(self) -> Path:
        return self.directory / "sprung"

    def set(self, when: When, word: str) -> None:
        """The next `scontrol` whose arguments hold `word` springs it."""
        self._sprung.unlink(missing_ok=True)
        draft = self.directory / "draft"
        draft.write_text(f"{when.value} {word}\n")
        draft.replace(self._trap)

    @property
    def has_sprung(self) -> bool:
        return self._sprung.exists()
