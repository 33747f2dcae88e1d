"""A whole site for one test: a cluster name and configuration of its own, workers as processes, training jobs on real Slurm.

Every end-to-end test takes the fixture `site` (or `make_site` for other settings), submits with `site.submit(...)`, and awaits
conditions of the job's workflow with `site.until(...)`. Nothing here sleeps for a time: it looks until what is awaited shows.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowHistory, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.configuration import Configuration
from activities.loading import load_configuration
from activities.records import Incident, OutcomeState
from tests.e2e.processes import Said, Worker, backstay
from tests.e2e.server import Server
from tests.e2e.training import PATIENCE, Training, eventually, tail
from workers.client import connect
from workers.commands.errors import CommandFailed
from workers.commands.lookup import QUERY_PATIENCE, find_job, run_chain
from workers.demo.script import batch_script
from workers.embedded.private_slurm import PrivateSlurm
from workflows.state import Stage, TrainingJobState

__all__ = ["PATIENCE", "SETTINGS", "Site", "Training", "awaits_decision", "eventually", "has_recovered", "is_over", "steps_of"]

# What an operator would write, with patiences of seconds. Nothing else is different from a production site.
SETTINGS: Mapping[str, Any] = {
    "watch": {
        "poll_interval": "1s",
        "log_interval": "0.5s",
        "hang_floor": "6s",
        "second_look": "2s",
        "startup_patience": "60s",
        "node_not_responding_for": "10s",
    },
    "policy": {"mode": "observe", "highest_mode": "auto", "limits": {"excluded_fraction": 0.5}},
    "verify": {"running_within": "120s", "stepping_within": "60s", "checkpoint_within": "60s"},
    "worker": {"heartbeat_timeout": "6s"},
}


class Site:
    """Slurm, Temporal, a configuration of this test's own, and what runs there."""

    def __init__(self, slurm: PrivateSlurm, server: Server, directory: Path, settings: Mapping[str, Any] | None = None) -> None:
        """
        Args:
            slurm: idle; the site's jobs run there.
            server: runs; the site's workflows live there under a cluster name of their own.
            directory: this test's own; logs, checkpoints, evidence and the configuration file go there.
            settings: what differs from `SETTINGS`, as sections of the YAML file.
        """
        self.slurm = slurm
        self.server = server
        self.directory = directory
        self.cluster = f"e2e-{uuid4().hex[:8]}"
        self.runs = directory / "runs"
        self.config_file = directory / "backstay.yaml"
        self.workers: list[Worker] = []
        self._names = count(1)
        self._workflow_ids: dict[str, str] = {}
        self._client: Client | None = None
        self.runs.mkdir(parents=True, exist_ok=True)
        own = {
            "cluster": {"name": self.cluster, "scheduler": {"kind": "command", "slurm_conf": str(slurm.slurm_conf)}},
            "logs": {"roots": [str(self.runs)]},
            "evidence": {"directory": str(directory / "evidence")},
            "temporal": {"address": server.address, "database": str(server.database)},
        }
        self.config_file.write_text(json.dumps(_merged(_merged(SETTINGS, own), settings or {}), indent=2))  # JSON is YAML
        self.configuration: Configuration = load_configuration(self.config_file)

    async def close(self) -> None:
        """Ends workers and the workflows of this site. Jobs are cleared away by the fixture of Slurm."""
        for worker in self.workers:
            await worker.kill()
        if not self.server.is_running:
            await self.server.start()
        client = await self.client()
        async for execution in client.list_workflows(f"TaskQueue = '{self.configuration.task_queue}' AND ExecutionStatus = 'Running'"):
            try:
                await client.get_workflow_handle(execution.id).terminate("the test is over")
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # it ended by itself meanwhile
                    raise

    # ------------------------------------------------------------------------------------------------ what runs here

    async def client(self) -> Client:
        """One connection a test; it survives a restart of the server."""
        if self._client is None:
            self._client = await connect(self.configuration)
        return self._client

    async def start_worker(self) -> Worker:
        """Another `backstay worker` process; returns when it works."""
        worker = await Worker.start(self.config_file, self.directory / f"worker-{len(self.workers) + 1}.log")
        self.workers.append(worker)
        return worker

    async def submit(
        self,
        *,
        mode: str | None = "auto",
        comment: str | None = None,
        faults: Iterable[Mapping[str, Any]] = (),
        nodes: int = 2,
        tasks_per_node: int = 2,
        iterations: int = 100_000,
        step_seconds: float = 0.2,
        checkpoint_every: int = 5,
        train: Sequence[str] = (),
        directives: Sequence[str] = (),
        requeue: bool = True,
    ) -> Training:
        """Submits a training job with files of its own.

        Args:
            mode: in the comment; None: no mode, so the site's.
            comment: the whole comment, instead of the usual one; "" for none. `{directory}` is the run's directory.
            faults: as in workers/demo/train.py; more may come by `Training.break_with`.
            train: further options of train.py.
            directives: further `#SBATCH` options.
        """
        name = f"train-{next(self._names)}"
        run = Training(job_id="", directory=self.runs / name, comment="", name=name)
        run.directory.mkdir()
        run.break_with(*faults)
        usual = f"backstay:{f'mode={mode},' if mode else ''}checkpoints={run.checkpoints}"
        run.comment = usual if comment is None else comment.replace("{directory}", str(run.directory))
        arguments = [
            *("--checkpoints", str(run.checkpoints)),
            *("--iterations", str(iterations)),
            *("--step-seconds", str(step_seconds)),
            *("--checkpoint-every", str(checkpoint_every)),
            *("--checkpoint-seconds", "0.1"),
            *("--fault-file", str(run.fault_file)),
            *train,
        ]
        script = batch_script(
            arguments,
            nodes=nodes,
            tasks_per_node=tasks_per_node,
            name=name,
            output=run.log,
            comment=run.comment,
            append=True,
            requeue=requeue,
            python=sys.executable,
            directives=directives,
        )
        run.job_id = await self.slurm.submit_text(script)
        return run

    async def command(self, *arguments: str, columns: int | None = None) -> Said:
        """One `backstay` command of this site, such as `("show", job_id, "--json")`."""
        return await backstay(*arguments, "-c", str(self.config_file), columns=columns)

    async def show(self, job_id: str) -> Any:
        """`backstay show JOB --json`."""
        return (await self.command("show", job_id, "--json")).json

    # ------------------------------------------------------------------------------------------------ workflows

    async def handle(self, job_id: str) -> WorkflowHandle[Any, Any]:
        """The job's workflow. Raises `CommandFailed` while there is none."""
        client = await self.client()
        if job_id not in self._workflow_ids:
            self._workflow_ids[job_id] = (await find_job(client, self.cluster, job_id)).id
        return client.get_workflow_handle(self._workflow_ids[job_id])

    async def state(self, job_id: str) -> TrainingJobState | None:
        """The workflow's own record now; None while there is no workflow, or nobody to answer for it."""
        try:
            handle = await self.handle(job_id)
            state: TrainingJobState = await handle.query("state", result_type=TrainingJobState, rpc_timeout=QUERY_PATIENCE)
        except (CommandFailed, WorkflowQueryFailedError):
            return None
        except RPCError as error:
            silent = (
                RPCStatusCode.DEADLINE_EXCEEDED,
                RPCStatusCode.CANCELLED,
                RPCStatusCode.UNAVAILABLE,
                RPCStatusCode.FAILED_PRECONDITION,
            )
            if error.status in silent:
                return None
            raise
        return state

    async def until(
        self, job: Training | str, condition: Callable[[TrainingJobState], Any], *, within: float = PATIENCE, what: str = "the condition"
    ) -> TrainingJobState:
        """The first state of the job's workflow that meets the condition. Fails with all that is known of the job."""
        job_id = job if isinstance(job, str) else job.job_id
        last: list[TrainingJobState | None] = [None]

        async def look() -> TrainingJobState | None:
            last[0] = await self.state(job_id) or last[0]
            return last[0] if last[0] is not None and condition(last[0]) else None

        try:
            return await eventually(look, within=within, what=what)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{await self._all_known(job, last[0])}") from None

    async def watched(self, job: Training | str, **how: Any) -> TrainingJobState:
        """The job's state once discovery has found it."""
        return await self.until(job, lambda state: True, what="a workflow of the job", **how)

    async def incident(
        self, job: Training | str, *, until: Callable[[Incident], Any], number: int = 1, within: float = PATIENCE, what: str = ""
    ) -> Incident:
        """The job's n-th incident (1 is the first), once it meets the condition."""

        def met(state: TrainingJobState) -> bool:
            return len(state.incidents) >= number and bool(until(state.incidents[number - 1]))

        state = await self.until(job, met, within=within, what=what or f"incident {number} as asked for")
        return state.incidents[number - 1]

    async def ended_incident(self, job: Training | str, *, number: int = 1, within: float = PATIENCE) -> Incident:
        """The n-th incident once its outcome is no longer in progress."""
        return await self.incident(job, until=is_over, number=number, within=within, what=f"the outcome of incident {number}")

    async def training(self, run: Training, *, within: float = PATIENCE) -> TrainingJobState:
        """The job's state once it is watched and has written a checkpoint since this call."""
        before = run.checkpoint()
        state = await self.watched(run, within=within)
        await run.checkpoint_after(before, within=within)
        return state

    async def histories(self, job_id: str) -> list[WorkflowHistory]:
        """The histories of the workflow's runs, oldest first."""
        client = await self.client()
        found, _ = await run_chain(client, await find_job(client, self.cluster, job_id))
        return found

    async def activities(self, job_id: str) -> list[str]:
        """The names of the activities that the workflow scheduled, in order, through all its runs."""
        return [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for history in await self.histories(job_id)
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        ]

    async def is_open(self, job_id: str) -> bool:
        """Whether the job's workflow runs."""
        return (await (await self.handle(job_id)).describe()).status is WorkflowExecutionStatus.RUNNING

    # ------------------------------------------------------------------------------------------------ Slurm's own facts

    async def slurm_job(self, job_id: str) -> dict[str, str]:
        """`scontrol show job` as a table, such as `{"JobState": "RUNNING", "Restarts": "0", "ExcNodeList": "(null)"}`."""
        return _table(await self.slurm.run("scontrol", "--oneliner", "show", "job", job_id))

    async def slurm_nodes(self) -> dict[str, dict[str, str]]:
        """`scontrol show node` as tables by node name."""
        lines = (await self.slurm.run("scontrol", "--oneliner", "show", "node")).splitlines()
        return {table["NodeName"]: table for line in lines if (table := _table(line)).get("NodeName")}

    def completions(self, job_id: str) -> list[str]:
        """Slurm's own job completion records of this job: one line an attempt that ended."""
        records = self.slurm.directory / "log" / "jobs.txt"
        lines = records.read_text().splitlines() if records.exists() else []
        return [line for line in lines if line.startswith(f"JobId={job_id} ")]

    async def _all_known(self, job: Training | str, state: TrainingJobState | None) -> str:
        job_id = job if isinstance(job, str) else job.job_id
        parts = []
        if state is not None:
            parts.append(f"stage {state.stage}: {state.summary}; warnings {list(state.warnings)}; progress {state.progress!r}")
            parts += [f"{incident.id}: {incident.symptom.summary} -> {incident.outcome!r}" for incident in state.incidents]
        else:
            parts.append("no workflow answered")
        parts.append(await self.slurm.run("squeue", "--states=all", "--format=%i %T %r %N"))
        parts += [f"{worker.log.name} (running: {worker.is_running}):\n{worker.last_words()}" for worker in self.workers]
        if isinstance(job, Training):
            parts.append(f"log of job {job_id}:\n{tail(job.log_text())}")
        return "\n".join(parts)


def is_over(incident: Incident) -> bool:
    """Its outcome is final, as far as anything is."""
    return incident.outcome.state is not OutcomeState.IN_PROGRESS


def awaits_decision(state: TrainingJobState) -> bool:
    return state.stage is Stage.AWAITING_DECISION


def has_recovered(incident: Incident) -> bool:
    return incident.outcome.state is OutcomeState.RECOVERED


def steps_of(incident: Incident) -> list[str]:
    """The names of what was done and observed, in order."""
    return [step.name for step in incident.outcome.steps]


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Sections laid over sections; a key that stands in both is the upper one's."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _table(line: str) -> dict[str, str]:
    return {key: value for key, mark, value in (word.partition("=") for word in line.split()) if mark}
