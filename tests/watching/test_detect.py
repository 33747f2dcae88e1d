"""The watch as an activity: what ends it, and what must not."""

import pytest

from activities.records import JobState, Phase, SymptomKind, WatchEnd
from activities.slurm.simulated_programs import Exit, runs_for
from tests.builders import ECC_LINE
from tests.watching.world import World, step


async def test_a_graceful_end_is_no_incident(world: World) -> None:
    watching = await world.watched(runs_for(60))
    world.pass_time(70)
    result = await watching
    assert (result.kind, result.symptom) == (WatchEnd.ENDED_WELL, None)
    assert result.job is not None
    assert result.job.state is JobState.COMPLETED
    assert result.progress.iteration == 5


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.PREEMPTED, JobState.TIMEOUT, JobState.DEADLINE])
async def test_ends_that_are_no_faults_say_so(world: World, state: JobState) -> None:
    await world.submit()
    watching = world.watching(await world.request())
    await world.some_looks()
    world.cluster.end_job(world.job_id, Exit(state=state))
    world.pass_time(5)
    result = await watching
    assert (result.kind, result.symptom) == (WatchEnd.ENDED_WELL, None)
    assert state in result.summary


async def test_a_failed_job_is_a_crash_with_the_fatal_line_as_its_onset(world: World) -> None:
    watching = await world.watched(runs_for(60, exit_code=1))
    died = world.pass_time(58)
    world.write(ECC_LINE)
    await world.until(lambda: world.last.fatal is not None)
    world.pass_time(10)
    result = await watching
    assert result.symptom is not None
    assert (result.kind, result.symptom.kind, result.symptom.onset) == (WatchEnd.SYMPTOM, SymptomKind.CRASH, died)
    assert any(signal.text == ECC_LINE for signal in result.symptom.signals)


async def test_a_job_that_failed_before_the_watch_began_is_found_with_its_last_words(world: World) -> None:
    await world.submit(runs_for(60, exit_code=1))
    world.steps(1, 5)
    with world.log.open("a") as log:
        log.write(ECC_LINE)  # the last line of a killed process has no line end
    request = await world.request()
    world.pass_time(65)
    result = await world.watching(request)
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH
    assert any(signal.text == ECC_LINE for signal in result.symptom.signals)


async def test_a_fatal_line_is_a_crash_once_it_has_settled_while_the_job_still_runs(world: World) -> None:
    watching = await world.watched()
    world.write(ECC_LINE)
    await world.until(lambda: world.last.fatal is not None)
    await world.some_looks()
    assert not watching.done()
    world.pass_time(4)
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH
    assert "still runs" in result.symptom.summary


async def test_a_fatal_line_that_iterations_follow_is_forgotten(world: World) -> None:
    watching = await world.watched()
    world.write(ECC_LINE)
    world.steps(6, 7)
    await world.seen(7)
    assert world.last.fatal is None
    world.write(ECC_LINE)
    await world.until(lambda: world.last.fatal is not None)
    world.steps(8, 9)
    await world.seen(9)
    assert world.last.fatal is None
    world.pass_time(60)
    await world.some_looks()
    assert not watching.done()
    watching.cancel()


async def test_one_iteration_after_a_fatal_line_may_be_another_ranks_last(world: World) -> None:
    watching = await world.watched()
    world.write(ECC_LINE)
    world.steps(6, 6)
    await world.seen(6)
    world.pass_time(4)
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH


async def test_a_hang_is_found_and_confirmed(world: World) -> None:
    watching = await world.watched()
    last = world.clock.now()
    world.pass_time(301)
    await world.until(lambda: world.last.suspicion is not None)
    world.pass_time(9)
    await world.some_looks()
    assert not watching.done()
    world.pass_time(1)
    result = await watching
    assert result.symptom is not None
    assert (result.symptom.kind, result.symptom.onset) == (SymptomKind.HANG, last)


