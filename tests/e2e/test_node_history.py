"""What the cluster remembers of a node reaches the next job's diagnosis: the fault follows the node, live."""

from activities.records import Action
from tests.e2e.site import Site, has_recovered

BROKEN = "node-002"
SEGFAULT = {"kind": "segfault", "node": BROKEN, "at_iteration": 5}


async def test_the_second_job_that_segfaults_on_one_node_of_four_names_that_node(site: Site) -> None:
    """Two jobs with that node in common and no other, each of two nodes. The first segfault may be the program's."""
    await site.start_worker()
    first = await site.submit(mode="observe", faults=[SEGFAULT], directives=["--exclude=node-003,node-004"])
    incident = await site.incident(first, until=lambda incident: incident.recommendation is not None)
    assert incident.nodes == ("node-001", BROKEN)
    assert (incident.diagnosis.cause, incident.attribution.nodes) == ("segfault_rank", ())

    second = await site.submit(faults=[SEGFAULT], directives=["--exclude=node-001"])
    incident = await site.ended_incident(second)
    assert incident.nodes == (BROKEN, "node-003")
    assert incident.diagnosis.cause == "flaky_node_segfault", incident.diagnosis
    assert incident.attribution.nodes == (BROKEN,)
    assert incident.recommendation is not None
    assert incident.recommendation.action is Action.RESTART_EXCLUDING
    assert incident.recommendation.backstay_excludes == (BROKEN,)
    assert has_recovered(incident), incident.outcome

    told = (await site.command("breaker", "--json")).json
    assert [(entry["node"], entry["scope"], entry["job_id"]) for entry in told["entries"]] == [(BROKEN, "job", second.job_id)], (
        "one user's jobs say so: no other job is kept off"
    )
