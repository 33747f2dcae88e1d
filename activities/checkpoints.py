"""Progress on disk: the newest complete checkpoint under a directory. A half-written one does not count.

Reads names, sizes and small tracker files, never a checkpoint's content, and only under the allowed roots. Called by the watch
and by verification; blocking, so run it in a thread.
"""

import os
import re
from collections.abc import Callable, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path

from pydantic import AwareDatetime

from activities.logs.paths import LogRoots, PathRefused
from activities.logs.progress_rules import count_in
from activities.records import Record

MOST_ENTRIES = 10_000  # of one directory; beyond that the newest cannot be told and the scan says so
_MOST_INSIDE = 100_000  # files looked at inside one checkpoint: large jobs write two per rank
_DEPTH_INSIDE = 3
_NEWEST_TRIED = 8  # candidates looked into, newest first, until one is complete
_TRACKER_BYTES = 256
_SETTLED_SECONDS = 10.0
_NESTED = ("checkpoints", "checkpoint", "ckpt", "ckpts", "weights")


class CheckpointMark(Record):
    """The newest complete checkpoint: what iteration it holds, when its last file was written, where it lies."""

    iteration: int
    written_at: AwareDatetime
    path: str


class CheckpointsUnreadable(Exception):
    """The directory cannot be read, so nothing is known. `mend` says what to change, and where."""

    def __init__(self, place: str, why: str, mend: str) -> None:
        super().__init__(f"{place}: {why}; {mend}")
        self.place = place
        self.mend = mend


@dataclass(frozen=True, slots=True)
class _Inside:
    """What a checkpoint holds. `names` are those of all files and directories in it, without their paths."""

    names: frozenset[str]
    bytes: int
    has_empty_shard: bool
    has_temporary: bool
    written_at: float
    ends_whole: bool = False


class _Proof(StrEnum):
    """How sure the content alone makes us that writing is over."""

    COMPLETE = "complete"
    HALF_WRITTEN = "half_written"
    UNCLEAR = "unclear"


def _dcp(inside: _Inside) -> _Proof:
    """PyTorch DCP writes `.metadata` last, by renaming `.metadata.tmp` (torch/distributed/checkpoint/filesystem.py)."""
    return _Proof.COMPLETE if ".metadata" in inside.names else _Proof.HALF_WRITTEN


def _megatron(inside: _Inside) -> _Proof:
    """torch_dist writes its metadata after the shards; the older `mp_rank_*/*.pt` says nothing about its own end."""
    if any(name.endswith((".distcp", ".safetensors")) or name == "common.pt" for name in inside.names):
        finished = {".metadata", "metadata.json", "model.safetensors.index.json"} & inside.names
        return _Proof.COMPLETE if finished else _Proof.HALF_WRITTEN
    return _Proof.UNCLEAR


def _hugging_face(inside: _Inside) -> _Proof:
    """`trainer_state.json` is written after the model and the optimizer (transformers/trainer.py, `_save_checkpoint`)."""
    if "trainer_state.json" in inside.names:
        return _Proof.COMPLETE
    return _Proof.UNCLEAR if any(_MODEL_FILE.fullmatch(name) for name in inside.names) else _Proof.HALF_WRITTEN


def _orbax(inside: _Inside) -> _Proof:
    """Orbax renames a finished directory into place, with its metadata in it; a bare number may be anything else."""
    return _Proof.COMPLETE if {"_CHECKPOINT_METADATA", "_METADATA", "commit_success.txt"} & inside.names else _Proof.HALF_WRITTEN


def _whole_file(inside: _Inside) -> _Proof:
    """torch.save writes a zip archive, whose directory comes last."""
    return _Proof.COMPLETE if inside.ends_whole else _Proof.UNCLEAR


def _unclear(_: _Inside) -> _Proof:
    return _Proof.UNCLEAR


_MODEL_FILE = re.compile(r"(?:pytorch_model|model|adapter_model).*\.(?:bin|safetensors)(?:\.index\.json)?")


@dataclass(frozen=True, slots=True)
class _Layout:
    """One way frameworks name checkpoints, and how they show that one is finished."""

    name: str
    pattern: re.Pattern[str]
    is_file: bool
    proof: Callable[[_Inside], _Proof]


@dataclass(frozen=True, slots=True)
class _Candidate:
    iteration: int
    path: Path
    layout: _Layout


def _layout(name: str, pattern: str, proof: Callable[[_Inside], _Proof], *, is_file: bool = False) -> _Layout:
    return _Layout(name, re.compile(pattern), is_file, proof)