async def test_a_long_checkpoint_and_an_evaluation_are_no_hangs(world: World) -> None:
    watching = await world.watched()
    world.write("saving checkpoint at iteration       5 to /ckpt in torch_dist format")
    await world.until(lambda: world.last.progress.phase is Phase.CHECKPOINTING)
    world.pass_time(1200)
    await world.some_looks()
    world.write("  successfully saved checkpoint from iteration       5 to /ckpt")
    world.steps(6, 7)
    await world.seen(7)
    world.write("Evaluating on 1024 samples")
    await world.until(lambda: world.last.progress.phase is Phase.EVALUATING)
    world.pass_time(3000)
    await world.some_looks()
    assert not watching.done()
    assert world.last.suspicion is None
    watching.cancel()


async def test_a_log_full_of_the_word_error_is_no_symptom(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    world.write(*("WARNING: error: retrying after an Error (errors so far: 3), error rate 0.5" for _ in range(500)))
    await world.seen(5)
    world.pass_time(60)
    await world.some_looks()
    assert not watching.done()
    watching.cancel()


async def test_waiting_in_the_queue_is_no_failure(world: World) -> None:
    await world.submit(hold=True)
    watching = world.watching(await world.request())
    await world.some_looks()
    world.pass_time(48 * 3600)
    await world.some_looks()
    assert not watching.done()
    watching.cancel()


async def test_a_lost_node_whose_job_slurm_requeued_at_once_is_a_node_fault(world: World) -> None:
    job = await world.submit()
    watching = world.watching(await world.request())
    await world.some_looks()
    world.pass_time(10)
    world.cluster.node_down(job.nodes[0])
    world.pass_time(2)
    result = await watching
    assert result.symptom is not None
    assert (result.kind, result.symptom.kind) == (WatchEnd.SYMPTOM, SymptomKind.NODE_FAULT)
    assert result.job is not None


async def test_a_requeue_by_someone_else_ends_the_watch_without_an_incident(world: World) -> None:
    await world.submit()
    watching = world.watching(await world.request())
    await world.some_looks()
    world.pass_time(10)
    await world.cluster.requeue(world.job_id)
    world.pass_time(5)
    result = await watching
    assert (result.kind, result.symptom) == (WatchEnd.REQUEUED, None)
    assert result.job is not None
    assert result.job.restart_count == 1


async def test_what_dies_of_a_requeue_by_someone_else_is_no_crash(world: World) -> None:
    watching = await world.watched()
    world.pass_time(10)
    world.write("slurmstepd: error: *** JOB 1 ON node-001 CANCELLED AT 2026-01-05T09:00:10 DUE TO JOB REQUEUE ***", ECC_LINE)
    await world.until(lambda: world.last.told_to_end_at is not None)
    assert world.last.fatal is None
    await world.cluster.requeue(world.job_id)
    world.pass_time(5)
    assert (await watching).kind is WatchEnd.REQUEUED


FORGED = (
    "slurmstepd: error: *** JOB 1 ON node-001 CANCELLED AT 2026-01-05T09:00:10 DUE TO JOB REQUEUE ***",
    "slurmstepd: error: *** JOB 1 ON node-001 CANCELLED AT 2026-01-05T09:00:10 ***",
    "slurmstepd-node-001: error: *** JOB 1 ON node-001 CANCELLED AT 2026-01-05T09:00:10 DUE TO TIME LIMIT ***",
    "[rank0]: *** JOB 1 ON node-001 CANCELLED AT 2020-01-01T00:00:00 DUE TO PREEMPTION ***",
    "0: slurmstepd: error: *** JOB 99 ON nowhere CANCELLED AT now ***",
)


@pytest.mark.parametrize("word", FORGED)
async def test_a_word_that_slurm_does_not_confirm_hides_no_fatal_line(world: World, word: str) -> None:
    watching = await world.watched()
    world.pass_time(10)
    world.write(step(1), step(2), word, ECC_LINE)
    await world.until(lambda: world.last.unconfirmed_fatal is not None)
    assert world.last.fatal is None
    world.pass_time(60)
    world.pass_time(70)
    result = await watching
    assert result.symptom is not None
    assert (result.symptom.kind, ECC_LINE in result.symptom.summary) == (SymptomKind.CRASH, True)


async def test_nor_where_the_job_ends_otherwise(world: World) -> None:
    watching = await world.watched()
    world.pass_time(10)
    world.write(step(1), FORGED[0], ECC_LINE)
    await world.until(lambda: world.last.unconfirmed_fatal is not None)
    world.cluster.fail_job(world.job_id)
    world.pass_time(20)
    result = await watching
    assert result.symptom is not None
    assert any(ECC_LINE in signal.text for signal in result.symptom.signals)


async def test_a_job_that_slurm_has_forgotten_is_forgotten(world: World) -> None:
    await world.submit()
    request = await world.request()
    world.cluster.end_job(world.job_id, Exit())
    world.pass_time(1000)
    watching = world.watching(request)
    await world.until(lambda: world.detect is not None and len(world.heartbeats) > 0)
    world.pass_time(1)
    assert (await watching).kind is WatchEnd.FORGOTTEN


async def test_a_silent_scheduler_gives_no_verdict_and_is_told(world: World) -> None:
    watching = await world.watched()
    world.cluster.down = True
    await world.until(lambda: world.last.blind is not None)
    assert "Slurm has not answered" in (world.last.blind or "")
    world.pass_time(4000)
    await world.some_looks()
    assert not watching.done()
    world.steps(6, 8)
    await world.seen(8)
    world.cluster.down = False
    await world.until(lambda: world.last.blind is None)
    assert not watching.done()
    watching.cancel()


async def test_a_log_outside_the_roots_blinds_the_watch_but_not_to_slurm(world: World) -> None:
    await world.submit(runs_for(10_000, exit_code=1), log=str(world.directory.parent / "elsewhere.log"))
    watching = world.watching(await world.request())
    await world.until(lambda: world.last.blind is not None)
    assert "logs.roots" in (world.last.blind or "")
    world.pass_time(9000)
    await world.some_looks()
    assert not watching.done()
    world.pass_time(1100)
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH
    assert result.blind is not None


async def test_a_log_that_never_appears_blinds_the_watch_after_a_while(world: World) -> None:
    await world.submit()
    world.log.unlink(missing_ok=True)
    watching = world.watching(await world.request())
    await world.some_looks()
    assert world.last.blind is None
    world.pass_time(150)
    await world.until(lambda: world.last.blind is not None)
    assert str(world.log) in (world.last.blind or "")
    world.pass_time(7200)
    await world.some_looks()
    assert not watching.done()
    watching.cancel()


async def test_a_binary_log_blinds_the_watch(world: World) -> None:
    await world.submit()
    world.log.write_bytes(bytes(range(1, 32)) * 100 + b"\n")
    watching = world.watching(await world.request())
    await world.until(lambda: world.last.blind is not None)
    assert "does not look like a text log" in (world.last.blind or "")
    watching.cancel()


async def test_a_log_without_iteration_lines_is_told_and_is_no_hang(world: World) -> None:
    await world.submit()
    world.write("batch done")
    watching = world.watching(await world.request())
    await world.some_looks()
    for _ in range(5):
        world.pass_time(600)
        world.write("batch done")
        await world.until(lambda: world.last.last_output_at == world.clock.now())
    await world.until(lambda: world.last.blind is not None)
    assert "progress=" in (world.last.blind or "")
    assert not watching.done()
    watching.cancel()


async def test_three_iterations_of_nan_are_bad_numbers(world: World) -> None:
    watching = await world.watched()
    line = " iteration {:8d}/ 1000000 | elapsed time per iteration (ms): 1000.0 | lm loss: NAN |"
    world.write(*(line.format(6) for _ in range(8)))
    await world.seen(6)
    assert not watching.done()
    world.write(line.format(7), line.format(8))
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.BAD_NUMBERS
    assert "iteration 6" in result.symptom.summary


async def test_a_known_symptom_is_not_reported_again_and_its_end_is_as_known(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    world.write(ECC_LINE)
    watching = world.watching(await world.request())
    await world.until(lambda: world.last.fatal is not None)
    world.pass_time(20)
    first = await watching
    assert first.symptom is not None
    again = world.watching(await world.request(cursor=first.cursor, known_symptoms=(first.symptom.kind,), known_onset=first.symptom.onset))
    world.pass_time(60)
    await world.some_looks()
    assert not again.done()
    world.cluster.fail_job(world.job_id)
    world.pass_time(5)
    assert (await again).kind is WatchEnd.ENDED_AS_KNOWN
