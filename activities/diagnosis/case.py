"""One judgement in the making: the observations of one fault, the first cause among them, its context, its suspects.

The engine makes a `Case` for each call of `judge`. Pure: everything it looks at has been read."""

from collections.abc import Mapping, Sequence

from activities.diagnosis import flight_recorder, pace
from activities.diagnosis.causality import NAMES_ITS_CAUSE, Verdict, choose, progressed_after
from activities.diagnosis.causes import UNKNOWN, Cause, cause_of
from activities.diagnosis.collectives import WAITING, Waiting, waiting_of, with_dumps
from activities.diagnosis.context import Context, Refined
from activities.diagnosis.observing import SchedulerWords, kernel_findings, of_gpu, of_kernel, of_state
from activities.diagnosis.outliving import Fate, Living, fate_of, was_caught
from activities.diagnosis.quiet import of_no_event
from activities.diagnosis.reading import Observation, Reading
from activities.diagnosis.refine import refine
from activities.diagnosis.scheduler_facts import SchedulerFacts
from activities.diagnosis.shown import short, shown_lines
from activities.diagnosis.signals import Signals
from activities.diagnosis.signatures import Role, Signature
from activities.diagnosis.suspects import Whereabouts, attribute
from activities.diagnosis.tracebacks import read_traceback
from activities.gpu.findings import Role as GpuRole
from activities.gpu.snapshot import judge_snapshot
from activities.logs.progress import MarkKind
from activities.records import Attribution, Diagnosis, Domain, Judgement, PrimaryEvent, Progress, SignalSource, SymptomKind

_ENDINGS = (Role.PRIMARY, Role.CASCADE, Role.TEARDOWN)  # what a log holds of a job that failed, rather than waits
_TORN_DOWN = ("elastic_child_failed", "elastic_sigterm", "slurm_cancelled", "launcher_cleanup", "hydra_job_failed")