# In the order in which a name is tried. Sources: Megatron-LM training/checkpointing.py; DeepSpeed runtime/engine.py; transformers
# trainer_utils.py; torchtitan components/checkpoint.py; Lightning callbacks/model_checkpoint.py; NeMo; fairseq checkpoint_utils.py.
_LAYOUTS: tuple[_Layout, ...] = (
    _layout("Megatron", r"iter_(?P<iteration>\d+)", _megatron),
    _layout("DeepSpeed", r"global_?step_?(?P<iteration>\d+)", _unclear),
    _layout("Hugging Face", r"checkpoint-(?P<iteration>\d+)", _hugging_face),
    _layout("torchtitan", r"step[-_](?P<iteration>\d+)", _dcp),
    _layout("NeMo", r"(?:.*[-_])?step=(?P<iteration>\d+)(?:[-_].*)?(?:\.ckpt)?", _megatron),
    _layout("Lightning", r"(?:.*[-_])?step=(?P<iteration>\d+)(?:[-_.].*)?\.ckpt", _whole_file, is_file=True),
    _layout("fairseq", r"checkpoint_(?:\d+_)?(?P<iteration>\d+)\.pt", _whole_file, is_file=True),
    _layout(
        "file per step",
        r"(?:ckpt|checkpoint|model|step|iter)[-_](?:step|iter)?[-_]?(?P<iteration>\d+)\.(?:pt|pth|ckpt|bin|safetensors)",
        _whole_file,
        is_file=True,
    ),
    _layout("Orbax", r"(?P<iteration>\d{1,9})", _orbax),
)
_TEMPORARY = re.compile(
    r"(?:^\.|^_+tmp|[._-](?:te?mp|partial|incomplete|unfinished|orbax-checkpoint-tmp.*)(?:[-_.]?\d+)?$|^tmp[-_])", re.IGNORECASE
)


def newest_checkpoint(
    directory: Path, roots: LogRoots, *, known: CheckpointMark | None = None, now: datetime | None = None
) -> CheckpointMark | None:
    """The newest complete checkpoint in `directory`, or in one of the usual directories just below it.

    Args:
        directory: where the job writes its checkpoints; it need not exist yet.
        roots: the allowed directories (`logs.roots`).
        known: the answer before this one: a checkpoint found complete once is not looked into again.
        now: the present moment; a checkpoint that does not itself show that it is finished counts once nothing has been written to
            it for ten seconds.

    Returns:
        None when there is no complete checkpoint (yet).

    Raises:
        CheckpointsUnreadable: the directory may not or cannot be read.
    """
    try:
        real = roots.check(directory)
    except PathRefused as refused:
        raise CheckpointsUnreadable(str(directory), "outside the allowed directories", refused.mend) from refused
    settled_before = (now or datetime.now(UTC)).timestamp() - _SETTLED_SECONDS
    scan = _Scan(roots, known, settled_before)
    nested = (real / name for name in _NESTED)
    marks = [scan.newest_in(real), *(scan.newest_below(place) for place in nested if os.path.lexists(place))]
    return max((mark for mark in marks if mark is not None), key=lambda mark: mark.iteration, default=None)


@dataclass(frozen=True, slots=True)
class _Scan:
    roots: LogRoots
    known: CheckpointMark | None
    settled_before: float

    def newest_below(self, place: Path) -> CheckpointMark | None:
        """As `newest_in`, for a place nobody named: trouble there says nothing."""
        try:
            return self.newest_in(self.roots.check(place))
        except (CheckpointsUnreadable, PathRefused):
            return None

    def newest_in(self, place: Path) -> CheckpointMark | None:
        try:
            with os.scandir(place) as entries:
                listed = list(islice(entries, MOST_ENTRIES + 1))
        except FileNotFoundError:
            return None
        except OSError as trouble:
            mend = "make it readable for the user Backstay runs as, or correct the path in the job's comment"
            raise CheckpointsUnreadable(str(place), trouble.strerror or str(trouble), mend) from trouble
        if len(listed) > MOST_ENTRIES:
            raise CheckpointsUnreadable(
                str(place), f"more than {MOST_ENTRIES} entries", "name the directory that holds only the checkpoints"
            )
        finished = _finished_by_tracker(place, self.roots)
        names = {entry.name for entry in listed}
        candidates = [candidate for entry in listed if (candidate := _candidate(entry, names)) is not None]
        candidates = [c for c in candidates if c.iteration <= finished.get(c.layout.name, c.iteration)]
        candidates.sort(key=lambda candidate: candidate.iteration, reverse=True)
        for candidate in candidates[:_NEWEST_TRIED]:
            mark = self._mark_of(candidate, is_vouched_for=candidate.layout.name in finished)
            if mark is not None:
                return mark
        return None

    def _mark_of(self, candidate: _Candidate, *, is_vouched_for: bool) -> CheckpointMark | None:
        known = self.known
        if known is not None and (known.path, known.iteration) == (str(candidate.path), candidate.iteration):
            return known
        inside = _look_into(candidate, self.roots)
        if inside is None or not inside.bytes or inside.has_empty_shard or inside.has_temporary:
            return None
        match candidate.layout.proof(inside):
            case _Proof.HALF_WRITTEN:
                return None
            case _Proof.UNCLEAR if not is_vouched_for and inside.written_at > self.settled_before:
                return None
            case _Proof.UNCLEAR | _Proof.COMPLETE:
                written = datetime.fromtimestamp(inside.written_at, UTC)
                return CheckpointMark(iteration=candidate.iteration, written_at=written, path=str(candidate.path))


