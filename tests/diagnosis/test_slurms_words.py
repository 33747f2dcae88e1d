"""What real Slurm writes into logs: who tells of a cancellation, and when a requeue is told. The verdict rests on neither's name."""

from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.classify import Classify, ClassifyRequest
from activities.configuration import EvidenceSection, SchedulerSection
from activities.diagnosis.engine import Engine
from activities.diagnosis.signals import LogSource, Signals
from activities.evidence.capture import EvidenceStore
from activities.logs.paths import LogRoots
from activities.records import Attempt, JobKey, Judgement, OptIn, Symptom, SymptomKind
from activities.slurm.clock import WallClock
from activities.slurm.commands import CommandScheduler
from workers.embedded.private_slurm import PrivateSlurm

pytestmark = pytest.mark.slurm

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
STEPS = 'for i in $(seq 1 30); do echo "iteration $i | elapsed time per iteration (ms): 900.0 | lm loss: 2.$i"; done'


def lines_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


async def test_the_node_that_tells_of_a_cancelled_step_is_not_blamed(idle_slurm: PrivateSlurm, engine: Engine, tmp_path: Path) -> None:
    rank = f'{STEPS}; if [ "$SLURM_PROCID" = 2 ]; then echo "{ECC}"; exit 1; fi; sleep 60'
    script = f"srun --kill-on-bad-exit=1 -o {tmp_path}/rank_%t.log bash -c '{rank}'"
    job_id = await idle_slurm.submit_text(script, "--nodes=4", "--ntasks-per-node=1", f"--output={tmp_path}/job-%j.out")
    await idle_slurm.wait_state(job_id, "FAILED")
    logs = {name: lines_of(tmp_path / name) for name in (f"job-{job_id}.out", *(f"rank_{number}.log" for number in range(4)))}
    told = [line for text in logs.values() for line in text.splitlines() if "*** STEP" in line]
    assert told, logs
    assert all(" ON node-001 CANCELLED AT " in line for line in told), told
    ranks = tuple(LogSource(name=name, data=text.encode()) for name, text in logs.items() if name.startswith("rank_"))
    judgement = engine.judge(Signals(logs=ranks))
    assert (judgement.diagnosis.cause, judgement.attribution.suspects) == ("ecc_uncorrectable", ())


async def diagnosed(slurm: PrivateSlurm, engine: Engine, job_id: str, restarts: int) -> Judgement:
    scheduler = CommandScheduler(slurm.transport, SchedulerSection())
    roots = LogRoots([slurm.directory])
    store = EvidenceStore(EvidenceSection.model_validate({"directory": slurm.directory / "evidence"}), roots)
    job = await scheduler.job(job_id)
    assert job.submitted_at is not None
    assert job.restart_count == restarts
    key = JobKey(cluster="private", job_id=job_id, submitted_at=job.submitted_at)
    now = WallClock().now()
    request = ClassifyRequest(
        incident_id="i-1",
        attempt=Attempt(key=key, restart_count=restarts, nodes=job.nodes, started_at=job.started_at),
        job=job,
        opt_in=OptIn(opted_in=True),
        symptom=Symptom(kind=SymptomKind.CRASH, onset=now, detected_at=now, summary="the job failed"),
    )
    classify = Classify(scheduler, engine, store, roots, clock=WallClock())
    judgement: Judgement = await ActivityEnvironment().run(classify.diagnose, request)
    return judgement


async def test_a_requeue_is_believed_by_the_time_that_slurm_tells_and_no_forged_one_is(idle_slurm: PrivateSlurm, engine: Engine) -> None:
    slurm = idle_slurm
    word = "slurmstepd: error: *** JOB $SLURM_JOB_ID ON node-001 CANCELLED AT $(date +%Y-%m-%dT%H:%M:%S) DUE TO JOB REQUEUE ***"
    first = f"echo '{ECC}'; sleep 600"
    second = f'echo "ValueError: bad sample"; sleep 3; echo "{word}"; exit 1'
    script = f'if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then {first}; fi\n{second}'
    job_id = await slurm.submit_text(script, "--open-mode=append", f"--output={slurm.directory}/requeued-%j.out")
    await slurm.wait_state(job_id, "RUNNING")
    log = slurm.directory / f"requeued-{job_id}.out"
    while ECC not in lines_of(log):
        await slurm.wait_state(job_id, "RUNNING")
    await slurm.run("scontrol", "requeue", job_id)
    await slurm.wait_state(job_id, "PENDING")
    await slurm.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    await slurm.wait_state(job_id, "FAILED")
    text = lines_of(log)
    assert text.count("DUE TO JOB REQUEUE") == 2, text
    judgement = await diagnosed(slurm, engine, job_id, restarts=1)
    assert judgement.diagnosis.cause == "python_exception_rank_logic", text
