"""What the scheduler said, read tolerantly into one record: state, codes, nodes, reasons, and how nodes fared before.

It takes the typed Job and Node records of a watch, and the loosely keyed mappings that people and case files have. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pydantic import AwareDatetime, Field

from activities.diagnosis.recurrence import follows
from activities.diagnosis.signals import Signals
from activities.outside_text import whole_number
from activities.records import JobState, NodeFlag, NodeHistory, Record
from activities.slurm.hostlist import HostlistInvalid, expand

MOST_NODES = 20_000
_BAD_STATES = {
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "TIMEOUT",
    "DEADLINE",
    "PREEMPTED",
    "CANCELLED",
    "ERROR",
    "LAUNCH_FAILED",
}
_REQUEUED = {"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "PENDING", "PREEMPTED"}
_FAILED_WORDS = re.compile(
    r"(?i)fail|sigill|sigsegv|segfault|segmentation|out of memory|crash|mismatch|error|killed|abort|ecc|xid|illegal|wrong"
)
_NO_NODES_DOING = re.compile(
    r"(?i)\b(?:key|import|modulenotfound|value|type|attribute|name|syntax|assertion|filenotfound|index)error\b"
    r"|cancel|time.?limit|preempt|quota|no space"
)
_NODE_KEYS = ("failed_node", "failing_node", "node", "nodes", "host")  # who failed goes before who took part
_STARTED_KEYS = ("start_time", "started_at", "StartTime", "start")
_TASKS_KEYS = ("tasks_per_node", "ntasks_per_node", "SLURM_TASKS_PER_NODE")
_DISTRIBUTION = re.compile(r"(?i)(?:\bdist(?:ribution)?[=: ]+|-m[= ])(block|cyclic|plane|arbitrary)")
_NUMBER = re.compile(r"\d+")
_EARLIER_KEYS = ("previous", "earlier", "last_attempt")


class Failures(Record):
    """What failed on these nodes, each of which may have been the reason, so many times."""

    nodes: frozenset[str]
    times: int


class SchedulerFacts(Record):
    """One scheduler's account of one attempt."""

    state: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    nodes: tuple[str, ...] = ()
    node_count: int | None = None
    task_count: int | None = None
    tasks_of_nodes: tuple[int, ...] = Field(default=(), description="how many tasks each of `nodes` has, in their order, where told")
    distribution: str = Field(default="block", description="how ranks were laid out on the nodes (srun --distribution)")
    job_id: int | None = None
    lost_nodes: tuple[str, ...] = ()
    drained_nodes: tuple[str, ...] = ()
    text: str = Field(default="", description="everything said about this attempt, one `key=value` a line")
    earlier_text: str = Field(default="", description="everything said about earlier attempts")
    failures: tuple[Failures, ...] = Field(default=(), description="of other jobs or attempts")
    repeats_on_node: int = Field(default=0, description="recent failures on the job's only node, where only a number was given")
    history: NodeHistory = Field(default=NodeHistory(), description="what the cluster remembers of `nodes`")
    booted: Mapping[str, AwareDatetime] = Field(default_factory=dict, description="when nodes booted, where Slurm tells")
    restarts: int = 0
    was_requeued: bool = Field(default=False, description="Slurm has put this attempt's job back into the queue")
    silent_seconds: float | None = None
    started_at: AwareDatetime | None = Field(default=None, description="one told without a zone is read as UTC")
    says_anything: bool = False

    @property
    def ended_badly(self) -> bool:
        return self.state in _BAD_STATES or (self.state == "COMPLETED" and bool(self.exit_code))

    @property
    def ended_well(self) -> bool:
        return self.state == "COMPLETED" and not self.exit_code

    @property
    def denies_a_requeue(self) -> bool:
        """True where Slurm tells of another end, or of none: any program can print that its job was requeued."""
        ended_otherwise = self.state in _BAD_STATES - {"CANCELLED"} or self.state == "COMPLETED"
        return not self.was_requeued and (ended_otherwise or self.is_running)

    @property
    def is_running(self) -> bool:
        return self.state in ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT")

    @property
    def only_node(self) -> str | None:
        return self.nodes[0] if len(self.nodes) == 1 and self.node_count in (None, 1) else None

    def is_stranger(self, node: str | None) -> bool:
        """True for a node that is called as the job's nodes are and is none of them. Of other names nobody can tell: a container's
        or a cloud's own name may be any node's."""
        if node is None or not self.nodes:
            return False
        name, (names, kinds) = _unpadded(node), _names_and_kinds(self.nodes)
        return name not in names and _kind(name) in kinds

    def as_listed(self, node: str) -> str | None:
        """The job's node of this name, however it is padded or qualified; None where none or several are called so."""
        if node in self.nodes:
            return node
        named = _names_and_kinds(self.nodes)[0].get(_unpadded(node), ())
        return named[0] if len(named) == 1 else None

    def repeats(self, node: str | None, cause: str = "", *, seen_here: bool = False, rank: int | None = None) -> bool:
        """True when the trouble follows this node: it failed others too, and they did not fail elsewhere.

        Args:
            node: one of the job's nodes.
            cause: this fault's; what the cluster remembers counts where it is the same trouble.
            seen_here: whether this attempt's own evidence places the fault on `node`.
            rank: the rank that failed first, where known.
        """
        if node is None:
            return False
        if cause and follows(self.history, node, cause, seen_here=seen_here, rank=rank, booted=self.booted):
            return True
        failures = sum(failed.times for failed in self.failures if node in failed.nodes)
        elsewhere = sum(failed.times for failed in self.failures if node not in failed.nodes)
        if node == self.only_node and self.repeats_on_node >= 2:
            return True
        return failures >= 2 and failures > 2 * elsewhere


