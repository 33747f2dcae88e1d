"""What stands on the command line, and what of its answer becomes which error. The transport is in memory."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from activities.configuration import SchedulerSection
from activities.slurm import scheduler as s
from activities.slurm.commands import CommandScheduler
from activities.slurm.transport import CommandTimedOut, Completed

SECTION = SchedulerSection.model_validate({"timeout": "30s"})


class Scripted:
    """Answers by the program's name and remembers what was asked."""

    def __init__(self, **answers: Completed | Exception) -> None:
        self._answers = answers
        self.asked: list[tuple[str, ...]] = []

    async def run(self, argv: Sequence[str], *, timeout: timedelta, stdin: bytes | None = None) -> Completed:  # noqa: ASYNC109
        self.asked.append(tuple(argv))
        answer = self._answers.get("version" if "--version" in argv else argv[0], Completed(0, b"", b""))
        if isinstance(answer, Exception):
            raise answer
        return answer


def saying(stderr: str, returncode: int = 1) -> Completed:
    return Completed(returncode, b"", stderr.encode())


def listing(*jobs: dict[str, Any]) -> Completed:
    return Completed(0, json.dumps({"errors": [], "jobs": jobs}).encode(), b"")


@pytest.mark.parametrize("job_id", ["", "0", "-1", "1;2", "1 2", "--help", "12_[1-3]", "12_", "1\n", "١"])
async def test_what_is_no_job_id_never_reaches_a_command_line(job_id: str) -> None:
    transport = Scripted()
    scheduler = CommandScheduler(transport, SECTION)
    for ask in (scheduler.job, scheduler.batch_script, scheduler.requeue, scheduler.start_now, scheduler.hold, scheduler.cancel):
        with pytest.raises(s.JobUnknown):
            await ask(job_id)
    assert transport.asked == []


async def test_what_is_no_node_name_never_reaches_a_command_line() -> None:
    transport = Scripted()
    scheduler = CommandScheduler(transport, SECTION)
    with pytest.raises(s.NodeNameInvalid):
        await scheduler.set_excluded_nodes("7", ["node-001", "a,b"])
    with pytest.raises(s.NodeNameInvalid):
        await scheduler.drain("ALL State=RESUME", "backstay: x")
    assert transport.asked == []


async def test_mutations_are_one_command_each() -> None:
    transport = Scripted()
    scheduler = CommandScheduler(transport, SECTION)
    await scheduler.requeue("7")
    await scheduler.requeue("7_3", hold=True)
    await scheduler.permit_requeue("7")
    await scheduler.set_excluded_nodes("7", {"node-002", "node-001"})
    await scheduler.set_excluded_nodes("7", ())
    await scheduler.start_now("7")
    await scheduler.hold("7")
    await scheduler.release("7")
    await scheduler.set_admin_comment("7", "backstay: held\nby us")
    await scheduler.cancel("7")
    await scheduler.drain("node-001", "backstay: Xid 79")
    await scheduler.resume("node-001")
    assert transport.asked == [
        ("scontrol", "requeue", "7"),
        ("scontrol", "requeuehold", "7_3"),
        ("scontrol", "update", "JobId=7", "Requeue=1"),
        ("scontrol", "update", "JobId=7", "ExcNodeList=node-[001-002]"),
        ("scontrol", "update", "JobId=7", "ExcNodeList="),
        ("scontrol", "update", "JobId=7", "StartTime=now"),
        ("scontrol", "uhold", "7"),
        ("scontrol", "release", "7"),
        ("scontrol", "update", "JobId=7", "AdminComment=backstay: held by us"),
        ("scancel", "--verbose", "7"),
        ("scontrol", "update", "NodeName=node-001", "State=DRAIN", "Reason=backstay: Xid 79"),
        ("scontrol", "update", "NodeName=node-001", "State=UNDRAIN"),
    ]


async def test_no_answer_in_time_is_unreachable() -> None:
    scheduler = CommandScheduler(Scripted(scontrol=CommandTimedOut("scontrol: no answer within 30 s")), SECTION)
    with pytest.raises(s.SchedulerUnreachable, match="within 30 s"):
        await scheduler.requeue("7")


async def test_scancel_reports_its_errors_behind_a_success() -> None:
    said = "scancel: Terminating job 9999\nscancel: error: Kill job error on job id 9999: Invalid job id specified\n"
    with pytest.raises(s.JobUnknown):
        await CommandScheduler(Scripted(scancel=saying(said, returncode=0)), SECTION).cancel("9999")
    terminating = Scripted(scancel=saying("scancel: Terminating job 7\n", returncode=0))
    await CommandScheduler(terminating, SECTION).cancel("7")


async def test_a_script_that_cannot_be_had_is_an_error_behind_a_success() -> None:
    refused = Scripted(scontrol=saying("job script retrieval failed: Job script not specified\n", returncode=0))
    with pytest.raises(s.NotABatchJob):
        await CommandScheduler(refused, SECTION).batch_script("15")


async def test_one_job_is_picked_from_a_listing_that_may_hold_all() -> None:
    rest = {"job_id": 6, "job_state": "PENDING", "array_job_id": 6, "array_task_id": None, "array_task_string": "2-9%2"}
    task = {"job_id": 16, "job_state": "RUNNING", "array_job_id": 6, "array_task_id": 0}
    scheduler = CommandScheduler(Scripted(squeue=listing({"job_id": 5, "job_state": "RUNNING"}, rest, task)), SECTION)
    assert (await scheduler.job("5")).numeric_id == 5
    assert (await scheduler.job("6_0")).numeric_id == 16
    waiting = await scheduler.job("6_4")
    assert (waiting.job_id, waiting.array_task_id, waiting.state) == ("6_4", 4, "PENDING")
    with pytest.raises(s.JobUnknown, match="name one of its tasks"):
        await scheduler.job("6")
    for unknown in ("7", "6_1", "16"):
        with pytest.raises(s.JobUnknown):
            await scheduler.job(unknown)


@pytest.mark.parametrize(
    ("version", "program"), [("slurm-wlm 22.05.8", "sinfo"), ("slurm 23.02.1", "scontrol"), ("slurm-wlm 24.11.5", "scontrol")]
)
async def test_nodes_are_asked_of_the_program_that_can_tell(version: str, program: str) -> None:
    answer = Completed(0, b'{"errors": [], "nodes": [{"name": "n1", "state": ["IDLE"]}]}', b"")
    transport = Scripted(version=Completed(0, f"{version}\n".encode(), b""), **{program: answer})
    scheduler = CommandScheduler(transport, SECTION)
    assert [node.name for node in await scheduler.nodes()] == ["n1"]
    await scheduler.nodes()
    assert [argv for argv in transport.asked if "--version" in argv] == [("sinfo", "--version")], "asked once"
