"""`show` of a job that is not watched says why: what Slurm knows of it, beside what the configuration asks for."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.configuration import Configuration, WatchSection
from activities.records import Job, JobFlag, JobState
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from tests.builders import NOON, after
from workers.commands.errors import CommandFailed
from workers.commands.unwatched import find_or_explain, why_not_watched


def a_job(**changes: Any) -> Job:
    """One that runs, opted in, as discovery would take it."""
    usual = {
        "job_id": "17", "numeric_id": 17, "user": "ann", "account": "physics", "partition": "train", "state": JobState.RUNNING,
        "is_batch": True, "comment": "backstay", "submitted_at": NOON, "started_at": NOON,
    }  # fmt: skip
    return Job.model_validate({**usual, **changes})


ENDED = {"state": JobState.FAILED, "ended_at": after(60)}


@pytest.mark.parametrize(
    ("job", "watch", "said"),
    [
        ({"comment": ""}, {}, "it has no comment, and watch.opt_in is `comment`; submit it with --comment=backstay"),
        ({"comment": "project 7"}, {}, "its comment is 'project 7', and watch.opt_in is `comment`"),
        ({"comment": "backstay:off"}, {}, "its comment says no: 'backstay:off'"),
        ({}, {"partitions": ["debug"]}, "its partition train is not among watch.partitions (debug)"),
        ({"comment": "", "is_batch": False}, {"opt_in": "all"}, "it is no batch job"),
        ({"comment": ""}, {"opt_in": "all", "accounts": ["chemistry"]}, "its account physics is not among watch.accounts (chemistry)"),
        ({"comment": ""}, {"opt_in": "all", "users": ["bob"]}, "its user ann is not among watch.users (bob)"),
        ({"het_offset": 1, "het_job_id": 16}, {}, "a component of heterogeneous job 16"),
        ({"state": JobState.PENDING, "started_at": None, "reason": "Resources"}, {}, "waits for its first start (Resources)"),
        ({"state": JobState.PENDING, "reason": "BeginTime"}, {}, "it waits to start"),
        (
            ENDED,
            {},
            "it ended (FAILED) at 2026-01-05 12:01:00 UTC, before Backstay began to watch this cluster, which was at 2026-01-05 13:",
        ),
        ({**ENDED, "started_at": None}, {}, "and never ran"),
        ({**ENDED, "ended_at": after(7200)}, {}, "and discovery has not looked since; ask again in 5 s"),
        ({}, {}, "it is to be, and discovery has not looked since it started; ask again in 5 s"),
        ({"state": JobState.PENDING, "flags": (JobFlag.COMPLETING,), "started_at": None}, {}, "waits for its first start"),
    ],
)
def test_each_reason_is_told_with_what_to_do(job: dict[str, Any], watch: dict[str, Any], said: str) -> None:
    assert said in why_not_watched(a_job(**job), WatchSection.model_validate(watch), since=after(3600))


def test_what_keeps_discovery_from_looking_is_the_reason_where_the_job_itself_is_none() -> None:
    troubles = ("no worker runs for task queue backstay-alpha",)
    assert why_not_watched(a_job(), WatchSection(), since=None, troubles=troubles) == f"it is to be, and {troubles[0]}"
    assert "has no comment" in why_not_watched(a_job(comment=""), WatchSection(), since=None, troubles=troubles)


def a_configuration(tmp_path: Path, **sections: Any) -> Configuration:
    return Configuration.model_validate({"cluster": {"name": f"c{uuid.uuid4().hex[:8]}", **sections}, "evidence": {"directory": tmp_path}})


async def test_slurm_is_asked_and_its_answer_is_told(client: Client, tmp_path: Path) -> None:
    configuration, cluster = a_configuration(tmp_path), SimulatedCluster(4)
    job_id = cluster.submit(request=Request(comment=""))
    with pytest.raises(CommandFailed, match="it has no comment") as told:
        await find_or_explain(client, configuration, job_id, cluster)
    assert str(told.value).startswith(f"job {job_id} is not watched on cluster {configuration.cluster.name}: it has not opted in")
    with pytest.raises(CommandFailed, match="Slurm does not know it"):
        await find_or_explain(client, configuration, "4711", cluster)
    cluster.submit(request=Request(comment="backstay"))
    cluster.down = True
    with pytest.raises(CommandFailed, match="why cannot be told, because Slurm gave no answer"):
        await find_or_explain(client, configuration, job_id, cluster)


async def test_a_job_that_nobody_is_there_to_discover_is_told_so(client: Client, tmp_path: Path) -> None:
    configuration, cluster = a_configuration(tmp_path), SimulatedCluster(4)
    job_id = cluster.submit(request=Request(comment="backstay"))
    with pytest.raises(CommandFailed, match="no worker runs for task queue"):
        await find_or_explain(client, configuration, job_id, cluster)


async def test_a_simulated_scheduler_of_another_process_cannot_be_asked(client: Client, tmp_path: Path) -> None:
    configuration = a_configuration(tmp_path, scheduler={"kind": "simulated"})
    with pytest.raises(CommandFailed, match="why cannot be told"):
        await find_or_explain(client, configuration, "17")
