"""Blind is not hung: what a watch says of a job whose progress it cannot see, and that it calls no fault by it."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities.records import Cursor, NodeState, SymptomKind, WatchEnd
from activities.slurm.simulated_programs import runs_for
from tests.watching.world import World, step

UNSEEN = "progress cannot be seen; crashes only"
HOUR = 3600


async def says(world: World, words: str) -> None:
    await world.until(lambda: words in (world.last.blind or ""))


async def test_a_silent_job_is_watched_for_its_end_only_and_it_is_said(world: World) -> None:
    await world.submit(runs_for(20 * HOUR, exit_code=1))
    watching = world.watching(await world.request())
    await world.some_looks()
    assert world.last.blind is None
    world.pass_time(HOUR)
    await says(world, UNSEEN)
    for _ in range(9):
        world.pass_time(2 * HOUR)
        await world.some_looks()
    assert not watching.done()
    world.pass_time(HOUR + 5)
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.CRASH


async def test_a_silent_start_after_an_attempt_that_stepped_is_a_hang(world: World) -> None:
    await world.submit()
    watching = world.watching(await world.request(earlier_attempts_stepped=True))
    await world.some_looks()
    world.pass_time(1801)
    await world.until(lambda: world.last.suspicion is not None)
    world.pass_time(11)
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.HANG


async def test_a_log_replaced_under_its_writer_gives_no_hang_and_is_told(world: World) -> None:
    watching = await world.watched()
    writer = world.log.open("a")
    world.log.unlink()
    world.log.touch()
    await says(world, "was replaced by another file")
    writer.write(step(6) + "\n")
    writer.close()
    world.pass_time(2 * HOUR)
    await world.some_looks()
    assert (watching.done(), world.last.suspicion) == (False, None)
    world.steps(7, 8)  # it opens its log anew
    await world.seen(8)
    assert world.last.blind is None
    world.pass_time(301)
    await world.until(lambda: world.last.suspicion is not None)
    watching.cancel()


async def test_a_renamed_log_is_followed_and_its_silence_counts(world: World) -> None:
    watching = await world.watched()
    with world.log.open("a") as writer:
        world.log.rename(world.log.with_suffix(".log.1"))
        world.log.touch()
        world.pass_time(200)
        writer.write(step(6) + "\n" + step(7) + "\n")
        writer.flush()
        await world.seen(7)
        assert world.last.blind is None
        world.pass_time(301)
        await world.until(lambda: world.last.suspicion is not None)
    watching.cancel()


async def found_beside(world: World, path: Path) -> None:
    """Until the watch has looked beside the log, has found this file as it is now, and has no suspicion left."""
    written = datetime.fromtimestamp(os.stat(path).st_mtime, UTC)

    def found() -> bool:
        beside = world.last.beside
        return beside is not None and (beside.path, beside.at) == (str(path), written) and world.last.suspicion is None

    await world.until(found)


async def test_a_checkpoint_being_written_is_a_sign_of_life(world: World) -> None:
    await world.submit()
    world.steps(1, 5)
    watching = world.watching(await world.request(opt_in=world.opt_in(checkpoints=str(world.checkpoints))))
    await world.seen(5)
    for shard in range(4):
        world.pass_time(290)
        part = world.checkpoints / "iter_0000005.tmp" / f"shard-{shard}.distcp"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(b"weights")
        os.utime(part, (world.clock.now().timestamp(),) * 2)
        world.pass_time(30)
        await found_beside(world, part)
    assert world.last.beside is not None
    world.pass_time(302)
    await world.until(lambda: world.last.suspicion is not None)
    world.pass_time(16)  # in two of these the last reading would be too old, and the suspicion that rests on it given up
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.HANG


async def test_a_job_that_only_begins_in_its_log_and_goes_on_in_another_is_no_hang(world: World) -> None:
    watching = await world.watched()
    own = world.directory / "own" / "rank_0.log"
    own.parent.mkdir()
    for _ in range(5):
        world.pass_time(290)
        own.write_text("epoch 3 of mine is done\n")
        os.utime(own, (world.clock.now().timestamp(),) * 2)
        world.pass_time(30)
        await found_beside(world, own)
    world.pass_time(250)
    await says(world, str(own))
    assert not watching.done()
    watching.cancel()


async def test_another_jobs_log_in_the_same_directory_is_no_sign_of_life(world: World) -> None:
    watching = await world.watched()
    mine, others = world.job_id, world.directory / "other.log"
    other = await world.submit(log=str(others))
    world.job_id = mine
    snapshot = await world.feed.next(0)
    while other.job_id not in snapshot.jobs:
        snapshot = await world.feed.next(snapshot.number)
    await world.some_looks()
    world.pass_time(301)
    others.write_text("busy\n")
    os.utime(others, (world.clock.now().timestamp(),) * 2)
    await world.until(lambda: world.last.suspicion is not None)
    world.pass_time(16)  # in two of these the last reading would be too old, and the suspicion that rests on it given up
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.HANG


async def test_lines_that_come_a_buffer_at_a_time_are_no_hang(world: World) -> None:
    await world.submit()
    world.log.touch()
    watching = world.watching(await world.request())
    await world.some_looks()
    for block in range(6):
        world.pass_time(540)
        world.steps(1 + 54 * block, 54 * (block + 1), seconds=10)
        await world.seen(54 * (block + 1))
        assert world.last.suspicion is None
    world.pass_time(820)
    await world.until(lambda: world.last.suspicion is not None)
    watching.cancel()


async def test_steps_that_may_be_an_older_attempts_leave_the_start_its_own_patience(world: World) -> None:
    await world.submit()
    world.steps(1, 50)
    await world.cluster.requeue(world.job_id)
    world.pass_time(150)
    world.write("loading modules")
    watching = world.watching(await world.request())
    await world.seen(50)
    world.pass_time(1000)
    await world.some_looks()
    assert world.last.suspicion is None
    world.steps(41, 43)
    await world.seen(43)
    world.pass_time(301)
    await world.until(lambda: world.last.suspicion is not None)
    watching.cancel()


# ---------------------------------------------------------------------------------------------------------------- nodes


async def test_an_attempt_asked_for_while_it_waited_is_told_with_its_nodes_though_slurm_has_requeued_it(world: World) -> None:
    await world.submit(hold=True)
    request = await world.request()
    assert request.attempt.nodes == ()
    watching = world.watching(request)
    await world.some_looks()
    await world.cluster.release(world.job_id)
    nodes = (await world.job()).nodes
    await world.until(lambda: world.last.nodes == nodes)
    world.cluster.node_down(nodes[0])
    result = await watching
    assert result.symptom is not None
    assert result.symptom.kind is SymptomKind.NODE_FAULT
    assert result.job is not None
    assert result.job.nodes == ()
    assert result.attempt is not None
    assert result.attempt.nodes == nodes


async def test_another_worker_knows_the_nodes_by_the_cursor(world: World) -> None:
    await world.submit(hold=True)
    request = await world.request()
    watching = world.watching(request)
    await world.some_looks()
    await world.cluster.release(world.job_id)
    world.write("loading modules")
    nodes = (await world.job()).nodes
    await world.until(lambda: world.last.nodes == nodes and world.last.last_output_at is not None)
    watching.cancel()
    left = Cursor.model_validate(world.last.model_dump(mode="json"))
    world.cluster.node_down(nodes[0])
    world.pass_time(timedelta(seconds=1).total_seconds())
    assert (await world.cluster.nodes())[0].state is NodeState.DOWN
    result = await world.watching(request, heartbeat=left)
    assert (result.kind, result.attempt.nodes if result.attempt else ()) == (WatchEnd.SYMPTOM, nodes)
