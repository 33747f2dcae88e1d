"""The checks of `doctor` that ask whether the service itself works: that Temporal can write, that a worker is there and acts, and that the
disks which both need have room. Each answers with one line and never raises; a workflow of doctor's own is started and ended at once.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from workers.commands.checking import Check, failed, ok, warning
from workers.commands.service_health import Pollers, ago, breaker_of, no_worker, pollers_of, tripped
from workers.disk import free_bytes, in_units, try_to_write, why_not_writable
from workers.embedded.ownership import owner_file

WRITTEN_WITHIN = timedelta(seconds=10)

LITTLE_BYTES = 64 * 1024 * 1024
"""Under this the next incident may fill the disk: its evidence alone may take 16 MiB (`evidence.stored_bytes`)."""

LOW_BYTES = 1024 * 1024 * 1024


async def service_checks(client: Client, configuration: Configuration) -> Sequence[Check]:
    """What can be asked once Temporal answers."""
    return [
        await temporal_write(client),
        *await worker_runs(client, configuration),
    ]


async def temporal_write(client: Client) -> Check:
    """A server on a full or broken disk answers, and can start no workflow: only a real one tells."""
    name, began = "temporal write", time.monotonic()
    try:
        handle = await client.start_workflow(
            "BackstayDoctor",
            id=f"backstay-doctor/{uuid4().hex[:12]}",
            task_queue="backstay-doctor",  # nobody works there
            execution_timeout=timedelta(minutes=1),
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            rpc_timeout=WRITTEN_WITHIN,
        )
        await handle.terminate("doctor has seen that a workflow can be started", rpc_timeout=WRITTEN_WITHIN)
    except RPCError as error:
        if error.status is RPCStatusCode.PERMISSION_DENIED:
            return warning(name, "we may not start workflows here", "a worker must; give its credentials the right to write")
        found = f"no workflow can be started: {error.message}"
        return failed(name, found, "look at the server's own log, and whether its database's disk is full")
    return ok(name, f"a workflow can be started, in {(time.monotonic() - began) * 1000:.0f} ms")


async def worker_runs(client: Client, configuration: Configuration) -> Sequence[Check]:
    """A worker polls both queues, the cluster's workflow runs, and the breaker is closed."""
    cluster, queue = configuration.cluster.name, configuration.task_queue
    try:
        pollers = await pollers_of(client, queue)
        worker = _worker(pollers, queue, datetime.now(UTC))
        running = await _workflow_runs(client, cluster)
        breaker = await _breaker(client, cluster) if pollers.alive(datetime.now(UTC)) and running else None
    except RPCError as error:
        return [failed("worker", f"Temporal does not tell: {error.message}", "look at the Temporal server's own log")]
    start = "start `backstay up` or `backstay worker`, which starts it"
    workflow = (
        ok("cluster workflow", f"{cluster_workflow_id(cluster)} runs")
        if running
        else failed("cluster workflow", f"{cluster_workflow_id(cluster)} does not run, so new jobs are not seen", start)
    )
    return [worker, workflow, *([breaker] if breaker else [])]


def _worker(pollers: Pollers, queue: str, now: datetime) -> Check:
    name, alive = "worker", pollers.alive(now)
    if nobody := no_worker(pollers, queue, now):
        found, _, fix = nobody.rpartition("; ")
        return failed(name, found, fix)
    last = pollers.last_poll
    builds = sorted({each.build_id for each in pollers.activities if each.build_id and each.identity in alive})
    of = f" of build {', '.join(builds)}" if builds else ""
    asked = f"; the last to ask for work did {ago(now - last)} ago" if last else ""
    return ok(name, f"{len(alive)}{of} at task queue {queue} ({', '.join(alive[:5])}){asked}")


async def _workflow_runs(client: Client, cluster: str) -> bool:
    try:
        description = await client.get_workflow_handle(cluster_workflow_id(cluster)).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return description.status is WorkflowExecutionStatus.RUNNING


async def _breaker(client: Client, cluster: str) -> Check:
    name, breaker = "breaker", await breaker_of(client, cluster)
    if breaker is None:
        return warning(name, "no worker answers for the cluster's workflow, so it cannot be told", "see the worker's own log")
    if (said := tripped(breaker)) is None:
        return ok(name, "closed, Backstay may act")
    found, _, fix = said.rpartition("; ")
    # Whoever tripped it by hand knows; a storm of faults waits for somebody to look.
    return failed(name, found, fix) if breaker.tripped_at and not breaker.tripped_by else warning(name, found, fix)


async def disk_checks(configuration: Configuration, *, embedded: bool) -> Sequence[Check]:
    """The file systems that are written to here. The database's is asked after only where `up` serves it on this machine."""
    database = configuration.temporal.database
    evidence = configuration.evidence.directory
    checks = [await asyncio.to_thread(disk, "evidence disk", evidence, "evidence.directory to one on another disk")]
    if embedded and await asyncio.to_thread(owner_file(database).exists):
        checks.insert(0, await asyncio.to_thread(disk, "database disk", database.parent, "temporal.database to a file on another disk"))
    return checks


def disk(name: str, directory: Path, elsewhere: str) -> Check:
    """Free space, and a write that reaches the disk.

    Args:
        directory: where files are written; the nearest that exists is asked.
        elsewhere: the key to change, and to what.
    """
    place = next((each for each in (directory, *directory.parents) if each.is_dir()), directory)
    fix = f"free space there, or set {elsewhere}"
    try:
        if place == directory:
            try_to_write(place)
    except OSError as error:
        return failed(name, why_not_writable(place, error), fix)
    free = free_bytes(place)
    if free is None:
        return warning(name, f"the free space of {place} cannot be told", "see `df`")
    found = f"{in_units(free)} free at {place}"
    if free < LITTLE_BYTES:
        return failed(name, found, fix)
    return warning(name, found, fix) if free < LOW_BYTES else ok(name, found)
