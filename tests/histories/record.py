"""Records the histories that `tests/workflows/test_replay.py` replays: `python -m tests.histories.record [NAME...]`.

A watch lives for weeks, so a new worker goes on with histories that an older one wrote: what the workflows do must stay in the
order these files tell. A replay that fails after a change of a workflow is a watch that would stand still on an upgraded site. Put the
change behind `workflow.patched`, and record a *new* scenario beside the old one. Only what was never released is recorded anew.

Each scenario runs as the workflow tests run it (scripted watches, simulated Slurm, the time-skipping server); those of the cluster on
a real server. Each run of a chain of continue-as-new becomes one file, `<name>.<number>.json`.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.configuration import Limits, PolicySection
from activities.records import (
    Change,
    ChangeKind,
    DecisionRequest,
    Incident,
    Mode,
    Opinion,
    Permission,
    SymptomKind,
    Verdict,
    WatchEnd,
)
from tests.builders import NOON, a_judgement, an_application_bug, an_attribution
from tests.workflows.conftest import an_environment
from tests.workflows.scripted import World, crashes, ends, hangs, reaches, recovers, requeued_by_another_hand, runs, watched
from tests.workflows.test_cluster import Site, suggesting_early
from tests.workflows.test_lost_acts import Forgetful, finds_it_lost
from tests.workflows.test_nothing_stops_the_watch import NeverDiagnosed, ShortDelay, fails_as_known, fails_for_good
from tests.workflows.test_training_job import completes
from workers.embedded.temporal import EmbeddedTemporal
from workflows.state import Stage, Terms, TrainingJobState
from workflows.training_job import TrainingJob

DIRECTORY = Path(__file__).parent

Histories = Sequence[WorkflowHistory]
Scenario = Callable[[], Awaitable[Histories]]
JobHandle = WorkflowHandle[TrainingJob, TrainingJobState]

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Registers a scenario under its function's name."""
    SCENARIOS[function.__name__] = function
    return function


# ------------------------------------------------------------------------------------------------ running and fetching


async def chain_of(client: Client, workflow_id: str, run_id: str | None) -> Histories:
    """The histories of a run and of all that continued it."""
    found: list[WorkflowHistory] = []
    while run_id:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        found.append(history)
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


async def played(world: World, act: Callable[[JobHandle], Awaitable[None]] | None = None, **state: Any) -> Histories:
    """A job's life from its first watch to its end; `act` is what people do meanwhile."""
    async with an_environment() as env:
        async with watched(env, world, **state) as handle:
            if act is not None:
                await act(handle)
            await handle.result()
        return await chain_of(env.client, handle.id, handle.first_execution_run_id)


def policy(mode: Mode, **changes: Any) -> PolicySection:
    return PolicySection(mode=mode, **{"limits": Limits(excluded_fraction=0.5), **changes})


def a_change(kind: ChangeKind) -> Change:
    return Change(kind=kind, at=NOON, summary=f"the job was {kind}")


async def pending(handle: JobHandle) -> Incident:
    """The incident that waits for a person."""
    while True:
        state = await handle.query(TrainingJob.state)
        if state.stage is Stage.AWAITING_DECISION:
            return state.incidents[-1]
        await asyncio.sleep(0.05)


async def decision_of(handle: JobHandle, *, approve: bool) -> DecisionRequest:
    recommendation = (await pending(handle)).recommendation
    assert recommendation is not None
    return DecisionRequest(approve=approve, actor="bob", digest=recommendation.digest, reason="seen")


# ------------------------------------------------------------------------------------------------ auto


@scenario
async def auto_recovered() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), ends()])
    return await played(world)


@scenario
async def auto_recovered_with_what_is_known_of_its_nodes() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), ends()])
    return await played(world)


@scenario
async def auto_recovered_through_a_hold() -> Histories:
    world = ShortDelay(policy(Mode.AUTO))
    world.script.extend([crashes(), *recovers(), ends()])
    return await played(world)


@scenario
async def auto_recovered_and_drained() -> Histories:
    rules = PolicySection.model_validate({"rules": [{"when": {"domain": "hardware"}, "do": "restart_excluding", "drain": True}]}).rules
    world = World(policy(Mode.AUTO, drain_nodes=True, rules=rules))
    world.script.extend([hangs(), *recovers(), ends()])
    return await played(world)


@scenario
async def auto_with_opinions() -> Histories:
    world = World(policy(Mode.AUTO))
    for name in ("attrsvc", "operator_service"):
        world.opinions[f"ask_{name}"] = Opinion(source=name, verdict=Verdict.RESTART, why="so it seems")
    world.script.extend([crashes(), *recovers(), ends()])
    return await played(world, terms=Terms(opinions=("ask_attrsvc", "ask_operator_service")))


