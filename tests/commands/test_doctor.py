"""`doctor`: each check finds what it looks for and names the mend."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.configuration import Configuration
from activities.slurm.scheduler import SchedulerSettings
from activities.slurm.simulated import SimulatedCluster
from activities.slurm.simulated_state import Request
from activities.slurm.transport import Completed, ProgramMissing
from tests.e2e.server import Server
from workers.commands import checks
from workers.commands.checks import Check, Status, all_checks
from workers.commands.controller import CommandController, Credential
from workers.commands.doctor import in_one_line
from workers.embedded.temporal import free_port


class Controller:
    """Answers as told."""

    def __init__(self, *, may_requeue: bool | None = True, ahead: timedelta | None = timedelta(0)) -> None:
        self.may_requeue = may_requeue
        self.ahead = ahead

    async def credential(self, settings: SchedulerSettings) -> Credential:
        return Credential(user="svc", may_requeue=self.may_requeue, because="for a test")

    async def time(self) -> datetime | None:
        return None if self.ahead is None else datetime.now(UTC) + self.ahead


class Answers:
    """A transport whose commands answer from a table, by program."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = answers

    async def run(self, argv: Any, *, timeout: timedelta, stdin: bytes | None = None) -> Completed:  # noqa: ASYNC109
        if argv[0] not in self.answers:
            raise ProgramMissing(argv[0])
        return Completed(0, self.answers[argv[0]].encode(), b"")


def a_configuration(tmp_path: Path, **sections: Any) -> Configuration:
    return Configuration.model_validate(
        {
            "cluster": {"name": "alpha"},
            "logs": {"roots": [tmp_path]},
            "evidence": {"directory": tmp_path / "evidence"},
            **sections,
            "temporal": {"address": f"127.0.0.1:{free_port()}", "database": tmp_path / "temporal.db", **sections.get("temporal", {})},
        }
    )


async def named(
    tmp_path: Path, cluster: SimulatedCluster | None = None, controller: Controller | None = None, **sections: Any
) -> dict[str, Check]:
    found = await all_checks(a_configuration(tmp_path, **sections), cluster or SimulatedCluster(), controller or Controller())
    return {check.name: check for check in found}


async def test_a_healthy_cluster_passes_all_but_temporal_which_is_not_running(tmp_path: Path) -> None:
    found = await named(tmp_path)
    assert [name for name, check in found.items() if check.status is Status.FAILED] == ["temporal"]
    assert "backstay up" in found["temporal"].mend


@pytest.mark.parametrize(("namespace", "status"), [("default", Status.OK), ("no-such-namespace", Status.FAILED)])
async def test_a_server_without_the_namespace_fails(tmp_path: Path, server: Server, namespace: str, status: Status) -> None:
    check = (await named(tmp_path, temporal={"address": server.address, "namespace": namespace}))["temporal"]
    assert (check.status, namespace in check.found) == (status, True)
    assert (server.address in check.mend) == (status is Status.FAILED)  # or it would be made on whatever answers at the usual port


async def test_a_watched_partition_that_slurm_does_not_have_fails_with_those_it_has(tmp_path: Path) -> None:
    found = await named(tmp_path, watch={"partitions": ["train", "trian"]})
    assert found["partitions"].status is Status.FAILED
    assert "trian" in found["partitions"].found
    assert "Slurm has train" in found["partitions"].mend
    assert (await named(tmp_path, watch={"partitions": ["train"]}))["partitions"].status is Status.OK


async def test_a_silent_slurm_fails_one_line_and_leaves_the_other_checks_standing(tmp_path: Path) -> None:
    cluster = SimulatedCluster()
    cluster.down = True
    found = await named(tmp_path, cluster)
    assert found["slurm"].status is Status.FAILED
    assert "may requeue" not in found
    assert found["evidence"].status is Status.OK


@pytest.mark.parametrize(
    ("policy", "may_requeue", "status"),
    [
        ({"mode": "auto"}, False, Status.FAILED),
        ({"mode": "observe", "highest_mode": "observe"}, False, Status.WARNING),
        ({"mode": "auto"}, None, Status.WARNING),
        ({"mode": "auto"}, True, Status.OK),
    ],
)
async def test_rights_matter_where_backstay_may_act(tmp_path: Path, policy: Any, may_requeue: bool | None, status: Status) -> None:
    check = (await named(tmp_path, controller=Controller(may_requeue=may_requeue), policy=policy))["may requeue"]
    assert check.status is status
    if status is not Status.OK:
        assert "AdminLevel=Operator" in check.mend


@pytest.mark.parametrize(
    ("ahead", "status"),
    [(timedelta(0), Status.OK), (timedelta(minutes=-3), Status.FAILED), (timedelta(minutes=3), Status.FAILED), (None, Status.WARNING)],
)
async def test_a_skewed_clock_fails(tmp_path: Path, ahead: timedelta | None, status: Status) -> None:
    assert (await named(tmp_path, controller=Controller(ahead=ahead)))["clock skew"].status is status


async def test_a_garbled_comment_is_named_with_its_job(tmp_path: Path) -> None:
    cluster = SimulatedCluster()
    job_id = cluster.submit(request=Request(comment="backstay:mode=sometimes"))
    check = (await named(tmp_path, cluster))["comments"]
    assert check.status is Status.WARNING
    assert f"job {job_id}" in check.found


async def test_stored_comments_are_counted(tmp_path: Path) -> None:
    cluster = SimulatedCluster()
    cluster.submit(request=Request(comment="backstay"))
    cluster.submit(request=Request(comment="project 7"))
    assert (await named(tmp_path, cluster))["comments"].found == "stored: 2 jobs carry one, 1 of them opt in"


def test_a_short_memory_of_ended_jobs_is_a_warning() -> None:
    assert checks.min_job_age(SchedulerSettings(min_job_age=timedelta(seconds=60))).status is Status.WARNING
    assert checks.min_job_age(SchedulerSettings(min_job_age=timedelta(seconds=300))).status is Status.OK


def test_a_log_root_that_is_not_there_fails_and_none_at_all_fails_too(tmp_path: Path) -> None:
    [missing] = checks.log_roots([tmp_path / "nowhere"])
    [none] = checks.log_roots([])
    assert (missing.status, none.status) == (Status.FAILED, Status.FAILED)
    assert "logs.roots" in none.mend


def test_an_evidence_directory_that_cannot_be_made_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert checks.evidence_directory(tmp_path / "file" / "evidence").status is Status.FAILED


def test_every_check_is_one_line_with_its_mend() -> None:
    line = in_one_line(checks.failed("log root", "/x is no directory here", "mount it"))
    assert line == "FAILED   log root: /x is no directory here; mount it"


async def test_the_controllers_clock_is_read_from_its_configuration_as_utc() -> None:
    controller = CommandController(Answers({"scontrol": "Configuration data as of 2026-11-29T15:00:00\nX = 1\n"}), timedelta(seconds=1))
    assert await controller.time() == datetime(2026, 11, 29, 15, 0, tzinfo=UTC)


async def test_a_controller_that_gives_no_answer_cannot_be_told() -> None:
    assert await CommandController(Answers({}), timedelta(seconds=1)).time() is None
