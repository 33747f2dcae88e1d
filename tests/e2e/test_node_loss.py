"""Scenario 6: a node is lost while Slurm requeues jobs of lost nodes itself. Whoever is first, the job is requeued once, gets its two
minutes of delay back, and is verified."""

from activities.records import Action, DecisionKind, Incident, SymptomKind
from tests.e2e.conftest import MakeSite
from tests.e2e.site import Site, Training, awaits_decision, has_recovered, steps_of
from workflows.state import Stage


async def requeued(site: Site, run: Training) -> Incident:
    """The incident, once its job has been requeued, by Backstay or by Slurm."""
    return await site.incident(
        run, until=lambda incident: {"requeued", "requeued_by_slurm"} & set(steps_of(incident)), within=120, what="a requeue after the loss"
    )


async def test_a_job_that_slurm_itself_requeued_off_a_lost_node_is_not_requeued_again(make_site: MakeSite) -> None:
    # Slurm calls the silent node DOWN after SlurmdTimeout, six seconds here, and requeues; Backstay would wait much longer.
    site = make_site({"watch": {"node_not_responding_for": "10m", "hang_floor": "10m"}})
    await site.start_worker()
    run = await site.submit()
    before = await site.training(run)
    lost = before.attempt.nodes[0]  # where the batch script runs: srun cannot be what ends the job
    await site.slurm.kill_node(lost)
    incident = await requeued(site, run)
    assert incident.symptom.kind is SymptomKind.NODE_FAULT
    assert lost in incident.symptom.summary
    incident = await site.incident(run, until=has_recovered, within=100, what="the recovery, verified, before the delay is over")
    assert "requeued by Slurm itself" in incident.outcome.summary
    told = steps_of(incident)
    assert "requeued" not in told
    assert told.index("requeued_by_slurm") < told.index("expedited") < told.index("running")
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")
    state = await site.until(run, lambda state: state.stage is Stage.WATCHING, what="the watch of the attempt that Slurm started")
    assert (len(state.incidents), state.history.restarts) == (1, 0)


async def test_a_node_that_backstay_calls_lost_before_slurm_does_leads_to_one_requeue_in_all(make_site: MakeSite) -> None:
    site = make_site({"watch": {"node_not_responding_for": "1s"}})
    await site.start_worker()
    run = await site.submit()
    before = await site.training(run)
    lost = before.attempt.nodes[-1]
    await site.slurm.kill_node(lost)
    incident = await requeued(site, run)
    assert [suspect.node for suspect in incident.attribution.suspects] == [lost]
    await site.incident(run, until=has_recovered, within=100, what="the recovery, verified, before the delay is over")
    await site.slurm.wait_node(lost, "down*")
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")


async def test_in_mode_approve_what_slurm_requeued_off_a_lost_node_is_offered_while_it_waits(make_site: MakeSite) -> None:
    site = make_site({"watch": {"node_not_responding_for": "10m", "hang_floor": "10m"}})
    await site.start_worker()
    run = await site.submit(mode="approve")
    lost = (await site.training(run)).attempt.nodes[0]
    await site.slurm.kill_node(lost)
    state = await site.until(run, awaits_decision, within=120, what="a recommendation after the loss")
    await site.slurm.wait_state(run.job_id, "PENDING")
    assert (await site.slurm_job(run.job_id))["Restarts"] == "1"
    recommendation = state.incidents[-1].recommendation
    assert recommendation is not None
    assert (recommendation.action, recommendation.exclude_nodes) == (Action.RESTART_EXCLUDING, (lost,))

    said = (await site.command("approve", run.job_id, "--actor", "ann", "--json")).json
    assert (said["kind"], said["actor"]) == ("approved", "ann")
    incident = await site.incident(run, until=has_recovered, within=100, what="the recovery, verified, before the delay is over")
    told = steps_of(incident)
    assert told.index("requeued_by_slurm") < told.index("excluded") < told.index("expedited") < told.index("running")
    assert "requeued by Slurm itself; Backstay gave the delay back" in incident.outcome.summary
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"], job["ExcNodeList"]) == ("RUNNING", "1", lost)


async def test_in_mode_approve_a_job_that_slurm_started_before_anyone_decided_is_told_as_slurms(make_site: MakeSite) -> None:
    site = make_site({"watch": {"node_not_responding_for": "10m", "hang_floor": "10m"}})
    await site.start_worker()
    run = await site.submit(mode="approve")
    lost = (await site.training(run)).attempt.nodes[0]
    await site.slurm.kill_node(lost)
    await site.until(run, awaits_decision, within=120, what="a recommendation after the loss")
    await site.slurm.wait_state(run.job_id, "PENDING")
    await site.slurm.run("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+3")  # as if its two minutes were over
    incident = await site.incident(run, until=has_recovered, what="the recovery that nobody approved")
    assert incident.decision is not None
    assert (incident.decision.kind, incident.decision.actor) == (DecisionKind.SUPERSEDED, "slurm")
    assert f"requeued off {lost}, has started" in incident.decision.reason
    assert "requeued and started by Slurm itself, not by Backstay" in incident.outcome.summary
    assert (await site.slurm_job(run.job_id))["ExcNodeList"] == "(null)"
