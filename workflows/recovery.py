"""The steps `reschedule` and `verify` in their order: requeue → pending → exclude → expedite, then running → stepping → checkpoint.

Holds order and waits only. It writes what happened into a `Story`; the job's workflow reads the story. Each mutation is
one activity, so that each stands in the history.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.mutation import Loss, MutationRequest, MutationResult
    from activities.records import (
        Attempt,
        Cursor,
        Incident,
        Job,
        JobState,
        Milestone,
        Milestones,
        Outcome,
        OutcomeState,
        Placement,
        Step,
        WatchEnd,
        WatchRequest,
        WatchResult,
        WatchUntil,
    )
    from activities.reschedule import Reschedule
    from activities.verify import Verify
    from workflows.state import Terms
    from workflows.visibility import mutation_in_words, one_line
    from workflows.watch import keep_watching, raise_if_cancelled

MUTATION_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=10))

ONE_MUTATION = timedelta(seconds=60)
"""Longest run of one try: a Slurm command has 30 s. A worker that died is noticed by its missing heartbeats, long before this."""

ALL_TRIES = timedelta(hours=1)
"""How long a mutation is tried against a Slurm that does not answer, before the incident is closed as failed."""

PENDING_WITHIN = timedelta(minutes=30)
"""From requeue to PENDING: KillWait, the epilog and unkillable processes take their time."""

MOST_LOSSES = 3
"""How often one recovery does again what a slurmctld that came back with older state has lost. One that loses more is not to be trusted."""

ANOTHER_HAND = "restarted by another hand, not by Backstay"
STARTED_BY_SLURM = "requeued and started by Slurm itself, not by Backstay"
DELAY_GIVEN_BACK = "requeued by Slurm itself; Backstay gave the delay back"


class Story:
    """An outcome being written: steps and milestones are appended, never changed."""

    def __init__(self, outcome: Outcome, changed: Callable[[Outcome], None]) -> None:
        self.outcome = outcome
        self._changed = changed

    def step(self, name: str, detail: str = "", *, at: datetime | None = None, reaches: Milestone | None = None) -> None:
        """One fact, now or at the time an activity told, and the milestone it reaches; one that was reached before keeps its time."""
        now = at or workflow.now()
        if self.outcome.steps:
            # Slurm tells starts in whole seconds, and clocks differ: a story never steps back behind what it has told.
            now = max(now, self.outcome.steps[-1].at)
        reached = {reaches.value: now} if reaches is not None and getattr(self.outcome.milestones, reaches) is None else {}
        milestones: Milestones = self.outcome.milestones.model_copy(update=reached)
        steps = (*self.outcome.steps, Step(name=name, at=now, detail=detail))
        self._write(steps=steps, milestones=milestones)

    def state(self, state: OutcomeState, summary: str) -> None:
        self._write(state=state, summary=summary)

    def undecided(self) -> None:
        """Takes the milestone `decided` back: that decision was not carried out, and the one that stands is timed by itself."""
        self._write(milestones=self.outcome.milestones.model_copy(update={"decided": None}))

    def _write(self, **update: object) -> None:
        self.outcome = self.outcome.model_copy(update=update)
        self._changed(self.outcome)


@dataclass
class Restarted:
    """How the mutations went."""

    acted: bool
    """Backstay's requeue stands: the restart counts against its limits."""
    follow: bool
    """A later attempt exists or will: it is to be verified."""
    job: Job | None = None
    placed: bool = False
    """Backstay said when it starts, and off which nodes, whoever requeued it."""
    placement: Placement = field(default_factory=Placement)
    """What of that was read back, for the watch that follows."""
    lost: Loss | None = None
    """Slurm came back with older state before all was done."""


