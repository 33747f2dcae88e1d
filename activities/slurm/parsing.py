"""The JSON listings of Slurm's programs, of every version from 22.05 on, as records. Pure; called by `commands.py`.

22.05 prints plain values (`openapi/v0.0.38`); 23.02 and later print states as lists and numbers as objects
(`data_parser/v0.0.39` and up): `values.py` reads both. Unknown fields are ignored; an error inside a success,
or a document of another shape, raises `SchedulerUnreadable`. A value that cannot be told becomes None, never a guess.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, TypeVar

import orjson

from activities.outside_text import TextRefused, json_value, whole_number
from activities.records import Job, JobFlag, JobState, Node, NodeFlag, NodeState
from activities.redaction import redact
from activities.slurm import values
from activities.slurm.scheduler import REQUEUED_HELD, SchedulerUnreachable, SchedulerUnreadable

R = TypeVar("R")

_NO_VAL_IN_WORDS = "4294967294"

# 22.05 prints one flag *instead of* the base state (job_state_string(), slurm_protocol_defs.c). With these the base can only be one
# (job_mgr.c sets them on jobs in that state alone); with the others, COMPLETING before all, it cannot be told.
_BASE_OF_A_LONE_FLAG = {
    JobFlag.CONFIGURING: JobState.RUNNING,
    JobFlag.SIGNALING: JobState.RUNNING,
    JobFlag.STOPPED: JobState.RUNNING,
    JobFlag.REQUEUE_HOLD: JobState.PENDING,
    JobFlag.SPECIAL_EXIT: JobState.PENDING,
}
_HELD_REASONS = frozenset({"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"})
_NODE_FLAG_ALIASES = {"REBOOT_ISSUED": NodeFlag.REBOOT_REQUESTED, "MAINT": NodeFlag.MAINTENANCE, "NO_RESPOND": NodeFlag.NOT_RESPONDING}

# An error inside a success whose text says that nobody answered. 22.05 says only "Failed while looking for jobs" and -1 when
# slurmctld is down; measured on 22.05.8.
_UNREACHABLE = ("unable to contact slurm controller", "failed while looking for jobs", "unspecified error", "timed out", "connection")


# ------------------------------------------------------------------------------------------------------- documents


class Listings:
    """Reads one listing after another and keeps the records of the last one: most entries have not changed until the next."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._nodes: dict[int, Node] = {}

    def jobs_from(self, document: bytes) -> tuple[Job, ...]:
        """As the function of that name."""
        self._jobs = jobs = _records(_entries(document, "jobs", "squeue --json"), self._jobs, _job)
        return tuple(jobs.values())

    def nodes_from(self, document: bytes) -> tuple[Node, ...]:
        """As the function of that name."""
        self._nodes = nodes = _records(_entries(document, "nodes", "the node listing"), self._nodes, _node)
        return tuple(nodes.values())


def jobs_from(document: bytes) -> tuple[Job, ...]:
    """The jobs of `squeue --json`. Raises `SchedulerUnreadable`, or `SchedulerUnreachable` where the error inside says so."""
    return Listings().jobs_from(document)


def nodes_from(document: bytes) -> tuple[Node, ...]:
    """The nodes of `sinfo --json` (22.05) or `scontrol show nodes --json` (23.02 on); raises as `jobs_from`."""
    return Listings().nodes_from(document)


def _fingerprint(entry: Mapping[str, Any]) -> int:
    try:
        return hash(orjson.dumps(entry))
    except TypeError:  # orjson writes 254 levels, and reads 1,024
        return _fingerprint_of_deep(entry)


def _fingerprint_of_deep(entry: Mapping[str, Any]) -> int:
    try:
        return hash(json.dumps(entry))
    except RecursionError:
        raise SchedulerUnreadable("an entry of Slurm's answer nests without end: is this Slurm 22.05 or later?") from None


def _records(entries: Sequence[Mapping[str, Any]], before: dict[int, R], make: Callable[[Mapping[str, Any]], R]) -> dict[int, R]:
    """A record of each entry by the hash of its JSON, made anew only where there was none before. In the listing's order."""
    records: dict[int, R] = {}
    for entry in entries:
        key = _fingerprint(entry)
        known = before.get(key)
        records[key] = make(entry) if known is None else known
    return records


def _entries(document: bytes, key: str, what: str) -> Sequence[Mapping[str, Any]]:
    content = _json(document, what)
    if not isinstance(content, dict):
        raise SchedulerUnreadable(f"{what} printed {type(content).__name__}, not an object: is this Slurm 22.05 or later?")
    if errors := content.get("errors"):
        said = "; ".join(_error_text(error) for error in errors) if isinstance(errors, list) else str(errors)
        if any(text in said.lower() for text in _UNREACHABLE):
            raise SchedulerUnreachable(f"{what}: {said}: is slurmctld up? (`scontrol ping`)")
        raise SchedulerUnreadable(f"{what} reports inside its answer: {said}")
    entries = content.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SchedulerUnreadable(f"{what} has no list {key!r}: is this Slurm 22.05 or later?")
    return entries


