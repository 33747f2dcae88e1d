"""What a stranger reads in the Temporal UI: each activity says in words what it does to which job, and the story's runs are linked.

On a real Temporal server, since the summaries are read back as the UI reads them: out of the events' user metadata."""

import ast
import inspect
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.activity import _Definition as ActivityDefinition
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import Worker

import workflows
from activities.diagnosis.causes import causes
from activities.records import BreakerTrip, Mode, Opinion, Verdict
from activities.reschedule import Reschedule
from tests.builders import a_diagnosis, a_job, a_recommendation, a_suspect, an_attribution, an_incident
from tests.workflows.asking import approve, until_pending
from tests.workflows.scripted import World, crashes, ends, policy, recovers
from tests.workflows.test_cluster import Site
from workers.commands.facts import facts_of
from workflows.state import Terms, TrainingJobState
from workflows.training_job import TrainingJob
from workflows.visibility import (
    MOST_SUMMARY_BYTES,
    earlier_runs,
    job_in_words,
    mutation_in_words,
    one_line,
    verdict_in_words,
    wish_in_words,
)

HOSTILE = "\x1b[2J" + "[click](http://evil.example)\n<b>\u202e" + "n\u0300" * 500

Handle = WorkflowHandle[TrainingJob, TrainingJobState]


def summaries_of(*histories: WorkflowHistory) -> list[tuple[str, str]]:
    """Each activity that was scheduled, in order, with its summary as the UI shows it."""
    facts = [fact for history in histories for fact in facts_of(history)]
    return [(fact.name.removesuffix("_began"), fact.text) for fact in facts if fact.name.endswith("_began")]


async def runs_of(client: Client, handle: Handle) -> Sequence[WorkflowHistory]:
    """The histories of all runs of the chain, oldest first."""
    found: list[WorkflowHistory] = []
    run_id: str | None = handle.first_execution_run_id
    while run_id:
        found.append(await client.get_workflow_handle(handle.id, run_id=run_id).fetch_history())
        run_id = found[-1].events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


@asynccontextmanager
async def on_a_real_server(client: Client, world: World, terms: Terms | None = None) -> AsyncIterator[Handle]:
    """The job's workflow, started as `workers/starting.py` starts it: with a memo."""
    queue = f"test-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[TrainingJob], activities=world.activities()):
        start = await world.start_state(**({"terms": terms} if terms else {}))
        workflow_id = f"{start.key.workflow_id}/{queue}"
        yield await client.start_workflow(TrainingJob.run, start, id=workflow_id, task_queue=queue, memo={"user": "alice"})


def name_the_act(summaries: Iterable[tuple[str, str]], *, job_id: str, incident_id: str) -> None:
    for name, summary in summaries:
        assert f"job {job_id}" in summary, (name, summary)
        assert incident_id not in summary, (name, summary)
        assert summary not in (name, ""), name
        assert len(summary.encode()) <= MOST_SUMMARY_BYTES
        assert summary.isprintable()


async def test_each_activity_of_a_recovery_says_what_it_does_to_which_job(client: Client) -> None:
    world = World(policy(Mode.AUTO), name="train-7b")
    world.opinions["ask_attrsvc"] = Opinion(source="attrsvc", verdict=Verdict.RESTART, why="so it seems")
    world.script.extend([crashes(), *recovers(), ends()])
    async with on_a_real_server(client, world, Terms(opinions=("ask_attrsvc",))) as handle:
        end = await handle.result()
    told = summaries_of(*await runs_of(client, handle))
    job = f"train-7b (job {world.job_id})"
    assert told == [
        ("watch_attempt", f"watch {job}, attempt 0"),
        ("capture_evidence", f"keep evidence: crash after iteration 120 of {job}"),
        ("node_history", f"ask the cluster what failed on the nodes of {job} before"),
        ("diagnose", f"diagnose: crash after iteration 120 of {job}"),
        ("ask_attrsvc", f"ask attrsvc: ecc_uncorrectable, suspect node-002, in {job}"),
        ("report_incident", f"tell the cluster: ecc_uncorrectable, suspect node-002, in {job}"),
        ("recommend", f"recommend for {job}: ecc_uncorrectable, suspect node-002"),
        ("permit_action", f"ask the guard rails: restart excluding node-002? {job}"),
        ("requeue_job", f"requeue {job}"),
        ("confirm_pending", f"wait until {job} is pending"),
        ("exclude_nodes", f"write exclusions: node-002, for {job}"),
        ("expedite", f"start {job} now: Slurm's requeue delay is given back"),
        ("verify_running", f"verify {job}: attempt 1 runs"),
        ("verify_stepping", f"verify {job}: attempt 1 makes steps"),
        ("verify_checkpoint", f"verify {job}: attempt 1 writes a newer checkpoint"),
        ("watch_attempt", f"watch {job}, attempt 1"),
    ]
    [incident] = end.incidents
    name_the_act(told, job_id=world.job_id, incident_id=incident.id)


async def test_a_hostile_name_stays_one_plain_bounded_line_in_each_summary(client: Client) -> None:
    world = World(policy(Mode.APPROVE), name=HOSTILE)
    world.script.extend([crashes(), *recovers(), ends()])
    async with on_a_real_server(client, world) as handle:
        incident = await until_pending(handle)
        await approve(handle, incident)
        await handle.result()
    told = summaries_of(*await runs_of(client, handle))
    assert ("requeue_job", f"requeue {job_in_words(a_job(world.job_id, name=HOSTILE))}") in told
    name_the_act(told, job_id=world.job_id, incident_id=incident.id)
    assert all("](" not in summary.replace("\\]", "") for _, summary in told)


