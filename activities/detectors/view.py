"""What is seen of one attempt at one moment, as the detectors get it, and how it is told in a symptom.

Built by `activities/watching/attempt.py`, judged by `verdict.py`; a test builds one in memory and asserts. Touches nothing.
"""

from datetime import datetime, timedelta
from functools import cached_property

from pydantic import AwareDatetime

from activities.records import (
    Attempt,
    FatalLine,
    Job,
    JobFlag,
    JobState,
    LostNode,
    Node,
    Progress,
    Record,
    Signal,
    SignalSource,
    Symptom,
    WrittenBeside,
)

_PAUSED = frozenset({JobFlag.CONFIGURING, JobFlag.STOPPED, JobFlag.POWER_UP_NODE})


class AttemptView(Record):
    """All that is known of one attempt at one moment. `job`, and `nodes` as far as they are lost, are the last good looks, taken at
    `looked_at`. `block`: how long a buffer's worth of lines takes, where lines were not seen to come. `beside`: what the job wrote
    last outside its log; `has_looked_beside`: it was looked for since the suspicion."""

    now: AwareDatetime
    attempt: Attempt
    job: Job | None = None
    looked_at: AwareDatetime | None = None
    scheduler_unreachable_since: AwareDatetime | None = None
    nodes: tuple[Node, ...] = ()
    lost_nodes: tuple[LostNode, ...] = ()
    log_readable: bool = False
    last_output_at: AwareDatetime | None = None
    fatal: FatalLine | None = None
    progress: Progress = Progress()
    line_gap: timedelta | None = None
    block: timedelta | None = None
    stepping_since: AwareDatetime | None = None
    earlier_attempts_stepped: bool = False
    beside: WrittenBeside | None = None
    has_looked_beside: bool = True
    checkpoint_count: int = 0
    checkpoints_readable: bool = True
    slow_since: AwareDatetime | None = None
    bad_loss_iterations: tuple[int, ...] = ()
    bad_loss_since: AwareDatetime | None = None
    suspicion: Symptom | None = None
    paused_at: AwareDatetime | None = None

    @cached_property
    def is_running(self) -> bool:
        """Slurm says, now, that the attempt computes: not pending, suspended, stopped, configuring or ending."""
        if self.job is None or self.scheduler_unreachable_since is not None:
            return False
        is_ending = self.job.is_ending or self.was_requeued
        return self.job.state is JobState.RUNNING and not is_ending and not is_paused(self.job)

    @property
    def was_requeued(self) -> bool:
        return self.job is not None and self.job.restart_count > self.attempt.restart_count

    @property
    def started_at(self) -> datetime | None:
        if self.attempt.started_at is not None:
            return self.attempt.started_at
        return self.job.started_at if self.job is not None and not self.was_requeued else None


def is_paused(job: Job) -> bool:
    """Allocated, and not computing through no fault of its own: suspended, stopped, or its nodes are still powering up."""
    return job.state is JobState.SUSPENDED or (job.state is JobState.RUNNING and not _PAUSED.isdisjoint(job.flags))


def fatal_signals(view: AttemptView) -> tuple[Signal, ...]:
    fatal = view.fatal
    if fatal is None:
        return ()
    return (Signal(source=SignalSource.LOG, at=fatal.at, text=fatal.text, node=fatal.node, rank=fatal.rank),)


def node_signals(view: AttemptView) -> tuple[Signal, ...]:
    states = {node.name: node for node in view.nodes}
    return tuple(
        Signal(source=SignalSource.NODE, at=lost.since, node=lost.node, text=_node_in_words(states[lost.node]))
        for lost in view.lost_nodes
        if lost.node in states
    )


def _node_in_words(node: Node) -> str:
    words = "+".join([node.state.value, *(flag.value for flag in node.flags)])
    return f"{node.name} is {words}" + (f": {node.reason}" if node.reason else "")


def in_words(length: timedelta) -> str:
    seconds = length.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