def _unpadded(node: str) -> str:
    """`n7` for `n07.cluster`: not everyone pads and qualifies as Slurm does."""
    return _NUMBER.sub(lambda found: found[0].lstrip("0") or "0", node.split(".", maxsplit=1)[0])


def _kind(name: str) -> str:
    return _NUMBER.sub("0", name)


@lru_cache(maxsize=8)
def _names_and_kinds(nodes: tuple[str, ...]) -> tuple[Mapping[str, Sequence[str]], frozenset[str]]:
    """What a job's nodes are called, and how nodes like them are. Kept, because each line of a rack's kernel log asks."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(_unpadded(node), []).append(node)
    return names, frozenset(_kind(name) for name in names)


def facts_of(signals: Signals) -> SchedulerFacts:
    """The scheduler's account from whatever form it came in."""
    loose = signals.scheduler
    job = signals.job
    state = _state(loose.get("state") or loose.get("job_state") or (job.state if job else ""))
    exit_code, exit_signal = _exit(loose.get("exit_code", loose.get("exitcode")))
    derived, _ = _exit(loose.get("derived_exit_code", loose.get("derived")))
    if job is not None:
        exit_code = exit_code if exit_code is not None else job.exit_code
        exit_signal = exit_signal if exit_signal is not None else job.exit_signal
        derived = derived if derived is not None else job.derived_exit_code
    nodes = _nodes(loose.get("nodes") or loose.get("node_list") or loose.get("nodelist") or loose.get("node")) or (job.nodes if job else ())
    lost = set(_nodes(loose.get("nodes_down") or loose.get("failed_nodes") or loose.get("down_nodes")))
    drained: set[str] = set()
    for node in signals.nodes:
        if node.is_lost:
            lost.add(node.name)
        if NodeFlag.DRAIN in node.flags:
            drained.add(node.name)
    node_states = loose.get("node_states") or loose.get("node_state")
    for name, state_said in _by_node(node_states, nodes):
        upper = state_said.upper()
        if re.search(r"\bDOWN|NOT_RESPONDING|FAIL\b|\*$", upper):
            lost.add(name)
        if "DRAIN" in upper:
            drained.add(name)
    now: list[str] = []
    earlier: list[str] = []
    for key, said in _flat(loose):
        is_earlier = any(word in key for word in _EARLIER_KEYS) or "history" in key or "recent" in key
        (earlier if is_earlier else now).append(f"{key}={said}")
    if job is not None:
        now += [f"{key}={value}" for key, value in (("state", job.state), ("reason", job.reason)) if value]
    now += [f"node_reason={node.name}: {node.reason}" for node in signals.nodes if node.reason]
    failures, repeats = _history(loose)
    count = loose.get("node_count") or loose.get("num_nodes") or (job.node_count if job else None)
    if count is None and isinstance(listed := loose.get("nodes"), str) and (found := re.match(r"(\d{1,6}) (?:nodes|hosts)", listed)):
        count = int(found[1])
    return SchedulerFacts(
        state=state,
        exit_code=derived if derived and not exit_code else exit_code,  # a step failed under a script that ended well
        exit_signal=exit_signal,
        nodes=nodes,
        node_count=_integer(count),
        task_count=_integer(loose.get("task_count") or loose.get("ntasks") or (job.task_count if job else None)),
        tasks_of_nodes=_tasks_of_nodes(loose, nodes) or signals.layout.tasks_of_nodes,
        distribution=found[1].lower() if (found := _DISTRIBUTION.search("\n".join(now))) else signals.layout.distribution,
        job_id=job.numeric_id if job is not None else _integer(loose.get("job_id") or loose.get("jobid")),
        lost_nodes=tuple(sorted(lost)),
        drained_nodes=tuple(sorted(drained)),
        text="\n".join(now),
        earlier_text="\n".join(earlier),
        failures=failures,
        repeats_on_node=repeats,
        history=signals.node_history,
        booted={node.name: node.booted_at for node in signals.nodes if node.booted_at is not None},
        restarts=_integer(loose.get("restarts") or loose.get("restart_count") or (job.restart_count if job else 0)) or 0,
        was_requeued=state in _REQUEUED or bool(loose.get("requeued")),
        silent_seconds=signals.silent_seconds if signals.silent_seconds is not None else _silence(loose, signals.gpu_snapshots),
        started_at=job.started_at if job is not None and job.started_at else _moment(loose),
        says_anything=bool(loose) or job is not None,
    )


