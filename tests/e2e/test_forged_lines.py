"""What one user's jobs print holds nobody else: forged lines of nodes they had and never had exclude nothing
for another user's job, which recovers. A node that Slurm itself lost is kept from every job at once."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.records import Action
from tests.e2e.conftest import MakeSite
from tests.e2e.site import Site, eventually, has_recovered

USER = "nobody"
STRANGER = "node-004"
FORGED = (
    f"srun: error: Task launch for StepId=1.0 failed on node {STRANGER}: Job credential expired",
    f"ssh: connect to host {STRANGER} port 22: No route to host",
    f"Node {STRANGER} status is now: NodeNotReady",
    f"srun: error: Task launch for StepId=3.0 failed on node {STRANGER}: Communication connection failure",
    f"srun: error: {STRANGER}: task 0: Bus error",
)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that another user may write logs to; pytest's own are closed to everyone else."""
    with tempfile.TemporaryDirectory(prefix="bs-public-", dir="/tmp") as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


async def submit_forger(site: Site, public: Path, line: str, *options: str) -> str:
    """Another user's job of one node that prints a line and fails."""
    script = f"#!/bin/bash\necho iteration 1\necho '{line}' | sed s/OWN/$SLURMD_NODENAME/\nexit 1\n"
    site.slurm.directory.chmod(0o711)  # the other user's job runs from Slurm's directory there
    return await site.slurm.submit_text(
        script, f"--uid={USER}", f"--output={public}/%j.out", "--chdir=/tmp", "--comment=backstay:mode=auto", "--requeue", *options
    )


async def the_cluster(site: Site, *, until: Any, what: str) -> Any:
    """`backstay breaker --json`, once it meets the condition."""

    async def look() -> Any:
        told = (await site.command("breaker", "--json")).json
        return told if until(told) else None

    return await eventually(look, what=what)


async def test_what_another_users_jobs_print_excludes_nothing_and_holds_nobody(make_site: MakeSite, public: Path, tmp_path: Path) -> None:
    site = make_site({"logs": {"roots": [str(tmp_path / "site-1" / "runs"), str(public)]}})
    await site.start_worker()

    # It names the node it ran on, so it is kept off that; the user's own list stays the user's.
    own = await submit_forger(site, public, "Node OWN status is now: NodeNotReady", "--exclude=node-003,node-004")
    told = await the_cluster(site, until=lambda told: told["entries"], what="the forger's own exclusion")
    assert {(entry["job_id"], entry["user"], entry["scope"]) for entry in told["entries"]} == {(own, USER, "job")}
    recommendation = (await site.show(own))["incidents"][0]["recommendation"]
    assert recommendation["action"] == Action.RESTART_EXCLUDING
    assert recommendation["user_excluded"] == ["node-003", "node-004"]
    assert set(recommendation["exclude_nodes"]) > {"node-003", "node-004"}
    shown = (await site.command("breaker")).out
    assert f"for job {own} only, as no second source implicates it" in shown
    assert f"by the output of job {own} of {USER}" in shown

    # More jobs of that user name a node that none of them had.
    forgers = [await submit_forger(site, public, line, "--exclude=node-003,node-004") for line in FORGED]
    for forger in forgers:
        incident = await site.incident(forger, until=lambda incident: incident.recommendation is not None)
        assert STRANGER not in incident.attribution.nodes
    told = await the_cluster(site, until=lambda told: told["breaker"]["users"], what="the stop of the forger's own jobs")
    assert [stop["user"] for stop in told["breaker"]["users"]] == [USER]
    assert {entry["job_id"] for entry in told["entries"]} <= {own}
    assert STRANGER not in {one["node"] for one in told["implications"]}
    assert told["breaker"]["tripped_at"] is None

    # An honest job of somebody else fails afterwards.
    run = await site.submit()
    before = await site.training(run)
    broken = before.attempt.nodes[-1]
    run.break_with({"kind": "crash", "node": broken})
    incident = await site.ended_incident(run)
    assert has_recovered(incident), incident.outcome
    assert incident.recommendation is not None
    assert incident.recommendation.exclude_nodes == (broken,)


async def test_a_node_that_slurm_lost_is_kept_from_every_job_at_once_and_costs_no_share(make_site: MakeSite) -> None:
    """One node of four may be excluded. The lost one is on the ledger, the user excludes another, and a third
    breaks."""
    site = make_site({"watch": {"node_not_responding_for": "1s"}, "policy": {"limits": {"excluded_fraction": 0.25}}})
    await site.start_worker()
    run = await site.submit()
    before = await site.training(run)
    lost = before.attempt.nodes[-1]
    await site.slurm.kill_node(lost)
    await site.incident(run, until=has_recovered, within=160, what="the recovery off the lost node")
    told = await the_cluster(site, until=lambda told: told["entries"], what="an entry of the ledger")
    [entry] = told["entries"]
    assert (entry["node"], entry["scope"]) == (lost, "cluster")
    assert "node" in {source["source"] for source in entry["sources"]}
    shown = (await site.command("breaker")).out
    assert f"node {lost}: excluded until" in shown
    assert "for every job" in shown
    assert "by Slurm's own state of the node" in shown

    users_own = next(name for name in site.slurm.node_names if name != lost)
    second = await site.submit(nodes=1, directives=[f"--exclude={users_own}"])
    [broken] = (await site.training(second)).attempt.nodes
    second.break_with({"kind": "crash", "node": broken})
    incident = await site.ended_incident(second)
    assert has_recovered(incident), incident.outcome
    assert incident.recommendation is not None
    assert incident.recommendation.backstay_excludes == tuple(sorted((broken, lost)))
    assert incident.recommendation.user_excluded == (users_own,)
    shown = (await site.command("show", second.job_id)).out
    assert "the user's own list keeps it off" in " ".join(shown.split())
