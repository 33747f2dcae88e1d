"""`backstay breaker`: the cluster's guard rails as they stand, and what only a person may say: stop, go on, this node is mended."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer
from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from activities.records import (
    BreakerReset,
    BreakerTrip,
    ClusterState,
    Implication,
    LedgerEntry,
    LedgerScope,
    NodeClearance,
    SignalSource,
)
from activities.records import as_json as plain
from workers.client import connect
from workers.commands.errors import BadUsage, CommandFailed, Unreachable
from workers.commands.explaining import refusal
from workers.commands.lookup import QUERY_PATIENCE
from workers.commands.options import ActorOption, ConfigOption, JsonOption, ReasonOption, actor_or_login, open_configuration, run
from workers.commands.terminal import print_json, printable, tell
from workers.commands.words import clock

BUSY_FOR = timedelta(seconds=15)
"""How long a busy workflow is asked again. The SDK itself tries for 10 s where the server has trouble of its own."""


class Act(StrEnum):
    SHOW = "show"
    TRIP = "trip"
    RESET = "reset"
    CLEAR = "clear"


class Order(NamedTuple):
    """What a person asks of the cluster: an Update, because its validator answers."""

    update: str
    word: BreakerTrip | BreakerReset | NodeClearance


NodeArgument = Annotated[str | None, typer.Argument(metavar="NODE", help="With clear: the node, as Slurm names it.", show_default=False)]


def breaker(
    act: Annotated[
        Act,
        typer.Argument(
            help="show: how it stands; trip: stop acting on every job, now; reset: let Backstay act again; "
            "clear NODE: stop keeping jobs off a node that was mended."
        ),
    ] = Act.SHOW,
    node: NodeArgument = None,
    *,
    config: ConfigOption = None,
    actor: ActorOption = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the cluster's breaker, excluded nodes and recent actions; `trip` it before maintenance, `reset` it after a storm has been
    looked into, `clear` a node."""
    configuration = open_configuration(config)
    state = run(_ask(configuration, order_of(act, node, actor=actor, reason=reason)))
    if as_json:
        print_json(plain(state))
        return
    for line in in_words(configuration.cluster.name, state):
        tell(line)


def order_of(act: Act, node: str | None, *, actor: str | None, reason: str) -> Order | None:
    """What the command line asks for; None where it only wants to see.

    Raises:
        BadUsage: a node where none belongs, or none where one is needed; a trip without its reason.
    """
    if act is not Act.CLEAR and node is not None:
        raise BadUsage(f"`backstay breaker {act}` takes no node; to stop keeping jobs off one: backstay breaker clear {node}")
    match act:
        case Act.SHOW:
            return None
        case Act.TRIP:
            if not reason.strip():
                raise BadUsage("say why with --reason: every job that is held back tells it")
            return Order("trip_breaker", BreakerTrip(actor=actor_or_login(actor), reason=reason))
        case Act.RESET:
            return Order("reset_breaker", BreakerReset(actor=actor_or_login(actor), reason=reason))
        case Act.CLEAR:
            if node is None:
                raise BadUsage("name the node: backstay breaker clear NODE; `backstay breaker` lists those that are excluded")
            return Order("clear_node", NodeClearance(node=node, actor=actor_or_login(actor), reason=reason))


async def _ask(configuration: Configuration, order: Order | None) -> ClusterState:
    return await ask(await connect(configuration), configuration.cluster.name, order)


async def ask(client: Client, cluster: str, order: Order | None = None) -> ClusterState:
    """The cluster's state, after the order where one is given.

    Raises:
        CommandFailed: no such cluster is watched, or the order was refused.
        Unreachable: no worker answers.
    """
    handle = client.get_workflow_handle(cluster_workflow_id(cluster))
    try:
        if order is not None:
            await handle.execute_update(order.update, order.word, rpc_timeout=QUERY_PATIENCE * 4)
        return await _state(handle)
    except WorkflowUpdateFailedError as error:
        raise CommandFailed(refusal(error)) from error
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise Unreachable("no worker took it in time; start `backstay worker` and see `backstay breaker` before trying again") from error
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
    deadline = time.monotonic() + BUSY_FOR.total_seconds()
    while time.monotonic() < deadline:
        try:
            state: ClusterState = await handle.query("state", result_type=ClusterState, rpc_timeout=QUERY_PATIENCE)
        except RPCError as error:
            # UNAVAILABLE has been tried again by the SDK for long enough: that is a server in trouble, and no storm.
            if error.status is not RPCStatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(1)
        else:
            return state
    raise Unreachable("the cluster's workflow is busy with a storm of faults; ask again in a minute")


def in_words(cluster: str, state: ClusterState) -> Iterator[str]:
    """The guard rails of one cluster, line by line."""
    tripped = state.breaker.tripped_at
    if tripped is not None:
        by = f" by {state.breaker.tripped_by}" if state.breaker.tripped_by else ""
        yield f"cluster {cluster}: the breaker has been tripped{by} since {clock(tripped)} UTC: {state.breaker.reason}"
        yield "  Backstay recommends but does not act; once you know the cause: backstay breaker reset --reason WHY"
        yield "  what it holds back waits, until it expires, for your approval after that: backstay jobs, backstay approve JOB"
    elif not state.breaker.users:
        last = f"; last reset {clock(state.breaker.reset_at)} UTC by {state.breaker.reset_by}" if state.breaker.reset_at else ""
        yield f"cluster {cluster}: the breaker is closed, Backstay may act{last}"
    else:
        yield f"cluster {cluster}: the breaker is tripped for the jobs of {', '.join(stop.user for stop in state.breaker.users)} only"
    for stop in state.breaker.users:
        yield f"  since {clock(stop.at)} UTC for the jobs of {stop.user}: {stop.reason}; backstay breaker reset --reason WHY"
    yield f"  {len(state.recent_incidents)} incidents and {len(state.actions)} actions within their windows"
    for entry in state.entries:
        yield from _entry_in_words(entry)
    if state.entries:
        yield "  a node that was rebooted leaves this list at the next fault; at once, by your word: backstay breaker clear NODE"


def _entry_in_words(entry: LedgerEntry) -> Iterator[str]:
    """One node of the ledger: until when, for whose jobs, and who says so."""
    until = f"excluded until {clock(entry.excluded_until)} UTC" if entry.excluded_until else "implicated, not excluded"
    whose = f"job {entry.job_id}{f' of {entry.user}' if entry.user else ''}"
    match entry.scope:
        case LedgerScope.JOB:
            whom = f"for job {entry.job_id} only, as no second source implicates it"
        case LedgerScope.CLUSTER:
            whom = "for every job"
    yield f"  node {entry.node}: {until}, {whom}: {entry.cause} in {whose}"
    for one in entry.sources:
        yield f"    {printable(_source_in_words(one))}"


def _source_in_words(one: Implication) -> str:
    said = f": {one.said}" if one.said else ""
    whose = f"job {one.job_id}{f' of {one.user}' if one.user else ''}"
    match one.source:
        case SignalSource.LOG:
            return f"by the output of {whose}{said}"
        case SignalSource.NODE:
            return f"by Slurm's own state of the node, {f'in {whose}' if one.job_id else clock(one.at) + ' UTC'}{said}"
        case SignalSource.KERNEL | SignalSource.GPU:
            return f"by what the node itself tells ({one.source}), in {whose}{said}"
        case _:
            return f"by {one.source}, in {whose}{said}"