@scenario
async def stopped_after_three_restarts() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.append(crashes())
    for _ in range(3):
        world.script.extend([reaches(), reaches(), crashes()])
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    return await played(world)


@scenario
async def stopped_and_cancelled() -> Histories:
    rules = PolicySection.model_validate({"rules": [{"when": {"domain": "application"}, "do": "stop"}]}).rules
    bug = a_judgement(diagnosis=an_application_bug(), attribution=an_attribution())
    world = World(policy(Mode.AUTO, stop_cancels_running=True, rules=rules), judgement=bug)
    world.script.extend([hangs(), ends()])
    return await played(world)


@scenario
async def held_by_breaker() -> Histories:
    world = World(policy(Mode.AUTO))
    world.permission = Permission(granted=False, why="the breaker is tripped: 6 jobs failed within 10 min")
    world.script.append(crashes())
    world.changes.extend([a_change(ChangeKind.UNCHANGED), a_change(ChangeKind.FORGOTTEN)])
    return await played(world)


@scenario
async def held_by_breaker_and_approved_after_its_reset() -> Histories:
    """Approved too early, it is refused again."""
    world = World(policy(Mode.AUTO))
    world.permission = Permission(granted=False, why="the breaker is tripped: 6 jobs failed within 10 min")

    async def approve(handle: JobHandle) -> None:
        too_early = await decision_of(handle, approve=True)
        world.permission = Permission(granted=False, why="10 actions in the last 60 min")
        await handle.execute_update(TrainingJob.decide, too_early)
        while True:
            request = await decision_of(handle, approve=True)
            if request.digest != too_early.digest:
                break
            await asyncio.sleep(0.05)
        world.permission = Permission(granted=True, why="reset")
        await handle.execute_update(TrainingJob.decide, request)

    world.script.extend([crashes(), *recovers(), ends()])
    return await played(world, approve)


@scenario
async def not_in_time() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(), reaches(), reaches(), ends(WatchEnd.DEADLINE), ends()])
    return await played(world)


@scenario
async def auto_and_slurmctld_lost_it() -> Histories:
    """The requeue between two steps; the exclusion and the start while the attempt was verified."""
    world = Forgetful(policy(Mode.AUTO), saved_before="requeue_job", killed_after="requeue_job")
    world.script.extend([crashes(), finds_it_lost(), *recovers(), ends()])
    return await played(world)


@scenario
async def auto_completed_without_checkpoints() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.extend([crashes(checkpoint=None), reaches(checkpoint=None), completes()])
    return await played(world)


# ------------------------------------------------------------------------------------------------ observe


@scenario
async def observed() -> Histories:
    world = World(policy(Mode.OBSERVE))
    world.script.append(crashes())
    world.changes.append(a_change(ChangeKind.FORGOTTEN))
    return await played(world)


@scenario
async def observed_and_restarted_by_the_team() -> Histories:
    world = World(policy(Mode.OBSERVE))
    world.script.extend([hangs(), fails_as_known(), *recovers(), ends()])
    world.changes.append(a_change(ChangeKind.REQUEUED))
    world.before_change = lambda: world.cluster.requeue(world.job_id)
    return await played(world)


@scenario
async def restarted_healthy() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.extend([ends(WatchEnd.REQUEUED), ends()])
    return await played(world)


@scenario
async def requeued_and_watched_until_it_runs() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.extend([requeued_by_another_hand(), runs(), ends()])
    return await played(world)


# ------------------------------------------------------------------------------------------------ approve


@scenario
async def approved_by_update() -> Histories:
    async def approve(handle: JobHandle) -> None:
        await handle.execute_update(TrainingJob.decide, await decision_of(handle, approve=True))

    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    return await played(world, approve)


@scenario
async def approved_by_signal() -> Histories:
    """After a signal on another digest, and one that carries nothing."""

    async def approve(handle: JobHandle) -> None:
        request = await decision_of(handle, approve=True)
        await handle.signal("approve", request.model_copy(update={"digest": "0123456789ab"}))
        await handle.signal("reject")
        await handle.signal("approve", request)

    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    return await played(world, approve)


@scenario
async def rejected() -> Histories:
    world = World(policy(Mode.APPROVE))

    async def reject(handle: JobHandle) -> None:
        request = await decision_of(handle, approve=False)
        world.changes.append(a_change(ChangeKind.FORGOTTEN))
        await handle.execute_update(TrainingJob.decide, request)

    world.script.append(crashes())
    return await played(world, reject)


