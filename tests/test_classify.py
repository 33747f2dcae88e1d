"""The step `classify`: evidence while it is still there, then the first cause; what cannot be read is noted, never an error."""

import asyncio
import os
import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.classify import DUMPS_SETTLE, TRIES_TO_READ, Classify, ClassifyRequest
from activities.configuration import EvidenceSection
from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import Signals
from activities.evidence.capture import EvidenceStore
from activities.logs.follow import LogFollower
from activities.logs.paths import LogRoots
from activities.records import Domain, Evidence, Job, JobState, Judgement, NodeHistory, SignalSource, Symptom, SymptomKind
from activities.redaction import redact_record
from activities.slurm.clock import ManualClock
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_programs import runs_for
from activities.slurm.simulated_state import Request
from tests.builders import ECC_LINE, NOON, a_judgement, a_key, a_symptom, an_attempt, an_opt_in, node_names


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


class Bench:
    """A failed job whose output lies under an allowed root."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self.runs = directory / "runs"
        self.runs.mkdir()
        self.clock = ManualClock()
        self.cluster = SimulatedCluster(4, clock=self.clock)
        roots = LogRoots([self.runs])
        store = EvidenceStore(EvidenceSection.model_validate({"directory": directory / "evidence"}), roots)
        self.classify = Classify(self.cluster, engine, store, roots, clock=self.clock)
        self.heartbeats: list[str] = []
        self.job_id = ""

    async def failed(self, *lines: str, stderr: str | None = None, stdout: str | None = None, **asked: Any) -> Job:
        output = stdout or str(self.runs / "slurm-%j.out")
        usual = {"node_count": 2, "working_directory": str(self.runs), "script": "#!/bin/bash\nsrun train\n"}
        request = Request(stdout=output, stderr=stderr, **{**usual, **asked})
        self.job_id = self.cluster.submit(runs_for(None), request=request)
        (self.runs / f"slurm-{self.job_id}.out").write_text("".join(f"{line}\n" for line in lines))
        self.cluster.fail_job(self.job_id)
        self.clock.advance(3)
        return await self.cluster.job(self.job_id)

    def request(self, job: Job, **changes: Any) -> ClassifyRequest:
        defaults = {
            "incident_id": "i-1", "attempt": an_attempt(key=a_key(job.job_id), nodes=node_names(2)), "job": job, "opt_in": an_opt_in(),
            "symptom": a_symptom(onset=self.clock.now(), detected_at=self.clock.now()),
        }  # fmt: skip
        return ClassifyRequest(**{**defaults, **changes})

    def environment(self) -> ActivityEnvironment:
        environment = ActivityEnvironment()
        environment.on_heartbeat = lambda *details: self.heartbeats.append(details[0])
        return environment

    async def capture(self, job: Job, **changes: Any) -> Evidence:
        evidence: Evidence = await self.environment().run(self.classify.capture_evidence, self.request(job, **changes))
        return evidence

    async def diagnose(self, job: Job, *, attempt_of_temporal: int = 1, **changes: Any) -> Judgement:
        environment = self.environment()
        environment.info = replace(environment.info, attempt=attempt_of_temporal)
        judgement: Judgement = await environment.run(self.classify.diagnose, self.request(job, **changes))
        return judgement


@pytest.fixture
def bench(tmp_path: Path, engine: Engine) -> Bench:
    return Bench(tmp_path, engine)


def text_of(evidence: Evidence) -> str:
    return "\n".join(excerpt.text for excerpt in evidence.excerpts)


async def test_log_nodes_and_script_are_captured_before_anything_is_changed(bench: Bench) -> None:
    evidence = await bench.capture(await bench.failed("iteration 1", ECC_LINE))
    assert evidence.unreadable == ()
    assert {SignalSource.LOG, SignalSource.SCHEDULER, SignalSource.NODE} <= {excerpt.source for excerpt in evidence.excerpts}
    assert ECC_LINE in text_of(evidence)
    assert "srun train" in text_of(evidence)
    assert bench.heartbeats


async def test_a_log_whose_path_holds_a_secret_is_found_and_the_secret_kept_nowhere(bench: Bench) -> None:
    """The history's job has a mark in its path, which is the name of no file."""
    token = "hf_" + "Zx9" * 12
    job = await bench.failed("iteration 1", stdout=str(bench.runs / f"{token}.out"))
    (bench.runs / f"{token}.out").write_text(f"{ECC_LINE}\n")
    as_recorded = redact_record(job)
    assert as_recorded.stdout_path != job.stdout_path
    evidence, judgement = await bench.capture(as_recorded), await bench.diagnose(as_recorded)
    assert ECC_LINE in text_of(evidence)
    assert judgement.diagnosis.cause == "ecc_uncorrectable"
    assert token not in evidence.model_dump_json() + judgement.model_dump_json()


