"""Temporal down, frozen, or dying under a question: nothing but the document reaches standard output, and the exit code is 3."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.commands.running import BACKSTAY, REPOSITORY, a_site, environment, told
from workers.embedded.temporal import EmbeddedTemporal
from workflows.visibility import CLUSTER, JOB

ASKED = [("show", "17", "--json"), ("jobs", "--json"), ("breaker", "--json"), ("audit", "17", "--json")]


@asynccontextmanager
async def a_server(directory: Path) -> AsyncIterator[tuple[EmbeddedTemporal, str]]:
    """A server, and the configuration file that points there."""
    async with EmbeddedTemporal(directory / "temporal.db") as server:
        section = {"address": server.address, "database": str(server.database)}
        yield server, str(a_site(directory, temporal=section))


async def test_a_frozen_server_is_told_in_a_sentence_and_leaves_standard_output_empty(tmp_path: Path) -> None:
    """It takes connections (the kernel does), and answers nothing."""
    async with a_server(tmp_path) as (server, configuration):
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            answers = await asyncio.gather(*(told(*arguments, "-c", configuration) for arguments in ASKED))
        finally:
            os.kill(server.pid, signal.SIGCONT)
    for code, out, errors in answers:
        assert (code, out, errors.count("\n")) == (3, "", 1)
        assert "takes connections but gives no answer" in errors


class Fate:
    """What happens to the server when a workflow is asked."""

    server_pid = 0


@workflow.defn(name="TrainingJob")
class KillsItsServer:
    """The server is gone in the middle of a query: the worker has the question, and the asker waits for the answer."""

    @workflow.run
    async def run(self) -> None:
        await asyncio.Event().wait()

    @workflow.query
    def state(self) -> str:
        if Fate.server_pid:
            os.kill(Fate.server_pid, signal.SIGKILL)
        return ""


@pytest.mark.parametrize("arguments", [("jobs", "--json"), ("show", "17", "--json")], ids=["jobs", "show"])
async def test_a_server_that_dies_in_the_middle_of_a_query_is_no_half_answer(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    async with a_server(tmp_path) as (server, configuration):
        Fate.server_pid = server.pid or 0
        client = await Client.connect(server.address)
        queue = uuid4().hex
        worker = Worker(client, task_queue=queue, workflows=[KillsItsServer], workflow_runner=UnsandboxedWorkflowRunner())
        async with worker:
            attributes = workflow_attributes("17")
            await client.start_workflow("TrainingJob", id="job/alpha/17/1795991940", task_queue=queue, search_attributes=attributes)
            async with asyncio.timeout(60):
                while True:
                    if (await client.count_workflows("BackstayCluster = 'alpha'")).count:
                        break
                    await asyncio.sleep(0.05)  # the server's lists come a moment after its histories
            code, out, errors = await told(*arguments, "-c", configuration)
            assert not server.is_running
            Fate.server_pid = 0
            await server.start()  # for the worker of this test, which would look for it for ever
    assert (code, out) == (3, ""), errors
    assert "Traceback" not in errors


def workflow_attributes(job_id: str) -> TypedSearchAttributes:
    return TypedSearchAttributes([SearchAttributePair(CLUSTER, "alpha"), SearchAttributePair(JOB, job_id)])


def test_what_a_library_writes_to_standard_output_never_stands_in_the_document() -> None:
    """Also by the bare file descriptor, as the native part of the SDK did."""
    code = """
import os, sys
from workers.commands.main import keep_standard_output_for_the_document
from workers.commands.terminal import print_json
keep_standard_output_for_the_document()
os.write(1, b"native part\\n")
print_json([1])
sys.stdout.flush()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY, env=environment())
    assert json.loads(done.stdout) == [1]
    assert done.stderr == "native part\n"


def test_an_answer_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    command = [*BACKSTAY, "policy", "check", "--json", "-c", str(a_site(tmp_path))]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=REPOSITORY, env=environment())
    assert done.returncode == 1
    assert done.stderr == "backstay: the answer could not be written: No space left on device; free space on its disk\n"
