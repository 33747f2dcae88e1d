"""The diagnosis engine: `Signals` in, `Judgement` out; and the quick look at a live log for lines that mean the end.

It reads once (reading.py), asks the kernel and GPU rooms, chooses the first cause (causality.py), sees it in its context
(refine.py) and names suspects (suspects.py). The classify and attribute steps, `diagnose` and the tests call it. Pure but for
reading the logs it is given; one engine serves all watches."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from activities.diagnosis import flight_recorder, pace
from activities.diagnosis.causality import NAMES_ITS_CAUSE, Verdict, choose, progressed_after
from activities.diagnosis.causes import UNKNOWN, Cause, cause_of
from activities.diagnosis.collectives import Waiting, waiting_of, with_dumps
from activities.diagnosis.reading import Observation, Reader, Reading
from activities.diagnosis.refine import Context, Refined, refine
from activities.diagnosis.scan import MultiPattern
from activities.diagnosis.scheduler_facts import SchedulerFacts, facts_of
from activities.diagnosis.signals import FatalLine, Signals
from activities.diagnosis.signatures import Role, Signature, Where, load
from activities.diagnosis.suspects import Whereabouts, attribute
from activities.diagnosis.tracebacks import read_traceback
from activities.gpu.findings import GpuFinding, KernelFinding
from activities.gpu.findings import Role as GpuRole
from activities.gpu.kernel import judge_bursts, read_kernel_log
from activities.gpu.snapshot import judge_snapshot
from activities.logs.prefixes import parse_prefix
from activities.records import Attribution, Diagnosis, Domain, Judgement, PrimaryEvent, Progress, SignalSource, SymptomKind

FATAL_LINES_AT_ONCE = 64
_LINES_SHOWN = 12
_SILENT_SECONDS = 600.0  # a running job that printed nothing for so long, told by nobody else, stands still
_SILENT_IN_A_PHASE = 3600.0  # saving or evaluating a large model takes its time without a word
_SCHEDULER_STATES: Mapping[str, tuple[str, float]] = {
    # Slurm's own verdicts (slurm.h enum job_states); a log line that explains one goes before it
    "OUT_OF_MEMORY": ("host_oom_cgroup", 0.9),
    "NODE_FAIL": ("node_failure", 0.94),
    "BOOT_FAIL": ("node_failure", 0.8),
    "TIMEOUT": ("time_limit", 0.93),
    "DEADLINE": ("time_limit", 0.9),
    "PREEMPTED": ("preempted", 0.94),
}
_EXIT_CODES: Mapping[int, tuple[str, float]] = {
    # 128 + signal, as shells and srun tell it
    132: ("sigill_config_regression", 0.55),
    135: ("dataloader_bus_error_shm", 0.5),
    139: ("segfault_rank", 0.5),
    129: ("sighup_session_closed", 0.6),
}


_EXIT_SIGNALS: Mapping[int, int] = {4: 132, 7: 135, 11: 139, 1: 129}


class Engine:
    """Compiled once and shared; `judge` and `fatal_lines` may be called from several threads."""

    def __init__(self, signature_files: Sequence[Path] = ()) -> None:
        """
        Args:
            signature_files: the operator's own signature files, merged over the built-in table.
        Raises:
            SignaturesRefused: one of them cannot be used; the message names its place.
        """
        rows = load(signature_files)
        self.rows = {row.id: row for row in rows}
        self._reader = Reader(rows)
        scheduler_rows = [row for row in rows if row.where is not Where.LOG]
        self._scheduler_rows = {row.id: row for row in scheduler_rows}
        self._scheduler = MultiPattern({row.id: row.pattern for row in scheduler_rows})

    # ---------------------------------------------------------------------------------------------------- a live log

    def fatal_lines(self, data: bytes) -> tuple[FatalLine, ...]:
        """Lines of a piece of log that say a job is dying: primaries, and cascades flagged as such. At most 64.

        Unspecific exceptions are among them; a caller gives the job its settle time before believing them.
        """
        found: list[FatalLine] = []
        for hit in self._reader.events.scan(data):
            rows = [row for name in hit.ids if (row := self._reader.signatures.get(name)) is not None]
            if any(row.role is Role.BENIGN for row in rows):
                continue
            rows = [row for row in rows if row.role in (Role.PRIMARY, Role.CASCADE)]
            row = max(rows, key=lambda item: (item.role is Role.PRIMARY and item.id != "python_exception", item.weight), default=None)
            if row is None:
                continue
            line = parse_prefix(data[hit.start : hit.end].decode(errors="replace"))
            found.append(
                FatalLine(
                    signature=row.id,
                    cause=row.cause or UNKNOWN,
                    text=line.text.strip()[:600],
                    is_primary=row.role is Role.PRIMARY,
                    at=line.at,
                    rank=line.rank,
                    node=line.node,
                )
            )
            if len(found) >= FATAL_LINES_AT_ONCE:
                break
        return tuple(found)

    # ----------------------------------------------------------------------------------------------------- judging

    def judge(self, signals: Signals) -> Judgement:
        """What happened, why, and who is suspected; `unknown` and an abstention where the signals do not say."""
        facts = facts_of(signals)
        near = (signals.job.started_at if signals.job else None) or (signals.symptom.onset if signals.symptom else None)
        reading = self._reader.read(signals.logs, near=near, nodes=facts.nodes)
        return _Case(self, signals, facts, reading).judgement()

    def scheduler_observations(self, facts: SchedulerFacts) -> list[Observation]:
        """Signature hits in the scheduler's own words."""
        found: list[Observation] = []
        data = facts.text.encode()
        for hit in self._scheduler.scan(data):
            text = data[hit.start : hit.end].decode(errors="replace")
            for row in (self._scheduler_rows[name] for name in hit.ids):
                if row.role in (Role.PRIMARY, Role.CASCADE, Role.HINT):
                    found.append(_of_row(row, text, SignalSource.SCHEDULER))
        return found


