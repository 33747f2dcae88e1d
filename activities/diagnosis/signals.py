"""What the engine is given: one frozen record of everything captured about one fault. Evidence capture, `backstay diagnose` and
the tests build it; nothing here reads the world but `LogSource.stream`, on paths that the caller has already checked."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import AwareDatetime, Field

from activities.batch_script import Layout
from activities.records import Job, Node, NodeHistory, Progress, Record, SignalSource, Symptom


class LogSource(Record):
    """One log: its bytes, or a path the caller has checked against the allowed roots."""

    name: str = "log"
    data: bytes | None = None
    path: Path | None = None
    opener: Callable[[Path], BinaryIO] | None = Field(
        default=None, exclude=True, repr=False, description="opens `path`; a live job's logs are opened under the allowed roots only"
    )
    starts_at_line: int = Field(default=1, description="line number of the first line, where this is the tail of a longer log")

    def stream(self) -> BinaryIO:
        """The log from its beginning."""
        if self.data is not None or self.path is None:
            return io.BytesIO(self.data or b"")
        return self.opener(self.path) if self.opener else self.path.open("rb")


class Signals(Record):
    """Everything known about one attempt at the moment of judging. Whatever was not captured is empty, never guessed."""

    logs: tuple[LogSource, ...] = ()
    job: Job | None = None
    nodes: tuple[Node, ...] = Field(default=(), description="the job's nodes as Slurm sees them")
    scheduler: Mapping[str, Any] = Field(default_factory=dict, description="whatever else the scheduler said, in its own words")
    node_history: NodeHistory = Field(default=NodeHistory(), description="what is remembered of the job's nodes, where a watch asks")
    kernel_logs: Mapping[str, str] = Field(default_factory=dict, description="kernel lines by node; '' where the node is not known")
    gpu_snapshots: Mapping[str, Any] = Field(default_factory=dict, description="readings, by node where the node is known")
    rank_to_node: Mapping[int, str] = Field(default_factory=dict, description="where somebody who knows has told")
    layout: Layout = Field(default=Layout(), description="how Slurm laid out the ranks, where a watch asks")
    flight_recorder: tuple[Path, ...] = Field(default=(), description="NCCL flight-recorder dumps, one a rank")
    dump_opener: Callable[[Path], BinaryIO] | None = Field(
        default=None, exclude=True, repr=False, description="opens them; a live job's are opened under the allowed roots only"
    )
    symptom: Symptom | None = Field(default=None, description="what detection concluded, where a watch asks")
    progress: Progress | None = Field(default=None, description="the watch's progress, where a watch asks")
    silent_seconds: float | None = Field(default=None, description="how long the log has been silent")


class FatalLine(Record):
    """A line that by itself says that the job is dying; what following a live log looks for."""

    signature: str
    cause: str
    text: str
    is_primary: bool = Field(description="False: a consequence of something else, and reason enough to look")
    at: AwareDatetime | None = None
    rank: int | None = None
    node: str | None = None
    source: SignalSource = SignalSource.LOG
