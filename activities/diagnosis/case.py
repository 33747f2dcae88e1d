"""What is known of one fault before its first cause is chosen: observations, readings, what the job was doing, how far it came.

The engine makes a `Case` for each call of `judge`; choosing.py, concluding.py and quiet.py ask it. Pure: everything it looks at
has been read."""

from collections.abc import Mapping, Sequence

from activities.diagnosis import flight_recorder, trends
from activities.diagnosis.causes import Blames, Cause, cause_of
from activities.diagnosis.going_on import Steps
from activities.diagnosis.observing import SchedulerWords, kernel_findings, of_gpu, of_kernel, of_state
from activities.diagnosis.outliving import Fate, Living, fate_of, is_stall_over, was_caught
from activities.diagnosis.pace import Mark
from activities.diagnosis.reading import Observation, Reading
from activities.diagnosis.scheduler_facts import SchedulerFacts
from activities.diagnosis.signals import Signals
from activities.diagnosis.signatures import Doing, Role, Signature, Turn
from activities.diagnosis.suspects import Whereabouts
from activities.gpu.findings import Role as GpuRole
from activities.gpu.snapshot import judge_snapshot
from activities.logs.progress import MarkKind
from activities.records import Domain, Progress, SignalSource, SymptomKind

_ENDINGS = (Role.PRIMARY, Role.CASCADE, Role.TEARDOWN)  # what a log holds of a job that failed, rather than waits
_TORN_DOWN = ("elastic_child_failed", "elastic_sigterm", "slurm_cancelled", "launcher_cleanup", "hydra_job_failed")


class Case:
    """What the steps of one judgement share."""

    def __init__(
        self,
        signals: Signals,
        facts: SchedulerFacts,
        reading: Reading,
        dumps: Sequence[flight_recorder.Dump],
        *,
        rows: Mapping[str, Signature],
        words: SchedulerWords,
    ) -> None:
        self.signals, self.facts, self.reading = signals, facts, reading
        self.rows = rows
        self.steps = Steps(reading)
        self.whereabouts = Whereabouts(reading, facts, signals.rank_to_node)
        self.kernel = kernel_findings(signals, reading, facts)
        readings = judge_snapshot(signals.gpu_snapshots) if signals.gpu_snapshots else ()
        self.gpu = tuple(finding for finding in readings if not facts.is_stranger(finding.node))
        self.flight = flight_recorder.analyse(dumps) if dumps else None
        self.slowdown = trends.slowdown_of(reading.marks)
        self.numbers = trends.numbers_of(reading.marks)
        self.training_ended_at = self._training_ended_at()
        fates = self._fates()
        self.outlived = [item for item, fate in fates if fate is Fate.PASSED]
        denied = [item for item in reading.observations if item.signature == "requeued_by_slurm" and facts.denies_a_requeue]
        # A node that the job never had, or that Slurm lost and gave this attempt no more: who prints a line can name any node.
        self.of_strangers = [item for item in reading.observations if _blames_a_node(item) and facts.is_stranger(item.named_node)]
        self.observations = [
            *(item for item in reading.observations if item not in self.of_strangers and item not in denied),
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

    def _training_ended_at(self) -> int | None:
        """Where the log says that the training was over; None where it went on: an end of an epoch, or an earlier attempt."""
        ends_at = max((told.position for told in self.reading.phases if told.turn is Turn.TRAINING_ENDS), default=None)
        if ends_at is None or any(mark.position > ends_at and mark.iteration is not None for mark in self.reading.marks):
            return None
        return ends_at

    def _fates(self) -> list[tuple[Observation, Fate]]:
        """What the kernel's lines mean beside the job's own steps and end."""
        findings = [finding for finding in self.kernel if finding.role is GpuRole.PRIMARY]
        ended_well = self.facts.ended_well and not self._is_told()
        if not findings or not (ended_well or (self._nobody_saw_it_end() and not self.facts.ended_badly)):
            by_its_limit = self.facts.state == "TIMEOUT"
            return [
                (of_kernel(finding), Fate.PASSED if by_its_limit and is_stall_over(finding, self.reading.marks) else Fate.COUNTS)
                for finding in findings
            ]
        events = [item for item in self.reading.observations if item.role in (Role.PRIMARY, Role.CASCADE)]
        job = Living(
            marks=self.reading.marks,
            runs=self.facts.is_running,
            ended_well=ended_well,
            keeps_pace=self.slowdown is None and len(trends.trend(self.reading.marks)) > trends.FEWEST_STEPS,
            in_trouble=any(not self.steps.went_on_after(item) for item in events),
            troubles=frozenset(item.cause for item in events if item.cause),
        )
        return [(item := of_kernel(finding), fate_of(finding, item, job)) for finding in findings]

    def _caught_exceptions(self) -> list[Observation]:
        """Exceptions at the end of a log of a job that had been stepping, whose tracebacks were printed by whoever caught them, where
        nobody says how the job fares. Empty as soon as anything else there tells of an end."""
        if self.facts.state or not self.reading.marks or not self._nobody_saw_it_end():
            return []
        events = (item for item in self.observations if item.role in (Role.PRIMARY, Role.CASCADE))
        standing = [item for item in events if not self.steps.went_on_after(item)]
        first_step = self.reading.marks[0].position
        return standing if all(item.position > first_step and was_caught(item) for item in standing) else []

    def _nobody_saw_it_end(self) -> bool:
        return not self._is_told() and not any(self.seen(name) for name in _TORN_DOWN) and not self.facts.silent_seconds

    def _is_told(self) -> bool:
        return self.signals.symptom is not None and self.signals.symptom.kind is not SymptomKind.NONE

    # -- what is asked of it

    def lives(self) -> bool:
        """Slurm says it runs, nobody saw it stop, and no launcher has begun to clean up: an exception may have been caught."""
        return self.facts.is_running and self._nobody_saw_it_end()

    def phase_at(self, position: int) -> Doing | None:
        """What the job was doing at this place of its log: a phase that had begun and not ended, with no step since."""
        last_step = max((mark.position for mark in self.reading.marks if mark.position < position and is_step(mark)), default=-1)
        doing: Doing | None = None
        for told in self.reading.phases:
            if told.position > position:
                break
            if told.turn is Turn.TRAINING_ENDS or (told.position < last_step and told.turn.doing is not Doing.PREPROCESS):
                continue
            if told.turn.begins:
                doing = told.turn.doing
            elif doing is told.turn.doing:
                doing = None
        return doing

    def seen(self, signature: str) -> bool:
        return self.reading.counts.get(signature, 0) > 0

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
        steps = [value for _, value in trends.step_seconds(self.reading.marks)]
        last = told[-1] if told else None
        return Progress(
            iteration=last.iteration if last else counted[-1].iteration if counted else None,
            iteration_at=last.at if last else counted[-1].at if counted else None,
            first_iteration=told[0].iteration if told else counted[0].iteration if counted else None,
            checkpoint_iteration=saved[-1].iteration if saved else None,
            checkpoint_at=saved[-1].at if saved else None,
            step_seconds=round(sorted(steps)[len(steps) // 2], 4) if steps else None,
        )


def _blames_a_node(item: Observation) -> bool:
    cause = cause_of(item.cause or "")
    return cause is not None and cause.blames is not Blames.NOBODY


def is_step(mark: Mark) -> bool:
    return mark.iteration is not None or mark.share_done is not None
