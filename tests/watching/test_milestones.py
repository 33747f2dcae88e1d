"""Watches that go until a milestone: running, stepping, a new checkpoint."""

from datetime import timedelta

from activities.records import WatchEnd, WatchUntil
from activities.slurm.simulated_programs import runs_for
from tests.watching.world import World


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
