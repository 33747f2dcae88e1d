"""The simulated controller: what becomes of jobs as time passes. Timers, scheduling, ends, requeues, forgetting.

Nothing runs in the background: `settle` lives through what has become due since it was last called. `simulated.py` calls it before
and after everything it does.
"""

import heapq
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import count

from activities.records import JobState
from activities.slurm.clock import Clock
from activities.slurm.simulated_programs import Exit, prepare_output
from activities.slurm.simulated_state import SimulatedJob, SimulatedNode, nodes_for


@dataclass(frozen=True, slots=True)
class Rules:
    """The times slurm.conf sets."""

    min_job_age: timedelta
    requeue_delay: timedelta
    completing_time: timedelta
    kill_wait: timedelta
    registration_time: timedelta


class Controller:
    """Owns jobs and nodes. `now` is the moment lived through; `down`: nothing new starts."""

    def __init__(self, nodes: Mapping[str, SimulatedNode], clock: Clock, rules: Rules) -> None:
        self.nodes = nodes
        self.now = clock.now()
        self.down = False
        self.starts = 1
        self._registered_at = self.now  # when the nodes will have registered with a controller just started
        self.jobs: dict[str, SimulatedJob] = {}
        self._clock, self._rules = clock, rules
        self._waiting: dict[str, SimulatedJob] = {}
        self._processes: set[SimulatedJob] = set()
        self._timers: list[tuple[datetime, int, int, SimulatedJob, Callable[[SimulatedJob], None]]] = []
        self._sequence = count()
        self._must_schedule = False

    def settle(self) -> None:
        """Lives through everything that became due, in order, up to the clock's now."""
        until = max(self._clock.now(), self.now)
        while True:
            self._schedule_if_needed()
            due = self._timers[0][0] if self._timers else until
            if self._registered_at <= min(due, until) and self._register_nodes():
                continue
            if not self._timers or due > until:
                break
            at, _, epoch, job, act = heapq.heappop(self._timers)
            self.now = max(at, self.now)
            if epoch == job.epoch:
                act(job)
        self.now = until
        for job in list(self._processes):
            self._look_at_process(job)
        self._schedule_if_needed()

    def start(self) -> None:
        """The controller is back and has yet to hear from its nodes: until they register it shows them UNKNOWN and starts nothing."""
        self.down = False
        self.starts += 1
        self._registered_at = self.now + self._rules.registration_time
        for node in self.nodes.values():
            node.registered = False
            self.node_changed(node)

    def _register_nodes(self) -> bool:
        """Whether there were any to register."""
        waited = [node for node in self.nodes.values() if not node.registered]
        for node in waited:
            self.now = max(self.now, self._registered_at)
            node.registered = True
            self.node_changed(node)
        return bool(waited)

    def add(self, job: SimulatedJob) -> None:
        self.jobs[job.job_id] = job
        self.wait(job)

    def wait(self, job: SimulatedJob) -> None:
        """The job waits, or what it waits for has changed."""
        job.changed()
        if job.state is not JobState.PENDING:
            job.reason = job.held
        if job.state is JobState.PENDING and not job.completing:
            self._waiting[job.job_id] = job
        if job.eligible_at > self.now:
            self._at(job.eligible_at, job, self._become_eligible)
        self._must_schedule = True

    def node_changed(self, node: SimulatedNode) -> None:
        node.changed()
        self._must_schedule = True

    def end(self, job: SimulatedJob, exit: Exit) -> None:
        """The execution (or the wait) is over for good, unless somebody requeues it."""
        self._waiting.pop(job.job_id, None)
        was_running = job.state is JobState.RUNNING
        job.epoch += not job.completing  # what is being cleaned up still has to finish
        job.state, job.exit, job.ended_at = exit.final_state, exit, self.now
        job.requeued = False
        job.started_at = job.started_at or self.now
        job.reason = _REASON_OF_END.get(job.state, "")
        job.changed()
        if was_running:
            self._clean_up(job)
        elif not job.completing:
            self._at(self.now + self._rules.min_job_age, job, self._forget)

    def requeue(self, job: SimulatedJob) -> None:
        """Back into the queue: at once where nothing runs, after cleaning up (COMPLETING) where something does."""
        was_running = job.state is JobState.RUNNING
        job.epoch += not job.completing
        job.state, job.reason = JobState.PENDING, ""
        job.restart_count += 1
        job.requeued = True
        job.changed()
        if was_running:
            self._clean_up(job)
        elif not job.completing:
            self._become_pending(job)

    def come_back_with(self, job: SimulatedJob, saved: SimulatedJob) -> None:
        """As if killed and started again: what runs of the job is unknown to the saved state, and its nodes end it when they register; a
        job saved as running, of which nothing runs any more, is requeued."""
        self.start()
        if job.running is not None:
            job.running.end(force=True)
        self._processes.discard(job)
        for name in job.nodes:
            if self.nodes[name].job is job:
                self.nodes[name].job = None
                self.node_changed(self.nodes[name])
        self._waiting.pop(job.job_id, None)
        epoch = job.epoch + 1
        for each in fields(saved):
            setattr(job, each.name, getattr(saved, each.name))
        job.epoch, job.running, job.completing = epoch, None, False
        job.changed()
        if job.state is JobState.RUNNING:
            job.state, job.reason, job.restart_count = JobState.PENDING, "", job.restart_count + 1
            self._become_pending(job)
        elif job.requeued:
            self._become_pending(job)
        elif job.state is JobState.PENDING:
            self.wait(job)
        else:
            self._at((job.ended_at or self.now) + self._rules.min_job_age, job, self._forget)

    def stop(self) -> None:
        """Ends every real process at once."""
        for job in self._processes:
            if job.running is not None:
                job.running.end(force=True)

    # ---------------------------------------------------------------------------------------------------------- timers

    def _at(self, at: datetime, job: SimulatedJob, act: Callable[[SimulatedJob], None]) -> None:
        heapq.heappush(self._timers, (at, next(self._sequence), job.epoch, job, act))

    def _become_eligible(self, job: SimulatedJob) -> None:
        self._must_schedule = True

    def _time_out(self, job: SimulatedJob) -> None:
        self.end(job, Exit(signal=signal.SIGTERM, state=JobState.TIMEOUT))

    def _forget(self, job: SimulatedJob) -> None:
        self.jobs.pop(job.job_id, None)

    # ------------------------------------------------------------------------------------------------------- beginnings

    def _schedule_if_needed(self) -> None:
        if self._must_schedule and not self.down:
            self._must_schedule = False
            self._schedule()

    def _schedule(self) -> None:
        """Starts what can start, oldest first; a job that fits passes one that does not (backfill)."""
        idle = {name for name, node in self.nodes.items() if node.job is None and node.can_take_jobs}
        blocked = False
        for job in list(self._waiting.values()):
            reason = job.held or ("BeginTime" if job.eligible_at > self.now else "")
            if not reason:
                placed = nodes_for(job, idle, self.nodes)
                if not isinstance(placed, str):
                    idle.difference_update(placed)
                    self._start(job, tuple(placed))
                    continue
                reason = "Priority" if placed == "Resources" and blocked else placed
                blocked = blocked or placed == "Resources"
            if job.reason != reason:
                job.reason = reason
                job.changed()

    def _start(self, job: SimulatedJob, nodes: tuple[str, ...]) -> None:
        del self._waiting[job.job_id]
        job.epoch += 1
        job.state, job.nodes, job.started_at, job.ended_at = JobState.RUNNING, nodes, self.now, None
        job.reason, job.exit, job.requeued = "", Exit(), False
        job.changed()
        for name in nodes:
            self.nodes[name].job = job
            self.nodes[name].changed()
        execution = job.execution()
        try:
            prepare_output(execution)
            job.running = job.program.start(execution, self.now)
        except OSError:  # the log's directory or the program is missing: slurmd fails the job as well, with 0:53
            self.end(job, Exit(signal=_COULD_NOT_START))
            return
        if job.running.is_process:
            self._processes.add(job)
        if job.running.fate is not None:
            ends_at, exit = job.running.fate
            self._at(ends_at, job, lambda job: self.end(job, exit))
        if job.request.time_limit is not None:
            self._at(self.now + job.request.time_limit, job, self._time_out)

    # ------------------------------------------------------------------------------------------------------------- ends

    def _clean_up(self, job: SimulatedJob) -> None:
        """COMPLETING: the nodes are not free and what comes next is not yet visible, until every process is gone."""
        job.completing = True
        for name in job.nodes:
            self.nodes[name].changed()
        if job.running is not None:
            job.running.end(force=False)
        if job.running is not None and job.running.poll() is None:
            self._at(self.now + self._rules.kill_wait, job, self._kill)
        else:
            self._at(self.now + self._rules.completing_time, job, self._completed)

    def _kill(self, job: SimulatedJob) -> None:
        if job.running is not None:
            job.running.end(force=True)
        if job not in self._processes:
            self._at(self.now + self._rules.completing_time, job, self._completed)

    def _look_at_process(self, job: SimulatedJob) -> None:
        exit = None if job.running is None else job.running.poll()
        if exit is None:
            return
        self._processes.discard(job)
        if not job.completing:
            self.end(job, exit)
        else:
            job.epoch += 1  # SIGKILL is no longer needed
            self._at(self.now + self._rules.completing_time, job, self._completed)

    def _completed(self, job: SimulatedJob) -> None:
        job.epoch += 1
        job.completing, job.running = False, None
        job.changed()
        for name in job.nodes:
            node = self.nodes[name]
            node.job = None
            self.node_changed(node)
        if job.requeued:
            self._become_pending(job)
        else:
            self._at(self.now + self._rules.min_job_age, job, self._forget)

    def _become_pending(self, job: SimulatedJob) -> None:
        """Here Slurm writes the begin time, over any `StartTime=now` given while COMPLETING, and the submit time anew."""
        job.requeued = False
        job.submitted_at, job.eligible_at = self.now, self.now + self._rules.requeue_delay
        job.nodes, job.started_at, job.ended_at = (), None, None
        self.wait(job)


_COULD_NOT_START = 53
"""What slurmd reports as the signal of a job whose output it could not open (EBADR, slurmd/slurmstepd/io.c)."""

_REASON_OF_END = {
    JobState.FAILED: "NonZeroExitCode",
    JobState.TIMEOUT: "TimeLimit",
    JobState.NODE_FAIL: "NodeDown",
    JobState.OUT_OF_MEMORY: "OutOfMemory",
}
"""squeue's reason column of ended jobs (slurm.h `enum job_state_reason`)."""
