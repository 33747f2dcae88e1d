"""Finding a job's workflow in Temporal and reading its state, with or without a worker to answer.

Called by `jobs`, `show`, `approve`, `reject`, `audit` and the demo. A query needs a living worker; without one the state is taken
from the history, and the answer says so.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.cluster_desk import cluster_workflow_id
from activities.discover import Discover, Discovered
from activities.records import Cursor, Mode, Progress
from workers.commands.errors import BadUsage, CommandFailed
from workers.commands.facts import decoded, failure_in_words, predecessor_run_id
from workflows.state import Stage, TrainingJobState
from workflows.visibility import STATE

QUERY_PATIENCE = timedelta(seconds=5)  # a worker answers in milliseconds; without one the server waits in vain
NO_WORKER = (
    "no worker answers for this job, so what its present run has seen is not shown; start `backstay worker`, or see `backstay audit`"
)
AT_ONCE = 16  # questions in flight; a listing of a thousand jobs must not crowd out the server


class NotWatched(CommandFailed):
    """No workflow has this job."""

    def __init__(self, message: str, *, named_wrongly: bool) -> None:
        super().__init__(message)
        self.named_wrongly = named_wrongly


@dataclass(frozen=True)
class Found:
    """A job's state, and how it was learnt."""

    workflow_id: str
    state: TrainingJobState
    progress: Progress
    warnings: tuple[str, ...] = ()
    from_worker: bool = True
    blind: str | None = None
    """What its watch cannot see at present."""


@dataclass(frozen=True)
class Live:
    """What the activities in flight tell, which never stands in the history."""

    progress: Progress | None = None
    warnings: tuple[str, ...] = ()
    watches: bool = False
    """A watch has told where it stands, so `blind` is what there is to say."""
    blind: str | None = None
    mode: Mode | None = None
    """In which a fault seen now would be acted on, by the worker that watches."""

    def corrects(self, state: TrainingJobState) -> TrainingJobState:
        """The state with the mode that will hold. The workflow knows the one of its last decision, perhaps weeks old; a recommendation that
        waits was made under it, and stands under it."""
        if self.mode is None or state.stage is Stage.AWAITING_DECISION:
            return state
        return state.model_copy(update={"mode": self.mode})


