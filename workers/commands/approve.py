"""`backstay approve JOB` and `backstay reject JOB`: a person's decision, by the Update `decide`.

An Update and not a signal, because its validator answers: a wrong digest, an expired or an already decided recommendation
is refused before it enters the history, and the person sees why. What was approved may still be held back by the cluster's
guard rails; whoever approved it hears that in the same answer.
"""

import asyncio
import time
from datetime import datetime, timedelta
from typing import NamedTuple

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.configuration import Configuration
from activities.records import Decision, DecisionRequest
from workers.client import connect
from workers.commands.errors import CommandFailed, Unreachable
from workers.commands.explaining import refusal
from workers.commands.lookup import QUERY_PATIENCE, find_job, queried, read_job
from workers.commands.options import (
    ActorOption,
    ConfigOption,
    DigestOption,
    JobArgument,
    JsonOption,
    ReasonOption,
    actor_or_login,
    digest_or_pending,
    open_configuration,
    run,
)
from workers.commands.shapes import decision_document, pending_recommendation
from workers.commands.terminal import print_json, tell
from workflows.state import HELD_BY_GUARD_RAILS, Stage, TrainingJobState

GUARD_RAILS_ANSWER_WITHIN = timedelta(seconds=10)
"""They take one look at Slurm's nodes, a second at most; with Slurm silent they take up to an hour, which nobody waits out at a prompt."""


class Taken(NamedTuple):
    """A decision that counts, and why nothing is done about it yet."""

    decision: Decision
    held: str | None = None


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
    request = DecisionRequest(approve=approve, actor=actor_or_login(actor), digest=digest_or_pending(digest), reason=reason)
    taken = run(_connect_and_send(configuration, job_id, request))
    decision = taken.decision
    if as_json:
        print_json({**decision_document(decision), "held": taken.held})
    else:
        tell(f"job {job_id}: {decision.kind.value} by {decision.actor}, recommendation {decision.digest}")
    if taken.held is not None:
        raise CommandFailed(f"job {job_id}: not done yet: {taken.held}; then approve it again: backstay approve {job_id}")


async def _connect_and_send(configuration: Configuration, job_id: str, request: DecisionRequest) -> Taken:
    return await send_decision(await connect(configuration), configuration.cluster.name, job_id, request)


async def send_decision(client: Client, cluster: str, job_id: str, request: DecisionRequest) -> Taken:
    """Send a decision to the job's newest workflow and return it as taken; of an approval, also what the guard rails say to it.

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
    return Taken(decision, await _held(client, execution.id, decision.at) if request.approve else None)


async def _held(client: Client, workflow_id: str, since: datetime) -> str | None:
    """Why the guard rails hold back what was approved at `since`; None when they let it pass, or gave no answer in time."""
    handle = client.get_workflow_handle(workflow_id)
    deadline = time.monotonic() + GUARD_RAILS_ANSWER_WITHIN.total_seconds()
    while time.monotonic() < deadline:
        try:
            state = await queried(handle)
        except RPCError:
            state = None
        if state is None:  # nobody answers: the decision stands in the history all the same, and `show` tells the rest
            return None
        if (why := held_back(state, since)) is not None:
            return why
        if state.stage is not Stage.AWAITING_DECISION:
            return None
        await asyncio.sleep(0.2)
    return None


def held_back(state: TrainingJobState, since: datetime) -> str | None:
    """Why a recommendation that was approved at `since` waits again; None when it does not (yet). Pure."""
    if state.stage is not Stage.AWAITING_DECISION or not state.incidents:
        return None
    outcome = state.incidents[-1].outcome
    # By the time and not by the digest: refused twice for one reason, a recommendation carries one digest.
    refused = any(step.name == HELD_BY_GUARD_RAILS and step.at >= since for step in outcome.steps)
    return outcome.summary if refused else None