def _json(document: bytes, what: str) -> Any:
    text = document.decode("utf-8", errors="replace")  # users' comments need not be UTF-8
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass  # json-c prints NaN and Infinity, which orjson refuses and the slower parser takes
    try:
        return json_value(text)
    except TextRefused as refusal:
        raise SchedulerUnreadable(f"{what}: its answer {refusal}; it begins {text[:80]!r}") from refusal


def _error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    return ": ".join(str(error[key]) for key in ("source", "description", "error") if error.get(key))


# ------------------------------------------------------------------------------------------------------------ jobs


def _job(entry: Mapping[str, Any]) -> Job:
    numeric_id = values.number(entry.get("job_id"))
    if numeric_id is None:
        raise SchedulerUnreadable(f"squeue --json lists a job without job_id: {str(dict(entry))[:120]}")
    state, flags = job_state(entry.get("job_state"))
    array_job_id = values.number(entry.get("array_job_id")) or None  # 0: no array
    array_task_id = values.number(entry.get("array_task_id")) if array_job_id else None
    het_job_id = values.number(entry.get("het_job_id")) or None
    het_offset = values.number(entry.get("het_job_offset")) if het_job_id else None
    reason = values.text(entry.get("state_reason"))
    has_hold = values.number(entry.get("priority")) == 0 or reason in _HELD_REASONS
    if values.text(entry.get("state_description")).replace(" ", "_") == REQUEUED_HELD:
        reason = REQUEUED_HELD  # state_reason says JobHeldUser, as after any hold
    job_id = job_id_of(
        numeric_id,
        array_job_id=array_job_id,
        array_task_id=array_task_id,
        array_task_string=values.text(entry.get("array_task_string")),
        het_job_id=het_job_id,
        het_offset=het_offset,
    )
    exit_code, exit_signal = values.exit_status(entry.get("exit_code")) if state.is_ended else (None, None)
    derived_code, derived_signal = values.exit_status(entry.get("derived_exit_code")) if state.is_ended else (None, None)
    is_batch = values.yes_or_no(entry.get("batch_flag"))
    time_limit = values.number(entry.get("time_limit"))
    is_pending = state is JobState.PENDING
    return Job(
        job_id=job_id,
        numeric_id=numeric_id,
        name=values.text(entry.get("name")),
        user=values.text(entry.get("user_name")),
        account=values.text(entry.get("account")),
        partition=values.text(entry.get("partition")),
        state=state,
        flags=flags,
        reason="" if reason == "None" else reason,
        nodes=() if is_pending else values.node_names(entry.get("nodes")),
        node_count=values.number(entry.get("node_count")),
        task_count=values.number(entry.get("tasks")),
        tasks_per_node=values.number(entry.get("tasks_per_node")) or None,  # 0: not asked for
        submitted_at=values.moment(entry.get("submit_time")),
        eligible_at=values.moment(entry.get("eligible_time")),
        started_at=None if is_pending else values.moment(entry.get("start_time")),  # of a pending job it is a forecast
        ended_at=values.moment(entry.get("end_time")) if state.is_ended or JobFlag.COMPLETING in flags else None,  # before: a forecast
        restart_count=values.number(entry.get("restart_cnt")) or 0,
        is_batch=is_batch,
        may_requeue=values.yes_or_no(entry.get("requeue")),
        is_held=is_pending and has_hold,
        is_held_once_requeued=not is_pending and has_hold,
        exit_code=exit_code,
        exit_signal=exit_signal,
        derived_exit_code=128 + derived_signal if derived_signal and not derived_code else derived_code,
        comment=_comment(values.text(entry.get("comment"))),
        admin_comment=_comment(values.text(entry.get("admin_comment"))),
        excluded_nodes=values.node_names(entry.get("excluded_nodes")),
        required_nodes=values.node_names(entry.get("required_nodes")),
        features=values.text(entry.get("features")),
        reservation=values.text(entry.get("resv_name")),
        dependency=values.text(entry.get("dependency")),
        stdout_path=_stdout(entry, is_batch=is_batch, is_array=array_job_id is not None),
        stderr_path=_path(entry, "stderr_expanded", "standard_error"),
        working_directory=values.text(entry.get("current_working_directory")) or None,
        array_job_id=array_job_id,
        array_task_id=array_task_id,
        het_job_id=het_job_id,
        het_offset=het_offset,
        time_limit=timedelta(minutes=time_limit) if time_limit is not None else None,
        sluid=_sluid(entry),
    )