def _quoted(text: str) -> str:
    """A string literal of Temporal's list filter; a quote in a name must not end it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


async def find_job(client: Client, cluster: str, job_id: str) -> WorkflowExecution:
    """The newest workflow of this job ID: IDs wrap and are reused, the newest submission is meant.

    Raises:
        BadUsage: the ID cannot be one.
        NotWatched: no workflow has it.
    """
    if not job_id or "/" in job_id:
        raise BadUsage(f"{job_id!r} is no Slurm job ID; give one such as 1234 or 1234_7")
    prefix = f"job/{cluster}/{job_id}/"
    newest: WorkflowExecution | None = None
    async for execution in client.list_workflows(f"WorkflowId STARTS_WITH {_quoted(prefix)}"):
        if newest is None or _order(execution) > _order(newest):
            newest = execution
    if newest is None:
        instead = await _mend(client, cluster, job_id)
        known = f"no job {job_id} is known on cluster {cluster}"
        raise NotWatched(f"{known}; {instead or 'see `backstay jobs --all`'}", named_wrongly=instead is not None)
    return newest


async def _mend(client: Client, cluster: str, job_id: str) -> str | None:
    """What to name instead: a task of an array, the leader of a heterogeneous job; None where the name can be right."""
    leader = job_id.partition("+")[0]
    if leader != job_id:
        return f"a heterogeneous job is followed by its leader: {leader}"
    async for execution in client.list_workflows(f"WorkflowId STARTS_WITH {_quoted(f'job/{cluster}/{job_id}_')}", limit=1):
        return f"an array is followed task by task: name one, such as {execution.id.split('/')[2]}"
    return None


def _order(execution: WorkflowExecution) -> tuple[int, float]:
    """Later submissions first, then later runs of one submission (continue-as-new)."""
    epoch = execution.id.rpartition("/")[2]
    return int(epoch) if epoch.isdigit() else 0, execution.start_time.timestamp()


async def read_job(client: Client, execution: WorkflowExecution, *, ask_worker: bool = True) -> Found:
    """The state of one job, from its worker or from its history."""
    handle = client.get_workflow_handle(execution.id)
    is_open = execution.status is WorkflowExecutionStatus.RUNNING
    state = await queried(handle) if ask_worker else None
    if state is not None:
        live = await _live(handle, state.attempt.restart_count) if is_open else Live()
        state = live.corrects(state)
        warnings = (*unwatched(execution.status), *live.warnings)
        return Found(execution.id, state, live.progress or state.progress, warnings, blind=blindness(state, live))
    state = await _state_in_history(handle)
    if not is_open:
        return Found(execution.id, state, state.progress, unwatched(execution.status), from_worker=False)
    # The history holds the state its run began with; where the job stands now is told by its search attribute.
    stage = execution.typed_search_attributes.get(STATE)
    if stage is not None and stage in Stage.__members__.values():
        state = state.model_copy(update={"stage": Stage(stage)})
    live = await _live(handle, state.attempt.restart_count)
    state = live.corrects(state)
    warnings, blind = (NO_WORKER, *live.warnings), blindness(state, live)
    return Found(execution.id, state, live.progress or state.progress, warnings, from_worker=False, blind=blind)


def blindness(state: TrainingJobState, live: Live) -> str | None:
    """What the watch of this attempt cannot see: as it tells itself, or, before it has told anything, as it was passed on. Pure."""
    if live.watches:
        return live.blind
    told = state.cursor if state.stage is Stage.WATCHING else None
    return told.blind if told is not None and told.restart_count == state.attempt.restart_count else None


def unwatched(status: WorkflowExecutionStatus | None) -> tuple[str, ...]:
    """What to say of a workflow that somebody or something ended before the job: its last state would read as if it went on."""
    match status:
        case None | WorkflowExecutionStatus.RUNNING | WorkflowExecutionStatus.COMPLETED | WorkflowExecutionStatus.CONTINUED_AS_NEW:
            return ()
        case _:
            ended = status.name.lower().replace("_", " ")
            return (f"its workflow ended early ({ended}), so nobody watches this job any more; this is its last state",)


async def read_jobs(client: Client, cluster: str, *, include_closed: bool) -> tuple[list[Found], list[str]]:
    """Every watched job of the cluster, newest submission first, and what could not be read."""
    query = f"WorkflowType = 'TrainingJob' AND BackstayCluster = {_quoted(cluster)}"
    if not include_closed:
        query += " AND ExecutionStatus = 'Running'"
    newest: dict[str, WorkflowExecution] = {}
    async for execution in client.list_workflows(query):
        known = newest.get(execution.id)
        if known is None or execution.start_time > known.start_time:
            newest[execution.id] = execution
    executions = sorted(newest.values(), key=_order, reverse=True)
    if not executions:
        return [], []
    in_flight = asyncio.Semaphore(AT_ONCE)
    # One question first: where no worker answers, a thousand more would each wait in vain.
    worker_answers = await queried(client.get_workflow_handle(executions[0].id)) is not None

    async def one(execution: WorkflowExecution) -> Found | str:
        async with in_flight:
            try:
                return await read_job(client, execution, ask_worker=worker_answers)
            except CommandFailed as error:
                return str(error)

    answers = await asyncio.gather(*(one(execution) for execution in executions))
    return [found for found in answers if isinstance(found, Found)], [problem for problem in answers if isinstance(problem, str)]


async def run_chain(client: Client, execution: WorkflowExecution) -> tuple[list[WorkflowHistory], str | None]:
    """The histories of all runs of one workflow, oldest first, and a note where the server has forgotten the oldest."""
    histories: list[WorkflowHistory] = []
    run_id: str | None = (await client.get_workflow_handle(execution.id).describe()).run_id
    while run_id is not None:
        try:
            history = await client.get_workflow_handle(execution.id, run_id=run_id).fetch_history()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return histories[::-1], f"earlier runs are past the namespace's retention; the first of them missing is {run_id}"
        histories.append(history)
        run_id = predecessor_run_id(history)
    return histories[::-1], None


async def queried(handle: WorkflowHandle[Any, Any]) -> TrainingJobState | None:
    """The worker's answer, or None when no worker gives one."""
    try:
        state: TrainingJobState = await handle.query("state", result_type=TrainingJobState, rpc_timeout=QUERY_PATIENCE)
    except WorkflowQueryFailedError:
        return None
    except RPCError as error:
        # FAILED_PRECONDITION: no worker has polled this queue lately, the server does not even wait.
        if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.FAILED_PRECONDITION):
            return None
        raise
    return state


