"""One watched job's life: detect → classify → attribute → recommend → await approval or auto-act → reschedule → verify.

`run` reads as the product's promise. Everything that judges or touches the world is an activity; here are order, waits
and state. Started by the Cluster workflow's discovery, inspected in the Temporal UI, decided by `approve` / `reject` / `decide`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.detect import Detect
    from activities.mutation import MutationRequest
    from activities.recommend import Proposal
    from activities.records import (
        Action,
        Change,
        ChangeKind,
        Decision,
        DecisionKind,
        DecisionRequest,
        Milestone,
        Mode,
        OutcomeState,
        Placement,
        WatchEnd,
        WatchRequest,
        WatchResult,
        WatchUntil,
    )
    from workflows.decision import DecisionDesk
    from workflows.judging import Judging
    from workflows.left_alone import compared, left_alone, withheld
    from workflows.memory import Memory, memo_of_next_run
    from workflows.recovery import ANOTHER_HAND, DELAY_GIVEN_BACK, STARTED_BY_SLURM, Recovery, Restarted
    from workflows.state import HELD_BY_GUARD_RAILS, Stage, TrainingJobState
    from workflows.visibility import job_in_words, one_line, watching_in_words, wish_in_words
    from workflows.watch import LONGEST_WATCH, keep_watching

BACKSTAY = "backstay"
SLURM = "slurm"
WITHOUT_EXPIRY = timedelta(hours=8)
"""How long a recommendation that names no end waits for a person: the default of `policy.approval_expiry`."""


@workflow.defn(name="TrainingJob")
class TrainingJob:
    """All state is `self._memory.state`, a frozen record that is replaced, never changed, and passed on by continue-as-new."""

    @workflow.init
    def __init__(self, start: TrainingJobState) -> None:
        self._memory = Memory(start)
        self._judging = Judging(self._memory)
        self._desk = DecisionDesk()

    @workflow.run
    async def run(self, start: TrainingJobState) -> TrainingJobState:
        """Watches the job until Slurm is done with it. Returns its last state."""
        while True:
            seen = await self._detect()
            if seen.kind is WatchEnd.SYMPTOM:
                incident = await self._judging.classify(seen)
                incident = await self._judging.attribute(incident)
                proposal = await self._judging.recommend(incident)
                decision = await self._decide(proposal)
                decision, proposal = await self._permitted(decision, proposal)
                goes_on = await self._carry_out(decision, proposal)
                if goes_on:
                    await self._pass_on()
            elif seen.kind is WatchEnd.REACHED:
                goes_on = True  # it runs
            elif seen.kind is WatchEnd.REQUEUED:
                goes_on = await self._restarted_meanwhile(seen)
            elif seen.kind is WatchEnd.ENDED_AS_KNOWN:
                goes_on = await self._follow()
            else:
                goes_on = False
            if not goes_on:
                return await self._end(seen)
            if workflow.info().is_continue_as_new_suggested():
                await self._pass_on()

    # ------------------------------------------------------------------------------------------------ the steps

    async def _detect(self) -> WatchResult:
        """One long activity per attempt; nothing is written to history while the job is healthy."""
        if self._memory.state.carried is not None:
            seen = self._memory.state.carried
            self._memory.update(carried=None)
            return seen
        self._memory.enter(Stage.WATCHING, watching_in_words(self._memory.state))
        state = self._memory.state
        seen = await keep_watching(
            Detect.watch_attempt.__name__,
            WatchRequest(
                attempt=state.attempt,
                opt_in=state.opt_in,
                known_symptoms=state.known_symptoms,
                known_onset=state.known_onset,
                earlier_attempts_stepped=state.stepped_before,
                cursor=state.cursor,
                until=self._watch_goes_until(),
            ),
            WatchResult,
            heartbeat_timeout=state.terms.heartbeat_timeout,
            summary=one_line(f"watch {job_in_words(self._memory.job_now())}, attempt {state.attempt.restart_count}"),
            failed=self._memory.warn,
        )
        self._memory.saw(seen)
        return seen

    def _watch_goes_until(self) -> WatchUntil:
        """An attempt that still waits is watched until it runs, and then on: its nodes must be known before a fault takes them away."""
        waits = not self._memory.state.attempt.nodes and workflow.patched("learn-nodes-once-it-runs")
        return WatchUntil.RUNNING if waits else WatchUntil.SYMPTOM

    async def _decide(self, proposal: Proposal) -> Decision:
        """`observe` records; `auto` acts within the guards; `approve` waits for a person while the watching goes on."""
        recommendation = proposal.recommendation
        decision: Decision
        if proposal.mode is Mode.OBSERVE:
            decision = self._memory.decision(DecisionKind.OBSERVED, BACKSTAY, "mode observe: recorded, nothing done")
        elif not proposal.changes_slurm:
            decision = self._memory.decision(DecisionKind.AUTO, BACKSTAY, "nothing to change in Slurm")
        elif proposal.mode is Mode.AUTO and not recommendation.needs_approval:
            decision = self._memory.decision(DecisionKind.AUTO, BACKSTAY, f"mode auto, rule {recommendation.rule}")
        else:
            decision = await self._await_person(proposal)
        return self._decided(decision)

    def _decided(self, decision: Decision) -> Decision:
        self._memory.change_incident(decision=decision)
        self._memory.story().step(
            "decided", f"{decision.kind} by {decision.actor}: {decision.reason}".rstrip(": "), reaches=Milestone.DECIDED
        )
        return decision

    async def _permitted(self, decision: Decision, proposal: Proposal) -> tuple[Decision, Proposal]:
        """The cluster's guard rails are asked before each action. Their no leaves the recommendation to a person, who approves it once the
        breaker is reset or there is room; then they are asked again. Returns what may be carried out: a decision to act is permitted, and
        what it acts on is the proposal as it was made, without the reasons for which it waited."""
        asked = proposal
        while _acts(decision, asked):
            permission = await self._judging.permission(asked)
            if permission.granted:
                if asked is not proposal:
                    self._memory.story().state(OutcomeState.IN_PROGRESS, "")
                return decision, proposal
            asked = withheld(proposal, permission.why, self._memory.incident())
            self._memory.change_incident(recommendation=asked.recommendation, decision=None)
            self._memory.story().step(HELD_BY_GUARD_RAILS, permission.why)
            self._memory.story().state(OutcomeState.HELD, permission.why)
            self._memory.story().undecided()
            decision = self._decided(await self._await_person(asked))
        return decision, asked

    async def _await_person(self, proposal: Proposal) -> Decision:
        """Until a person decides, the recommendation expires, or another hand's act supersedes it."""
        recommendation = proposal.recommendation
        expires_at = recommendation.expires_at or workflow.now() + WITHOUT_EXPIRY
        self._desk.open(recommendation, proposal.approvers)
        self._memory.enter(Stage.AWAITING_DECISION, f"{wish_in_words(recommendation)}: {recommendation.why}")
        change = asyncio.create_task(self._change_until(expires_at, "while a person decides"))
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._desk.decision is not None or _says_more(change),
                timeout=max(expires_at - workflow.now(), timedelta(0)),
                timeout_summary=one_line(f"approval expires: {recommendation.expiry_reason}"),
            )
        # A person was told that the decision counts, so it goes before whatever came in the same moment.
        if self._desk.decision is not None:
            decision = self._desk.decision
        elif _says_more(change):
            seen = change.result()
            self._memory.saw_change(seen)
            decision = self._memory.decision(DecisionKind.SUPERSEDED, SLURM if seen.by_slurm else "another hand", seen.summary)
        else:
            decision = self._memory.decision(DecisionKind.EXPIRED, BACKSTAY, recommendation.expiry_reason)
        self._desk.close()
        change.cancel()
        return decision

    async def _change_until(self, until: datetime, why: str) -> Change:
        """What somebody else, or the job itself, does to a job whose fault is known. `why` it is watched, as the Temporal UI tells it."""
        return await keep_watching(
            Detect.watch_for_change.__name__,
            self._memory.change_request(until),
            Change,
            heartbeat_timeout=self._memory.state.terms.heartbeat_timeout,
            summary=one_line(f"watch {job_in_words(self._memory.job_now())} {why}"),
            failed=self._memory.warn,
        )

    async def _carry_out(self, decision: Decision, proposal: Proposal) -> bool:
        """Acts where the decision says so, verifies what follows. True when there is more of this job to watch."""
        story = self._memory.story()
        if decision.kind is DecisionKind.SUPERSEDED:
            story.state(OutcomeState.NOT_ACTED, f"superseded: {decision.reason}")
            # A job that merely ended or went on is looked at afresh: what it needs now is another recommendation.
            hand = STARTED_BY_SLURM if decision.actor == SLURM else ANOTHER_HAND
            goes_on = await self._verify_others(hand) if self._memory.runs_again() else True
        elif _acts(decision, proposal):
            goes_on = await self._act(proposal)
        else:
            story.state(*left_alone(decision, proposal))
            goes_on = await self._follow()
        # What was decided but refused by Slurm was no restart: it must not count as one that brought nothing.
        self._memory.remember(acted=self._memory.incident().outcome.milestones.acted is not None)
        return goes_on

    async def _act(self, proposal: Proposal) -> bool:
        """Reschedule, then verify."""
        self._memory.enter(Stage.ACTING, proposal.recommendation.why)
        recovery = self._recovery()
        request = self._memory.mutation_request(proposal)
        if proposal.recommendation.action is Action.STOP:
            await recovery.cancel(request, proposal.recommendation.why)
            return await self._follow()
        restarted: Restarted = await recovery.restart(self._memory.incident(), request)
        if restarted.acted:
            self._memory.count_restart()
        return await self._see_through(recovery, request, restarted)

    async def _see_through(self, recovery: Recovery, request: MutationRequest, restarted: Restarted) -> bool:
        """Verifies the attempt that follows an act. Where Slurm comes back without the act, it is done again and still is one restart."""
        if restarted.acted or restarted.follow:
            self._memory.next_attempt(restarted.job, at_least=request.restart_count + 1)
        if not restarted.follow:
            return await self._follow()
        ours = restarted.acted or restarted.placed
        hand = "" if restarted.acted else DELAY_GIVEN_BACK if restarted.placed else ANOTHER_HAND
        again = partial(self._act_again, recovery, request, restarted)
        return await self._verify(recovery, off=request.nodes if ours else (), hand=hand, placement=restarted.placement, again=again)

    def _recovery(self) -> Recovery:
        return Recovery(self._memory.story(), self._memory.state.terms, job_in_words(self._memory.job_now()))

    async def _act_again(self, recovery: Recovery, request: MutationRequest, before: Restarted) -> bool:
        self._memory.enter(Stage.ACTING, "slurmctld came back with older state: what it lost is done again")
        self._memory.forget_attempt(request.restart_count)
        return await self._see_through(recovery, request, await recovery.again(self._memory.incident(), request, before))

    async def _verify(
        self,
        recovery: Recovery,
        *,
        off: tuple[str, ...] = (),
        hand: str,
        placement: Placement | None = None,
        again: Callable[[], Awaitable[bool]] | None = None,
    ) -> bool:
        """Only a checkpoint newer than the one before the fault, or the job's own good end, makes an attempt `recovered`."""
        self._memory.enter(Stage.VERIFYING, "waiting for the new attempt to run, step and write a checkpoint")
        before = self._memory.checkpoint_before_fault()
        request = WatchRequest(
            attempt=self._memory.state.attempt,
            opt_in=self._memory.state.opt_in,
            checkpoint_before=before,
            resumed_from=before,
            earlier_attempts_stepped=self._memory.state.stepped_before,
            excluded_nodes=off,
            placement=placement,
            cursor=self._memory.state.cursor,
        )
        seen = await recovery.verify(self._memory.state.attempt, request, saw=self._memory.saw, hand=hand)
        match seen.kind:
            case WatchEnd.REACHED:
                self._memory.restart_brought_checkpoint()
                return True
            case WatchEnd.SYMPTOM:
                self._memory.update(carried=seen)
                return True
            case WatchEnd.REQUEUED:
                return self._memory.next_attempt(seen.job)
            case WatchEnd.DEADLINE:
                return True
            case WatchEnd.ENDED_AS_KNOWN:
                return await self._follow()
            case WatchEnd.ACT_LOST:
                return await again() if again is not None else True
            case WatchEnd.ENDED_WELL | WatchEnd.FORGOTTEN:
                return False

    async def _restarted_meanwhile(self, seen: WatchResult) -> bool:
        """Someone restarted the job. Was it the answer to a fault we reported and left alone? Then it is compared."""
        last = self._memory.state.incidents[-1] if self._memory.state.incidents else None
        answered = last is not None and last.restart_count == self._memory.state.attempt.restart_count
        if not answered:
            return self._memory.next_attempt(seen.job)
        self._memory.story().step("restarted_by_another_hand", seen.summary)
        return await self._verify_others()

    async def _verify_others(self, hand: str = ANOTHER_HAND) -> bool:
        """Another hand restarted the job: what follows is verified all the same, credited to that hand, and compared."""
        self._memory.next_attempt(self._memory.state.job)
        goes_on = await self._verify(self._recovery(), hand=hand)
        recommendation = self._memory.incident().recommendation
        if recommendation is not None:
            self._memory.story().step("compared", compared(recommendation, self._memory.state.attempt.nodes))
        return goes_on

    async def _follow(self) -> bool:
        """Nothing of ours is under way: keep an eye on what the team does, as long as Slurm knows the job."""
        job = self._memory.state.job
        if job is None or not (job.state.is_ended or job.is_ending):
            self._memory.know_fault()  # still allocated: back to the ordinary watch
            return True
        self._memory.enter(Stage.FOLLOWING, "the job has ended; watching what is done about it until Slurm forgets it")
        while True:
            change = await self._change_until(workflow.now() + LONGEST_WATCH, "until it is requeued or forgotten")
            self._memory.saw_change(change)
            match change.kind:
                case ChangeKind.REQUEUED | ChangeKind.STARTED:
                    if not self._memory.state.incidents:
                        return self._memory.next_attempt(change.job)
                    self._memory.story().step("restarted_by_another_hand", change.summary)
                    return await self._verify_others()
                case ChangeKind.FORGOTTEN:
                    return False
                case ChangeKind.ENDED | ChangeKind.CANCELLED | ChangeKind.UNCHANGED | ChangeKind.RESUMED_PROGRESS:
                    continue

    # ------------------------------------------------------------------------------------------------ messages

    @workflow.query
    def state(self) -> TrainingJobState:
        """The whole memory, as `backstay show` reads it."""
        return self._memory.state

    # A signal stands in the history whatever it carries, and a handler that cannot be called with it fails this workflow's every
    # task from then on. So both take anything: one sent from the Temporal UI with no payload must not end the watch.

    @workflow.signal
    def approve(self, *payload: Any) -> None:
        """Approve the pending recommendation by a `DecisionRequest`; a refusal is kept as a warning, since a signal has no answer."""
        self._take(payload, approve=True)

    @workflow.signal
    def reject(self, *payload: Any) -> None:
        """Reject the pending recommendation, in the same way."""
        self._take(payload, approve=False)

    def _take(self, payload: tuple[Any, ...], *, approve: bool) -> None:
        self._desk.take_signal(payload, workflow.now(), approve=approve)
        self._memory.warn(*self._desk.refused)  # at once: whenever it comes, whoever sent it must find the answer in `show`
        self._desk.refused.clear()

    @workflow.update
    def decide(self, request: DecisionRequest) -> Decision:
        """Approve or reject, with an answer. An Update, because a person waits to hear whether it counted."""
        decision = self._desk.take(request, workflow.now())
        if decision is None:
            raise ApplicationError("not taken: another decision came first", type="DecisionRefused")
        return decision

    @decide.validator
    def _may_decide(self, request: DecisionRequest) -> None:
        if problem := self._desk.refusal(request, workflow.now()):
            raise ApplicationError(problem, type="DecisionRefused")

    # ------------------------------------------------------------------------------------------------ bookkeeping

    async def _pass_on(self) -> None:
        """Continue as new: the next run starts with this state and an empty history."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._memory.state, memo=memo_of_next_run(workflow.info(), workflow.memo()))

    async def _end(self, seen: WatchResult) -> TrainingJobState:
        words = seen.summary or f"the job ended: {seen.job.state if seen.job else 'Slurm no longer knows it'}"
        if seen.kind is WatchEnd.SYMPTOM:
            words = "Slurm no longer knows the job, or is done with it"
        self._memory.enter(Stage.ENDED, words)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._memory.state


def _acts(decision: Decision, proposal: Proposal) -> bool:
    """True when what was decided changes something in Slurm."""
    return decision.kind in (DecisionKind.APPROVED, DecisionKind.AUTO) and proposal.changes_slurm


def _says_more(change: "asyncio.Task[Change]") -> bool:
    """True when the watch beside the waiting has something to tell."""
    return change.done() and change.result().kind is not ChangeKind.UNCHANGED