class Recovery:
    """Acts on one incident and verifies what follows."""

    def __init__(self, story: Story, terms: Terms, job: str) -> None:
        """`job`: its name as people are told it, by `job_in_words`."""
        self._story = story
        self._terms = terms
        self._job = job
        self._losses = 0
        self._drained = False

    # ------------------------------------------------------------------------------------------------ reschedule

    async def restart(self, incident: Incident, request: MutationRequest) -> Restarted:
        """Requeue, wait until really PENDING, exclude, give the delay back. If we die in between, Slurm starts the job. Where Slurm dies in
        between and comes back with older state, what it lost is done again."""
        ours = request.requeued
        while True:
            asked = request.model_copy(update={"requeued": ours})
            requeued = await self._mutate(Reschedule.requeue_job, asked)
            if requeued is not None and requeued.superseded and requeued.by_slurm:
                # The decision stands, and the job waits: off the nodes named, and without the two minutes a requeue makes it wait.
                self._story.step("requeued_by_slurm", requeued.superseded, at=requeued.at)
            elif requeued is None or not requeued.done:
                return replace(self._not_requeued(requeued), acted=ours)
            else:
                ours = True
                self._story.step("requeued", requeued.detail, at=requeued.at, reaches=Milestone.ACTED)
            asked = asked.model_copy(update={"requeued": ours})
            try:
                placed = await self._place(incident, asked, held=requeued.held, start=requeued.controller_start)
            except asyncio.CancelledError:
                # Whoever cancels this workflow wants no more of Backstay, and would not look for a hold of its.
                if requeued.held:
                    await self._mutate(Reschedule.release_job, request)
                raise
            if placed.lost is not Loss.REQUEUE:
                return replace(placed, acted=ours)
            request = request.model_copy(update={"controller_start": placed.placement.controller_start})
            if self._losses > MOST_LOSSES:
                self._story.state(OutcomeState.FAILED, f"slurmctld came back {self._losses} times without the requeue")
                return replace(placed, acted=ours, follow=False)

    async def again(self, incident: Incident, request: MutationRequest, before: Restarted) -> Restarted:
        """The watch found that Slurm no longer shows what was done to the waiting job: it is done again, and counts as one restart still.
        What another hand undid stays undone."""
        request = request.model_copy(update={"requeued": before.acted, "controller_start": before.placement.controller_start})
        placed = await self._place(incident, request, held=False) if self._may_do_again() else Restarted(acted=before.acted, follow=True)
        if placed.lost is Loss.REQUEUE:
            placed = await self.restart(incident, request)
        return replace(placed, acted=before.acted or placed.acted, placed=before.placed or placed.placed)

    def _may_do_again(self) -> bool:
        self._losses += 1
        return self._losses <= MOST_LOSSES

    async def _place(self, incident: Incident, request: MutationRequest, *, held: bool, start: str = "") -> Restarted:
        """Once it is back in the queue: exclude, then let it go; again where slurmctld lost that in between. `start`: of the slurmctld that
        took the requeue."""
        while True:
            placed = await self._place_once(incident, request, held=held, start=start)
            if placed.lost is None:
                return placed
            if not self._may_do_again() or placed.lost is Loss.REQUEUE:
                return placed
            request = request.model_copy(update={"controller_start": placed.placement.controller_start})

    async def _place_once(self, incident: Incident, request: MutationRequest, *, held: bool, start: str) -> Restarted:
        placement = Placement(requeued=request.requeued, controller_start=start or request.controller_start)
        pending = await self._mutate(Reschedule.confirm_pending, request, within=PENDING_WITHIN)
        if pending is None or not pending.done:
            return self._gone_on(pending, request, placement, held=held)
        self._story.step("pending", pending.detail)
        held = held or (self._losses > 0 and pending.held)  # of a hold that was released, the release may be what was lost
        if request.nodes:
            excluded = await self._mutate(Reschedule.exclude_nodes, request)
            if excluded is not None and (excluded.superseded or excluded.lost):
                return self._gone_on(excluded, request, placement, held=held)
            # A refusal here (nodes were lost since the recommendation), or silence, must not leave the job stuck: it goes on without.
            if excluded is not None:
                self._story.step("excluded" if excluded.done else "exclusion_refused", excluded.detail)
                written = tuple(node for node in request.nodes if node in excluded.excluded_nodes)
                started = excluded.controller_start or placement.controller_start
                placement = placement.model_copy(update={"excluded": written, "controller_start": started})
        asked = request.model_copy(update={"excluded": placement.excluded})
        last = await self._mutate(Reschedule.release_job if held else Reschedule.expedite, asked)
        if last is None or not last.done:
            return self._gone_on(last, request, placement, held=held)
        started = last.controller_start or placement.controller_start
        placement = placement.model_copy(update={"start_given": True, "controller_start": started})
        self._story.step("released" if held else "expedited", last.detail, reaches=Milestone.ACTED)
        drain = incident.recommendation.drain_nodes if incident.recommendation is not None else ()
        if drain and not self._drained:
            self._drained = True
            drained = await self._mutate(Reschedule.drain_nodes, request.model_copy(update={"nodes": drain}))
            if drained is not None:
                self._story.step("drained", drained.detail)
        return Restarted(acted=True, follow=True, job=last.job, placed=True, placement=placement)

    async def cancel(self, request: MutationRequest, why: str) -> None:
        """Ends a job that still runs, where policy lets `stop` do that. `why` it is stopped."""
        cancelled = await self._mutate(Reschedule.cancel_job, request)
        if cancelled is None:
            return
        if cancelled.done:
            self._story.step("cancelled", cancelled.detail, at=cancelled.at, reaches=Milestone.ACTED)
            self._story.state(OutcomeState.STOPPED, why)
        elif cancelled.superseded:
            self._story.step("superseded", cancelled.detail)
            self._story.state(OutcomeState.NOT_ACTED, f"superseded: {cancelled.superseded}")
        else:
            self._story.step("not_cancelled", cancelled.detail)
            self._story.state(OutcomeState.FAILED, f"Slurm would not cancel: {cancelled.detail}")

    def _not_requeued(self, result: MutationResult | None) -> Restarted:
        if result is None:
            return Restarted(acted=False, follow=False)
        if result.superseded:
            self._story.step("superseded", result.superseded)
            ended = result.job is not None and result.job.state in (JobState.CANCELLED, JobState.COMPLETED)
            self._story.state(OutcomeState.NOT_ACTED, f"superseded: {result.superseded}")
            return Restarted(acted=False, follow=not ended, job=result.job)
        self._story.step("requeue_refused", result.detail)
        self._story.state(OutcomeState.FAILED, f"Slurm would not requeue: {result.detail}")
        return Restarted(acted=False, follow=False, job=result.job)

    def _gone_on(self, result: MutationResult | None, request: MutationRequest, placement: Placement, *, held: bool) -> Restarted:
        """We requeued, then someone else acted, Slurm refused or fell silent, or lost what was done. The job runs on by itself, so what
        follows is verified."""
        if result is None:
            if held:
                self._story.step("still_held", "the job waits in a hold of ours; `backstay failopen` releases it")
            return Restarted(acted=True, follow=True, placement=placement)
        if result.lost:
            self._story.step(f"{result.lost}_lost", f"{result.detail}; it is done again")
            return Restarted(acted=True, follow=True, job=result.job, placement=placement, lost=result.lost)
        unwritten = [node for node in request.nodes if result.job is not None and node not in result.job.excluded_nodes]
        self._story.step("superseded" if result.superseded else "refused", result.detail)
        cancelled = result.job is not None and result.job.state is JobState.CANCELLED
        if cancelled:
            self._story.state(OutcomeState.NOT_ACTED, f"superseded: {result.detail}")
        elif unwritten:
            self._story.step("not_excluded", f"{', '.join(unwritten)}: the exclusion was not written")
        if result.refused and not cancelled:
            # The job is in the queue and may never leave it: a person has to look. Verification overrules this when it runs after all.
            self._story.state(OutcomeState.HELD, result.detail)
        return Restarted(acted=True, follow=not cancelled, job=result.job, placement=placement)

    async def _mutate(
        self,
        method: Callable[[Reschedule, MutationRequest], object],
        request: MutationRequest,
        *,
        within: timedelta = ONE_MUTATION,
    ) -> MutationResult | None:
        """One mutation with its retries. None: given up after `ALL_TRIES`; the story says so."""
        name = method.__name__
        try:
            result: MutationResult = await workflow.execute_activity(
                name,
                request,
                result_type=MutationResult,
                start_to_close_timeout=within,
                schedule_to_close_timeout=max(ALL_TRIES, within),
                heartbeat_timeout=self._terms.heartbeat_timeout,
                retry_policy=MUTATION_RETRIES,
                summary=mutation_in_words(name, self._job, request.nodes),
            )
        except ActivityError as error:
            raise_if_cancelled(error)
            why = str(error.cause or error)
            self._story.step(f"{name}_given_up", why)
            self._story.state(OutcomeState.FAILED, f"{name} given up: {why}")
            return None
        return result

    # ------------------------------------------------------------------------------------------------ verify

    async def verify(self, attempt: Attempt, request: WatchRequest, *, saw: Callable[[WatchResult], None], hand: str = "") -> WatchResult:
        """The attempt that follows must run, step and write a checkpoint newer than the one before the fault. `saw` is told of each look
        as it ends, since the next may take hours. `hand`: who restarted it, in words, where Backstay did not.

        Returns the last thing seen; the story's outcome says how far it came."""
        stages = (
            (Verify.verify_running, WatchUntil.RUNNING, Milestone.RUNNING, self._terms.running_within),
            (Verify.verify_stepping, WatchUntil.STEPPING, Milestone.STEPPING, self._terms.stepping_within),
            (Verify.verify_checkpoint, WatchUntil.CHECKPOINT, Milestone.RECOVERED, self._terms.checkpoint_within),
        )
        cursor: Cursor | None = request.cursor
        for method, until, milestone, within in stages:
            request = request.model_copy(update={"attempt": attempt, "until": until, "cursor": cursor, "deadline": workflow.now() + within})
            seen = await self._look(method.__name__, request)
            saw(seen)
            if seen.kind is not WatchEnd.REACHED:
                if not self._completed(seen, request, hand):
                    self._short_of(milestone, seen, within)
                return seen
            cursor = seen.cursor
            attempt = attempt.model_copy(update={"nodes": seen.job.nodes, "started_at": seen.job.started_at}) if seen.job else attempt
            self._story.step(milestone, _milestone_in_words(milestone, seen, request), at=seen.at, reaches=milestone)
        self._story.state(OutcomeState.RECOVERED, f"checkpoint {seen.progress.checkpoint_iteration} written after the restart{_by(hand)}")
        return seen

    def _completed(self, seen: WatchResult, request: WatchRequest, hand: str) -> bool:
        """A restarted attempt that Slurm calls COMPLETED, every step of it, has reached its end: that is all the proof there is of a job
        that writes no checkpoints. One that had written some must at least have gone on from there, or its script ended for nothing."""
        job = seen.job
        if seen.kind is not WatchEnd.ENDED_WELL or job is None or job.state is not JobState.COMPLETED:
            return False
        if request.checkpoint_before is not None and seen.progress.iteration is None:
            return False
        note = f", no checkpoint newer than {request.checkpoint_before} seen" if request.checkpoint_before is not None else ""
        self._story.step("completed", f"the job ended with exit code 0{note}", at=seen.at, reaches=Milestone.RECOVERED)
        self._story.state(OutcomeState.RECOVERED, f"completed after the restart{note}{_by(hand)}")
        return True

    async def _look(self, name: str, request: WatchRequest) -> WatchResult:
        return await keep_watching(
            name,
            request,
            WatchResult,
            heartbeat_timeout=self._terms.heartbeat_timeout,
            summary=one_line(f"verify {self._job}: attempt {request.attempt.restart_count} {_VERIFIED[request.until]}"),
            failed=lambda why: self._story.step(f"{name}_failed", why),
        )

    def _short_of(self, milestone: Milestone, seen: WatchResult, within: timedelta) -> None:
        """Names why verification ended before its goal."""
        match seen.kind:
            case WatchEnd.SYMPTOM:
                what = f"the new attempt failed before it was {milestone}: {seen.symptom.summary if seen.symptom else 'no symptom told'}"
            case WatchEnd.DEADLINE:
                what = f"not {milestone} within {within}"
            case WatchEnd.ENDED_WELL | WatchEnd.ENDED_AS_KNOWN:
                what = f"the job ended ({seen.job.state if seen.job else 'state unknown'}) before it was {milestone}"
            case WatchEnd.REQUEUED:
                what = f"someone restarted the job again before it was {milestone}"
            case WatchEnd.FORGOTTEN:
                what = f"Slurm forgot the job before it was {milestone}"
            case WatchEnd.ACT_LOST:
                self._story.step("act_lost", f"{seen.summary}; it is done again")
                return
            case WatchEnd.REACHED:
                return
        self._story.step(f"not_{milestone}", what)
        self._story.state(OutcomeState.NO_PROGRESS, what)