def job_state(words: Any) -> tuple[JobState, tuple[JobFlag, ...]]:
    """Base state and flags from `"RUNNING"`, or from `["FAILED", "COMPLETING"]`. Words this version does not know are dropped."""
    listed = words if isinstance(words, list) else [words]
    known = [word.upper() for word in listed if isinstance(word, str)]
    flags = tuple(JobFlag(word) for word in known if word in JobFlag.__members__)
    bases = [JobState(word) for word in known if word in JobState.__members__]
    if bases:
        return bases[0], flags
    return (_BASE_OF_A_LONE_FLAG.get(flags[0], JobState.UNKNOWN) if len(flags) == 1 else JobState.UNKNOWN), flags


def job_id_of(
    numeric_id: int,
    *,
    array_job_id: int | None = None,
    array_task_id: int | None = None,
    array_task_string: str = "",
    het_job_id: int | None = None,
    het_offset: int | None = None,
) -> str:
    """The ID `scontrol` takes: `12`, array task `12_3`, the tasks still queued together `12_[4-9]`, het component `12+1`."""
    if array_job_id is not None:
        if array_task_id is not None:
            return f"{array_job_id}_{array_task_id}"
        return f"{array_job_id}_[{array_task_string}]" if array_task_string else str(array_job_id)
    if het_job_id is not None and het_offset:
        return f"{het_job_id}+{het_offset}"
    return str(numeric_id)


def holds_array_task(job: Job, job_id: str) -> bool:
    """Whether `job` is the record of queued tasks (`12_[4-9%2]`) among which `job_id` (`12_5`) waits."""
    array, _, told = job_id.partition("_")
    task = whole_number(told)
    if task is None or not job.job_id.startswith(f"{array}_["):
        return False
    for part in job.job_id[len(array) + 2 : -1].partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        begin, end = whole_number(first), whole_number(last or first)
        if begin is not None and end is not None and task in range(begin, end + 1, whole_number(step) or 1):
            return True
    return False


@lru_cache(maxsize=20_000)  # comments stay as they are from poll to poll
def _comment(text: str) -> str:
    """What a user or an administrator wrote. A job's record stands in workflow histories for good, so no secret of his enters it."""
    return redact(text) if text else ""


def _stdout(entry: Mapping[str, Any], *, is_batch: bool | None, is_array: bool) -> str | None:
    if path := _path(entry, "stdout_expanded", "standard_output"):
        # 24.11 expands %a of tasks that are still queued together to NO_VAL: no such file will ever be
        return None if is_array and _NO_VAL_IN_WORDS in path else path
    directory = values.text(entry.get("current_working_directory"))
    if not is_batch or not directory:
        return None
    # 22.05 leaves the default unsaid; slurm_get_job_stdout() composes it like this (sbatch(1), --output).
    return str(PurePosixPath(directory) / ("slurm-%A_%a.out" if is_array else "slurm-%j.out"))


def _path(entry: Mapping[str, Any], *keys: str) -> str | None:
    for key in keys:
        if path := values.text(entry.get(key)):
            return str(PurePosixPath(values.text(entry.get("current_working_directory")) or "/") / path)
    return None


def _sluid(entry: Mapping[str, Any]) -> str | None:
    step = entry.get("step_id")
    return values.text(entry.get("sluid") or (step.get("sluid") if isinstance(step, dict) else None)) or None


# ----------------------------------------------------------------------------------------------------------- nodes


def _node(entry: Mapping[str, Any]) -> Node:
    name = values.text(entry.get("name"))
    if not name:
        raise SchedulerUnreadable(f"the node listing holds a node without a name: {str(dict(entry))[:120]}")
    stated = entry.get("state")
    words = [stated] if isinstance(stated, str) else list(stated or ())
    words += list(entry.get("state_flags") or ())  # 22.05 lists the flags apart, and the base state in small letters
    known = [word.upper().rstrip("*") for word in words if isinstance(word, str)]
    flags = [_NODE_FLAG_ALIASES.get(word) or (NodeFlag(word) if word in NodeFlag.__members__ else None) for word in known]
    return Node(
        name=name,
        state=next((NodeState(word) for word in known if word in NodeState.__members__), NodeState.UNKNOWN),
        flags=tuple(dict.fromkeys(flag for flag in flags if flag is not None)),
        reason=_comment(values.text(entry.get("reason"))),
        partitions=values.words(entry.get("partitions")),
        features=values.words(entry.get("active_features") or entry.get("features")),
        booted_at=values.moment(entry.get("boot_time")),
    )