def _tasks_of_nodes(loose: Mapping[str, Any], nodes: Sequence[str]) -> tuple[int, ...]:
    """`8(x3),4`, as Slurm writes it in SLURM_TASKS_PER_NODE, or one number for all; () where it does not fit the nodes."""
    told = next((loose[key] for key in _TASKS_KEYS if loose.get(key) is not None), None)
    if told is None or not re.fullmatch(r"\d{1,6}(?:\(x\d{1,6}\))?(?:,\d{1,6}(?:\(x\d{1,6}\))?)*", str(told)):
        return ()
    counts = [
        int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", str(told)) for _ in range(min(int(times or 1), MOST_NODES))
    ]
    if len(counts) == 1:
        counts *= len(nodes)
    return tuple(counts) if len(counts) == len(nodes) else ()


def _moment(loose: Mapping[str, Any]) -> datetime | None:
    """When the attempt began, from ISO 8601 as Slurm prints it or seconds since 1970 as its REST interface tells it."""
    told = next((loose[key] for key in _STARTED_KEYS if loose.get(key) is not None), None)
    try:
        if isinstance(told, int) and not isinstance(told, bool):
            return datetime.fromtimestamp(told, UTC)
        moment = told if isinstance(told, datetime) else datetime.fromisoformat(str(told)) if told is not None else None
    except (ValueError, OverflowError, OSError):  # `Unknown`, or a number no clock can express
        return None
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _silence(*accounts: Mapping[str, Any]) -> float | None:
    """How long nothing was printed, from whoever tells it: a monitor writes it beside its readings as well."""
    for key, value in (entry for account in accounts for entry in account.items()):
        named = re.search(r"last_output|silent|no_output|log_age|since_last", str(key))
        if named and isinstance(value, int | float):
            return float(value)
        if isinstance(value, str) and (found := (_LASTED.match(value) if named else None) or _SILENT_FOR.search(value)):
            return float(found[1]) * _SECONDS[found[2][0].lower()]
    return None


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = r"(?:for |since |: ?)?(?:about |over |more than |> ?)?(\d{1,6}(?:\.\d+)?) ?(s(?:ec\w*)?|m(?:in\w*)?|h(?:ours?|rs?)?|d(?:ays?)?)\b"
_LASTED = re.compile(rf"(?i)\s*{_SPAN}")
_SILENT_FOR = re.compile(rf"(?i)\b(?:no (?:new |further |more )?(?:output|log lines?|lines?|progress)|silent|nothing printed) {_SPAN}")


