"""Where a job's log is, and whether it may be opened: Slurm's `%` patterns, and the operator's allowed roots.

`LogRoots` is the one door through which files of users are opened. Called by the watch, the evidence capture and the
checkpoint scan; it never writes.
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from activities.records import Job, OptIn

# Slurm's own default file names (sbatch(1), --output).
DEFAULT_PATTERN = "slurm-%j.out"
DEFAULT_ARRAY_PATTERN = "slurm-%A_%a.out"

_MOST_PADDING = 10  # slurmd's fname.c, MAX_WIDTH
_NO_TASK = 4294967294  # NO_VAL: what slurmd prints for %a of a job that is no array task
_NO_LOG = ("/dev/null", "none")
_SYMBOL = re.compile(r"%(?:%|(?P<width>\d*)(?P<symbol>[A-Za-z]))")


class PathRefused(Exception):
    """A path that may not be opened. `mend` says what to change, and where."""

    def __init__(self, path: Path, why: str, mend: str) -> None:
        super().__init__(f"{path}: {why}; {mend}")
        self.path = path
        self.mend = mend


def _number(value: int | None, width: int) -> str | None:
    return None if value is None else f"{value:0{width}d}"


# What each symbol stands for in the output of the batch script (sbatch(1) "filename pattern"; print_fields.c
# `_expand_wildcard`). The batch script has node 0 and task 0, its step is "batch", and %J then is the job ID alone.
# Names are never padded ("this number is ignored if the format specifier corresponds to non-numeric data").
_SYMBOLS: dict[str, Callable[[Job, int], str | None]] = {
    "A": lambda job, width: _number(job.numeric_id if job.array_job_id is None else job.array_job_id, width),
    "a": lambda job, width: _number(_NO_TASK if job.array_task_id is None else job.array_task_id, width),
    "b": lambda job, width: _number((_NO_TASK if job.array_task_id is None else job.array_task_id) % 10, width),
    "J": lambda job, width: _number(job.numeric_id, width),
    "j": lambda job, width: _number(job.numeric_id, width),
    "N": lambda job, _: job.nodes[0].split(".", 1)[0] if job.nodes else None,
    "n": lambda _, width: _number(0, width),
    "r": lambda job, width: _number(job.restart_count, width),
    "S": lambda job, _: job.sluid,
    "s": lambda _, __: "batch",
    "t": lambda _, width: _number(0, width),
    "u": lambda job, _: job.user or None,
    "x": lambda job, _: job.name or None,
}


def expand_output_pattern(pattern: str, job: Job) -> str | None:
    """The path that Slurm writes to for `pattern`, absolute where the job's working directory is known.

    Args:
        pattern: what was given to `--output`; empty stands for Slurm's default.
        job: one look at the job. While it waits for nodes, `%N` cannot be known.

    Returns:
        None when a symbol's value, or the directory a relative path starts from, is not known.
    """
    pattern = pattern or (DEFAULT_PATTERN if job.array_task_id is None else DEFAULT_ARRAY_PATTERN)
    if "\\" in pattern:
        # One backslash anywhere switches replacement off, and Slurm drops the backslashes.
        return _absolute(pattern.replace("\\", ""), job)
    pieces: list[str] = []
    position = 0
    for match in _SYMBOL.finditer(pattern):
        pieces.append(pattern[position : match.start()])
        position = match.end()
        symbol, width = match["symbol"], match["width"]
        if symbol is None:
            pieces.append("%")
        elif symbol in _SYMBOLS:
            value = _SYMBOLS[symbol](job, min(int(width or 0), _MOST_PADDING))
            if value is None:
                return None
            pieces.append(value)
        else:
            # Not a symbol: Slurm leaves it as it is, but of a number keeps the last digit only.
            pieces.append(f"{width[-1]}{symbol}" if width else match[0])
    pieces.append(pattern[position:])
    return _absolute("".join(pieces), job)


def _absolute(path: str, job: Job) -> str | None:
    if path.startswith("/"):
        return path
    return f"{job.working_directory.rstrip('/')}/{path}" if job.working_directory else None


def log_path_of(job: Job, opt_in: OptIn) -> Path | None:
    """The log to follow: the one the user named in the comment, else the batch script's stdout. None: there is none, or not yet known."""
    if opt_in.log:
        path = expand_output_pattern(opt_in.log, job)
    elif job.is_batch is False and not job.stdout_path:
        return None
    else:
        path = expand_output_pattern(job.stdout_path or "", job)
    return None if path is None or path in _NO_LOG else Path(path)


def checkpoint_directory_of(job: Job, opt_in: OptIn) -> Path | None:
    """The checkpoint directory the comment names, absolute; `%` patterns are expanded as in a log's path."""
    path = expand_output_pattern(opt_in.checkpoints, job) if opt_in.checkpoints else None
    return None if path is None else Path(path)


class LogRoots:
    """The directories under which files may be opened (`logs.roots`). Symbolic links are followed, and judged by where they lead."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(roots)

    def check(self, path: Path) -> Path:
        """Where `path` really lies. Raises `PathRefused` unless that is under a root; says nothing about whether it exists."""
        if not path.is_absolute():
            raise PathRefused(path, "a relative path", "give the full path")
        real = os.path.realpath(path)
        self._require_inside(path, real)
        return Path(real)

    def open(self, path: Path) -> BinaryIO:
        """Opens a regular file for reading, unbuffered. Raises `PathRefused`, or `OSError` where the system cannot open it.

        The file is first taken hold of without opening it (O_PATH), so that what was judged is what is read: a path
        swapped in between changes nothing, and a device or FIFO is never touched.
        """
        real = self.check(path)
        held = os.open(real, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(held)
            if not stat.S_ISREG(status.st_mode):
                raise PathRefused(path, "not a regular file", "name a plain file")
            here = os.readlink(f"/proc/self/fd/{held}")
            self._require_inside(path, here.removesuffix(" (deleted)") if status.st_nlink == 0 else here)
            descriptor = os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(held)
        return os.fdopen(descriptor, "rb", buffering=0)

    def _require_inside(self, path: Path, real: str) -> None:
        # `real` has no links, so a root it begins with has none either. Only otherwise roots are resolved, at each question: an
        # automounted root may have appeared since.
        if any(_is_inside(real, str(root)) for root in self._roots) or any(
            _is_inside(real, os.path.realpath(root)) for root in self._roots
        ):
            return
        listed = ", ".join(str(root) for root in self._roots) or "nothing is listed there"
        why = "outside the allowed directories" if real == str(path) else f"leads to {real}, outside the allowed directories"
        raise PathRefused(path, why, f"add its directory to logs.roots in the configuration (now: {listed})")


def _is_inside(real: str, root: str) -> bool:
    return real == root or real.startswith(root.rstrip("/") + "/")