async def _state_in_history(handle: WorkflowHandle[Any, Any]) -> TrainingJobState:
    history = await handle.fetch_history()
    state = state_of(history)
    if state is None:
        raise CommandFailed(f"the history of {handle.id} holds no state this version can read; use the version of its worker")
    return state


def state_of(history: WorkflowHistory) -> TrainingJobState | None:
    """The newest whole state a run's history holds: its result, else what it was started with."""
    candidates: list[Any] = []
    for event in history.events:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                candidates += decoded(event.workflow_execution_started_event_attributes.input)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                candidates += decoded(event.workflow_execution_completed_event_attributes.result)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                candidates += decoded(event.workflow_execution_continued_as_new_event_attributes.input)
            case _:
                continue
    for candidate in reversed(candidates):
        try:
            return TrainingJobState.model_validate(candidate)
        except ValidationError:
            continue
    return None


async def _live(handle: WorkflowHandle[Any, Any], restart_count: int) -> Live:
    """The progress of a live watch, what it cannot see at present, and which step fails and is tried again."""
    description = await handle.describe()
    return live_from(description.raw_description.pending_activities, restart_count)


def live_from(pending: Iterable[PendingActivityInfo], restart_count: int = 0) -> Live:
    """The same from the server's description. `restart_count` is the attempt's: one that still waits to run carries on the cursor of the
    one before, whose progress is not its own. Pure."""
    progress: Progress | None = None
    blind: str | None = None
    watches = False
    mode: Mode | None = None
    warnings: list[str] = []
    for each in pending:
        cursor = _cursor_in(each)
        if cursor is not None:
            has_begun = cursor.progress.phase_since is not None or cursor.progress.iteration is not None
            if has_begun and cursor.restart_count >= restart_count:
                progress = progress or cursor.progress
            watches = True
            mode = mode or cursor.mode
            if cursor.blind:
                blind = blind or cursor.blind
                warnings.append(cursor.blind)
        # A watch that runs has got over its last failure, perhaps weeks ago; a short step that is tried again has not.
        waits = each.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        if each.HasField("last_failure") and (waits or cursor is None):
            tries = "once" if each.attempt <= 2 else f"{each.attempt - 1} times"
            goes_on = "waits for a worker" if cursor is not None else "is tried again"
            warnings.append(f"{each.activity_type.name} failed {tries} and {goes_on}: {failure_in_words(each.last_failure)}")
    return Live(progress, tuple(dict.fromkeys(warnings)), watches, blind, mode)


async def discovery_troubles(client: Client, cluster: str) -> tuple[str, ...]:
    """Why new jobs of the cluster may not be seen now. An empty list of jobs would otherwise read as if all were well."""
    try:
        description = await client.get_workflow_handle(cluster_workflow_id(cluster)).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return (f"cluster {cluster} has never been watched from this Temporal server; start `backstay up` or `backstay worker`",)
    if description.status is not WorkflowExecutionStatus.RUNNING:
        return (
            f"the workflow of cluster {cluster} was ended in Temporal, so new jobs are not seen; restart a worker, which starts it again",
        )
    return troubles_in(description.raw_description.pending_activities)


def troubles_in(pending: Iterable[PendingActivityInfo]) -> tuple[str, ...]:
    """The same from the server's description of the cluster's workflow. Pure."""
    for each in pending:
        if each.activity_type.name != Discover.discover_jobs.__name__:
            continue
        if each.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
            return ("no worker looks for new jobs; start `backstay worker`",)
        for detail in decoded(each.heartbeat_details):
            with suppress(ValidationError):
                if silent_since := Discovered.model_validate(detail).unreachable_since:
                    since = f"{silent_since:%Y-%m-%d %H:%M:%S} UTC"
                    return (f"Slurm has not answered since {since}, so new jobs are not seen; `backstay doctor` tells why",)
    return ()


def _cursor_in(pending: PendingActivityInfo) -> Cursor | None:
    for detail in decoded(pending.heartbeat_details):
        with suppress(ValidationError):
            return Cursor.model_validate(detail)
    return None
