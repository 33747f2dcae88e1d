"""Scenario 11: what looks alarming and is not. Four jobs in mode auto, one a node, and not one incident."""

import asyncio

from activities.records import Phase
from tests.e2e.site import Site, Training, eventually
from workflows.state import Stage, TrainingJobState

LONG = 12  # seconds of silence; in the midst of training, 6 s make a suspicion of a hang and 8 s a verdict


async def test_a_long_checkpoint_an_evaluation_a_log_full_of_error_and_a_graceful_end_are_no_incidents(site: Site) -> None:
    await site.start_worker()
    saving = await site.submit(nodes=1, checkpoint_every=25, train=["--checkpoint-seconds", str(LONG)])
    evaluating = await site.submit(nodes=1, train=["--evaluate-every", "25", "--evaluate-seconds", str(LONG)])
    noisy = await site.submit(nodes=1, train=["--noise"])
    ending = await site.submit(nodes=1, iterations=25)

    await asyncio.gather(*(_trains_to(45, run) for run in (saving, evaluating, noisy)), site.slurm.wait_state(ending.job_id, "COMPLETED"))
    assert "  successfully saved checkpoint" in saving.log_text()
    assert " validation loss at iteration" in evaluating.log_text()
    assert noisy.log_text().count("error") > 20
    await site.slurm.run("scancel", noisy.job_id)
    states = await asyncio.gather(
        site.until(saving, lambda state: True),
        site.until(evaluating, lambda state: True),
        _closed(site, noisy, "CANCELLED"),
        _closed(site, ending, "COMPLETED"),
    )
    for run, state in zip((saving, evaluating, noisy, ending), states, strict=True):
        assert state.incidents == (), f"{run.name}: {state.incidents}"
        assert state.warnings == ()
        assert set(await site.activities(run.job_id)) == {"watch_attempt"}
        assert (await site.slurm_job(run.job_id))["Restarts"] == "0"
    assert await site.is_open(saving.job_id)
    assert await site.is_open(evaluating.job_id)
    assert states[3].progress.phase is Phase.FINISHING


async def _trains_to(iteration: int, run: Training) -> None:
    """Well past what looked alarming: a verdict would have come by then."""

    async def look() -> bool | None:
        return True if f" iteration {iteration:8d}/" in run.log_text() else None

    await eventually(look, within=90, what=f"iteration {iteration} of {run.name}")


async def _closed(site: Site, run: Training, slurm_state: str) -> TrainingJobState:
    """The watch ends without an incident and says so."""
    state = await site.until(run, lambda state: state.stage is Stage.ENDED, what="the end of the watch")
    assert slurm_state in state.summary
    assert not await site.is_open(run.job_id)
    return state