def _state(value: Any) -> str:
    text = str(value.value if isinstance(value, JobState) else value or "").upper()
    return re.split(r"[ +,]", text, maxsplit=1)[0] if text else ""


def _exit(value: Any) -> tuple[int | None, int | None]:
    """`1:0`, `0:15`, 132, '132', and what YAML 1.1 makes of `0:125`."""
    if isinstance(value, bool) or value is None:
        return None, None
    if isinstance(value, int):
        return value, None
    found = re.match(r"\s*(-?\d{1,9})(?!\d)(?::(\d{1,9})(?!\d))?", str(value))
    return (int(found[1]), int(found[2]) if found[2] else None) if found else (None, None)


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        return whole_number(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _nodes(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        if re.match(r"^\d+ ?(?:nodes|hosts)", value) or " " in value.strip():
            return ()
        try:
            names = expand(value)
        except HostlistInvalid:
            return ()
        return names if len(names) <= MOST_NODES else ()
    if isinstance(value, Mapping):
        return tuple(str(name) for name in value)
    if isinstance(value, Sequence):
        return tuple(name for item in value if isinstance(item, str) for name in _nodes(item))
    return ()


def _by_node(value: Any, nodes: Sequence[str]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        yield from ((str(name), str(said)) for name, said in value.items())
    elif isinstance(value, str) and len(nodes) == 1:
        yield nodes[0], value


def _flat(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if depth > 6:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value[:2000]:
            yield from _flat(inner, key, depth + 1)
    elif value is not None:
        yield key, str(value)[:2000]


def _history(loose: Mapping[str, Any]) -> tuple[tuple[Failures, ...], int]:
    failures: list[Failures] = []
    repeats = 0
    for key, value in loose.items():
        name = str(key)
        if "history" in name or "previous" in name or "recent" in name or "earlier" in name:
            if isinstance(value, int) and not isinstance(value, bool) and "fail" in name:
                repeats = max(repeats, value)
            accounts = _accounts(value, "fail" in name)
            # A verdict may tell of both; what failed counts, unless the job did it to itself or somebody wished it.
            failures += [
                Failures(nodes=frozenset(nodes), times=times)
                for nodes, said, times in accounts
                if _FAILED_WORDS.search(said) and not _NO_NODES_DOING.search(said)
            ]
    return tuple(failures), repeats


def _accounts(value: Any, is_failure: bool) -> Iterator[tuple[Sequence[str], str, int]]:
    """(nodes, what happened there, how often) from lists of jobs, lists of nodes, and mappings by node."""
    if isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, str):
                yield [item], "failed" if is_failure else item, 1
                continue
            yield from _accounts(item, is_failure)
    elif isinstance(value, Mapping):
        node = next((found for key in _NODE_KEYS if (found := value.get(key)) is not None), None)
        if node is not None:
            said = " ".join(str(inner) for key, inner in value.items() if key not in (*_NODE_KEYS, "job", "job_id", "time"))
            ratio = re.search(r"\b(\d{1,6}) ?(?:/|of) ?\d+\b", said)
            yield _nodes(node), said, max(1, int(ratio[1])) if ratio and int(ratio[1]) < 1000 else 1
            return
        for name, inner in value.items():
            if isinstance(inner, int) and not isinstance(inner, bool):
                yield [str(name)], "failed" if inner else "passed", max(1, inner)
            elif isinstance(inner, str):
                number = re.search(r"\b(\d{1,4})\b(?! ?(?:day|hour|week|min))", inner)
                times = int(number[1]) if number else 2 if re.search(r"(?i)repeat|again|several|many|always|every", inner) else 1
                yield [str(name)], inner, max(1, times)
            elif isinstance(inner, list | tuple):
                for item in inner:
                    yield [str(name)], " ".join(str(part) for part in item.values()) if isinstance(item, Mapping) else str(item), 1
