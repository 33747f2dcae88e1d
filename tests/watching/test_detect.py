"""The watch as an activity: what ends it, and what must not."""

import asyncio
from datetime import timedelta

import pytest

from activities.records import Cursor, JobState, Phase, SymptomKind, WatchEnd, WatchUntil
from activities.slurm.simulated_programs import Exit, runs_for
from tests.builders import ECC_LINE
from tests.watching.world import World


async def test_a_graceful_end_is_no_incident(world: World) -> None:
    await world.submit(runs_for(60))
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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
    await world.submit(runs_for(60, exit_code=1))
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
    world.write(ECC_LINE)
    world.steps(6, 6)
    await world.seen(6)
    world.pass_time(4)
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH


async def test_a_hang_is_found_and_confirmed(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
    world.pass_time(10)
    world.write("slurmstepd: error: *** JOB 1 ON node-001 CANCELLED AT 2026-01-05T09:00:10 DUE TO JOB REQUEUE ***", ECC_LINE)
    await world.until(lambda: world.last.told_to_end_at is not None)
    assert world.last.fatal is None
    await world.cluster.requeue(world.job_id)
    world.pass_time(5)
    assert (await watching).kind is WatchEnd.REQUEUED


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
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request())
    await world.seen(5)
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


# ------------------------------------------------------------------------------------------------------ handing over


async def test_a_cancelled_watch_leaves_a_cursor_from_which_another_goes_on(world: World) -> None:
    await world.submit()
    world.steps(1, 50)
    request = await world.request()
    watching = world.watching(request)
    await world.seen(50)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    left = Cursor.model_validate(world.last.model_dump(mode="json"))
    assert left.files[0].offset_bytes == world.log.stat().st_size

    world.heartbeats.clear()
    world.steps(51, 52)
    watching = world.watching(request, heartbeat=left)
    await world.seen(52)
    assert world.last.progress.first_iteration == 1
    assert world.last.progress.steps_seen == 52
    watching.cancel()


