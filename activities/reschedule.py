"""The step `reschedule`: one activity per Slurm mutation, each check → act → verify.

Killed at any line and run again, each does its thing once: what Slurm already shows is not done again. A look that
finds another hand's act comes back as `superseded`, a refusal as `refused`; both are answers, not errors. Only silence
of the scheduler is an error, and Temporal tries again. Called by `workflows/recovery.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial, wraps

from temporalio import activity

from activities.beat import Beat, beating, heartbeats
from activities.mutation import (
    DRAIN_PREFIX,
    HOLD_MARK,
    CancelNotSeen,
    ExclusionNotSeen,
    ExpediteNotSeen,
    MutationRequest,
    MutationResult,
    ReleaseNotSeen,
    RequeueNotSeen,
    already_requeued,
    carries_our_mark,
    has_run_since,
    lost_since,
    not_to_be_requeued,
    waits_for_begin_time,
)
from activities.placement import candidates_after_excluding, looks, unregistered_nodes
from activities.records import Job, JobState, NodeState
from activities.sending import Sending, Tell, about_to_send, told_before, told_to_temporal
from activities.slurm.clock import Clock
from activities.slurm.scheduler import (
    REQUEUED_HELD,
    JobFinished,
    JobNotPending,
    JobUnknown,
    PermissionDenied,
    Scheduler,
    SchedulerRefused,
    SchedulerSettings,
)

SHORTEST_USEFUL_DELAY = timedelta(seconds=15)
"""Under this requeue delay a job could start before its exclusions are written: requeue it held instead (docs/slurm.md, Requeue)."""

PAST_THE_KILL = timedelta(seconds=2)
"""slurmd refuses a launch in the whole second in which it killed the job ("Job already killed, do not launch", slurm_cred_revoked), and
the attempt is lost. SubmitTime is when the requeued job became pending, in whole seconds; measured on 22.05.8."""

PAST_THE_RETURN = timedelta(seconds=5)
"""From the registration of the nodes with a slurmctld that was restarted to the next start of a job that it may have forgotten to be
running: until then they end what they run of it. A launch in that moment fails, and Slurm holds the job ("launch failed requeued held",
measured on 22.05.8)."""

BAD_CONSTRAINTS = "BadConstraints"
"""No set of nodes satisfies the job any more. Slurm shows it with priority 0, which looks like a hold."""

NO_NODES_FOUND = "Slurm finds no nodes for the job with these exclusions (BadConstraints); lift some with `scontrol update ExcNodeList`"

LOOK_EVERY = timedelta(milliseconds=500)
"""How often one job is looked at while we wait for its requeue: a handful of RPCs, for acting jobs only."""


Mutation = Callable[["Reschedule", MutationRequest], Awaitable[MutationResult]]


def answering(step: Mutation) -> Mutation:
    """A mutation that gives Slurm's no as its answer. Trying again would not change it, and would keep the job waiting for an hour.
    Stands under `@activity.defn`."""

    @wraps(step)
    async def answers(self: "Reschedule", request: MutationRequest) -> MutationResult:
        try:
            return await step(self, request)
        except JobUnknown as forgotten:
            gone = f"Slurm no longer knows the job: {forgotten}"
            return MutationResult(step=step.__name__, at=self.now(), superseded=gone, detail=gone)
        except (JobFinished, JobNotPending):
            raise  # the job moved on between our look and our act: the next try looks first, and finds what to say
        except SchedulerRefused as refusal:
            return MutationResult(step=step.__name__, at=self.now(), refused=str(refusal), detail=str(refusal))

    return answers


class Reschedule:
    """The mutations. One instance a worker."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        tell: Tell = told_to_temporal,
    ) -> None:
        """`pause` waits so many seconds between two looks at a job (tests pass one that turns a simulated clock); `tell` keeps what is
        about to be sent where it outlives this worker."""
        self._scheduler = scheduler
        self._clock = clock
        self._pause = pause
        self._tell = tell

    def now(self) -> datetime:
        return self._clock.now()

    @activity.defn
    @answering
    async def requeue_job(self, request: MutationRequest) -> MutationResult:
        """Ends what still runs and puts the job back in the queue, once.

        Raises `SchedulerUnreachable` or `SchedulerUnreadable` when nothing can be known; the caller retries."""
        step = "requeue_job"
        sending = Sending(step, request.restart_count, self.now())
        told = told_before(sending)
        async with heartbeats(told or step) as beat:
            return await self._requeue(request, sending, beat, may_have_sent=bool(told))

    async def _requeue(self, request: MutationRequest, sending: Sending, beat: Beat, *, may_have_sent: bool) -> MutationResult:
        """`may_have_sent`: an earlier try told that it would."""
        step = sending.step
        start = (await self._scheduler.settings()).controller_start
        try:
            job = await self._scheduler.job(request.job_id)
        except JobUnknown as forgotten:
            return self._refused(step, f"Slurm no longer knows the job: {forgotten}")
        if requeued := already_requeued(job, request):
            if self._is_ours(job, request, may_have_sent=may_have_sent):
                held = not has_run_since(job, request.restart_count) and await self._held_by_us(job, request)
                return self._done(step, job, f"{requeued}; not repeated", held=held, start=start)
            by_slurm = await self._slurm_requeued(job, request)
            return self._superseded(step, job, requeued).model_copy(update={"by_slurm": by_slurm})
        if not_to_be := not_to_be_requeued(job, request):
            return self._superseded(step, job, not_to_be.superseded) if not_to_be.superseded else self._refused(step, not_to_be.refused)
        if job.may_requeue is False:
            await self._scheduler.permit_requeue(request.job_id)
        # What a person holds stays in the queue by itself; a hold of ours on top of theirs would be released with it.
        held_by_a_person = job.is_held_once_requeued and not carries_our_mark(job)
        hold = not held_by_a_person and await self._must_hold()
        if hold and not job.state.is_ended:
            await self._mark_hold(request)
        await about_to_send(sending, beat, self._tell)
        try:
            await self._scheduler.requeue(request.job_id, hold=hold)
        except JobFinished:
            # Between two states ("already completing or completed"): Slurm takes it a moment later. Temporal retries, and nothing was done.
            beat.says = step
            activity.heartbeat(step)
            raise
        except SchedulerRefused as refusal:
            return await self._refused_or_done(step, request, str(refusal))
        if hold and job.state.is_ended:
            # Slurm refuses every update of an ended job, so here the mark can only follow the hold.
            hold = await self._mark_or_release(request)
        job = await self._scheduler.job(request.job_id)
        if not already_requeued(job, request):
            raise RequeueNotSeen(f"job {request.job_id}: requeue was accepted, but the job is still {job.state}; looking again")
        return self._done(step, job, f"requeued; restarts {job.restart_count}", held=hold, start=start)

    @activity.defn
    @answering
    async def confirm_pending(self, request: MutationRequest) -> MutationResult:
        """Waits until the job really is PENDING: an update given while it is COMPLETING is silently lost.

        The wait is bounded by the activity's own timeout; it heartbeats what it sees."""
        step = "confirm_pending"
        while True:
            job = await self._scheduler.job(request.job_id)
            if job.state is JobState.PENDING and not job.is_ending:
                held = await self._held_by_us(job, request) if request.requeued else carries_our_mark(job)
                return self._done(step, job, f"pending ({job.reason or 'no reason given'})", held=held)
            if job.state is JobState.CANCELLED:
                return self._superseded(step, job, "someone cancelled the job")
            if has_run_since(job, request.restart_count):
                return self._superseded(step, job, f"the next attempt is {job.state} already")
            if lost := self._lost(step, job, request):
                return lost
            activity.heartbeat(f"{job.state} {' '.join(job.flags)}".strip())
            await self._pause(LOOK_EVERY.total_seconds())

    @activity.defn
    @beating
    @answering
    async def exclude_nodes(self, request: MutationRequest) -> MutationResult:
        """Unites the job's own ExcNodeList with `request.nodes` and writes it, if enough nodes remain.

        Slurm *replaces* the list and refuses all of it for one unknown name, so: read, unite, drop unknown names,
        count, write, read back. Too few nodes left is a refusal with the numbers; nothing is changed then."""
        step = "exclude_nodes"
        start = (await self._scheduler.settings()).controller_start  # before the write: one that starts in between may have lost it
        async for job, nodes in looks(self._scheduler, partial(self._scheduler.job, request.job_id), clock=self._clock, pause=self._pause):
            if lost := self._lost(step, job, request):
                return lost
            if job.state is not JobState.PENDING:
                return self._superseded(step, job, f"the job is {job.state}; exclusions can be written while it waits only")
            known = {node.name for node in nodes}
            wanted = sorted((set(job.excluded_nodes) | set(request.nodes)) & known)
            dropped = sorted((set(job.excluded_nodes) | set(request.nodes)) - known)
            note = f"; dropped unknown names {', '.join(dropped)}" if dropped else ""
            if set(wanted) == set(job.excluded_nodes):
                return self._done(step, job, f"{', '.join(wanted) or 'nothing'} excluded already{note}", excluded=wanted, start=start)
            if start and start == request.controller_start:
                lifted = ", ".join(sorted(set(wanted) - set(job.excluded_nodes)))
                return self._superseded(step, job, f"another hand lifted the exclusion of {lifted}, which is not written again")
            left = candidates_after_excluding(job, nodes, excluding=wanted, spare_nodes=request.spare_nodes)
            if left.enough:
                break
        else:
            return self._refused(step, left.in_words, job=job)
        added = sorted(set(wanted) - set(job.excluded_nodes))
        note = f"; {', '.join(job.excluded_nodes)} stood in the job's list already{note}" if job.excluded_nodes else note
        try:
            await self._scheduler.set_excluded_nodes(request.job_id, wanted)
        except JobNotPending:
            job = await self._scheduler.job(request.job_id)
            return self._superseded(step, job, f"the job became {job.state} before its exclusions were written")
        job = await self._scheduler.job(request.job_id)
        if not set(request.nodes) & known <= set(job.excluded_nodes):
            raise ExclusionNotSeen(f"job {request.job_id}: ExcNodeList reads {','.join(job.excluded_nodes) or 'empty'} after the update")
        return self._done(step, job, f"excluded {', '.join(added)}{note}", excluded=job.excluded_nodes, start=start)

    @activity.defn
    @beating
    @answering
    async def expedite(self, request: MutationRequest) -> MutationResult:
        """`StartTime=now`, only once PENDING: gives back the requeue delay. A job that runs already needs none."""
        step = "expedite"
        start = (await self._scheduler.settings()).controller_start
        job = await self._scheduler.job(request.job_id)
        if has_run_since(job, request.restart_count):
            return self._done(step, job, f"already {job.state}")
        if lost := self._lost(step, job, request):
            return lost
        if job.state is not JobState.PENDING or job.is_ending:
            return self._superseded(step, job, f"the job is {job.state}")
        if job.reason == BAD_CONSTRAINTS:
            return self._refused(step, NO_NODES_FOUND, job=job)
        if job.is_held:
            return self._superseded(step, job, f"someone holds the job ({job.reason})")
        if start and start == request.controller_start and waits_for_begin_time(job, self._clock.now()):
            return self._superseded(step, job, f"another hand lets the job begin at {job.eligible_at:%Y-%m-%d %H:%M:%S} UTC")
        await self._past_the_second_of_its_kill(job)
        await self._past_the_return_of_slurmctld(request, start)
        await self._scheduler.start_now(request.job_id)
        job = await self._scheduler.job(request.job_id)
        if waits_for_begin_time(job, self._clock.now()):
            raise ExpediteNotSeen(f"job {request.job_id}: still not eligible before {job.eligible_at} after StartTime=now")
        if job.reason == BAD_CONSTRAINTS:  # told only once the job is eligible
            return self._refused(step, NO_NODES_FOUND, job=job)
        return self._done(step, job, f"start time set to now; {job.state} {job.reason}".rstrip(), start=start)

    @activity.defn
    @beating
    @answering
    async def release_job(self, request: MutationRequest) -> MutationResult:
        """Releases a hold of ours, gives what is left of the requeue delay back and takes our mark away. A hold of another hand stays."""
        step = "release_job"
        start = (await self._scheduler.settings()).controller_start
        job = await self._scheduler.job(request.job_id)
        if lost := self._lost(step, job, request):
            return lost
        if not carries_our_mark(job) and job.is_held:
            return self._superseded(step, job, f"someone else holds the job ({job.reason})")
        if job.is_held:
            await self._past_the_second_of_its_kill(job)
            await self._past_the_return_of_slurmctld(request, start)
            await self._scheduler.release(request.job_id)
            job = await self._scheduler.job(request.job_id)
            if job.is_held:
                raise ReleaseNotSeen(f"job {request.job_id}: still held after release ({job.reason})")
        if job.state is JobState.PENDING and job.eligible_at is not None and job.eligible_at > self._clock.now():
            await self._scheduler.start_now(request.job_id)  # a release alone leaves the job waiting for its begin time
            job = await self._scheduler.job(request.job_id)
        if carries_our_mark(job):
            await self._scheduler.set_admin_comment(request.job_id, "")
        return self._done(step, job, "released", start=start)

    @activity.defn
    @beating
    @answering
    async def cancel_job(self, request: MutationRequest) -> MutationResult:
        """Ends a job for good, where policy says that `stop` cancels what still runs."""
        step = "cancel_job"
        job = await self._scheduler.job(request.job_id)
        if job.restart_count > request.restart_count:
            return self._superseded(step, job, "the job was requeued meanwhile")
        if job.state.is_ended or job.is_ending:
            return self._done(step, job, f"already {job.state}")
        await self._scheduler.cancel(request.job_id)
        job = await self._scheduler.job(request.job_id)
        if not (job.state.is_ended or job.is_ending):
            raise CancelNotSeen(f"job {request.job_id}: still {job.state} after scancel")
        return self._done(step, job, "cancelled")

    @activity.defn
    @beating
    async def drain_nodes(self, request: MutationRequest) -> MutationResult:
        """Drains nodes with a reason that carries our prefix; a node that is drained or down already is left as it is."""
        step = "drain_nodes"
        nodes = {node.name: node for node in await self._scheduler.nodes()}
        told: list[str] = []
        for name in request.nodes:
            node = nodes.get(name)
            if node is None:
                told.append(f"{name} unknown")
            elif not node.can_take_jobs and node.state is not NodeState.UNKNOWN:
                told.append(f"{name} was {node.state} already ({node.reason or 'no reason given'})")
            else:
                told.append(await self._drained(name, f"{DRAIN_PREFIX}{request.incident_id} {request.reason}"[:200]))
        return MutationResult(step=step, at=self.now(), done=True, detail=", ".join(told))

    async def _drained(self, node: str, reason: str) -> str:
        """A drain is a service to whoever mends the node; the job's recovery never waits for it or fails over it."""
        try:
            await self._scheduler.drain(node, reason)
        except SchedulerRefused as refusal:
            return f"{node} not drained: {refusal}"
        return f"{node} drained"

    # ------------------------------------------------------------------------------------------------ looking

    async def _past_the_second_of_its_kill(self, job: Job) -> None:
        if job.submitted_at is not None and (left := job.submitted_at + PAST_THE_KILL - self._clock.now()) > timedelta(0):
            await self._pause(min(left, PAST_THE_KILL).total_seconds())

    async def _past_the_return_of_slurmctld(self, request: MutationRequest, start: str) -> None:
        if not request.controller_start or start == request.controller_start:
            return
        async for job, nodes in looks(self._scheduler, partial(self._scheduler.job, request.job_id), clock=self._clock, pause=self._pause):
            if not unregistered_nodes(job, nodes):
                break
        await self._pause(PAST_THE_RETURN.total_seconds())

    def _is_ours(self, job: Job, request: MutationRequest, *, may_have_sent: bool) -> bool:
        """Whether the requeue that the job shows is Backstay's own: read back before, or told before it was sent, and the only one since.
        A try after one of which nothing is known may follow a send as well: then a job that waits in the queue is where the decision wants
        it, whoever put it there; on a first try it is another hand's act."""
        if request.requeued or (may_have_sent and job.restart_count <= request.restart_count + 1):
            return True
        return activity.info().attempt > 1 and not has_run_since(job, request.restart_count)

    def _lost(self, step: str, job: Job, request: MutationRequest) -> MutationResult | None:
        if (found := lost_since(job, request)) is None:
            return None
        loss, what = found
        return MutationResult(step=step, at=self.now(), lost=loss, detail=what, job=job)

    async def _held_by_us(self, job: Job, request: MutationRequest) -> bool:
        """Whether the hold of a job that we requeued is ours; one that lost its mark, or never got it, is marked."""
        held = carries_our_mark(job) or (job.reason == REQUEUED_HELD and await self._must_hold())
        if held and not carries_our_mark(job):
            await self._mark_hold(request)
        return held

    async def _mark_hold(self, request: MutationRequest) -> None:
        await self._scheduler.set_admin_comment(request.job_id, f"{HOLD_MARK} {request.incident_id}")

    async def _mark_or_release(self, request: MutationRequest) -> bool:
        """A hold without our mark would never be released by anyone: where we may not mark, the job goes on without its hold."""
        try:
            await self._mark_hold(request)
        except PermissionDenied:
            await self._scheduler.release(request.job_id)
            return False
        return True

    async def _must_hold(self) -> bool:
        settings: SchedulerSettings = await self._scheduler.settings()
        return settings.requeue_delay is not None and settings.requeue_delay < SHORTEST_USEFUL_DELAY

    async def _slurm_requeued(self, job: Job, request: MutationRequest) -> bool:
        """Slurm itself requeues the jobs of a node it gives up; one that runs again, or that a person holds, needs nothing of us. The node
        may be back by now."""
        if job.is_held or has_run_since(job, request.restart_count):
            return False
        lost = {node.name for node in await self._scheduler.nodes() if node.is_lost} | set(request.lost_nodes)
        return not lost.isdisjoint(request.ran_on)

    async def _refused_or_done(self, step: str, request: MutationRequest, why: str) -> MutationResult:
        """A refusal may only mean that the first of two sends arrived: look before believing it."""
        try:
            job = await self._scheduler.job(request.job_id)
        except JobUnknown:
            return self._refused(step, why)
        if requeued := already_requeued(job, request):
            return self._done(step, job, requeued, held=carries_our_mark(job))
        if carries_our_mark(job):
            await self._scheduler.set_admin_comment(request.job_id, "")  # or a later hold of the user's would pass for ours
        return self._refused(step, why, job=job)

    # ------------------------------------------------------------------------------------------------ answering

    def _done(
        self, step: str, job: Job, detail: str, *, held: bool = False, excluded: tuple[str, ...] | list[str] = (), start: str = ""
    ) -> MutationResult:
        return MutationResult(
            step=step, at=self.now(), done=True, detail=detail, held=held, excluded_nodes=tuple(excluded), controller_start=start, job=job
        )

    def _superseded(self, step: str, job: Job, what: str) -> MutationResult:
        return MutationResult(step=step, at=self.now(), superseded=what, detail=what, job=job)

    def _refused(self, step: str, why: str, *, job: Job | None = None) -> MutationResult:
        return MutationResult(step=step, at=self.now(), refused=why, detail=why, job=job)
