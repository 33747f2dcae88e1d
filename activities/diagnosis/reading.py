"""What is read in logs, as records: observations, rows of launcher tables, and everything that one pass found.

loglines.py and observing.py fill them, case.py and what it calls judge them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from activities.diagnosis.pace import Mark
from activities.diagnosis.placements import Placements
from activities.diagnosis.signatures import Role, Turn
from activities.logs.prefixes import parse_prefix
from activities.logs.progress import ProgressMark
from activities.records import SignalSource


@dataclass(frozen=True, slots=True)
class Observation:
    """One fact that may be a cause: a line of a log, a kernel finding, a reading, a scheduler's word."""

    signature: str
    role: Role
    weight: float
    text: str
    cause: str | None = None
    source: SignalSource = SignalSource.LOG
    line: int | None = None
    position: int = 0
    at: datetime | None = None
    stamp: str = ""  # the time as printed, where it names no year
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    named_node: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    context: str = ""
    isolate: bool = False
    log: str = ""
    task: int | None = None  # the launcher's number of the process that printed it, where that is no rank
    label: int | None = None  # the rank as the line's own prefix reads
    beyond_the_job: bool = False  # read where its user cannot write: Slurm's node states, a node's own kernel log and readings

    @property
    def own_context(self) -> str:
        """What this rank printed before it, without prefixes; another rank's lines between are left out."""
        mine = (prefixed for raw in self.context.splitlines() if (prefixed := parse_prefix(raw)).rank == self.label)
        return "\n".join(prefixed.text for prefixed in mine)


@dataclass(slots=True)
class Failure:
    """One row of a launcher's table of failed ranks."""

    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    exitcode: int | None = None
    is_root_cause: bool = False
    position: int = 0  # where the row begins
    at: datetime | None = None


class PhaseLine(NamedTuple):
    """A line that says that the job begins or ends doing something."""

    position: int
    turn: Turn
    text: str


@dataclass(slots=True)
class Reading:
    """Everything one pass found."""

    observations: list[Observation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, set[int]] = field(default_factory=dict)
    nodes: dict[str, set[str]] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    phases: list[PhaseLine] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ended_on: set[str] = field(default_factory=set)  # hosts where Hydra saw a process end badly
    exited_on: set[str] = field(default_factory=set)  # hosts where srun saw a task exit with a code
    crashed_on: set[str] = field(default_factory=set)  # hosts where srun saw a task die by a signal of its own making
    rank_nodes: dict[int, str] = field(default_factory=dict)
    placements: Placements = field(default_factory=Placements)
    address_nodes: dict[str, str] = field(default_factory=dict)
    shown_nodes: set[str] = field(default_factory=set)  # which lines begin with, or which a launcher tells of
    printing_nodes: dict[str, set[str]] = field(default_factory=dict)  # by log: where a process runs whose own lines stand in it
    known_nodes: frozenset[str] = frozenset()
    world_size: int | None = None  # as told, or at least as large as the largest communicator
    told_world: int | None = None  # as told
    local_world: int = 0
    kernel_lines: list[str] = field(default_factory=list)
    logs: set[str] = field(default_factory=set)
    lines: int = 0
    bytes: int = 0
    last_text: str = ""
    last_at: datetime | None = None
    progress: list[ProgressMark] = field(default_factory=list)  # of the head and the tail only

    @property
    def speaking_nodes(self) -> set[str]:
        """Nodes of processes whose own lines were read."""
        return {node for nodes in self.printing_nodes.values() for node in nodes}