async def test_a_watch_that_was_away_for_long_reads_before_it_judges(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    request = await world.request()
    watching = world.watching(request)
    await world.seen(5)
    watching.cancel()
    left = world.last
    world.pass_time(7200)
    world.steps(6, 7200)
    world.heartbeats.clear()
    watching = world.watching(request, heartbeat=left)
    await world.seen(7200)
    world.pass_time(15)
    await world.some_looks()
    assert not watching.done()
    watching.cancel()


async def test_an_absence_of_ours_is_no_pause_of_the_jobs(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    request = await world.request()
    watching = world.watching(request)
    await world.seen(5)
    watching.cancel()
    left = world.last
    world.write(ECC_LINE)
    world.pass_time(7200)
    world.steps(6, 7200)
    world.heartbeats.clear()
    watching = world.watching(request, heartbeat=left)
    await world.seen(7200)
    assert world.last.line_gap_seconds == 1.0
    world.pass_time(301)
    await world.until(lambda: world.last.suspicion is not None)
    watching.cancel()


async def test_a_fatal_line_left_by_another_worker_is_judged_after_reading_on(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    world.write(ECC_LINE)
    request = await world.request()
    watching = world.watching(request)
    await world.until(lambda: world.last.fatal is not None)
    watching.cancel()
    left = world.last
    world.pass_time(600)
    world.steps(6, 20_000)
    world.heartbeats.clear()
    watching = world.watching(request, heartbeat=left)
    await world.seen(20_000)
    assert world.last.fatal is None
    assert not watching.done()
    watching.cancel()


async def test_what_an_older_attempt_appended_is_not_this_attempts(world: World) -> None:
    await world.submit()
    world.steps(1, 50)
    watching = world.watching(await world.request())
    await world.seen(50)
    watching.cancel()
    earlier = world.last
    world.write(ECC_LINE)
    await world.cluster.requeue(world.job_id)
    world.pass_time(150)
    request = await world.request(cursor=earlier)
    assert request.attempt.restart_count == 1
    world.heartbeats.clear()
    watching = world.watching(request)
    await world.until(lambda: world.last.restart_count == 1)
    world.pass_time(60)
    await world.some_looks()
    assert not watching.done()
    world.steps(41, 42)
    await world.seen(42)
    assert world.last.progress.first_iteration == 41
    watching.cancel()


# -------------------------------------------------------------------------------------------------- until a milestone


async def test_verification_sees_the_new_attempt_run_step_and_save(world: World) -> None:
    await world.submit(hold=True)
    opt_in = world.opt_in(checkpoints=str(world.checkpoints))
    _save_checkpoint(world, 40)
    watching = world.watching(await world.request(until=WatchUntil.RUNNING, excluded_nodes=("node-001",)))
    await world.some_looks()
    await world.cluster.release(world.job_id)
    running = await watching
    assert (running.kind, running.on_excluded) == (WatchEnd.REACHED, ("node-001",))

    watching = world.watching(await world.request(until=WatchUntil.STEPPING, resumed_from=40, cursor=running.cursor))
    await world.some_looks()
    world.steps(41, 42)
    stepping = await watching
    assert (stepping.kind, stepping.started_over) == (WatchEnd.REACHED, False)

    request = await world.request(until=WatchUntil.CHECKPOINT, checkpoint_before=40, cursor=stepping.cursor, opt_in=opt_in)
    watching = world.watching(request)
    await world.some_looks()
    world.write("  successfully saved checkpoint from iteration      60 to /ckpt")  # the directory's word counts, not the log's
    await world.some_looks()
    assert not watching.done()
    _save_checkpoint(world, 60)
    world.pass_time(20)
    saved = await watching
    assert saved.kind is WatchEnd.REACHED
    assert saved.progress.checkpoint_iteration == 60


async def test_without_a_directory_the_logs_word_for_a_checkpoint_counts(world: World) -> None:
    await world.submit()
    world.steps(41, 42)
    watching = world.watching(await world.request(until=WatchUntil.CHECKPOINT, checkpoint_before=40))
    await world.seen(42)
    world.write("  successfully saved checkpoint from iteration      40 to /ckpt")
    await world.some_looks()
    assert not watching.done()
    world.write("  successfully saved checkpoint from iteration      60 to /ckpt")
    assert (await watching).kind is WatchEnd.REACHED


async def test_a_checkpoint_directory_that_cannot_be_read_leaves_the_logs_word(world: World) -> None:
    await world.submit()
    world.steps(41, 42)
    opt_in = world.opt_in(checkpoints=str(world.directory.parent / "elsewhere"))
    watching = world.watching(await world.request(until=WatchUntil.CHECKPOINT, checkpoint_before=40, opt_in=opt_in))
    await world.seen(42)
    assert "logs.roots" in (world.last.blind or "")
    world.write("  successfully saved checkpoint from iteration      60 to /ckpt")
    result = await watching
    assert result.kind is WatchEnd.REACHED
    assert result.blind is not None


async def test_an_attempt_that_starts_from_the_beginning_is_told(world: World) -> None:
    await world.submit()
    world.steps(1, 2)
    result = await world.watching(await world.request(until=WatchUntil.STEPPING, resumed_from=40))
    assert result.started_over


async def test_a_deadline_ends_a_milestone_that_does_not_come(world: World) -> None:
    await world.submit()
    deadline = world.clock.now() + timedelta(seconds=600)
    watching = world.watching(await world.request(until=WatchUntil.STEPPING, deadline=deadline))
    await world.some_looks()
    world.pass_time(601)
    assert (await watching).kind is WatchEnd.DEADLINE


async def test_a_new_attempt_that_fails_again_ends_its_verification(world: World) -> None:
    await world.submit(runs_for(30, exit_code=1))
    watching = world.watching(await world.request(until=WatchUntil.CHECKPOINT, checkpoint_before=40))
    await world.some_looks()
    world.pass_time(40)
    assert (await watching).kind is WatchEnd.SYMPTOM


def _save_checkpoint(world: World, iteration: int) -> None:
    shard = world.checkpoints / f"iter_{iteration:07d}" / "mp_rank_00" / "model_optim_rng.pt"
    shard.parent.mkdir(parents=True, exist_ok=True)
    shard.write_bytes(b"weights")
    (world.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(iteration))
