"""`backstay breaker`: the cluster's guard rails as they stand, and the reset that only a person may make."""

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from activities.records import BreakerReset, ClusterState
from activities.records import as_json as plain
from workers.client import connect
from workers.commands.errors import CommandFailed, Unreachable
from workers.commands.lookup import QUERY_PATIENCE
from workers.commands.options import (
    ActorOption,
    ConfigOption,
    JsonOption,
    ReasonOption,
    actor_or_login,
    open_configuration,
    print_json,
    run,
    tell,
)
from workers.commands.words import clock

BUSY_TRIES = 10
"""Questions to a busy workflow, a second apart."""


class Act(StrEnum):
    SHOW = "show"
    RESET = "reset"


def breaker(
    act: Annotated[Act, typer.Argument(help="show: how it stands; reset: let Backstay act again.")] = Act.SHOW,
    config: ConfigOption = None,
    actor: ActorOption = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the breaker, excluded nodes and recent actions of the cluster; `reset` after a storm has been looked into."""
    configuration = open_configuration(config)
    reset = BreakerReset(actor=actor_or_login(actor), reason=reason) if act is Act.RESET else None
    state = run(_ask(configuration, reset))
    if as_json:
        print_json(plain(state))
        return
    for line in in_words(configuration.cluster.name, state):
        tell(line)


async def _ask(configuration: Configuration, reset: BreakerReset | None) -> ClusterState:
    return await ask(await connect(configuration), configuration.cluster.name, reset)


async def ask(client: Client, cluster: str, reset: BreakerReset | None = None) -> ClusterState:
    """The cluster's state, after the reset where one is given.

    Raises:
        CommandFailed: no such cluster is watched, or the reset was refused.
        Unreachable: no worker answers.
    """
    handle = client.get_workflow_handle(cluster_workflow_id(cluster))
    try:
        if reset is not None:
            await handle.execute_update("reset_breaker", reset, rpc_timeout=QUERY_PATIENCE * 4)
        return await _state(handle)
    except WorkflowUpdateFailedError as error:
        raise CommandFailed(f"the reset was refused: {error.__cause__ or error}") from error
    except WorkflowQueryFailedError as error:
        raise Unreachable(f"the worker cannot answer for cluster {cluster}: {error.message}") from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise CommandFailed(f"cluster {cluster} is not watched; start `backstay up` or `backstay worker`") from error
        if error.status is RPCStatusCode.FAILED_PRECONDITION:
            raise Unreachable("no worker answers; start `backstay worker`") from error
        raise


async def _state(handle: WorkflowHandle[Any, Any]) -> ClusterState:
    """The cluster's answer; asked again for a while when the server says that the workflow is busy, as it is in a storm."""
    for _ in range(BUSY_TRIES):
        try:
            state: ClusterState = await handle.query("state", result_type=ClusterState, rpc_timeout=QUERY_PATIENCE)
        except RPCError as error:
            if error.status not in (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNAVAILABLE):
                raise
            await asyncio.sleep(1)
        else:
            return state
    raise Unreachable("the cluster's workflow is busy with a storm of faults; ask again in a minute")


def in_words(cluster: str, state: ClusterState) -> Iterator[str]:
    """The guard rails of one cluster, line by line."""
    tripped = state.breaker.tripped_at
    if tripped is not None:
        yield f"cluster {cluster}: the breaker has been tripped since {clock(tripped)} UTC: {state.breaker.reason}"
        yield "  Backstay recommends but does not act; once you know the cause: backstay breaker reset --reason WHY"
    else:
        last = f"; last reset {clock(state.breaker.reset_at)} UTC by {state.breaker.reset_by}" if state.breaker.reset_at else ""
        yield f"cluster {cluster}: the breaker is closed, Backstay may act{last}"
    yield f"  {len(state.recent_incidents)} incidents and {len(state.actions)} actions within their windows"
    for entry in state.entries:
        until = f"excluded until {clock(entry.excluded_until)} UTC" if entry.excluded_until else "implicated, not excluded"
        yield f"  node {entry.node}: {until}, for {entry.cause} in job {entry.job_id}"
