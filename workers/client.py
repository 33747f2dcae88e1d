"""The one place that connects to Temporal. Called by the worker and by every command that talks to workflows."""

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    CountWorkflowsInput,
    DescribeWorkflowInput,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
    QueryWorkflowInput,
    TLSConfig,
    WorkflowExecutionAsyncIterator,
    WorkflowExecutionCount,
    WorkflowExecutionDescription,
    WorkflowHistoryEventAsyncIterator,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.configuration import Configuration, TemporalSection, WorkerSection
from workers.converter import data_converter
from workers.embedded.ownership import Mark, OwnerFileUnusable, Ownership, is_loopback, read_mark, read_ownership, why_foreign
from workers.refused_connection import unusable_files, why_refused
from workers.sdk_runtime import sdk_runtime

CONNECTED_WITHIN = timedelta(seconds=10)
"""A server answers in milliseconds, a busy one within a second or two; the SDK itself would wait 30 s for one that is frozen."""

ANSWERED_WITHIN = timedelta(seconds=20)
"""Longest wait for one read where the caller sets none. Without it, a server that takes connections and never answers holds its asker
until the connection is given up, 45 s for each try."""


class TemporalUnreachable(Exception):
    """No Temporal server answers there, or it is not ours to use: what was found, and the mend; the message is both."""

    def __init__(self, found: str, mend: str) -> None:
        super().__init__(f"{found}; {mend}")
        self.found, self.mend = found, mend


class SearchAttributesMissing(Exception):
    """Workflows cannot run without their search attributes. The message lists them with their types."""


async def connect(configuration: Configuration) -> Client:
    """A client whose records and errors stand in histories as readable JSON without secrets.

    Where `temporal.address` is this machine's own and `backstay up` serves `temporal.database`, that server is meant, at whatever port
    it has, and none that another user started.

    Raises:
        TemporalUnreachable: nothing answers, it refuses us, or it is somebody else's.
    """
    section = configuration.temporal
    own = _ownership(section)
    address = section.address if own is None else own.address_for(section.address)
    key = _api_key(section)
    tls = _tls(section)
    try:
        async with asyncio.timeout(CONNECTED_WITHIN.total_seconds()):
            client = await Client.connect(
                address,
                namespace=section.namespace,
                data_converter=data_converter,
                tls=tls,
                api_key=key,
                runtime=sdk_runtime(),
                interceptors=[_Patience()],
            )
    except TimeoutError as error:
        found = f"the Temporal server at {address} takes connections but gives no answer within {CONNECTED_WITHIN.total_seconds():.0f} s"
        raise TemporalUnreachable(found, "it is frozen or overloaded: look at its process and its own log, or start it again") from error
    except (RuntimeError, RPCError, ValueError) as error:
        if refused := await why_refused(section, address, error):
            raise TemporalUnreachable(*refused) from error
        mend = "start `backstay up` here, or point temporal.address at your Temporal cluster"
        raise TemporalUnreachable(f"no Temporal server answers at {address} ({_first_line(error)})", mend) from error
    if may_be_embedded(section):
        await _refuse_a_foreign_server(client, section.database, own, address)
    return client


def may_be_embedded(section: TemporalSection) -> bool:
    """Whether a server that `backstay up` started may be meant: they listen on loopback, in plain text."""
    return is_loopback(section.address) and not section.tls and section.api_key_file is None


def _ownership(section: TemporalSection) -> Ownership | None:
    if not may_be_embedded(section):
        return None
    try:
        return read_ownership(section.database)
    except OwnerFileUnusable as error:
        found, _, mend = str(error).partition("; ")
        raise TemporalUnreachable(found, mend) from error


async def _refuse_a_foreign_server(client: Client, database: Path, own: Ownership | None, address: str) -> None:
    try:
        mark = await read_mark(client, within=CONNECTED_WITHIN)
    except RPCError as error:
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            raise
        mark = Mark()  # without its namespace it carries no mark either; that the namespace is missing is told by what comes next
    if problem := why_foreign(own, database, mark, address):
        found, _, mend = problem.partition("; ")
        raise TemporalUnreachable(found, mend)


class _Patience(Interceptor):
    """Gives every read a deadline. What waits on purpose (an update, a result) has its own."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _PatientReads(next)


class _PatientReads(OutboundInterceptor):
    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        return await super().query_workflow(_with_deadline(input))

    async def describe_workflow(self, input: DescribeWorkflowInput) -> WorkflowExecutionDescription:
        return await super().describe_workflow(_with_deadline(input))

    def list_workflows(self, input: ListWorkflowsInput) -> WorkflowExecutionAsyncIterator:
        return super().list_workflows(_with_deadline(input))

    async def count_workflows(self, input: CountWorkflowsInput) -> WorkflowExecutionCount:
        return await super().count_workflows(_with_deadline(input))

    def fetch_workflow_history_events(self, input: FetchWorkflowHistoryEventsInput) -> WorkflowHistoryEventAsyncIterator:
        return super().fetch_workflow_history_events(input if input.wait_new_event else _with_deadline(input))


_Read = TypeVar(
    "_Read", QueryWorkflowInput, DescribeWorkflowInput, ListWorkflowsInput, CountWorkflowsInput, FetchWorkflowHistoryEventsInput
)


def _with_deadline(input: _Read) -> _Read:
    return replace(input, rpc_timeout=ANSWERED_WITHIN) if input.rpc_timeout is None else input


def build_id_of(section: WorkerSection) -> str:
    """The build that workers of this configuration are, under deployment versioning."""
    return section.build_id or version("backstay")


def _api_key(section: TemporalSection) -> str | None:
    if section.api_key_file is None:
        return None
    return _read(section.api_key_file, "temporal.api_key_file").decode(errors="replace").strip()


def _tls(section: TemporalSection) -> TLSConfig | bool:
    if not section.tls:
        return False
    if problem := unusable_files(section):
        raise TemporalUnreachable(*problem)
    return TLSConfig(
        server_root_ca_cert=_read(section.tls_ca, "temporal.tls_ca") if section.tls_ca else None,
        client_cert=_read(section.tls_certificate, "temporal.tls_certificate") if section.tls_certificate else None,
        client_private_key=_read(section.tls_key, "temporal.tls_key") if section.tls_key else None,
    )


def _read(path: Path, key: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise TemporalUnreachable(f"{path} cannot be read: {error.strerror}", f"set {key} to a file that this user may read") from error


def _first_line(error: Exception) -> str:
    """The operating system's own reason where the SDK quotes one, else the first line of what it says."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    reason = re.search(r'Os \{[^}]*message: "([^"]+)"', said)
    return (reason.group(1) if reason else said)[:160]
