"""Scenario 1: a crash with a fatal line that names a rank is recovered off that rank's node, and everyone can see why."""

import re
from datetime import datetime
from typing import Any

from activities.cluster_desk import cluster_workflow_id
from activities.records import Action, DecisionKind, Incident
from tests.e2e.site import Site, Training, has_recovered, steps_of
from workers.commands.facts import facts_of
from workers.demo.train import ECC

# The shape that the issue promises: a name stands for any value, a list holds one element's shape.
EVENT = {"line": int, "text": str, "time": (datetime, type(None)), "rank": int, "node": str, "gpu": (str, type(None))}
SHAPE = {
    "job": {"cluster": str, "job_id": str, "name": str, "user": str, "partition": str, "nodes": [str]},
    "state": str,
    "mode": str,
    "attempt": int,
    "iteration": int,
    "checkpoint_iteration": int,
    "warnings": [str],
    "incidents": [
        {
            "id": str,
            "symptom": {"kind": str, "onset": datetime, "detected_at": datetime, "summary": str},
            "diagnosis": {"domain": str, "cause": str, "confidence": float, "primary": EVENT, "cascades": int},
            "attribution": {
                "suspects": [{"node": str, "rank": int, "gpu": (str, type(None)), "confidence": float, "because": [str]}],
                "abstained": bool,
            },
            "recommendation": {
                "action": str,
                "exclude_nodes": [str],
                "user_excluded": [str],
                "why": str,
                "rule": str,
                "digest": str,
                "expires_at": (datetime, type(None)),
            },
            "decision": {"kind": str, "actor": str, "at": datetime, "reason": str},
            "outcome": {
                "state": str,
                "steps": [{"name": str, "at": datetime, "detail": str}],
                "milestones": dict.fromkeys(("detected", "recommended", "decided", "acted", "running", "stepping", "recovered"), datetime),
            },
        }
    ],
}
MUTATIONS = ["requeue_job", "confirm_pending", "exclude_nodes", "expedite"]
UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


async def test_a_crash_is_restarted_off_the_node_of_the_rank_that_broke_and_everyone_can_see_why(site: Site) -> None:
    await site.start_worker()
    run = await site.submit()
    before = await site.training(run)
    broken = before.attempt.nodes[-1]
    run.break_with({"kind": "crash", "node": broken})
    incident = await site.ended_incident(run)

    assert has_recovered(incident), incident.outcome
    assert [suspect.node for suspect in incident.attribution.suspects] == [broken]
    assert incident.recommendation is not None
    assert (incident.recommendation.action, incident.recommendation.exclude_nodes) == (Action.RESTART_EXCLUDING, (broken,))
    assert incident.decision is not None
    assert incident.decision.kind is DecisionKind.AUTO
    await _slurm_shows_one_restart_off(broken, site, run)

    document = await site.show(run.job_id)
    _has_shape(document, SHAPE, "show")
    _tells_the_recovery(document, broken)
    await _audit_tells_the_same_story(site, run, incident)
    await _the_temporal_ui_says_each_act_in_words(site, run, incident)
    await _the_list_and_the_story_fit_eighty_columns(site, run, broken)


async def _slurm_shows_one_restart_off(broken: str, site: Site, run: Training) -> None:
    job = await site.slurm_job(run.job_id)
    assert (job["JobState"], job["Restarts"], job["ExcNodeList"]) == ("RUNNING", "1", broken)
    assert broken not in await site.slurm.run("scontrol", "show", "hostnames", job["NodeList"])
    assert job["Comment"] == run.comment
    assert "AdminComment" not in job
    assert [name for name in await site.activities(run.job_id) if name in MUTATIONS] == MUTATIONS


def _tells_the_recovery(document: Any, broken: str) -> None:
    [incident] = document["incidents"]
    primary = incident["diagnosis"]["primary"]
    assert ECC in primary["text"]
    assert (primary["rank"], primary["node"]) == (2, broken)  # two tasks a node, and the second node's first rank broke
    assert (document["mode"], document["attempt"]) == ("auto", 1)
    assert broken not in document["job"]["nodes"]
    assert document["warnings"] == []
    told = [incident["symptom"]["onset"], *incident["outcome"]["milestones"].values()]
    times = [datetime.fromisoformat(at) for at in told]
    assert times == sorted(times), "a recovery goes forward"