class Case:
    """One judgement in the making; what its steps share."""

    def __init__(
        self, signals: Signals, facts: SchedulerFacts, reading: Reading, *, rows: Mapping[str, Signature], words: SchedulerWords
    ) -> None:
        self.signals, self.facts, self.reading = signals, facts, reading
        self.rows = rows
        self.whereabouts = Whereabouts(reading, facts, signals.rank_to_node)
        self.kernel = kernel_findings(signals, reading)
        self.gpu = judge_snapshot(signals.gpu_snapshots) if signals.gpu_snapshots else ()
        dumps, self.refused_dumps = flight_recorder.read_all(signals.flight_recorder)
        self.flight = flight_recorder.analyse(dumps) if dumps else None
        self.slowdown = pace.slowdown_of(reading.marks)
        self.numbers = pace.numbers_of(reading.marks)
        self.training_ended_at = max((position for position, _, phase, _ in reading.phases if phase == "-training"), default=None)
        if self.training_ended_at is not None and any(
            mark.position > self.training_ended_at and mark.iteration is not None for mark in reading.marks
        ):
            self.training_ended_at = None  # an end of an epoch or an earlier attempt: it went on
        fates = self._fates()
        self.outlived = [item for item, fate in fates if fate is Fate.PASSED]
        self.observations = [
            *reading.observations,
            *words.observations(facts),
            *of_state(facts),
            *(item for item, fate in fates if fate is Fate.COUNTS),
            *(of_gpu(finding, facts) for finding in self.gpu if finding.role is GpuRole.PRIMARY),
        ]
        self.caught = self._caught_exceptions()
        self.notices = [
            *(item for item, fate in fates if fate is Fate.NOTICE),
            *(of_kernel(finding) for finding in self.kernel if finding.role is GpuRole.NOTICE),
            *(of_gpu(finding, facts) for finding in self.gpu if finding.role is GpuRole.NOTICE),
        ]

    # -- steps

    def judgement(self) -> Judgement:
        verdict = choose(self._events(), self.reading)
        waiting = self._waiting(verdict)
        if waiting is not None and self.flight is not None:
            waiting = with_dumps(waiting, self.flight)
        if waiting is not None and (verdict.primary is None or verdict.is_fallback):
            return self._of_waiting(waiting, verdict)
        if verdict.primary is not None:
            return self.of_primary(verdict.primary, verdict)
        return of_no_event(self, verdict)

    def _events(self) -> list[Observation]:
        """Observations that may count: a clean end makes unspecific noise around it harmless, and so does a job that lives on."""
        if self._lives():
            return [
                item
                for item in self.observations
                if item.role is not Role.PRIMARY or item.source is not SignalSource.LOG or item.weight >= NAMES_ITS_CAUSE
            ]
        if self.caught:
            return [item for item in self.observations if item not in self.caught]
        if not self.facts.ended_well:
            return self.observations
        return [
            item
            for item in self.observations
            if item.source is not SignalSource.LOG
            or item.role not in (Role.PRIMARY, Role.CASCADE)
            or (item.role is Role.PRIMARY and item.weight >= 0.9)
        ]

    def _lives(self) -> bool:
        """Slurm says it runs, nobody saw it stop, and no launcher has begun to clean up: an exception may have been caught."""
        return self.facts.is_running and self._nobody_saw_it_end()

    def _nobody_saw_it_end(self) -> bool:
        return not self._is_told() and not any(self.seen(name) for name in _TORN_DOWN) and not self.facts.silent_seconds

    def _is_told(self) -> bool:
        return self.signals.symptom is not None and self.signals.symptom.kind is not SymptomKind.NONE

    def _fates(self) -> list[tuple[Observation, Fate]]:
        """What the kernel's lines mean beside the job's own steps and end."""
        findings = [finding for finding in self.kernel if finding.role is GpuRole.PRIMARY]
        ended_well = self.facts.ended_well and not self._is_told()
        if not findings or not (ended_well or (self._nobody_saw_it_end() and not self.facts.ended_badly)):
            return [(of_kernel(finding), Fate.COUNTS) for finding in findings]
        events = [item for item in self.reading.observations if item.role in (Role.PRIMARY, Role.CASCADE)]
        job = Living(
            marks=self.reading.marks,
            runs=self.facts.is_running,
            ended_well=ended_well,
            keeps_pace=self.slowdown is None and len(pace.trend(self.reading.marks)) > pace.FEWEST_STEPS,
            in_trouble=any(not progressed_after(item, self.reading.marks) for item in events),
            troubles=frozenset(item.cause for item in events if item.cause),
        )
        return [(item := of_kernel(finding), fate_of(finding, item, job)) for finding in findings]

    def _caught_exceptions(self) -> list[Observation]:
        """Exceptions at the end of a log of a job that had been stepping, whose tracebacks were printed by whoever caught them, where
        nobody says how the job fares. Empty as soon as anything else there tells of an end."""
        if self.facts.state or not self.reading.marks or not self._nobody_saw_it_end():
            return []
        events = (item for item in self.observations if item.role in (Role.PRIMARY, Role.CASCADE))
        standing = [item for item in events if not progressed_after(item, self.reading.marks)]
        first_step = self.reading.marks[0].position
        return standing if all(item.position > first_step and was_caught(item) for item in standing) else []

    def _waiting(self, verdict: Verdict) -> Waiting | None:
        waits = [item for item in self.observations if not progressed_after(item, self.reading.marks)]
        first = next((item for item in waits if item.signature in WAITING), None)
        if first is None or (
            verdict.primary is not None and verdict.primary.position < first.position and verdict.primary.source is SignalSource.LOG
        ):
            return None
        phase, stuck = self.phase_at(first.position), self.seen("dataloader_stuck")
        return waiting_of(self.reading, waits, phase=phase, dataloader_stuck=stuck, tasks=self.facts.task_count)

    def phase_at(self, position: int) -> str | None:
        """What the job was doing at this place of its log: a phase that had begun and not ended, with no step since."""
        last_step = max((mark.position for mark in self.reading.marks if mark.position < position and is_step(mark)), default=-1)
        state: str | None = None
        for at, _, phase, _ in self.reading.phases:
            if at > position:
                break
            if phase == "-training" or (at < last_step and not phase.endswith("preprocess")):
                continue
            state = phase[1:] if phase[0] == "+" else None if state == phase[1:] else state
        return state

    def seen(self, signature: str) -> bool:
        return self.reading.counts.get(signature, 0) > 0

    def of_primary(self, primary: Observation, verdict: Verdict) -> Judgement:
        resumed_at = {position for position, _, phase, _ in self.reading.phases if phase == "+training"}  # names an iteration, is none
        context = Context(
            primary=primary,
            same=verdict.supporters,
            observations=self.observations,
            reading=self.reading,
            facts=self.facts,
            whereabouts=self.whereabouts,
            phase=self.phase_at(primary.position) if primary.source is SignalSource.LOG else self.phase_at(self.reading.bytes + 1),
            stepped=any(
                mark.position < primary.position
                and (mark.iteration is not None or mark.loss is not None)
                and mark.position not in resumed_at
                for mark in self.reading.marks
            )
            if primary.source is SignalSource.LOG
            else bool(self.reading.marks),
            steps_after=progressed_after(primary, self.reading.marks),
            training_ended=self.training_ended_at is not None and primary.position > self.training_ended_at,
        )
        cause = primary.cause or UNKNOWN
        refined = refine(cause, context)
        confidence = primary.weight
        if refined is None and primary.signature == "python_exception":
            refined = self._of_exception(primary, verdict.supporters)
        if refined is not None:
            cause, confidence = refined.cause, refined.confidence
        elif verdict.supporters and not verdict.is_fallback:
            confidence = min(0.97, confidence + 0.03)
        return self.finish(cause, confidence, primary, verdict.supporters, cascades=verdict.cascades, refined=refined)

    def _of_exception(self, primary: Observation, same: Sequence[Observation]) -> Refined | None:
        """An exception in the program's own code; from many ranks alike it is certainly the program."""
        trace = read_traceback(primary.text, primary.own_context)
        if trace is None:
            return None
        alike = {item.rank for item in (primary, *same) if item.rank is not None and trace.type in item.text}
        everywhere = len(alike) >= 2 and len(alike) >= (self.reading.world_size or len(alike)) / 2
        place = f" at {trace.place}" if trace.place else ""
        spread = f", on {len(alike)} ranks alike" if everywhere else ""
        confidence = 0.72 if everywhere else 0.6 if trace.own_file else primary.weight
        return Refined(primary.cause or UNKNOWN, confidence, f"{trace.type}{place}{spread}")

    def _of_waiting(self, waiting: Waiting, verdict: Verdict) -> Judgement:
        rank = waiting.missing_ranks[0] if len(waiting.missing_ranks) == 1 else None
        node = self.whereabouts.node_of_rank(rank)[0] if rank is not None else None
        waited = len(waiting.waiting_ranks)
        who = (
            f"rank {rank} did not come"
            if rank is not None
            else f"ranks {short(waiting.missing_ranks)} did not come"
            if waiting.missing_ranks
            else "nobody can be told apart"
        )
        cause = cause_of(waiting.cause) if waiting.cause else None
        summary = f"{waited or 'some'} ranks waited in a collective until it timed out; {who}" + (
            f"; {waiting.because}" if waiting.because else ""
        )
        return Judgement(
            symptom=self.symptom(cause, waiting.first, default=SymptomKind.HANG),
            diagnosis=Diagnosis(
                domain=cause.domain if cause else Domain.UNKNOWN,
                cause=cause.slug if cause else UNKNOWN,
                confidence=waiting.confidence,
                summary=summary,
                primary=PrimaryEvent(text=waiting.first.text, line=waiting.first.line, at=waiting.first.at, rank=rank, node=node),
                cascades=max(0, self.count(Role.CASCADE) - 1),
                benign=self.count(Role.BENIGN),
                lines=shown_lines([waiting.first]),
            ),
            attribution=Attribution(abstained=True, sources=("signatures",)),
            progress=self.progress(),
        )

    # -- putting it together

    def finish(
        self,
        slug: str,
        confidence: float,
        primary: Observation,
        same: Sequence[Observation],
        *,
        cascades: int,
        refined: Refined | None,
        symptom: SymptomKind | None = None,
    ) -> Judgement:
        cause = cause_of(slug)
        where_from = refined.evidence if refined is not None and refined.evidence is not None else primary
        node, _ = self.whereabouts.locate(where_from)
        items = [(item, *self.whereabouts.locate(item)) for item in self._evidence_for(slug, where_from, same)]
        sources = tuple(dict.fromkeys(str(item.source) for item, _, _ in items))
        asks_for_isolation = primary.source is not SignalSource.KERNEL or primary.isolate or (refined is not None and refined.names_node)
        if not asks_for_isolation and cause is not None and cause.symptom is not SymptomKind.NONE:
            items = []  # the kernel's words do not ask to keep the node out
        attribution = attribute(slug, confidence, items, sources, names_node=refined is not None and refined.names_node)
        attribution = self._narrowed(slug, primary, node, attribution)
        rank = primary.rank
        if rank is None and primary.source is not SignalSource.SCHEDULER:
            rank = next((item.rank for item in same if item.rank is not None and item.node == primary.node), None)
        if rank is None and node is not None and primary.source is not SignalSource.SCHEDULER:
            rank = self.whereabouts.first_failed_on(node)
        where = f" on {node}" if node else ""
        summary = (cause.means if cause else "the cause is not known") + where + (f"; {refined.because}" if refined else "")
        return Judgement(
            symptom=symptom if symptom is not None else self.symptom(cause, primary, default=SymptomKind.CRASH),
            diagnosis=Diagnosis(
                domain=cause.domain if cause else Domain.UNKNOWN,
                cause=slug if cause else UNKNOWN,
                confidence=round(confidence, 2),
                summary=summary,
                primary=PrimaryEvent(
                    text=primary.text, line=primary.line, source=primary.source, at=primary.at, rank=rank, node=node, gpu=primary.gpu
                ),
                cascades=cascades,
                benign=self.count(Role.BENIGN),
                lines=shown_lines([primary, *same]),
            ),
            attribution=attribution,
            progress=self.progress(),
        )

    def _evidence_for(self, slug: str, primary: Observation, same: Sequence[Observation]) -> list[Observation]:
        """The primary, and what says the same in its own right: for most causes only the first node is where it began."""
        spreads = slug in ("ib_port_down_degraded", "fabric_manager_not_running", "driver_libs_missing_on_node")
        if slug == "ib_port_down_degraded":
            # Both ends of a link see it; the log cannot tell which end is at fault.
            same = [item for item in self.observations if item.cause in ("ib_port_error", slug) and item.role is Role.PRIMARY]
        if self.whereabouts.locate(primary)[0] is None:
            # The first line does not say where; others of the same cause do, and agree.
            located = [item for item in same if self.whereabouts.locate(item)[0] is not None]
            if len({self.whereabouts.locate(item)[0] for item in located}) == 1:
                return [primary, located[0]]
        sees_devices = (SignalSource.KERNEL, SignalSource.GPU)
        certain = [item for item in same if spreads or item.source is SignalSource.NODE or (item.source in sees_devices and item.isolate)]
        return [primary, *certain]

    def _narrowed(self, slug: str, primary: Observation, node: str | None, attribution: Attribution) -> Attribution:
        """Blame taken back where the same trouble is everywhere: then it is what they share."""
        if slug in (
            "prolog_failed",
            "prolog_hung",
            "container_runtime_misconfigured",
            "slurm_auth_failure",
            "clock_skew",
            "driver_libs_missing_on_node",
        ):
            failing = {name for name, count in self.facts.node_failures.items() if count} | {
                suspect.node for suspect in attribution.suspects
            }
            if attribution.suspects:
                failing |= {self.whereabouts.locate(item)[0] for item in self.observations if item.cause == slug and item.named_node}
            if len(failing) >= 3 or (len(failing) >= 2 and len(failing) == len(self.facts.nodes)):
                return Attribution(abstained=True, sources=attribution.sources)
        if slug == "driver_library_mismatch_new_processes_only" and not self.facts.ended_badly:
            return Attribution(abstained=True, sources=attribution.sources)  # what runs already is not touched by it
        everywhere = set(self.facts.nodes) == self.reading.nodes.get(primary.signature, set()) and len(self.facts.nodes) > 1
        if everywhere and (cause := cause_of(slug)) is not None and cause.domain in (Domain.SYSTEM_SOFTWARE, Domain.NETWORK):
            return Attribution(abstained=True, sources=attribution.sources)
        return attribution

    def symptom(self, cause: Cause | None, primary: Observation | None, *, default: SymptomKind) -> SymptomKind:
        told = self.signals.symptom.kind if self.signals.symptom is not None else SymptomKind.NONE
        if told is not SymptomKind.NONE:
            return told
        usual = cause.symptom if cause is not None else default
        if (
            cause is not None
            and cause.domain is Domain.STORAGE
            and primary is not None
            and primary.source is SignalSource.KERNEL
            and (self.facts.is_running or (not self.facts.state and not any(item.role in _ENDINGS for item in self.reading.observations)))
        ):
            return SymptomKind.HANG  # a file system that is away makes its callers wait
        if self.facts.ended_badly and usual in (SymptomKind.NONE, SymptomKind.SLOWDOWN):
            return SymptomKind.CRASH
        return usual

    def count(self, role: Role) -> int:
        return sum(count for name, count in self.reading.counts.items() if name in self.rows and self.rows[name].role is role)

    def progress(self) -> Progress:
        """How far the attempt came: the watch's own account, else what the log's head and tail tell."""
        if self.signals.progress is not None:
            return self.signals.progress
        told = [mark for mark in self.reading.progress if mark.kind is MarkKind.ITERATION and mark.iteration is not None]
        saved = [mark for mark in self.reading.progress if mark.kind is MarkKind.CHECKPOINT_SAVED and mark.iteration is not None]
        counted = [mark for mark in self.reading.marks if mark.iteration is not None]
        steps = [value for _, value in pace.step_seconds(self.reading.marks)]
        last = told[-1] if told else None
        return Progress(
            iteration=last.iteration if last else counted[-1].iteration if counted else None,
            iteration_at=last.at if last else counted[-1].at if counted else None,
            first_iteration=told[0].iteration if told else counted[0].iteration if counted else None,
            checkpoint_iteration=saved[-1].iteration if saved else None,
            checkpoint_at=saved[-1].at if saved else None,
            step_seconds=round(sorted(steps)[len(steps) // 2], 4) if steps else None,
        )


def is_step(mark: pace.Mark) -> bool:
    return mark.iteration is not None or mark.share_done is not None