def _of_row(row: Signature, text: str, source: SignalSource) -> Observation:
    return Observation(signature=row.id, role=row.role, weight=row.weight, text=text[:600], cause=row.cause, source=source)


class _Case:
    """One judgement in the making; what its steps share."""

    def __init__(self, engine: Engine, signals: Signals, facts: SchedulerFacts, reading: Reading) -> None:
        self.signals, self.facts, self.reading = signals, facts, reading
        self.rows: Mapping[str, Signature] = engine.rows
        self.whereabouts = Whereabouts(reading, facts, signals.rank_to_node)
        self.kernel = _kernel_findings(signals, reading)
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
        self.observations = [
            *reading.observations,
            *engine.scheduler_observations(facts),
            *_of_state(facts),
            *(_of_kernel(finding) for finding in self.kernel if finding.role is GpuRole.PRIMARY),
            *(_of_gpu(finding, facts) for finding in self.gpu if finding.role is GpuRole.PRIMARY),
        ]
        self.notices = [
            *(_of_kernel(finding) for finding in self.kernel if finding.role is GpuRole.NOTICE),
            *(_of_gpu(finding, facts) for finding in self.gpu if finding.role is GpuRole.NOTICE),
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
            return self._of_primary(verdict.primary, verdict)
        return self._of_no_event(verdict)

    def _events(self) -> list[Observation]:
        """Observations that may count: a clean end makes unspecific noise around it harmless, and so does a job that lives on."""
        if self._lives():
            return [
                item
                for item in self.observations
                if item.role is not Role.PRIMARY or item.source is not SignalSource.LOG or item.weight >= NAMES_ITS_CAUSE
            ]
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
        told = self.signals.symptom is not None and self.signals.symptom.kind is not SymptomKind.NONE
        torn_down = any(self._seen(name) for name in ("elastic_child_failed", "elastic_sigterm", "slurm_cancelled", "launcher_cleanup"))
        return self.facts.is_running and not told and not torn_down and not self.facts.silent_seconds

    def _waiting(self, verdict: Verdict) -> Waiting | None:
        waits = [item for item in self.observations if not progressed_after(item, self.reading.marks)]
        first = next((item for item in waits if item.signature in ("nccl_collective_timeout", "gloo_timeout", "store_key_timeout")), None)
        if first is None or (
            verdict.primary is not None and verdict.primary.position < first.position and verdict.primary.source is SignalSource.LOG
        ):
            return None
        return waiting_of(self.reading, waits, phase=self.phase_at(first.position), dataloader_stuck=self._seen("dataloader_stuck"))

    def phase_at(self, position: int) -> str | None:
        """What the job was doing at this place of its log: a phase that had begun and not ended, with no step since."""
        last_step = max((mark.position for mark in self.reading.marks if mark.position < position and _is_step(mark)), default=-1)
        state: str | None = None
        for at, _, phase, _ in self.reading.phases:
            if at > position:
                break
            if phase == "-training" or (at < last_step and not phase.endswith("preprocess")):
                continue
            state = phase[1:] if phase[0] == "+" else None if state == phase[1:] else state
        return state

    def _seen(self, signature: str) -> bool:
        return self.reading.counts.get(signature, 0) > 0

    def _of_primary(self, primary: Observation, verdict: Verdict) -> Judgement:
        context = Context(
            primary=primary,
            same=verdict.supporters,
            observations=self.observations,
            reading=self.reading,
            facts=self.facts,
            whereabouts=self.whereabouts,
            phase=self.phase_at(primary.position) if primary.source is SignalSource.LOG else self.phase_at(self.reading.bytes + 1),
            stepped=any(
                mark.position < primary.position and (mark.iteration is not None or mark.loss is not None) for mark in self.reading.marks
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
        return self._finish(cause, confidence, primary, verdict.supporters, cascades=verdict.cascades, refined=refined)

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
            else f"ranks {_short(waiting.missing_ranks)} did not come"
            if waiting.missing_ranks
            else "nobody can be told apart"
        )
        cause = cause_of(waiting.cause) if waiting.cause else None
        summary = f"{waited or 'some'} ranks waited in a collective until it timed out; {who}" + (
            f"; {waiting.because}" if waiting.because else ""
        )
        return Judgement(
            symptom=self._symptom(cause, waiting.first, default=SymptomKind.HANG),
            diagnosis=Diagnosis(
                domain=cause.domain if cause else Domain.UNKNOWN,
                cause=cause.slug if cause else UNKNOWN,
                confidence=waiting.confidence,
                summary=summary,
                primary=PrimaryEvent(text=waiting.first.text, line=waiting.first.line, at=waiting.first.at, rank=rank, node=node),
                cascades=max(0, self._count(Role.CASCADE) - 1),
                benign=self._count(Role.BENIGN),
                lines=_lines([waiting.first]),
            ),
            attribution=Attribution(abstained=True, sources=("signatures",)),
            progress=self._progress(),
        )

    def _of_no_event(self, verdict: Verdict) -> Judgement:
        slow = self._slow()
        if slow is not None and not self.facts.ended_badly and not self.facts.ended_well:
            return slow
        bad = self._bad_numbers()
        if bad is not None:
            return bad
        hang = self._hang()
        if hang is not None:
            return hang
        if self.facts.ended_badly and self.facts.state != "CANCELLED":  # somebody's wish is no fault
            return self._unexplained(verdict)
        notice = max(self.notices, key=lambda item: item.weight, default=None)
        recovered = [item for item in verdict.recovered if (cause := cause_of(item.cause or "")) and cause.symptom is SymptomKind.NONE]
        if notice is None and recovered:
            notice = recovered[0]
        if notice is not None:
            return self._finish(notice.cause or UNKNOWN, notice.weight, notice, [], cascades=0, refined=None, symptom=SymptomKind.NONE)
        return self._benign()

    # -- no error line, and yet

    def _slow(self) -> Judgement | None:
        if self._seen("ofi_init_failed") and self._seen("network_socket") and not self._seen("network_fast"):
            item = next(item for item in self.observations if item.signature == "ofi_init_failed")
            refined = Refined("rdma_fallback_to_tcp", 0.75, "the fast transport did not start, NCCL uses TCP sockets")
            return self._finish(refined.cause, refined.confidence, item, [], cascades=0, refined=refined, symptom=SymptomKind.SLOWDOWN)
        degraded = next(
            (
                item
                for item in self.observations
                if item.cause in ("ib_port_error", "ib_port_down_degraded") and item.role in (Role.PRIMARY, Role.HINT)
            ),
            None,
        )
        if degraded is not None and (self.slowdown is not None or self._seen("ib_device_marked_failed")):
            same = [item for item in self.observations if item.cause in ("ib_port_error", "ib_port_down_degraded") and item is not degraded]
            refined = Refined("ib_port_down_degraded", 0.78, "a port failed and the job goes on without it")
            return self._finish(
                refined.cause, refined.confidence, degraded, same, cascades=0, refined=refined, symptom=SymptomKind.SLOWDOWN
            )
        reported = next((item for item in self.observations if item.signature == "straggler_reported"), None)
        if reported is not None:
            refined = Refined("slow_gpu_straggler", 0.7, "the job's own straggler detection names it")
            return self._finish(refined.cause, 0.7, reported, [], cascades=0, refined=refined, symptom=SymptomKind.SLOWDOWN)
        ranks = pace.slow_ranks(self.reading.marks)
        if ranks:
            shared = self._share_a_nic(ranks)
            cause, confidence = ("nic_gpu_topology_slow", 0.66) if shared else ("slow_gpu_straggler", 0.6)
            mark = next(mark for mark in self.reading.marks if mark.by_rank)
            item = Observation(
                "slow_ranks",
                Role.PRIMARY,
                confidence,
                f"ranks {_short(ranks)} are slower than the others",
                cause,
                line=mark.line,
                rank=ranks[0] if len(ranks) == 1 or shared else None,
            )
            refined = Refined(cause, confidence, "they share one network adapter" if shared else "the same ranks each time")
            return self._finish(cause, confidence, item, [], cascades=0, refined=refined, symptom=SymptomKind.SLOWDOWN)
        if self.slowdown is None:
            return None
        cause = "slow_node_intermittent" if self.slowdown.comes_and_goes else "slow_gpu_straggler"
        text = f"a step takes {self.slowdown.late_seconds:.4g} s, it took {self.slowdown.early_seconds:.4g} s"
        item = Observation("slowdown", Role.PRIMARY, 0.5, text, cause, line=self.slowdown.since_line)
        how = "now and then" if self.slowdown.comes_and_goes else "and stays so"
        return self._finish(cause, 0.5, item, [], cascades=0, refined=Refined(cause, 0.5, how), symptom=SymptomKind.SLOWDOWN)

    def _share_a_nic(self, ranks: Sequence[int]) -> bool:
        nics: dict[int, set[str]] = {}
        for item in self.observations:
            if item.signature == "nccl_channel_nic" and item.rank is not None and "nic" in item.groups:
                nics.setdefault(item.rank, set()).add(item.groups["nic"])
        used = [nics[rank] for rank in ranks if rank in nics]
        return len(ranks) >= 2 and len(used) >= 2 and bool(set.intersection(*used))

    def _bad_numbers(self) -> Judgement | None:
        if not (self.numbers.is_nan or self.numbers.diverged):
            return None
        text = "the loss is not a number" if self.numbers.is_nan else "the loss has diverged"
        item = Observation("numbers", Role.PRIMARY, 0.75, text, "loss_divergence_nan", line=self.numbers.line, position=self.reading.bytes)
        return self._of_primary(item, Verdict(item, (), 0, False, ()))

    def _hang(self) -> Judgement | None:
        if self.facts.ended_badly or self.facts.ended_well:
            return None
        step = pace.step_seconds(self.reading.marks)
        usual = sorted(value for _, value in step)[len(step) // 2] if step else 60.0
        last = next((mark for mark in reversed(self.reading.marks) if mark.iteration is not None), None)
        silent = self.facts.silent_seconds
        since_step = (self.reading.last_at - last.at).total_seconds() if last and last.at and self.reading.last_at else None
        told = self.signals.symptom is not None and self.signals.symptom.kind in (SymptomKind.HANG, SymptomKind.NO_CHECKPOINT)
        phase = self.phase_at(self.reading.bytes + 1)
        patience = _SILENT_IN_A_PHASE if phase in ("evaluation", "checkpoint", "preprocess") else _SILENT_SECONDS
        stands = (
            told
            or (silent is not None and silent > max(patience, 10 * usual))
            or (since_step is not None and since_step > max(300.0, 10 * usual))
        )
        if not stands:
            return None
        line = last.line if last else None
        text = "no step since" if last is None else f"no step after iteration {last.iteration}"
        flight = self.flight if self.flight is not None and self.flight.finding is not flight_recorder.Finding.NOTHING else None
        rank = flight.ranks[0] if flight is not None and len(flight.ranks) == 1 else None
        if flight is not None and flight.finding is flight_recorder.Finding.MISMATCH:
            cause, confidence, why = "collective_mismatch", 0.85, flight.because
        elif flight is not None and flight.ranks:
            cause, confidence, why = UNKNOWN, 0.5, f"ranks {_short(flight.ranks)} of group {flight.group}: {flight.because}"
        elif self.training_ended_at is not None:
            cause, confidence, why = "launcher_teardown_hang", 0.7, "the training had ended, its launcher has not"
        elif phase == "evaluation" and (told or silent):
            stuck = self._seen("dataloader_stuck")
            cause, confidence, why = ("dataloader_deadlock_eval" if stuck else "rank_deadlock_in_eval"), 0.6, "evaluation had begun"
        elif not told and not silent and (phase in ("evaluation", "checkpoint") or self._did_something_else_since(last)):
            return None
        elif self._seen("dataloader_stuck"):
            cause, confidence, why = "dataloader_deadlock_eval", 0.55, "a data loader stands still"
        elif self._hardware_is_clean():
            cause, confidence, why = "nccl_library_bug_hang", 0.55, "kernel logs and GPUs of all nodes are clean, so a collective is stuck"
        else:
            cause, confidence, why = UNKNOWN, 0.3, "nothing tells why"
        item = Observation("no_progress", Role.PRIMARY, confidence, text, cause, line=line, rank=rank)
        return self._finish(cause, confidence, item, [], cascades=0, refined=Refined(cause, confidence, why), symptom=SymptomKind.HANG)

    def _did_something_else_since(self, last: pace.Mark | None) -> bool:
        """True when the last step was followed by a save or an evaluation, begun or ended: that time was not spent standing still."""
        return last is not None and any(
            position > last.position and phase[1:] in ("evaluation", "checkpoint") for position, _, phase, _ in self.reading.phases
        )

    def _hardware_is_clean(self) -> bool:
        """Looked at and clean, which is more than not looked at."""
        looked = bool(self.signals.kernel_logs) and bool(self.signals.gpu_snapshots)
        return (
            looked
            and not any(finding.role is GpuRole.PRIMARY for finding in self.kernel)
            and not any(finding.role is GpuRole.PRIMARY for finding in self.gpu)
        )

    def _unexplained(self, verdict: Verdict) -> Judgement:
        recovered = [item for item in verdict.recovered if item.role is Role.PRIMARY]
        last = recovered[-1] if recovered else None
        summary = f"the job ended as {self.facts.state or 'failed'} and nothing says why"
        return Judgement(
            symptom=self._symptom(None, None, default=SymptomKind.CRASH),
            diagnosis=Diagnosis(
                cause=UNKNOWN,
                confidence=0.2,
                summary=summary,
                primary=PrimaryEvent(text=last.text, line=last.line, at=last.at, rank=last.rank, node=last.node) if last else None,
                cascades=self._count(Role.CASCADE),
                benign=self._count(Role.BENIGN),
            ),
            attribution=Attribution(abstained=True, sources=("signatures",)),
            progress=self._progress(),
        )

    def _benign(self) -> Judgement:
        """Nothing is wrong; the most alarming of the harmless things is named."""
        scores: dict[str, float] = {"nothing_alarming": 0.0}
        if self.numbers.spike_recovered:
            scores["loss_spike_recovered"] = 1.0
        for finding in self.kernel:
            if (
                finding.role in (GpuRole.BENIGN, GpuRole.CONSEQUENCE)
                and (cause := cause_of(finding.cause)) is not None
                and cause.domain is Domain.NONE
            ):
                scores[cause.slug] = max(scores.get(cause.slug, 0), 0.9)
        for item in self.reading.observations:
            if item.role in (Role.BENIGN, Role.HINT) and (cause := cause_of(item.cause or "")) is not None and cause.domain is Domain.NONE:
                scores[cause.slug] = max(scores.get(cause.slug, 0), item.weight)
        for _, _, phase, text in self.reading.phases:
            match phase:
                case "-training" if "exiting program" in text:
                    scores["graceful_exit_duration"] = 0.95
                case "-training":
                    scores["graceful_exit_duration"] = max(scores.get("graceful_exit_duration", 0), 0.45)
                case "+checkpoint" | "-checkpoint":
                    scores["checkpoint_save_pause"] = 0.6 if phase[0] == "-" else scores.get("checkpoint_save_pause", 0.55)
                case "+evaluation" | "-evaluation":
                    scores["evaluation_phase"] = max(scores.get("evaluation_phase", 0), 0.58)
                case _:
                    continue
        slug = max(scores, key=lambda name: scores[name])
        cause = cause_of(slug)
        shown = next((item for item in self.reading.observations if item.cause == slug), None)
        return Judgement(
            symptom=SymptomKind.NONE,
            diagnosis=Diagnosis(
                domain=Domain.NONE,
                cause=slug,
                confidence=0.8 if self.facts.says_anything or self.reading.marks else 0.5,
                summary=cause.means if cause else "",
                primary=PrimaryEvent(text=shown.text, line=shown.line, at=shown.at, rank=shown.rank, node=shown.node) if shown else None,
                benign=self._count(Role.BENIGN),
                lines=_lines([shown] if shown else []),
            ),
            attribution=Attribution(abstained=True, sources=("signatures",)),
            progress=self._progress(),
        )

    # -- putting it together

    def _finish(
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
        node, _ = self.whereabouts.locate(primary)
        items = [(item, *self.whereabouts.locate(item)) for item in self._evidence_for(slug, primary, same)]
        sources = tuple(dict.fromkeys(str(item.source) for item, _, _ in items))
        if primary.source is SignalSource.KERNEL and not primary.isolate and cause is not None and cause.symptom is not SymptomKind.NONE:
            items = []  # the kernel's words do not ask to keep the node out
        attribution = attribute(slug, confidence, items, sources)
        attribution = self._narrowed(slug, primary, node, attribution)
        rank = primary.rank
        if rank is None and primary.source is not SignalSource.SCHEDULER:
            rank = next((item.rank for item in same if item.rank is not None and item.node == primary.node), None)
        where = f" on {node}" if node else ""
        summary = (cause.means if cause else "the cause is not known") + where + (f"; {refined.because}" if refined else "")
        return Judgement(
            symptom=symptom if symptom is not None else self._symptom(cause, primary, default=SymptomKind.CRASH),
            diagnosis=Diagnosis(
                domain=cause.domain if cause else Domain.UNKNOWN,
                cause=slug if cause else UNKNOWN,
                confidence=round(confidence, 2),
                summary=summary,
                primary=PrimaryEvent(
                    text=primary.text, line=primary.line, source=primary.source, at=primary.at, rank=rank, node=node, gpu=primary.gpu
                ),
                cascades=cascades,
                benign=self._count(Role.BENIGN),
                lines=_lines([primary, *same]),
            ),
            attribution=attribution,
            progress=self._progress(),
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
        certain = [item for item in same if spreads or (item.source in (SignalSource.KERNEL, SignalSource.GPU) and item.isolate)]
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
            if len(failing) >= 3 or (len(failing) >= 2 and len(failing) == len(self.facts.nodes)):
                return Attribution(abstained=True, sources=attribution.sources)
        everywhere = set(self.facts.nodes) == self.reading.nodes.get(primary.signature, set()) and len(self.facts.nodes) > 1
        if everywhere and (cause := cause_of(slug)) is not None and cause.domain in (Domain.SYSTEM_SOFTWARE, Domain.NETWORK):
            return Attribution(abstained=True, sources=attribution.sources)
        return attribution

    def _symptom(self, cause: Cause | None, primary: Observation | None, *, default: SymptomKind) -> SymptomKind:
        told = self.signals.symptom.kind if self.signals.symptom is not None else SymptomKind.NONE
        if told is not SymptomKind.NONE:
            return told
        usual = cause.symptom if cause is not None else default
        if self.facts.ended_badly and usual in (SymptomKind.NONE, SymptomKind.SLOWDOWN):
            return SymptomKind.CRASH
        return usual

    def _count(self, role: Role) -> int:
        return sum(count for name, count in self.reading.counts.items() if name in self.rows and self.rows[name].role is role)

    def _progress(self) -> Progress:
        if self.signals.progress is not None:
            return self.signals.progress
        iterations = [mark for mark in self.reading.marks if mark.iteration is not None]
        steps = [value for _, value in pace.step_seconds(self.reading.marks)]
        return Progress(
            iteration=iterations[-1].iteration if iterations else None,
            iteration_at=iterations[-1].at if iterations else None,
            first_iteration=iterations[0].iteration if iterations else None,
            step_seconds=round(sorted(steps)[len(steps) // 2], 4) if steps else None,
        )


# ------------------------------------------------------------------------------------------------- facts as observations


def _kernel_findings(signals: Signals, reading: Reading) -> tuple[KernelFinding, ...]:
    """Kernel lines of every node, and those that landed in the job's log; one finding a burst."""
    findings: list[KernelFinding] = []
    for node, text in signals.kernel_logs.items():
        findings += read_kernel_log(text, node or None)
    if reading.kernel_lines and not findings:
        findings += read_kernel_log("\n".join(reading.kernel_lines))
    return judge_bursts(findings)


def _of_kernel(finding: KernelFinding) -> Observation:
    return Observation(
        signature=finding.event,
        role=Role.PRIMARY if finding.role is GpuRole.PRIMARY else Role.HINT,
        weight=finding.confidence,
        text=finding.text,
        cause=finding.cause,
        source=SignalSource.KERNEL,
        line=finding.line,
        at=finding.at,
        node=finding.node,
        gpu=finding.gpu,
        isolate=finding.isolate,
    )


def _of_gpu(finding: GpuFinding, facts: SchedulerFacts) -> Observation:
    # A node may be called gpu-02; only the job's own list tells it from a device.
    is_node = finding.node is None and finding.gpu in facts.nodes
    return Observation(
        signature=finding.reading,
        role=Role.PRIMARY if finding.role is GpuRole.PRIMARY else Role.HINT,
        weight=finding.confidence,
        text=f"{finding.reading} = {finding.value}",
        cause=finding.cause,
        source=SignalSource.GPU,
        node=finding.gpu if is_node else finding.node,
        gpu=None if is_node else finding.gpu,
        isolate=finding.isolate,
    )


def _of_state(facts: SchedulerFacts) -> list[Observation]:
    found: list[Observation] = []
    if facts.state in _SCHEDULER_STATES:
        cause, weight = _SCHEDULER_STATES[facts.state]
        found.append(Observation("slurm_state", Role.PRIMARY, weight, f"Slurm says {facts.state}", cause, SignalSource.SCHEDULER))
    if facts.lost_nodes and facts.state not in ("COMPLETED",):
        text = f"Slurm lost {', '.join(facts.lost_nodes[:8])}"
        named = facts.lost_nodes[0] if len(facts.lost_nodes) == 1 else None
        found.append(Observation("slurm_node_lost", Role.PRIMARY, 0.93, text, "node_failure", SignalSource.NODE, node=named))
    code = facts.exit_code or _EXIT_SIGNALS.get(facts.exit_signal or 0)
    if code is not None and code in _EXIT_CODES:
        cause, weight = _EXIT_CODES[code]
        found.append(Observation("exit_code", Role.CASCADE, weight, f"exit code {code}", cause, SignalSource.SCHEDULER))
    return found


def _lines(items: Sequence[Observation]) -> tuple[str, ...]:
    shown = [f"{item.line}: {item.text}" if item.line is not None else f"{item.source}: {item.text}" for item in items]
    return tuple(dict.fromkeys(shown))[:_LINES_SHOWN]


def _is_step(mark: pace.Mark) -> bool:
    return mark.iteration is not None or mark.share_done is not None


def _short(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks[:8]) + (" ..." if len(ranks) > 8 else "")
