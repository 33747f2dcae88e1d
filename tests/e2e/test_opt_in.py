"""Who is watched, and what a user's own words cost or forbid: array tasks, a garbled comment, --no-requeue."""

import asyncio
import sys

from activities.records import Action, OutcomeState
from tests.e2e.site import Site, Training, eventually, has_recovered
from workers.demo.script import batch_script
from workflows.state import Stage


async def test_an_array_task_is_a_job_of_its_own_and_its_siblings_are_left_alone(site: Site) -> None:
    await site.start_worker()
    array = await _submit_array(site)
    broken, sibling = f"{array.job_id}_1", f"{array.job_id}_2"
    await site.watched(sibling)
    incident = await site.ended_incident(broken)
    assert has_recovered(incident), incident.outcome
    assert (await site.slurm_job(broken))["Restarts"] == "1"
    job = await site.slurm_job(sibling)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0")
    state = await site.watched(sibling)
    assert state.incidents == ()
    assert {row["job"]["job_id"] for row in (await site.command("jobs", "--json")).json} == {broken, sibling}


async def test_a_garbled_comment_costs_a_warning_and_no_requeue_is_honoured(site: Site) -> None:
    await site.start_worker()
    crash = {"kind": "crash", "rank": 2, "at_iteration": 15, "attempts": [0]}
    garbled = await site.submit(comment="backstay:mdoe=auto,checkpoints={directory}/checkpoints", faults=[crash])
    kept = await site.submit(requeue=False, faults=[crash])
    states = await asyncio.gather(
        *(site.until(run, lambda state: state.stage is Stage.FOLLOWING, what="the incident to be over") for run in (garbled, kept))
    )

    # The mode could not be read, so the site's own (observe) holds; everything else is as for any job.
    [incident] = states[0].incidents
    assert incident.recommendation is not None
    assert (incident.recommendation.action, incident.outcome.state) == (Action.RESTART_EXCLUDING, OutcomeState.NOT_ACTED)
    warning = "unknown key 'mdoe'; did you mean 'mode'?"
    rows = {row["job"]["job_id"]: row for row in (await site.command("jobs", "--json")).json}
    assert [warning in said for said in rows[garbled.job_id]["warnings"]] == [True]
    assert rows[kept.job_id]["warnings"] == []
    assert [warning in said for said in (await site.show(garbled.job_id))["warnings"]] == [True]

    # The user said no, and says so beside the numbers: the job is held for a person, in mode auto too.
    [incident] = states[1].incidents
    assert incident.recommendation is not None
    assert (incident.recommendation.action, incident.outcome.state) == (Action.HOLD, OutcomeState.HELD)
    assert "--no-requeue" in incident.recommendation.why
    for run in (garbled, kept):
        job = await site.slurm_job(run.job_id)
        assert (job["JobState"], job["Restarts"]) == ("FAILED", "0")


async def _submit_array(site: Site) -> Training:
    """Two tasks, each with files of its own; rank 2 of the first one breaks. No checkpoint directory: the log tells."""
    directory = site.runs / "array"
    directory.mkdir()
    run = Training(job_id="", directory=directory, comment="backstay:mode=auto", name="array")
    arguments = [
        *("--checkpoints", f"{directory}/checkpoints-TASK", "--iterations", "100000", "--step-seconds", "0.2"),
        *("--checkpoint-every", "5", "--fault-file", f"{directory}/faults-TASK.json"),
    ]
    script = batch_script(
        arguments, name="array", output=directory / "train-%A_%a.log", comment=run.comment, append=True, python=sys.executable,
        directives=("--array=1-2",),
    ).replace("TASK", "$SLURM_ARRAY_TASK_ID")  # fmt: skip
    (directory / "faults-1.json").write_text('{"kind": "crash", "rank": 2, "at_iteration": 15, "attempts": [0]}')
    run.job_id = await site.slurm.submit_text(script)

    async def both_run() -> bool | None:
        states = await site.slurm.job_states()
        return True if all(states.get(f"{run.job_id}_{task}") == "RUNNING" for task in (1, 2)) else None

    await eventually(both_run, what="both array tasks to run")
    return run