async def test_the_runs_of_one_story_are_linked_on_the_page_and_in_the_memo(client: Client) -> None:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), crashes(checkpoint=120), *recovers(checkpoint=140), ends()])
    async with on_a_real_server(client, world) as handle:
        await handle.result()
        runs = await runs_of(client, handle)
        details = [await details_shown(client, handle.id, run.run_id) for run in runs]
    assert len(runs) == 3
    page = f"/namespaces/default/workflows/{handle.id.replace('/', '%2F')}"
    first, second, _ = (run.run_id for run in runs)
    memos = [await (await client.get_workflow_handle(handle.id, run_id=run.run_id).describe()).memo() for run in runs]
    assert memos == [
        {"user": "alice"},
        {"user": "alice", "first run": f"{page}/{first}/history"},
        {"user": "alice", "first run": f"{page}/{first}/history", "run before": f"{page}/{second}/history"},
    ]
    assert "earlier in this job's story" not in details[0]
    assert details[1].endswith(f"earlier in this job's story: [the first run]({page}/{first}/history)")
    assert details[2].endswith(f"[the first run]({page}/{first}/history) · [the run before]({page}/{second}/history)")


async def details_shown(client: Client, workflow_id: str, run_id: str) -> str:
    """The current details as the UI asks for them."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    shown: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return shown.current_details


async def test_each_activity_of_the_cluster_says_what_it_does(client: Client) -> None:
    async with Site(client).running() as site:
        await site.report("17", "node-003")
        await site.permit("17", "node-003")
        trip = BreakerTrip(actor="bob", reason="maintenance")
        await site.handle.execute_update("trip_breaker", trip)
        told = summaries_of(await site.handle.fetch_history())
    assert sorted(told) == [
        ("discover_jobs", f"look for jobs of cluster {site.name} that opted in"),
        ("note_incident", "note a fault: nccl_timeout in job 17"),
        ("trip", "trip the breaker: bob, maintenance"),
        ("weigh_action", "weigh a restart of job 17 off node-003"),
    ]


def test_no_activity_is_scheduled_without_words() -> None:
    """By the source: an activity that some scenario does not reach would be missed by its history."""
    calls = [
        (path.name, node.lineno, {keyword.arg for keyword in node.keywords})
        for path in sorted(Path(workflows.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith(("execute_activity", "start_activity", "execute_local_activity", "start_local_activity"))
    ]
    assert len(calls) >= 6
    assert [(name, line) for name, line, keywords in calls if "summary" not in keywords] == []


def mutations() -> Mapping[str, object]:
    methods = inspect.getmembers(Reschedule, inspect.isfunction)
    return {name: method for name, method in methods if ActivityDefinition.from_callable(method) is not None}


@pytest.mark.parametrize("name", sorted(mutations()))
def test_each_mutation_has_words_of_its_own(name: str) -> None:
    words = mutation_in_words(name, "train-7b (job 17)", ("node-001", "node-002"))
    assert "train-7b (job 17)" in words
    assert not words.startswith(f"{name.replace('_', ' ')}:"), "say in workflows/visibility.py what it does"


def test_a_mutation_that_has_no_words_yet_names_itself_and_the_job() -> None:
    assert mutation_in_words("suspend_job", "train (job 17)", ()) == "suspend job: train (job 17)"


def test_many_suspects_are_counted_and_none_is_said() -> None:
    assert verdict_in_words(an_incident()) == "ecc_uncorrectable, suspect node-002"
    words = mutation_in_words("drain_nodes", "job 17", tuple(f"n{number:03d}" for number in range(600)))
    assert words == "drain n000, n001, n002, n003, n004 and 595 more, suspected in job 17"


def test_whatever_names_jobs_and_nodes_bear_a_summary_tells_the_job_id() -> None:
    """The names are what is cut, so the job's ID stays; the longest act and the longest cause are tried."""
    job = job_in_words(a_job("1234567_1023", name="[" * 1000))
    nodes = tuple(f"ip-10-120-{number:03d}-77.us-west-2.compute.internal" for number in range(600))
    cause = max(causes(), key=len)
    suspected = an_incident(diagnosis=a_diagnosis(cause), attribution=an_attribution(*(a_suspect(node) for node in nodes)))
    longest = (
        mutation_in_words("exclude_nodes", job, nodes),
        one_line(f"ask the guard rails: {wish_in_words(a_recommendation(exclude_nodes=nodes))}? {job}"),
        one_line(f"ask operator service: {verdict_in_words(suspected)}, in {job}"),
        one_line(f"recommend for {job}: {verdict_in_words(suspected)}"),
    )
    assert [words for words in longest if "(job 1234567_1023)" not in words] == []


def test_a_link_cannot_be_broken_out_of_by_a_workflow_id() -> None:
    links = earlier_runs(namespace="a b", workflow_id="job/x](http://evil)/1/2", first="r1", before="r1")
    assert links == {"first run": "/namespaces/a%20b/workflows/job%2Fx%5D%28http%3A%2F%2Fevil%29%2F1%2F2/r1/history"}
    assert earlier_runs(namespace="default", workflow_id="job/a/1/2", first="r1", before=None) == {}