def _candidate(entry: "os.DirEntry[str]", names: Set[str]) -> _Candidate | None:
    # NeMo lays `<name>-unfinished` beside a checkpoint while it writes (nemo/utils/callbacks/nemo_model_checkpoint.py).
    if _TEMPORARY.search(entry.name) or f"{entry.name}-unfinished" in names:
        return None
    for layout in _LAYOUTS:
        match = layout.pattern.fullmatch(entry.name)
        iteration = count_in(match["iteration"]) if match else None
        try:
            if iteration is not None and (entry.is_file() if layout.is_file else entry.is_dir()):
                return _Candidate(iteration, Path(entry.path), layout)
        except OSError:
            continue  # a dangling link, or an entry deleted since
    return None


# Tracker file -> layout whose checkpoints it vouches for, and how it names the newest finished one. Both frameworks write it
# after the shards of all ranks (Megatron-LM `iter_finalize_fn`, DeepSpeed `save_checkpoint`).
_TRACKERS: tuple[tuple[str, str, re.Pattern[str]], ...] = (
    ("latest_checkpointed_iteration.txt", "Megatron", re.compile(r"\s*(\d{1,12})\s*")),
    ("latest", "DeepSpeed", re.compile(r"\s*global_?step_?(\d{1,12})\s*")),
)


def _finished_by_tracker(place: Path, roots: LogRoots) -> dict[str, int]:
    """What the trackers say, per layout. `release` and anything else that is no number says nothing."""
    found: dict[str, int] = {}
    for name, layout, pattern in _TRACKERS:
        try:
            with roots.open(place / name) as file:
                text = (file.read(_TRACKER_BYTES) or b"").decode(errors="replace")
        except (OSError, PathRefused):
            continue  # no tracker: each checkpoint is judged by what is in it
        match = pattern.fullmatch(text)
        if match:
            found[layout] = int(match[1])
    return found


def _look_into(candidate: _Candidate, roots: LogRoots) -> _Inside | None:
    """What a checkpoint holds; None when it cannot be told (gone, unreadable, too many files)."""
    try:
        return _inside_file(candidate.path, roots) if candidate.layout.is_file else _inside_directory(roots.check(candidate.path))
    except (OSError, PathRefused):
        return None


def _inside_file(path: Path, roots: LogRoots) -> _Inside:
    with roots.open(path) as file:
        status = os.fstat(file.fileno())
        end = os.pread(file.fileno(), len(_ZIP_END) + 18, max(0, status.st_size - len(_ZIP_END) - 18))
    return _Inside(frozenset({path.name}), status.st_size, status.st_size == 0, False, status.st_mtime, end.startswith(_ZIP_END))


def _inside_directory(path: Path) -> _Inside | None:
    names: set[str] = set()
    files = total = 0
    newest = path.stat().st_mtime
    has_empty = False
    pending = [(path, _DEPTH_INSIDE)]
    while pending:
        here, depth = pending.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                names.add(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    pending += [(Path(entry.path), depth - 1)] if depth > 1 else []
                    continue
                files += 1
                if files > _MOST_INSIDE:
                    return None
                status = entry.stat()
                total += status.st_size
                newest = max(newest, status.st_mtime)
                has_empty = has_empty or (status.st_size == 0 and bool(_SHARD.search(entry.name)))
    return _Inside(frozenset(names), total, has_empty, any(_TEMPORARY_INSIDE.search(name) for name in names), newest)


_ZIP_END = b"PK\x05\x06"  # end of central directory: 22 bytes at the end of an archive without a comment
_SHARD = re.compile(r"\.(?:pt|pth|bin|distcp|safetensors|ckpt|npz)$")
_TEMPORARY_INSIDE = re.compile(r"\.(?:tmp|temp|partial|incomplete)(?:[.-]?\w*)?$|^\.?tmp", re.IGNORECASE)
