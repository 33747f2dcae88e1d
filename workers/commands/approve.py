"""`backstay approve JOB` and `backstay reject JOB`: a person's decision, by the Update `decide`.

An Update and not a signal, because its validator answers: a wrong digest, an expired or an already decided recommendation
is refused before it enters the history, and the person sees why.
"""

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.configuration import Configuration
from activities.records import Decision, DecisionRequest
from workers.client import connect
from workers.commands.errors import CommandFailed, Unreachable
from workers.commands.explaining import refusal
from workers.commands.lookup import QUERY_PATIENCE, find_job, read_job
from workers.commands.options import (
    ActorOption,
    ConfigOption,
    DigestOption,
    JobArgument,
    JsonOption,
    ReasonOption,
    actor_or_login,
    open_configuration,
    run,
)
from workers.commands.shapes import decision_document, pending_recommendation
from workers.commands.terminal import print_json, tell


def approve(
    job: JobArgument,
    *,
    config: ConfigOption = None,
    actor: ActorOption = None,
    reason: ReasonOption = "",
    digest: DigestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Approve the recommendation that waits for this job; Backstay then acts on it."""
    _decide(job, open_configuration(config), approve=True, actor=actor, reason=reason, digest=digest, as_json=as_json)


def reject(
    job: JobArgument,
    *,
    config: ConfigOption = None,
    actor: ActorOption = None,
    reason: ReasonOption = "",
    digest: DigestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reject the recommendation that waits for this job; Backstay leaves the job alone and goes on watching."""
    _decide(job, open_configuration(config), approve=False, actor=actor, reason=reason, digest=digest, as_json=as_json)


def _decide(
    job_id: str, configuration: Configuration, *, approve: bool, actor: str | None, reason: str, digest: str | None, as_json: bool
) -> None:
    request = DecisionRequest(approve=approve, actor=actor_or_login(actor), digest=digest or "", reason=reason)
    decision = run(_connect_and_send(configuration, job_id, request))
    if as_json:
        print_json(decision_document(decision))
        return
    tell(f"job {job_id}: {decision.kind.value} by {decision.actor}, recommendation {decision.digest}")


async def _connect_and_send(configuration: Configuration, job_id: str, request: DecisionRequest) -> Decision:
    return await send_decision(await connect(configuration), configuration.cluster.name, job_id, request)


async def send_decision(client: Client, cluster: str, job_id: str, request: DecisionRequest) -> Decision:
    """Send a decision to the job's newest workflow and return it as taken.

    Args:
        request: with an empty digest, the recommendation pending at this moment is meant.

    Raises:
        CommandFailed: nothing waits, or the workflow refuses, with its reason.
        Unreachable: no worker is there to take it.
    """
    execution = await find_job(client, cluster, job_id)
    if not request.digest:
        found = await read_job(client, execution)
        if not found.from_worker and execution.status is WorkflowExecutionStatus.RUNNING:
            raise Unreachable("no worker answers for this job, so nothing can be decided now; start `backstay worker`")
        pending = pending_recommendation(found.state)
        if pending is None:
            raise CommandFailed(f"job {job_id} has no recommendation that waits for a decision; see `backstay show {job_id}`")
        request = request.model_copy(update={"digest": pending.digest})
    handle = client.get_workflow_handle(execution.id)
    try:
        decision: Decision = await handle.execute_update("decide", request, result_type=Decision, rpc_timeout=QUERY_PATIENCE * 4)
    except WorkflowUpdateFailedError as error:
        raise CommandFailed(f"job {job_id}: {refusal(error)}") from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise Unreachable(
            "no worker took the decision in time; start `backstay worker` and see `backstay show` before trying again"
        ) from error
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        raise CommandFailed(f"job {job_id} is no longer watched, so nothing waits for a decision; see `backstay show {job_id}`") from error
    return decision