_VERIFIED: Mapping[WatchUntil, str] = {
    WatchUntil.SYMPTOM: "goes on",
    WatchUntil.RUNNING: "runs",
    WatchUntil.STEPPING: "makes steps",
    WatchUntil.CHECKPOINT: "writes a newer checkpoint",
}
"""What an attempt is looked at for, as the Temporal UI tells it."""


def _by(hand: str) -> str:
    return f" ({hand})" if hand else ""


def _milestone_in_words(milestone: Milestone, seen: WatchResult, request: WatchRequest) -> str:
    match milestone:
        case Milestone.RUNNING:
            nodes = seen.job.nodes if seen.job else ()
            off = f", off {', '.join(request.excluded_nodes)}" if request.excluded_nodes and not seen.on_excluded else ""
            on_excluded = f"; it runs on excluded {', '.join(seen.on_excluded)}" if seen.on_excluded else ""
            return f"on {', '.join(nodes)}{off}{on_excluded}"
        case Milestone.STEPPING:
            # Not where it began: what it wrote before it was first looked at may be passed over (activities/watching/reading.py).
            how = "not resumed" if seen.started_over else "on"
            checkpoint = f", {how} from checkpoint {request.resumed_from}" if request.resumed_from is not None else ""
            return f"iteration {seen.progress.iteration}{checkpoint}"
        case _:
            before = "none" if request.checkpoint_before is None else request.checkpoint_before
            return f"checkpoint {seen.progress.checkpoint_iteration}, newer than {before}"