async def _audit_tells_the_same_story(site: Site, run: Training, incident: Incident) -> None:
    """From the histories alone, the same facts with the same values; for people one line a fact, with its event ID."""
    facts = (await site.command("audit", run.job_id, "--json")).json_lines
    told = {fact["name"]: fact for fact in facts}
    order = ["diagnose_completed", "recommend_completed", *(f"{name}_completed" for name in MUTATIONS), "verify_checkpoint_completed"]
    names = [fact["name"] for fact in facts]
    assert [name for name in names if name in order] == order
    assert told["diagnose_completed"]["data"]["diagnosis"]["cause"] == incident.diagnosis.cause
    assert incident.recommendation is not None
    assert told["recommend_completed"]["data"]["recommendation"]["digest"] == incident.recommendation.digest
    requeued = next(step for step in incident.outcome.steps if step.name == "requeued")
    assert datetime.fromisoformat(told["requeue_job_completed"]["data"]["at"]) == requeued.at
    last = told["workflow_continued_as_new"]["data"]["incidents"][-1]["outcome"]
    assert [step["name"] for step in last["steps"]] == steps_of(incident)

    by_run: dict[str, list[int]] = {}
    for fact in facts:
        by_run.setdefault(fact["run_id"], []).append(fact["event_id"])
    assert all(ids == sorted(set(ids)) and ids[0] == 1 for ids in by_run.values())
    lines = (await site.command("audit", run.job_id)).out.splitlines()
    assert len(lines) >= len(facts), "the watch goes on, and a later look may see more"
    for fact, line in zip(facts, lines, strict=False):
        assert line.startswith(f"#{fact['event_id']} ")
        assert fact["name"] in line


async def _the_temporal_ui_says_each_act_in_words(site: Site, run: Training, incident: Incident) -> None:
    """As the UI reads them: the summaries of the scheduled activities, of the job's runs and of the cluster's."""
    told = [fact for history in await site.histories(run.job_id) for fact in facts_of(history) if fact.name.endswith("_began")]
    job = f"{run.name} (job {run.job_id})"
    assert [fact for fact in told if job not in fact.text or incident.id in fact.text] == []
    summaries = {fact.name.removesuffix("_began"): fact.text for fact in told}
    assert summaries["requeue_job"] == f"requeue {job}"
    [broken] = incident.attribution.nodes
    assert summaries["exclude_nodes"] == f"write exclusions: {broken}, for {job}"
    assert summaries["diagnose"].startswith("diagnose: crash after iteration ")
    assert f"suspect {broken}" in summaries["recommend"]

    cluster = await (await site.client()).get_workflow_handle(cluster_workflow_id(site.cluster)).fetch_history()
    of_the_cluster = [fact.text for fact in facts_of(cluster) if fact.name.endswith("_began")]
    assert f"weigh a restart of job {run.job_id} off {broken}" in of_the_cluster
    assert all(of_the_cluster)
    assert not any(incident.id in text for text in of_the_cluster)


async def _the_list_and_the_story_fit_eighty_columns(site: Site, run: Training, broken: str) -> None:
    for command in (("jobs",), ("show", run.job_id), ("audit", run.job_id)):
        said = await site.command(*command, columns=80)
        lines = said.out.splitlines()
        page = [line for line in lines if line.startswith("http://")]
        assert [line for line in lines if len(line) > 80 and line not in page] == [], command
        assert run.job_id in said.out
        if command[0] == "show":
            [address] = page
            assert address.endswith(f"/workflows/job%2F{site.cluster}%2F{run.job_id}%2F{address.rpartition('%2F')[2]}")
            assert f"suspect: node {broken}" in said.out


def _has_shape(value: Any, shape: Any, where: str) -> None:
    """Exactly the promised keys, each with a value of the promised kind."""
    match shape:
        case dict():
            assert isinstance(value, dict), where
            assert set(value) == set(shape), where
            for key, inner in shape.items():
                _has_shape(value[key], inner, f"{where}.{key}")
        case [inner]:
            assert isinstance(value, list), where
            for number, element in enumerate(value):
                _has_shape(element, inner, f"{where}[{number}]")
        case (inner, nothing):
            assert nothing is type(None)
            if value is not None:
                _has_shape(value, inner, where)
        case type() if shape is datetime:
            assert UTC_TIME.fullmatch(str(value)), f"{where} is {value!r}"
        case _:
            assert isinstance(value, shape), f"{where} is {value!r}"
