"""Which rank runs where, from lines that say so: communicators, launchers' maps, worker lists. Pure.

loglines.py hands over each line that fits PATTERN and keeps what comes back; suspects.py asks where a rank is. A new way of saying
it is a new row."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

# For the matcher, in hyperscan's syntax: one piece of each row below.
PATTERN = (
    r"\brank \d+ n[rR]anks \d+ cudaDev \d|world_rank=\d+, local_rank=|Rank +\d+ (?:Group +\d+ +)?Pid +\d+ on "
    r"|global_rank_mapping=|global_ranks=\[|GLOBAL_RANK: \d+, MEMBER: |\b[Gg]lobal rank \d+ |Data for node: \S|App: \d+ Process rank: \d"
    r"|MPI startup\(\): \d+ +\d+ +[A-Za-z]|Rank=\d+ Node=\S+ Score=|process rank \d+ with PID \d+ on node |RANK \d+ PID \d+ RUNNING AT "
)
_ROWS = (
    # NCCL and RCCL, init.cc: a rank of one communicator; `nvmlDev` counts all devices of the node, `cudaDev` those the process sees.
    re.compile(r"\brank (?P<rank>\d{1,6}) n[rR]anks (?P<size>\d{1,6}) cudaDev (?P<device>\d{1,6})\b(?: nvmlDev (?P<physical>\d{1,6})\b)?"),
    # Ray Train, backend_executor.py and worker_group.py.
    re.compile(r"ip=(?P<node>[\w.:-]+), pid=\d+\) world_rank=(?P<rank>\d{1,6}), local_rank=(?P<device>\d{1,6})\b"),
    # nccl-tests and rccl-tests, common.cu.
    re.compile(r"Rank +(?P<rank>\d{1,6}) (?:Group +\d+ +)?Pid +\d+ on +(?P<node>\S+) device +(?P<device>\d{1,6})\b"),
    # torch elastic, agent/server/api.py: the ranks of the agent that prints it.
    re.compile(r"global_ranks=\[(?P<ranks>[\d, ]+)\]"),
    # Lightning, fabric/utilities/distributed.py.
    re.compile(r"GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d+/\d+"),
    # Intel MPI with I_MPI_DEBUG of 4 and more.
    re.compile(r"MPI startup\(\): (?P<rank>\d{1,6}) +\d+ +(?P<node>[A-Za-z][\w.-]*) "),
    # Open MPI's and PRRTE's last words, and those of MPICH's and Intel's Hydra.
    re.compile(r"process rank (?P<rank>\d{1,6}) with PID \d+ on node (?P<node>[\w.-]+)"),
    re.compile(r"RANK (?P<rank>\d{1,6}) PID \d+ RUNNING AT (?P<node>[\w.-]+)"),
    # Open MPI and PRRTE, --display-map: processes below the node they are on.
    re.compile(r"App: \d+ Process rank: (?P<rank>\d{1,6})\b"),
    # NVRx straggler detection, ptl_resiliency/straggler_det_callback.py.
    re.compile(r"Rank=(?P<rank>\d{1,6}) Node=(?P<node>[\w.-]+) Score="),
    # Composer's launcher.
    re.compile(r"\b[Gg]lobal rank (?P<rank>\d{1,6}) "),
)
_MAPPED = re.compile(r"'(?P<node>[\w.-]+)': \[(?P<ranks>[\d, ]+)\]")  # DeepSpeed, launcher/launch.py: global_rank_mapping
_MAP_OF_NODE = re.compile(r"Data for node: (?P<node>[\w.-]+)")
_NUMBER = re.compile(r"(?<!\d)\d{1,6}(?!\d)")  # what is longer is no rank


@dataclass(frozen=True, slots=True)
class Place:
    """One statement: this rank is there. None: the line does not say."""

    rank: int
    node: str | None
    device: int | None = None
    size: int | None = None  # of the communicator it is a rank of; None: a rank of the whole job
    is_own: bool = False  # who prints it speaks of itself, or of a process it started


def places_in(text: str, printed_by: str | None) -> Iterator[Place]:
    """What one line states; `printed_by` is the node its prefix names."""
    if "global_rank_mapping=" in text:
        for found in _MAPPED.finditer(text):
            yield from (Place(rank, found["node"], device) for device, rank in enumerate(_numbers(found["ranks"])))
        return
    for row in _ROWS:
        if not (match := row.search(text)):
            continue
        groups = match.groupdict()
        node = groups.get("node") or printed_by
        if ranks_said := groups.get("ranks"):
            yield from (Place(rank, node, is_own=True) for rank in _numbers(ranks_said))
            return
        device = groups.get("physical") or groups.get("device")
        size = groups.get("size")
        is_own = size is None and "node" not in groups and "Process rank: " not in text
        yield Place(int(match["rank"]), node, int(device) if device else None, int(size) if size else None, is_own)
        return


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text)]


@dataclass(slots=True)
class Placements:
    """What was stated so far: of the job's ranks, of ranks in communicators by their size, and of the launcher's tasks."""

    ranks: dict[int, Place] = field(default_factory=dict)
    communicators: dict[int, dict[int, set[Place]]] = field(default_factory=dict)
    task_of_rank: dict[int, int] = field(default_factory=dict)
    task_nodes: dict[int, str] = field(default_factory=dict)
    tasks: set[int] = field(default_factory=set)  # the launcher's numbers that lines begin with
    labels_are_tasks: bool = False
    _map_of_node: str | None = None

    def take(self, text: str, printed_by: str | None, task: int | None) -> None:
        if found := _MAP_OF_NODE.search(text):
            self._map_of_node = found["node"]
            return
        if "Process rank: " in text:
            printed_by = self._map_of_node
        for place in places_in(text, printed_by):
            if place.size is not None:
                self.communicators.setdefault(place.size, {}).setdefault(place.rank, set()).add(place)
                continue
            self.ranks.setdefault(place.rank, place)
            if task is not None and place.is_own:
                self.ranked(place.rank, task)

    def labelled(self, task: int, node: str | None) -> None:
        """A line that the launcher numbered; where it also names its node, the number is known to be there."""
        self.tasks.add(task)
        if node is not None:
            self.task_nodes.setdefault(task, node)

    def ranked(self, rank: int, task: int) -> None:
        """A line numbered `task` speaks of its own rank: where they differ, the launcher's numbers are no ranks."""
        self.task_of_rank.setdefault(rank, task)
        self.labels_are_tasks |= rank != task

    def one_task_a_node(self, task_count: int | None, node_count: int) -> bool:
        """True when the launcher's numbers are those of one process on each node: as many, seen from most of them, and none beyond."""
        return 1 < node_count == task_count and 2 * len(self.tasks) >= node_count > max(self.tasks, default=0)

    def world(self, at_least: int) -> Mapping[int, Place]:
        """Places of the communicator that holds every rank; empty where none can be told from those of a part.

        Groups of one size (a data-parallel group for each shard) number their ranks alike: two places for one rank give them away.

        Args:
            at_least: how many ranks the job is known to have.
        """
        size = max(self.communicators, default=0)
        ranks = self.communicators.get(size, {})
        if size < max(at_least, 2) or any(len({(place.node, place.device) for place in places}) > 1 for places in ranks.values()):
            return {}
        return {rank: place for rank, places in ranks.items() if (place := next(iter(places))).node is not None}


def in_blocks(known: Iterable[Place], per_node: int) -> bool:
    """True when nothing known speaks against consecutive ranks sharing a node, `per_node` of them."""
    owner: dict[int, str] = {}
    for place in known:
        block = place.rank // per_node
        if place.node is not None and owner.setdefault(block, place.node) != place.node:
            return False
        if place.device is not None and place.device >= per_node:
            return False
    return len(set(owner.values())) == len(owner)


def neighbour_of(rank: int, known: Iterable[Place], per_node: int | None) -> str | None:
    """The node that the ranks next to `rank` run on, where they must share it; None where that cannot be told."""
    nodes = {
        place.node
        for place in known
        if place.node is not None
        and (
            place.rank // per_node == rank // per_node
            if per_node
            else place.device is not None and place.rank - place.device <= rank <= place.rank
        )
    }
    return next(iter(nodes)) if len(nodes) == 1 else None
