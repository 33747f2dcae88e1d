"""The bookkeeping of a job's workflow: one frozen state record, replaced and never changed, and what people see of it.

Kept apart from the steps, so that `training_job.py` reads as the story. It decides nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.mutation import MutationRequest
    from activities.recommend import Proposal
    from activities.records import (
        Action,
        Attempt,
        Change,
        ChangeRequest,
        Cursor,
        Decision,
        DecisionKind,
        FileCursor,
        Incident,
        Job,
        JobState,
        PastIncident,
        Progress,
        SignalSource,
        SymptomKind,
        WatchResult,
    )
    from workflows.left_alone import kinds_told_by
    from workflows.recovery import Story
    from workflows.state import KEPT_INCIDENTS, KEPT_WARNINGS, Stage, TrainingJobState
    from workflows.visibility import attributes_of, details_of, earlier_runs


class Memory:
    """`state` is the whole of it: what continue-as-new passes on and the query answers."""

    def __init__(self, state: TrainingJobState) -> None:
        self.state = state
        self._shown: tuple[str, ...] | None = None

    def update(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)

    def enter(self, stage: Stage, summary: str) -> None:
        self.update(stage=stage, summary=summary)
        shown, updates = attributes_of(self.state)
        if shown != self._shown:
            self._shown = shown
            workflow.upsert_search_attributes(updates)
        workflow.set_current_details(details_of(self.state, runs_before(workflow.info())))

    def warn(self, *warnings: str) -> None:
        fresh = [warning for warning in warnings if warning not in self.state.warnings]
        if fresh:
            self.update(warnings=(*self.state.warnings, *fresh)[-KEPT_WARNINGS:])

    def saw(self, seen: WatchResult) -> None:
        self.update(job=seen.job or self.state.job, progress=seen.progress, cursor=seen.cursor)
        # Not by `job` alone: of an attempt that Slurm has requeued at once it shows the next, which has no nodes yet.
        own = seen.job is not None and seen.job.restart_count == self.state.attempt.restart_count
        for told in (seen.attempt, seen.job if own else None):
            if told is not None and told.restart_count == self.state.attempt.restart_count and told.nodes:
                self.update(attempt=self.state.attempt.model_copy(update={"nodes": told.nodes, "started_at": told.started_at}))
        if seen.blind:
            self.warn(seen.blind)
        self._saw_checkpoint(seen.progress)

    def _saw_checkpoint(self, progress: Progress) -> None:
        """A newer checkpoint, whenever it is seen, ends the row of restarts that brought none: also one that came after its deadline,
        or just before the next fault."""
        known, started_at = self.state.newest_checkpoint, self.state.attempt.started_at
        if progress.checkpoint_iteration is None:
            return
        by_this_attempt = started_at is not None and progress.checkpoint_at is not None and progress.checkpoint_at >= started_at
        if by_this_attempt and known is not None and progress.checkpoint_iteration > known:
            self.restart_brought_checkpoint()
        self.update(newest_checkpoint=progress.checkpoint_iteration)

    def checkpoint_before_fault(self) -> int | None:
        """What a new checkpoint must exceed. An attempt that failed before its first one has lost nothing: then the newest of those
        before it counts, or a job that starts over would pass for recovered."""
        of_the_incident = self.incident().progress.checkpoint_iteration
        return of_the_incident if of_the_incident is not None else self.state.newest_checkpoint

    def saw_change(self, change: Change) -> None:
        self.update(job=change.job or self.state.job, cursor=change.cursor or self.state.cursor)

    def incident(self) -> Incident:
        return self.state.incidents[-1]

    def change_incident(self, **changes: Any) -> None:
        changed = self.incident().model_copy(update=changes)
        self.update(incidents=(*self.state.incidents[:-1], changed))

    def story(self) -> Story:
        return Story(self.incident().outcome, lambda outcome: self.change_incident(outcome=outcome))

    def decision(self, kind: DecisionKind, actor: str, reason: str) -> Decision:
        recommendation = self.incident().recommendation
        return Decision(kind=kind, actor=actor, at=workflow.now(), reason=reason, digest=recommendation.digest if recommendation else "")

    def job_now(self) -> Job:
        """The last look at the job; before the first look, what its key tells."""
        return self.state.job or Job(job_id=self.state.key.job_id, numeric_id=0)

    def runs_again(self) -> bool:
        return self.job_now().restart_count > self.state.attempt.restart_count

    def change_request(self, until: datetime) -> ChangeRequest:
        job = self.job_now()
        return ChangeRequest(
            attempt=self.state.attempt,
            state_when_asked=job.state,
            restart_count=self.state.attempt.restart_count,
            until=until,
            opt_in=self.state.opt_in,
            symptom=self.incident().symptom.kind if self.state.incidents else SymptomKind.NONE,
            cursor=self.state.cursor,
        )

    def mutation_request(self, proposal: Proposal) -> MutationRequest:
        """What each mutation of this incident is asked with."""
        recommendation = proposal.recommendation
        return MutationRequest(
            job_id=self.state.key.job_id,
            incident_id=self.incident().id,
            restart_count=self.state.attempt.restart_count,
            nodes=recommendation.exclude_nodes,
            ran_on=self.state.attempt.nodes,
            lost_nodes=self._nodes_called_lost(),
            override_no_requeue=proposal.override_no_requeue,
            spare_nodes=proposal.spare_nodes,
            reason=recommendation.why,
        )

    def _nodes_called_lost(self) -> tuple[str, ...]:
        """By Slurm, when the fault was seen: one may be back by the time that a person has approved."""
        signals = self.incident().symptom.signals
        return tuple(dict.fromkeys(signal.node for signal in signals if signal.source is SignalSource.NODE and signal.node))

    def next_attempt(self, job: Job | None, *, at_least: int = 0) -> bool:
        """The attempt that follows; its log may go on in the same file, so the cursor's offsets are kept."""
        count = max(job.restart_count if job else 0, at_least)
        running = job is not None and job.state is JobState.RUNNING and job.restart_count == count
        attempt = Attempt(
            key=self.state.key,
            restart_count=count,
            nodes=job.nodes if job is not None and running else (),
            started_at=job.started_at if job is not None and running else None,
        )
        self.update(
            attempt=attempt,
            job=job or self.state.job,
            progress=Progress(),
            stepped_before=self._stepped(),
            known_symptoms=(),
            known_onset=None,
            logs_began=self._logs_end(),
        )
        return True

    def _stepped(self) -> bool:
        """Whether this job's attempts are known to print iterations: by the newest one that could tell. One that stood still at its start
        speaks against it, one that ended before its first step does not."""
        state = self.state
        cursor = state.cursor.progress if state.cursor is not None and state.cursor.restart_count == state.attempt.restart_count else None
        if state.progress.iteration_at is not None or (cursor is not None and cursor.iteration_at is not None):
            return True
        stood_still = any(
            incident.symptom.kind is SymptomKind.HANG and incident.restart_count == state.attempt.restart_count
            for incident in state.incidents
        )
        return state.stepped_before and not stood_still

    def forget_attempt(self, restart_count: int) -> None:
        """What was seen of later attempts than this counts no more: the next has the same number. Where logs were read to is kept."""
        if self.state.cursor is not None:
            self.update(cursor=Cursor(restart_count=restart_count, files=self.state.cursor.files))

    def _logs_end(self) -> tuple[FileCursor, ...]:
        """How far the logs were written when they were last looked at: by the watch, and, for an error output of its own, at a fault."""
        watched = self.state.cursor.files if self.state.cursor is not None else ()
        evidence = self.state.incidents[-1].evidence if self.state.incidents else None
        return (*watched, *(evidence.logs_end if evidence is not None else ()))

    def know_fault(self) -> None:
        """The last fault, if there was one, stands and is known: the watch that follows does not report it again."""
        if not self.state.incidents:
            return
        symptom = self.incident().symptom
        known = dict.fromkeys((*self.state.known_symptoms, *kinds_told_by(self.incident())))
        # One moment stands for all that is known: the latest, or an earlier fault found later would make this one news again.
        onset = max(self.state.known_onset or symptom.onset, symptom.onset)
        self.update(known_symptoms=tuple(known), known_onset=onset)

    def restart_brought_checkpoint(self) -> None:
        """It brought a newer checkpoint, so the restarts that bring none are counted anew."""
        self.update(history=self.state.history.model_copy(update={"restarts_without_checkpoint": 0}))

    def count_restart(self) -> None:
        history = self.state.history
        counted = {"restarts": history.restarts + 1, "restarts_without_checkpoint": history.restarts_without_checkpoint + 1}
        self.update(history=history.model_copy(update=counted))

    def remember(self, *, acted: bool) -> None:
        """What policy asks about earlier incidents, kept apart from the incidents, of which only the newest are held."""
        incident = self.incident()
        excluded = incident.recommendation.backstay_excludes if acted and incident.recommendation else ()
        past = PastIncident(
            cause=incident.diagnosis.cause,
            domain=incident.diagnosis.domain,
            action=incident.recommendation.action if incident.recommendation else Action.NONE,
            acted=acted,
            at=incident.symptom.detected_at,
            checkpoint_iteration=incident.progress.checkpoint_iteration,
            suspects=incident.attribution.nodes,
            excluded=excluded,
        )
        history = self.state.history
        self.update(history=history.model_copy(update={"incidents": (*history.incidents, past)[-100:]}))
        surplus = max(0, len(self.state.incidents) - KEPT_INCIDENTS)
        self.update(incidents=self.state.incidents[surplus:], incidents_dropped=self.state.incidents_dropped + surplus)


def runs_before(info: workflow.Info) -> Mapping[str, str]:
    """Links to the runs that this one goes on from."""
    return earlier_runs(
        namespace=info.namespace, workflow_id=info.workflow_id, first=info.first_execution_run_id, before=info.continued_run_id
    )


def memo_of_next_run(info: workflow.Info, memo: Mapping[str, Any]) -> Mapping[str, Any]:
    """The memo of the run that continues this one: what stands in it already, and the links to where the story began."""
    links = earlier_runs(namespace=info.namespace, workflow_id=info.workflow_id, first=info.first_execution_run_id, before=info.run_id)
    return {**memo, **links}