async def test_only_the_nodes_of_the_attempt_are_told(bench: Bench) -> None:
    text = text_of(await bench.capture(await bench.failed(ECC_LINE)))
    assert "node-002" in text
    assert "node-004" not in text


async def test_an_error_output_of_its_own_is_read_as_well(bench: Bench) -> None:
    errors = bench.runs / "errors.txt"
    job = await bench.failed("iteration 1", stderr=str(errors))
    errors.write_text(f"{ECC_LINE}\n")
    assert ECC_LINE in text_of(await bench.capture(job))
    assert (await bench.diagnose(job)).diagnosis.cause == "ecc_uncorrectable"


async def test_silence_of_slurm_costs_nodes_and_script_but_never_the_log(bench: Bench) -> None:
    job = await bench.failed(ECC_LINE)
    bench.cluster.down = True
    evidence = await bench.capture(job)
    assert ECC_LINE in text_of(evidence)
    missing = " · ".join(evidence.unreadable)
    assert "node states: " in missing
    assert "batch script: " in missing


async def test_a_script_we_may_not_read_is_noted(bench: Bench) -> None:
    job = await bench.failed(ECC_LINE)
    bench.cluster.may_operate = False
    assert any("batch script" in note for note in (await bench.capture(job)).unreadable)


async def test_an_interactive_allocation_has_no_script_to_miss(bench: Bench) -> None:
    evidence = await bench.capture(await bench.failed(ECC_LINE, batch=False))
    assert evidence.unreadable == ()


