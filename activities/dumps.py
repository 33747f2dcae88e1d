"""Flight-recorder dumps of one attempt: where its ranks write them, and which of them lie there now.

Called by the step `classify`. Places come from the job, so they are looked at under `logs.roots` only; nothing is
opened here. What the dumps say is read by `diagnosis/flight_recorder.py`, which loads plain values only.
"""

import os
import pwd
import re
import stat
from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, Field

from activities.batch_script import expanded, values_of
from activities.logs.paths import LogRoots, PathRefused, expand_output_pattern
from activities.records import Job, OptIn, Record, utc

PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""What torch reads the beginning of its dumps' names from, the newer name first (PyTorch NCCLUtils.cpp, DebugInfoWriter)."""

DEFAULT_PREFIX = Path("/tmp/nccl_trace_rank_")  # noqa: S108 - only looked at, and only the files of the job's own user
"""torch's own where neither is set. On most clusters that is a node's own disk, which no other machine can see. Where it can be
seen, other users' jobs write there as well: only what belongs to this job's user counts."""

_USUAL_NAMES = ("nccl_trace_rank_", "comm_lib_trace_rank_")
MOST_PREFIXES = 8
MOST_FILES = 20_000
"""Most dumps of one attempt, one a rank."""

MOST_BYTES = 1 << 30
"""Most bytes of all dumps together: read in the worker, where other jobs' faults are diagnosed as well."""

MOST_ENTRIES = 100_000
"""Most entries of a directory that are looked at."""

_RANK = re.compile(r"\d{1,7}")


class Dumps(Record):
    """What was found, one file a rank; or `notes` that say why it cannot be used."""

    paths: tuple[Path, ...] = ()
    newest_at: AwareDatetime | None = Field(default=None, description="when the last of them was written")
    notes: tuple[str, ...] = ()


def dumps_of(job: Job, opt_in: OptIn, script: str | None, roots: LogRoots, *, since: datetime | None) -> Dumps:
    """The dumps that an attempt's ranks have written by now.

    Args:
        job: with the attempt's own restart count.
        opt_in: `dumps` of the comment goes before what the script sets.
        script: the batch script; None where there is none.
        roots: where files may be looked at.
        since: when the attempt began; older dumps are an earlier attempt's, whatever they are called. None: not known,
            and then no dump can be told from an older one.

    Returns:
        All of the first place that has any. More than the bounds are none: what only some ranks say would put the blame on
        those that were left out.
    """
    if since is None:
        return Dumps()
    named = _named_prefixes(job, opt_in, script)
    notes: list[str] = []
    owner = None if named else _number_of(job.user)
    if not named and owner is None:
        return Dumps()
    for prefix in named or (DEFAULT_PREFIX,):
        try:
            found = _written_at(prefix, roots, since, owner)
        except (PathRefused, OSError) as refusal:
            if named and not isinstance(refusal, FileNotFoundError):
                notes.append(f"flight-recorder dumps not looked for: {refusal}")
            continue
        if found.paths or found.notes:
            return found.model_copy(update={"notes": (*notes, *found.notes)})
    return Dumps(notes=tuple(notes))


def _named_prefixes(job: Job, opt_in: OptIn, script: str | None) -> tuple[Path, ...]:
    """What file names begin with, by the comment and by the script's own words."""
    said: list[Path] = []
    if opt_in.dumps and (path := expand_output_pattern(opt_in.dumps, job)):
        said += [Path(path), *(Path(path) / name for name in _USUAL_NAMES)]
    for value in values_of(script or "", *PREFIX_VARIABLES):
        path = expanded(value, job)
        if path is not None and path.startswith("/") and not path.endswith("/"):
            said.append(Path(path))
    return tuple(dict.fromkeys(said))[:MOST_PREFIXES]


def _number_of(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid if user else None
    except KeyError:
        return None


def _written_at(prefix: Path, roots: LogRoots, since: datetime, owner: int | None) -> Dumps:
    """Files named `<prefix><rank>` that were written since, by this owner where one is given; raises `PathRefused`, or `OSError`
    of the directory."""
    directory = roots.check(prefix.parent)
    paths: dict[int, Path] = {}
    size, newest = 0, 0.0
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number == MOST_ENTRIES:
                return Dumps(notes=(f"flight-recorder dumps not used: {directory} holds more than {MOST_ENTRIES} files",))
            rank = entry.name.removeprefix(prefix.name) if entry.name.startswith(prefix.name) else ""
            if not _RANK.fullmatch(rank):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it has gone since
            if not stat.S_ISREG(status.st_mode) or status.st_mtime < since.timestamp():
                continue
            if owner is not None and status.st_uid != owner:
                continue
            paths[int(rank)] = directory / entry.name
            size, newest = size + status.st_size, max(newest, status.st_mtime)
    if len(paths) > MOST_FILES or size > MOST_BYTES:
        note = (
            f"flight-recorder dumps not used: {len(paths)} files of {size >> 20} MiB at {prefix}*, at most {MOST_FILES} files of "
            f"{MOST_BYTES >> 20} MiB are read; have fewer collectives recorded (TORCH_NCCL_TRACE_BUFFER_SIZE)"
        )
        return Dumps(notes=(note,))
    return Dumps(paths=tuple(paths[rank] for rank in sorted(paths)), newest_at=utc(newest) if paths else None)