@scenario
async def expired() -> Histories:
    world = World(policy(Mode.APPROVE))
    world.script.append(crashes())
    world.changes.extend([a_change(ChangeKind.UNCHANGED), a_change(ChangeKind.FORGOTTEN)])
    return await played(world)


@scenario
async def superseded_by_a_cancel() -> Histories:
    world = World(policy(Mode.APPROVE))
    world.script.extend([hangs(), ends()])
    world.changes.append(a_change(ChangeKind.CANCELLED))
    return await played(world)


@scenario
async def superseded_by_a_requeue() -> Histories:
    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(), *recovers(), ends()])
    world.changes.append(a_change(ChangeKind.REQUEUED))
    world.before_change = lambda: world.cluster.requeue(world.job_id)
    return await played(world)


@scenario
async def approved_after_slurms_own_requeue() -> Histories:
    async def approve(handle: JobHandle) -> None:
        await handle.execute_update(TrainingJob.decide, await decision_of(handle, approve=True))

    world = World(policy(Mode.APPROVE))
    world.script.extend([crashes(kind=SymptomKind.NODE_FAULT, node_lost=True), *recovers(), ends()])
    return await played(world, approve)


# ------------------------------------------------------------------------------------------------ trouble


@scenario
async def watches_failed_for_good() -> Histories:
    world = World(policy(Mode.AUTO))
    world.script.extend([fails_for_good(), crashes(), reaches(), fails_for_good(), reaches(), reaches(checkpoint=120), ends()])
    return await played(world)


@scenario
async def workflow_cancelled() -> Histories:
    world = NeverDiagnosed(policy(Mode.AUTO))
    world.diagnosing = asyncio.Event()
    world.script.append(crashes())
    async with an_environment() as env, watched(env, world) as handle:
        await world.diagnosing.wait()
        await handle.cancel()
        try:
            await handle.result()
        except WorkflowFailureError:
            return await chain_of(env.client, handle.id, handle.first_execution_run_id)
    raise AssertionError("the workflow went on")


# ------------------------------------------------------------------------------------------------ the cluster


@scenario
async def cluster_with_a_storm() -> Histories:
    """Grants, refusals, a storm, a reset by a person, and a memory that is passed on."""
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedTemporal(Path(directory) / "temporal.db", program=suggesting_early(Path(directory)))
        async with server:
            client = await Client.connect(server.address, data_converter=pydantic_data_converter)
            async with Site(client).running() as site:
                first = (await site.handle.describe()).run_id
                await site.permit("41", "node-002")
                await site.permit("42", "node-003")
                await site.storm()
                await site.permit("43")
                await site.reset()
                await site.permit("43")
                return await chain_of(client, site.handle.id, first)


@scenario
async def cluster_in_maintenance() -> Histories:
    """A person trips the breaker, clears a node that was mended meanwhile, and lets actions go on."""
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedTemporal(Path(directory) / "temporal.db") as server:
            client = await Client.connect(server.address, data_converter=pydantic_data_converter)
            async with Site(client).running() as site:
                first = (await site.handle.describe()).run_id
                await site.permit("41", "node-002")
                await site.trip()
                await site.permit("42")
                await site.clear("node-002")
                await site.reset()
                await site.permit("42", "node-003")
                return await chain_of(client, site.handle.id, first)


# ------------------------------------------------------------------------------------------------ writing


NOBODYS_BUSINESS = {"identity": "worker", "stackTrace": ""}
"""Of the machine that recorded: process and host names, paths in tracebacks."""


def without_traces(value: Any) -> Any:
    """The same JSON, with nothing of the machine it was recorded on."""
    match value:
        case dict():
            return {key: NOBODYS_BUSINESS[key] if key in NOBODYS_BUSINESS else without_traces(part) for key, part in value.items()}
        case list():
            return [without_traces(part) for part in value]
        case _:
            return value


def write(name: str, histories: Histories) -> None:
    """Replaces what was recorded under this name."""
    for old in DIRECTORY.glob(f"{name}.*.json"):
        old.unlink()
    for number, history in enumerate(histories):
        told = {"workflowId": history.workflow_id, **without_traces(json.loads(history.to_json()))}
        text = json.dumps(told, separators=(",", ":"))
        (DIRECTORY / f"{name}.{number}.json").write_text(text + "\n")


async def main(names: Sequence[str]) -> None:
    for name in names or SCENARIOS:
        histories = await SCENARIOS[name]()
        write(name, histories)
        print(f"{name}: {', '.join(f'{len(history.events)} events' for history in histories)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