async def test_a_log_outside_the_allowed_roots_is_not_opened_and_said_so(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere.out"
    job = await bench.failed(stdout=str(outside))
    outside.write_text(f"{ECC_LINE}\n")
    evidence = await bench.capture(job)
    assert ECC_LINE not in text_of(evidence)
    assert any(str(outside) in note for note in evidence.unreadable)
    assert (await bench.diagnose(job)).diagnosis.cause != "ecc_uncorrectable"


async def test_a_log_that_is_gone_is_noted_and_diagnosed_by_the_rest(bench: Bench) -> None:
    job = await bench.failed(ECC_LINE)
    (bench.runs / f"slurm-{job.job_id}.out").unlink()
    assert (await bench.capture(job)).unreadable
    judgement = await bench.diagnose(job)
    assert judgement.attribution.abstained


async def test_the_first_cause_is_named_with_its_node(bench: Bench) -> None:
    judgement = await bench.diagnose(await bench.failed("iteration 1", ECC_LINE))
    assert (judgement.diagnosis.domain, judgement.diagnosis.cause) == (Domain.HARDWARE, "ecc_uncorrectable")
    assert bench.heartbeats


OUT_OF_RANGE = "[rank0]: ValueError: sample 18732 of shard 7 has 4097 tokens, but the model's maximum sequence length is 4096"


async def test_what_killed_the_attempt_before_is_not_blamed_again_where_the_log_goes_on(bench: Bench) -> None:
    job = await bench.failed("starting", ECC_LINE)
    log = bench.runs / f"slurm-{job.job_id}.out"
    follower = LogFollower(log, LogRoots([bench.runs]))
    follower.read()
    with log.open("a") as appended:
        appended.write(f"starting\n[rank0]: Traceback (most recent call last):\n{OUT_OF_RANGE}\n")
    second = an_attempt(key=a_key(job.job_id), nodes=node_names(2), restart_count=1)
    judgement = await bench.diagnose(job, attempt=second, logs_began=(follower.cursor,))
    assert judgement.diagnosis.domain is Domain.APPLICATION
    assert judgement.diagnosis.primary is not None
    assert judgement.diagnosis.primary.line == 5, "as it stands in the file"
    assert judgement.attribution.nodes == ()


async def test_an_earlier_jobs_log_is_not_blamed_for_the_end_of_one_that_wrote_nothing(bench: Bench) -> None:
    job = await bench.failed("iteration 1", ECC_LINE)
    log = bench.runs / f"slurm-{job.job_id}.out"
    started_at = datetime.fromtimestamp(log.stat().st_mtime, tz=UTC) + timedelta(minutes=10)
    judgement = await bench.diagnose(job, attempt=an_attempt(key=a_key(job.job_id), started_at=started_at))
    assert judgement.diagnosis.cause != "ecc_uncorrectable"


async def test_nor_by_an_error_output_of_its_own_which_no_watch_follows(bench: Bench) -> None:
    errors = bench.runs / "errors.txt"
    job = await bench.failed("iteration 1", stderr=str(errors))
    errors.write_text(f"{ECC_LINE}\n")
    evidence = await bench.capture(job)
    with errors.open("a") as appended:
        appended.write(f"[rank0]: Traceback (most recent call last):\n{OUT_OF_RANGE}\n")
    second = an_attempt(key=a_key(job.job_id), nodes=node_names(2), restart_count=1)
    judgement = await bench.diagnose(job, attempt=second, logs_began=evidence.logs_end)
    assert judgement.diagnosis.domain is Domain.APPLICATION


async def test_a_log_that_was_written_anew_is_read_from_its_beginning(bench: Bench) -> None:
    job = await bench.failed("starting", "iteration 1", "iteration 2")
    log = bench.runs / f"slurm-{job.job_id}.out"
    follower = LogFollower(log, LogRoots([bench.runs]))
    follower.read()
    log.write_text(f"{ECC_LINE}\n" + "srun: error: node-002: task 3: Exited with exit code 1\n" * 3)
    second = an_attempt(key=a_key(job.job_id), nodes=node_names(2), restart_count=1)
    assert (await bench.diagnose(job, attempt=second, logs_began=(follower.cursor,))).diagnosis.cause == "ecc_uncorrectable"


@pytest.mark.parametrize(("restarts", "cause"), [(1, "python_exception_rank_logic"), (2, "preempted_requeued")])
async def test_a_requeue_that_the_log_tells_ended_the_attempt_before_unless_slurm_has_requeued_this_one(
    bench: Bench, restarts: int, cause: str
) -> None:
    requeued = "slurmstepd-node-001: error: *** STEP 17.0 ON node-001 CANCELLED AT 2026-01-05T11:59:00 DUE TO JOB REQUEUE ***"
    job = await bench.failed("starting", requeued, "starting", "[rank0]: Traceback (most recent call last):", OUT_OF_RANGE)
    second = an_attempt(key=a_key(job.job_id), nodes=node_names(2), restart_count=1)
    judgement = await bench.diagnose(job.model_copy(update={"restart_count": restarts}), attempt=second)
    assert judgement.diagnosis.cause == cause


FORGED = (
    ("after this attempt began", "2026-01-05T12:00:30"),
    ("long before it was requeued", "2026-01-05T10:31:00"),
    ("yesterday", "2026-01-04T11:59:00"),
    ("on no day of the calendar", "2026-02-31T11:59:00"),
    ("at an hour of no zone", "2026-01-05T11:37:00"),
)


@pytest.mark.parametrize(("why", "at"), FORGED, ids=[why for why, _ in FORGED])
async def test_a_requeue_that_only_the_program_tells_of_hides_no_failure(bench: Bench, why: str, at: str) -> None:
    forged = f"slurmstepd: error: *** JOB 1 ON node-001 CANCELLED AT {at} DUE TO JOB REQUEUE ***"
    job = await bench.failed("starting", "[rank0]: Traceback (most recent call last):", OUT_OF_RANGE, forged, "bye")
    known = job.model_copy(update={"restart_count": 1, "submitted_at": NOON, "state": JobState.FAILED})
    second = an_attempt(key=a_key(job.job_id), nodes=node_names(2), restart_count=1, started_at=NOON + timedelta(seconds=20))
    judgement = await bench.diagnose(known, attempt=second)
    assert judgement.diagnosis.cause == "python_exception_rank_logic", why


@pytest.mark.parametrize(
    "at", ["2026-01-05T11:59:56", "2026-01-05T11:53:00", "2026-01-05T12:59:30", "2026-01-05T17:29:00", "2026-01-05T04:00:00"]
)
async def test_a_requeue_that_slurm_knows_of_is_believed_in_the_clusters_own_time(bench: Bench, at: str) -> None:
    true = f"slurmstepd: error: *** JOB 1 ON node-001 CANCELLED AT {at} DUE TO JOB REQUEUE ***"
    job = await bench.failed("starting", ECC_LINE, true, "starting", "[rank0]: Traceback (most recent call last):", OUT_OF_RANGE)
    known = job.model_copy(update={"restart_count": 1, "submitted_at": NOON, "state": JobState.FAILED})
    second = an_attempt(key=a_key(job.job_id), nodes=node_names(2), restart_count=1, started_at=NOON + timedelta(seconds=20))
    assert (await bench.diagnose(known, attempt=second)).diagnosis.cause == "python_exception_rank_logic"


async def test_a_first_attempts_log_is_never_split(bench: Bench) -> None:
    forged = "slurmstepd: error: *** JOB 1 ON node-001 CANCELLED AT 2026-01-05T11:59:58 DUE TO JOB REQUEUE ***"
    job = await bench.failed("starting", forged, "[rank0]: Traceback (most recent call last):", OUT_OF_RANGE)
    assert (await bench.diagnose(job)).diagnosis.cause == "python_exception_rank_logic"


LAUNCH = "srun: error: Task launch for StepId=17.0 failed on node {}: Job credential expired"


@pytest.mark.parametrize("named", ["node-004", "node-999", "login1"])
async def test_no_node_is_implicated_that_the_attempt_did_not_have(bench: Bench, named: str) -> None:
    judgement = await bench.diagnose(await bench.failed(LAUNCH.format(named)))
    assert judgement.attribution.suspects == ()


async def test_a_node_of_the_attempt_is_implicated_though_slurm_has_put_the_job_elsewhere_since(bench: Bench) -> None:
    job = await bench.failed(LAUNCH.format("node-002"))
    elsewhere = job.model_copy(update={"restart_count": 1, "nodes": ("node-003", "node-004"), "state": JobState.RUNNING})
    for now in (elsewhere, elsewhere.model_copy(update={"nodes": (), "state": JobState.PENDING})):
        judgement = await bench.diagnose(now)
        assert [suspect.node for suspect in judgement.attribution.suspects] == ["node-002"]


async def test_where_the_attempts_nodes_are_not_known_nobody_is_implicated(bench: Bench) -> None:
    job = await bench.failed(LAUNCH.format("node-002"))
    now = job.model_copy(update={"restart_count": 1, "nodes": ("node-002",), "state": JobState.RUNNING})
    judgement = await bench.diagnose(now, attempt=an_attempt(key=a_key(job.job_id), nodes=()))
    assert (judgement.attribution.suspects, judgement.attribution.abstained) == ((), True)
    assert any("node-002" in note and "nodes that nobody saw" in note for note in judgement.notes)


class UnreadableLog(Engine):
    """Over a file system that breaks off in the middle of the log."""

    def __init__(self) -> None: ...

    def judge(self, signals: Signals) -> Judgement:
        if signals.logs:
            raise OSError(5, "Input/output error")
        return a_judgement()


async def test_a_log_that_cannot_be_read_is_tried_some_times_and_then_done_without(bench: Bench) -> None:
    bench.classify._engine = UnreadableLog()
    job = await bench.failed(ECC_LINE)
    for attempt in range(1, TRIES_TO_READ):
        with pytest.raises(OSError, match="Input/output"):
            await bench.diagnose(job, attempt_of_temporal=attempt)
    assert await bench.diagnose(job, attempt_of_temporal=TRIES_TO_READ) == a_judgement()


class SlowEngine(Engine):
    """Reads a log of many gigabytes."""

    def __init__(self) -> None:  # compiles nothing: it only takes its time
        self.beaten = threading.Event()

    def judge(self, signals: Signals) -> Judgement:
        assert self.beaten.wait(60), "no heartbeat while the engine worked"
        return a_judgement()


async def test_a_diagnosis_that_takes_long_heartbeats_and_holds_up_no_other_activity(bench: Bench) -> None:
    engine = SlowEngine()
    bench.classify._engine = engine
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: engine.beaten.set()
    request = bench.request(await bench.failed(ECC_LINE))

    async def diagnose() -> Judgement:
        judgement: Judgement = await environment.run(bench.classify.diagnose, request)
        return judgement

    assert await asyncio.create_task(diagnose()) == a_judgement()


# ------------------------------------------------------------------------------------------------ whose nodes


ABOUT_A_STRANGER = (
    "srun: error: Task launch for StepId=17.0 failed on node node-004: Job credential expired",
    "ssh: connect to host node-004 port 22: No route to host",
    "Node node-004 status is now: NodeNotReady",
)
"""What any job can print of a node it never had."""


@pytest.mark.parametrize("line", ABOUT_A_STRANGER, ids=["credential", "ssh", "not ready"])
async def test_a_node_that_the_attempt_never_had_is_not_suspected_whatever_its_log_says(bench: Bench, line: str) -> None:
    judgement = await bench.diagnose(await bench.failed(line))
    assert "node-004" not in judgement.attribution.nodes
    assert judgement.attribution.abstained
    assert "on node-004" not in judgement.diagnosis.summary


@pytest.mark.parametrize("line", ABOUT_A_STRANGER, ids=["credential", "ssh", "not ready"])
async def test_the_same_line_of_a_node_it_had_implicates_it_by_the_jobs_word_alone(bench: Bench, line: str) -> None:
    judgement = await bench.diagnose(await bench.failed(line.replace("node-004", "node-002")))
    assert [(suspect.node, suspect.seen_by) for suspect in judgement.attribution.suspects] == [("node-002", ())]


async def test_a_job_that_slurm_has_requeued_meanwhile_is_judged_by_the_nodes_it_had(bench: Bench) -> None:
    job = (await bench.failed(ABOUT_A_STRANGER[1])).model_copy(update={"nodes": (), "restart_count": 1})
    judgement = await bench.diagnose(job)
    assert judgement.attribution.nodes == ()


async def test_where_nobody_saw_the_nodes_nobody_is_suspected(bench: Bench) -> None:
    job = (await bench.failed(ABOUT_A_STRANGER[1])).model_copy(update={"nodes": ()})
    judgement = await bench.diagnose(job, attempt=an_attempt(key=a_key(job.job_id), nodes=()))
    assert judgement.attribution.nodes == ()
    assert any("not suspected: node-004" in note and "nobody saw" in note for note in judgement.notes)


async def test_a_node_that_slurm_lost_was_seen_by_more_than_the_job(bench: Bench) -> None:
    job = await bench.failed(ABOUT_A_STRANGER[2].replace("node-004", "node-002"))
    bench.cluster.node_down("node-002")
    judgement = await bench.diagnose(job)
    [suspect] = judgement.attribution.suspects
    assert (suspect.node, SignalSource.NODE in suspect.seen_by) == ("node-002", True)


async def test_a_kernel_line_in_the_jobs_own_output_is_the_jobs_word(bench: Bench) -> None:
    line = "node-002: [  123.456789] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
    judgement = await bench.diagnose(await bench.failed(line, ECC_LINE))
    assert judgement.attribution.nodes == ("node-002",)
    assert judgement.attribution.suspects[0].seen_by == ()


class Listening(Engine):
    """Keeps what it was given to judge."""

    def judge(self, signals: Signals) -> Judgement:
        self.given = signals
        return super().judge(signals)


async def test_the_engine_is_given_the_silence_and_the_nodes_history_as_the_watch_and_the_cluster_know_them(tmp_path: Path) -> None:
    listening = Listening()
    bench = Bench(tmp_path, listening)
    job = await bench.failed("iteration 1")
    history = NodeHistory(nodes=node_names(2), job_id=job.job_id)
    await bench.diagnose(job, silent_since=bench.clock.now() - timedelta(minutes=12), node_history=history)
    assert listening.given.silent_seconds == 720
    assert listening.given.node_history == history
    await bench.diagnose(job)
    assert listening.given.silent_seconds is None, "not known is not silent"


@pytest.mark.parametrize(
    ("script", "node"),
    [
        ("srun train", "node-002"),
        ("srun -m cyclic train", "node-002"),
        ("#SBATCH -m cyclic\nsrun train", "node-002"),
        ("srun -m plane=3 train", None),
    ],
)
async def test_rank_becomes_a_node_by_slurms_layout_alone(bench: Bench, script: str, node: str | None) -> None:
    rank = "1" if "cyclic" in script else "3"
    job = await bench.failed(ECC_LINE.replace("rank3", f"rank{rank}"), tasks_per_node=2, script=f"#!/bin/bash\n{script}\n")
    judgement = await bench.diagnose(job)
    assert judgement.diagnosis.primary is not None
    assert (judgement.diagnosis.primary.rank, judgement.diagnosis.primary.node) == (int(rank), node)
    assert judgement.attribution.nodes == ((node,) if node else ())


def dumped(prefix: Path, ranks: Sequence[int], *, at: datetime, behind: int) -> None:
    """Flight-recorder dumps of a world of four, where one rank has not called what the others wait in."""
    for rank in ranks:
        called = 99 if rank == behind else 100
        status = {"last_enqueued_collective": called, "last_started_collective": called, "last_completed_collective": 99}
        content = {"pg_config": {"0": {"desc": "default", "ranks": "[0, 1, 2, 3]"}}, "pg_status": {"0": status}, "entries": []}
        file = prefix.with_name(f"{prefix.name}{rank}")
        file.write_bytes(pickle.dumps(content))
        os.utime(file, (at.timestamp(), at.timestamp()))


async def hung(bench: Bench, variable: str) -> Job:
    script = f"#!/bin/bash\nexport {variable}={bench.runs}/fr_$SLURM_JOB_ID.\nsrun train\n"
    return await bench.failed("iteration 1", tasks_per_node=2, script=script)


def the_hang(bench: Bench) -> Symptom:
    return a_symptom(SymptomKind.HANG, onset=bench.clock.now(), detected_at=bench.clock.now())


@pytest.mark.parametrize("variable", ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"])
async def test_the_jobs_own_flight_recorder_names_the_rank_that_stayed_away_and_slurm_its_node(bench: Bench, variable: str) -> None:
    bench.clock.advance(60)
    job = await hung(bench, variable)
    running = job.model_copy(update={"state": JobState.RUNNING, "exit_code": None, "ended_at": None})
    dumped(bench.runs / f"fr_{job.job_id}.", range(4), at=bench.clock.now(), behind=3)
    attempt = an_attempt(key=a_key(job.job_id), nodes=node_names(2), started_at=job.started_at)
    judgement = await bench.diagnose(running, attempt=attempt, symptom=the_hang(bench))
    assert "ranks 3 of group default" in judgement.diagnosis.summary, judgement
    assert judgement.diagnosis.primary is not None
    assert (judgement.diagnosis.primary.rank, judgement.diagnosis.primary.node) == (3, "node-002")

    dumped(bench.runs / f"fr_{job.job_id}.", range(4), at=bench.clock.now() - timedelta(hours=1), behind=3)
    judgement = await bench.diagnose(running, attempt=attempt, symptom=the_hang(bench))
    assert "group" not in judgement.diagnosis.summary, "an earlier attempt's dumps tell nothing of this one"


async def test_a_dump_that_wants_to_run_something_is_refused_and_that_is_noted(bench: Bench) -> None:
    job = await hung(bench, "TORCH_FR_DUMP_TEMP_FILE")
    bench.clock.advance(DUMPS_SETTLE)
    file = bench.runs / f"fr_{job.job_id}.0"
    file.write_bytes(pickle.dumps(os.getcwd))
    os.utime(file, (bench.clock.now().timestamp() - 15,) * 2)
    attempt = an_attempt(key=a_key(job.job_id), nodes=node_names(2), started_at=job.started_at)
    judgement = await bench.diagnose(job, attempt=attempt, symptom=the_hang(bench))
    assert "a flight-recorder dump holds plain values only" in " ".join(judgement.notes)
