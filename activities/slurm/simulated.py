"""A Slurm cluster in memory: the `Scheduler` protocol with Slurm's rules that matter to recovery, its own clock and faults on demand.

Nothing runs in the background: every call first lives through what has become due since the last one. Serves workflow tests,
scale benches and the demo on a machine without Slurm. tests/contract/ holds it to real Slurm; where they differ, this is wrong.
"""

import copy
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from itertools import count

from activities.records import Job, JobState, Node
from activities.slurm.clock import Clock, WallClock
from activities.slurm.scheduler import (
    REQUEUED_HELD,
    JobFinished,
    JobNotPending,
    JobPending,
    JobUnknown,
    NodeNameInvalid,
    NotABatchJob,
    PermissionDenied,
    RequeueDisabled,
    SchedulerRefused,
    SchedulerSettings,
    SchedulerUnreachable,
)
from activities.slurm.simulated_controller import Controller, Rules
from activities.slurm.simulated_programs import Exit, Program, Scripted
from activities.slurm.simulated_state import Request, SimulatedJob, SimulatedNode, listing

REQUEUE_DELAY = timedelta(seconds=121)
"""AuthInfo=cred_expire (120 s by default) + 1 (slurmctld/job_mgr.c `batch_requeue_fini`)."""


class SimulatedCluster:
    """Implements `Scheduler`; the other public methods are the users' side (`submit`) and the faults' side (`node_down`, ...).

    Args:
        nodes: how many (`node-001` ...), or their names.
        clock: where the time comes from; a `ManualClock` makes a test move it.
        min_job_age: how long an ended job is remembered.
        requeue_delay: how long a requeued job is not eligible.
        completing_time: how long cleaning up after an execution takes (COMPLETING).
        kill_wait: from SIGTERM to SIGKILL for programs that do not listen.
        registration_time: how long a controller that came back shows its nodes UNKNOWN (Slurm 22.05.8: three seconds).
        partitions: every node is in all of them.
        lone_flags: show COMPLETING instead of the state, as Slurm 22.05 does; newer ones show both.
    """

    def __init__(
        self,
        nodes: int | Sequence[str] = 4,
        *,
        clock: Clock | None = None,
        name: str = "simulated",
        min_job_age: timedelta = timedelta(seconds=300),
        requeue_delay: timedelta = REQUEUE_DELAY,
        completing_time: timedelta = timedelta(seconds=1),
        kill_wait: timedelta = timedelta(seconds=30),
        registration_time: timedelta = timedelta(seconds=3),
        partitions: Sequence[str] = ("train",),
        lone_flags: bool = False,
    ) -> None:
        clock = clock or WallClock()
        self._settings = SchedulerSettings(
            version="simulated", cluster_name=name, min_job_age=min_job_age, requeue_delay=requeue_delay,
            job_requeue=True, slurm_user="slurm", accounting=False,
        )  # fmt: skip
        names = [f"node-{number:03d}" for number in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
        self._nodes = {node: SimulatedNode(node, tuple(partitions), clock.now()) for node in names}
        self._controller = Controller(self._nodes, clock, Rules(min_job_age, requeue_delay, completing_time, kill_wait, registration_time))
        self._ids = count(1)
        self._lone_flags = lone_flags
        self.may_operate = True
        """False: the credential may neither change others' jobs nor read their scripts (AdminLevel below Operator)."""
        self.may_administer = True
        """False: the credential may not change nodes (AdminLevel below Administrator)."""

    # ------------------------------------------------------------------------------------------- the Scheduler protocol

    async def settings(self) -> SchedulerSettings:
        self._ask()
        return self._settings.model_copy(update={"controller_start": f"start {self._controller.starts}"})

    async def jobs(self) -> Sequence[Job]:
        self._ask()
        return list(listing(self._controller.jobs.values()))

    async def job(self, job_id: str) -> Job:
        self._ask()
        found = self._controller.jobs.get(job_id)
        if found is None:
            raise JobUnknown(
                f"job {job_id} is not known to Slurm: it never had it, or has forgotten it (MinJobAge); of an array name a task"
            )
        return found.records()[0]

    async def nodes(self) -> Sequence[Node]:
        self._ask()
        return [node.record() for node in self._nodes.values()]

    async def batch_script(self, job_id: str) -> str:
        self._ask()
        job = self._find(job_id)
        if not self.may_operate:
            raise PermissionDenied(f"job script retrieval failed: Access/permission denied for job {job_id}")
        if not job.request.batch:
            raise NotABatchJob(f"job script retrieval failed: Job script not specified: job {job_id} came from srun or salloc")
        return job.request.script

    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        for job in self._change(job_id, _refuse_requeue):
            if hold:
                job.held = REQUEUED_HELD
            self._controller.requeue(job)
        self._controller.settle()

    async def permit_requeue(self, job_id: str) -> None:
        for job in self._change(job_id, _refuse_finished):
            job.may_requeue = True
            job.changed()

    async def set_excluded_nodes(self, job_id: str, nodes: Collection[str]) -> None:
        unknown = sorted(set(nodes) - self._nodes.keys())
        for job in self._change(job_id, _refuse_unless_pending):
            if unknown:
                raise NodeNameInvalid(f"Invalid node name specified for job {job_id}: {','.join(unknown)}")
            job.excluded = tuple(sorted(set(nodes)))
            self._controller.wait(job)
        self._controller.settle()

    async def start_now(self, job_id: str) -> None:
        for job in self._change(job_id, _refuse_unless_pending):
            job.eligible_at = self._controller.now  # a job still COMPLETING gets its delay written when it becomes pending
            self._controller.wait(job)
        self._controller.settle()

    async def hold(self, job_id: str) -> None:
        for job in self._change(job_id, _refuse_finished):
            job.held = "JobHeldUser"  # `uhold`; a running job runs on, and would be held once requeued
            self._controller.wait(job)
        self._controller.settle()

    async def release(self, job_id: str) -> None:
        for job in self._change(job_id, _refuse_finished):
            job.held = ""
            self._controller.wait(job)
        self._controller.settle()

    async def set_admin_comment(self, job_id: str, comment: str) -> None:
        for job in self._change(job_id, _refuse_finished):
            job.admin_comment = comment
            job.changed()

    async def cancel(self, job_id: str) -> None:
        for job in self._change(job_id, _refuse_finished):
            self.end_job(job.job_id, Exit(signal=signal.SIGTERM, state=JobState.CANCELLED))

    async def drain(self, node: str, reason: str) -> None:
        self._administer(node, draining=True, reason=reason)

    async def resume(self, node: str) -> None:
        self._administer(node, draining=False, reason="")

    # ------------------------------------------------------------------------------------------------ the users' side

    def submit(
        self,
        program: Program | None = None,
        *,
        request: Request | None = None,
        exclude: Collection[str] = (),
        requeue: bool = True,
        hold: bool = False,
        begin_in: timedelta = timedelta(0),
        array: Sequence[int] = (),
        het: Sequence[int] = (),
    ) -> str:
        """`sbatch`: returns the job ID (of an array: the array's; its tasks are `ID_T`).

        Args:
            program: what each attempt does; default: runs until it is ended.
            request: name, user, nodes, comment, paths ...; default: one node.
            requeue: False for `--no-requeue`.
            begin_in: not eligible until then.
            array: task numbers. het: node counts of the components."""
        self._controller.settle()
        job_id = next(self._ids)
        for task in tuple(array) or (None,):
            is_last = task is None or task == array[-1]  # the last task keeps the array's number
            numeric_id = job_id if is_last else next(self._ids)
            job = SimulatedJob(
                job_id=str(job_id) if task is None else f"{job_id}_{task}",
                numeric_id=numeric_id,
                request=request or Request(),
                program=program or Scripted(),
                submitted_at=self._controller.now,
                eligible_at=self._controller.now + begin_in,
                may_requeue=requeue,
                held="JobHeldUser" if hold else "",
                excluded=tuple(sorted(exclude)),
                array_job_id=None if task is None else job_id,
                array_task_id=task,
                het_sizes=tuple(het),
                lone_flags=self._lone_flags,
            )
            self._controller.add(job)
        for _ in het[1:]:
            next(self._ids)  # each component has a number of its own
        self._controller.settle()
        return str(job_id)

    # ------------------------------------------------------------------------------------------------ the faults' side

    @property
    def down(self) -> bool:
        """True while no controller answers. Jobs run on, nothing new starts."""
        return self._controller.down

    @down.setter
    def down(self, down: bool) -> None:
        self._controller.settle()
        if down:
            self._controller.down = True
        elif self._controller.down:
            self._controller.start()
        self._controller.settle()

    def end_job(self, job_id: str, exit: Exit) -> None:
        """Ends what runs or waits, with this exit, as if it came from the job itself (or from Slurm, where it names a state)."""
        self._controller.settle()
        job = self._find(job_id)
        self._controller.end(job, exit)
        self._controller.settle()

    def fail_job(self, job_id: str, exit_code: int = 1) -> None:
        self.end_job(job_id, Exit(code=exit_code))

    def node_down(self, name: str, reason: str = "Not responding") -> None:
        """The node is lost: its job ends NODE_FAIL, and Slurm itself requeues it where the user permits that."""
        self._controller.settle()
        node = self._nodes[name]
        node.up, node.reason = False, reason
        self._controller.node_changed(node)
        job = node.job
        if job is not None and job.state is JobState.RUNNING:
            if job.request.batch and job.may_requeue:
                self._controller.requeue(job)
            else:
                self._controller.end(job, Exit(state=JobState.NODE_FAIL))
        self._controller.settle()

    def node_up(self, name: str, *, rebooted: bool = True) -> None:
        self._controller.settle()
        node = self._nodes[name]
        node.up, node.reason = True, "" if not node.draining else node.reason
        node.booted_at = self._controller.now if rebooted else node.booted_at
        self._controller.node_changed(node)
        self._controller.settle()

    def saved(self, job_id: str) -> SimulatedJob:
        """The job as slurmctld would save it to disk now; for `come_back_with`."""
        self._controller.settle()
        return copy.copy(self._find(job_id))

    def come_back_with(self, saved: SimulatedJob) -> None:
        """slurmctld is killed before it saved what happened since, and is started again: all that is forgotten."""
        self._controller.settle()
        self._controller.come_back_with(self._find(saved.job_id), saved)
        self._controller.settle()

    def stop(self) -> None:
        """Ends every real process at once; for the end of a demo or a test."""
        self._controller.stop()

    # ------------------------------------------------------------------------------------------ asking and being refused

    def _ask(self) -> None:
        self._controller.settle()
        if self._controller.down:
            raise SchedulerUnreachable("Unable to contact slurm controller (connect failure): slurmctld is down; start it")

    def _find(self, job_id: str) -> SimulatedJob:
        """By its ID or, as Slurm does too, by the number of an array task or het component."""
        jobs = self._controller.jobs
        found = jobs.get(job_id) or next((job for job in jobs.values() if job_id in job.numbers), None)
        if found is None:
            raise JobUnknown(f"Invalid job id specified: {job_id}; Slurm never had it or has forgotten it (MinJobAge)")
        return found

    def _change(self, job_id: str, refuse: Callable[[SimulatedJob], None]) -> Iterator[SimulatedJob]:
        """The jobs a mutation names; a bare array ID names every task. Where some refuse, the others are changed all the same."""
        self._ask()
        jobs = [job for job in self._controller.jobs.values() if str(job.array_job_id) == job_id] or [self._find(job_id)]
        if not self.may_operate:
            raise PermissionDenied(f"Access/permission denied for job {job_id}")
        refusal: SchedulerRefused | None = None
        for job in jobs:
            if job.het_sizes and job_id != job.job_id:
                raise SchedulerRefused(f"Job not heterogeneous job leader for job {job_id}; name the leader, {job.job_id}")
            try:
                refuse(job)
            except SchedulerRefused as error:
                refusal = error
            else:
                yield job
        if refusal is not None:
            raise refusal

    def _administer(self, name: str, *, draining: bool, reason: str) -> None:
        self._ask()
        if not self.may_administer:
            raise PermissionDenied(f"Access/permission denied: changing node {name} needs AdminLevel=Administrator")
        node = self._nodes.get(name)
        if node is None:
            raise NodeNameInvalid(f"Invalid node name specified: {name}")
        if draining and not reason:
            raise SchedulerRefused(f"You must specify a reason when DRAINING a node: {name}")
        node.draining, node.reason = draining, reason
        self._controller.node_changed(node)
        self._controller.settle()


def _refuse_requeue(job: SimulatedJob) -> None:
    """In the order slurmctld asks (job_mgr.c `_job_requeue_op`)."""
    if not job.request.batch:
        raise NotABatchJob(f"Only batch jobs are accepted or processed for job {job.job_id}")
    if not job.may_requeue:
        raise RequeueDisabled(f"Requested operation is presently disabled for job {job.job_id}")
    if job.state is JobState.PENDING:
        raise JobPending(f"Job is pending execution for job {job.job_id}")


def _refuse_finished(job: SimulatedJob) -> None:
    if job.has_finished:
        raise JobFinished(f"Job has already finished for job {job.job_id}")


def _refuse_unless_pending(job: SimulatedJob) -> None:
    _refuse_finished(job)
    if job.state is not JobState.PENDING:
        raise JobNotPending(f"Job is no longer pending execution for job {job.job_id}")
