"""Reading what Slurm lists, of every version."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.records import Job, JobFlag, JobState, NodeFlag, NodeState
from activities.slurm import parsing
from activities.slurm.scheduler import SchedulerUnreachable, SchedulerUnreadable
from tests.slurm.recorded import recorded

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["set", "infinite", "number", "return_code"]), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module", params=["22.05", "24.11"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def listed(version: str) -> tuple[Job, ...]:
    """Every kind of job, as that version listed them."""
    return parsing.jobs_from(recorded(version, "squeue.json"))


@pytest.fixture(scope="module")
def jobs(listed: tuple[Job, ...]) -> dict[str, Job]:
    """The same by name, without arrays and het jobs."""
    return {job.name: job for job in listed if not job.array_job_id and not job.het_job_id}


def a_listing(**fields: Any) -> bytes:
    return json.dumps({"errors": [], "jobs": [{"job_id": 7, "job_state": "RUNNING", **fields}]}).encode()


def one_job(**fields: Any) -> Job:
    (job,) = parsing.jobs_from(a_listing(**fields))
    return job


def a_number(value: int | None) -> dict[str, Any]:
    """A number as data_parser plugins print it."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


class TestRecordedJobs:
    def test_a_running_job_is_read_whole(self, jobs: dict[str, Job]) -> None:
        job = jobs["running"]
        assert (job.job_id, job.state, job.flags, job.reason) == ("1", JobState.RUNNING, (), "")
        assert job.nodes == ("node-001", "node-002")
        assert (job.node_count, job.task_count) == (2, 2)
        assert job.submitted_at is not None
        assert job.started_at is not None
        assert timedelta(0) < job.started_at - job.submitted_at < timedelta(seconds=5)
        assert job.ended_at is None, "the end of a running job is a forecast"
        assert (job.exit_code, job.derived_exit_code) == (None, None)
        assert job.comment == "backstay:mode=approve"
        assert job.admin_comment == 'backstay: held by incident 3, "quoted" text'
        assert job.excluded_nodes == ("node-004",)
        assert (job.is_batch, job.may_requeue, job.is_held, job.restart_count) == (True, True, False, 0)

    def test_output_paths_are_patterns_on_22_05_and_expanded_on_24_11(self, version: str, jobs: dict[str, Job]) -> None:
        pattern = version == "22.05"
        assert jobs["running"].stdout_path == f"/home/alice/slurm/{'%x-%j' if pattern else 'running-1'}.out"
        default = "/home/alice/run/slurm-%j.out" if pattern else "/home/alice/slurm/slurm-2.out"
        assert jobs["norequeue"].stdout_path == default, "22.05 leaves the default unsaid"
        assert jobs["interactive"].stdout_path is None, "srun writes to the terminal"

    def test_no_requeue_is_told(self, jobs: dict[str, Job]) -> None:
        assert jobs["norequeue"].may_requeue is False

    def test_an_allocation_is_not_a_batch_job(self, jobs: dict[str, Job]) -> None:
        assert jobs["interactive"].is_batch is False

    def test_wait_statuses_become_exit_codes_and_signals(self, jobs: dict[str, Job]) -> None:
        assert (jobs["signalled"].exit_code, jobs["signalled"].exit_signal) == (0, 9)
        assert (jobs["stepfailed"].state, jobs["stepfailed"].exit_code) == (JobState.COMPLETED, 0)
        assert jobs["stepfailed"].derived_exit_code == 7, "a step failed behind exit 0"

    def test_a_requeued_job_waits_for_its_begin_time(self, jobs: dict[str, Job]) -> None:
        job = jobs["requeued"]
        assert (job.state, job.reason, job.restart_count, job.is_held) == (JobState.PENDING, "BeginTime", 1, False)
        assert job.submitted_at is not None
        assert job.eligible_at == job.submitted_at + timedelta(seconds=121)
        assert (job.started_at, job.ended_at, job.nodes) == (None, None, ())

    def test_held_jobs_are_held(self, jobs: dict[str, Job]) -> None:
        assert (jobs["held"].is_held, jobs["held"].reason) == (True, "JobHeldAdmin")
        assert (jobs["failed"].is_held, jobs["failed"].reason) == (True, "job_requeued_in_held_state"), "requeuehold"
        assert not jobs["waiting"].is_held
        assert not jobs["limited"].is_held

    def test_the_base_state_of_a_completing_job_is_told_by_24_11_only(self, version: str, jobs: dict[str, Job]) -> None:
        job = jobs["completing"]
        assert job.state is (JobState.UNKNOWN if version == "22.05" else JobState.CANCELLED)
        assert (job.flags, job.is_ending) == ((JobFlag.COMPLETING,), True)

    def test_the_user_s_time_limit(self, jobs: dict[str, Job]) -> None:
        assert jobs["limited"].time_limit == timedelta(hours=1)
        assert jobs["held"].time_limit is None

    def test_array_tasks_and_het_components_have_the_ids_scontrol_takes(self, version: str, listed: tuple[Job, ...]) -> None:
        assert [job.job_id for job in listed if job.array_job_id] == ["6_0", "6_1", "6_[2-9%2]"]
        assert [job.job_id for job in listed if job.het_job_id] == ["8", "8+1"]
        by_id = {job.job_id: job for job in listed}
        task = by_id["6_1"]
        assert (task.numeric_id, task.array_job_id, task.array_task_id) == (17, 6, 1)
        if version == "22.05":
            assert task.stdout_path == "/home/alice/run/slurm-%A_%a.out"
        else:
            assert task.stdout_path == "/home/alice/slurm/slurm-6_1.out"
            assert by_id["6_[2-9%2]"].stdout_path is None, "Slurm says slurm-6_4294967294.out"


class TestJobsOfDataParsers:
    """The shape of 23.02 and later."""

    def test_states_are_lists(self) -> None:
        job = one_job(job_state=["FAILED", "COMPLETING"], exit_code={"return_code": a_number(3), "signal": {"id": a_number(None)}})
        assert (job.state, job.flags) == (JobState.FAILED, (JobFlag.COMPLETING,))
        assert (job.exit_code, job.exit_signal) == (3, None)

    def test_a_signal_is_told_apart_from_an_exit_code(self) -> None:
        exit_code = {"status": ["SIGNALED"], "return_code": a_number(None), "signal": {"id": a_number(9), "name": "SIGKILL"}}
        job = one_job(job_state=["FAILED"], exit_code=exit_code)
        assert (job.exit_code, job.exit_signal) == (0, 9)

    def test_signal_ids_of_23_02_are_read_too(self) -> None:
        job = one_job(job_state=["FAILED"], exit_code={"return_code": 0, "signal": {"signal_id": 15, "name": "SIGTERM"}})
        assert job.exit_signal == 15

    def test_unset_and_infinite_numbers_are_unknown(self) -> None:
        job = one_job(time_limit={"set": True, "infinite": True, "number": 0}, node_count=a_number(None), tasks=a_number(8))
        assert (job.time_limit, job.node_count, job.task_count) == (None, None, 8)

    def test_priority_zero_is_held_only_while_pending(self) -> None:
        assert one_job(job_state=["PENDING"], priority=a_number(0)).is_held
        assert not one_job(job_state=["PENDING"], priority=a_number(None)).is_held
        assert not one_job(job_state=["RUNNING"], priority=a_number(0)).is_held

    def test_zero_is_no_array_and_no_het_job(self) -> None:
        job = one_job(array_job_id=a_number(0), array_task_id=a_number(None), het_job_id=a_number(0), het_job_offset=a_number(0))
        assert (job.job_id, job.array_job_id, job.het_job_id) == ("7", None, None)

    def test_the_expanded_path_of_25_05_goes_before_the_pattern(self) -> None:
        job = one_job(standard_output="/r/%j.out", stdout_expanded="/r/7.out", current_working_directory="/r", batch_flag=True)
        assert job.stdout_path == "/r/7.out"

    def test_the_stable_identity_of_25_11(self) -> None:
        assert one_job(step_id={"sluid": "s1F3K", "job_id": 7}).sluid == "s1F3K"


class TestSingleFlagsOf2205:
    @pytest.mark.parametrize(
        ("word", "base"),
        [
            ("CONFIGURING", JobState.RUNNING),
            ("SPECIAL_EXIT", JobState.PENDING),
            ("REQUEUED", JobState.UNKNOWN),
            ("STAGE_OUT", JobState.UNKNOWN),
            ("SOMETHING_NEW", JobState.UNKNOWN),
        ],
    )
    def test_the_base_state_is_told_only_where_it_can_be_one_alone(self, word: str, base: JobState) -> None:
        assert one_job(job_state=word).state is base


class TestNodes:
    def test_nodes_of_22_05(self) -> None:
        nodes = {node.name: node for node in parsing.nodes_from(recorded("22.05", "sinfo.json"))}
        assert list(nodes) == ["node-001", "node-002", "node-003", "node-004"]
        assert (nodes["node-001"].state, nodes["node-001"].flags) == (NodeState.MIXED, ())
        assert (nodes["node-003"].flags, nodes["node-003"].reason) == ((NodeFlag.DRAIN,), "backstay: xid 79")
        assert not nodes["node-003"].can_take_jobs
        assert (nodes["node-004"].state, nodes["node-004"].flags) == (NodeState.DOWN, (NodeFlag.NOT_RESPONDING,))
        assert nodes["node-004"].is_lost
        assert nodes["node-001"].partitions == ("train", "all")
        assert nodes["node-001"].booted_at is not None

    def test_states_and_flags_in_one_list(self) -> None:
        document = {"nodes": [{"name": "n1", "state": ["IDLE", "DRAIN", "REBOOT_ISSUED", "DYNAMIC_NORM"], "partitions": ["a"]}]}
        (node,) = parsing.nodes_from(json.dumps(document).encode())
        assert (node.state, node.flags) == (NodeState.IDLE, (NodeFlag.DRAIN, NodeFlag.REBOOT_REQUESTED))

    def test_nodes_of_24_11(self) -> None:
        nodes = {node.name: node for node in parsing.nodes_from(recorded("24.11", "nodes.json"))}
        assert (nodes["node-003"].state, nodes["node-003"].flags) == (NodeState.MIXED, (NodeFlag.DRAIN,))
        assert (nodes["node-004"].state, nodes["node-004"].flags) == (NodeState.IDLE, (NodeFlag.COMPLETING,))
        assert nodes["node-001"].partitions == ("train", "all")
        assert nodes["node-001"].booted_at is not None


class TestAnswersNotToTrust:
    @pytest.mark.parametrize("name", ["squeue-controller-down.json", "sinfo-controller-down.json"])
    def test_a_dead_controller_inside_a_success(self, name: str) -> None:
        with pytest.raises(SchedulerUnreachable, match="scontrol ping"):
            parsing.jobs_from(recorded("22.05", name))

    def test_an_error_inside_a_success_is_not_an_empty_cluster(self) -> None:
        with pytest.raises(SchedulerUnreadable, match="parser exploded"):
            parsing.jobs_from(b'{"errors": [{"error": "parser exploded"}], "jobs": []}')

    @pytest.mark.parametrize("document", [b"", b"[]", b"slurm 20.11", b'{"errors": []}', b'{"jobs": [3]}', b'{"jobs": [{"name": "x"}]}'])
    def test_another_shape_is_said_to_be_one(self, document: bytes) -> None:
        with pytest.raises(SchedulerUnreadable):
            parsing.jobs_from(document)

    def test_bytes_that_are_not_utf8_and_floats_that_are_no_numbers_are_survived(self) -> None:
        (job,) = parsing.jobs_from(b'{"jobs": [{"job_id": 7, "job_state": "RUNNING", "comment": "caf\xe9", "tasks": NaN}]}')
        assert job.comment == "caf\ufffd"
        assert job.task_count is None

    def test_one_unreadable_node_expression_blinds_us_to_nothing_else(self) -> None:
        job = one_job(excluded_nodes="node-[1-", nodes="node-[1-2]")
        assert (job.excluded_nodes, job.nodes) == (("node-[1-",), ("node-1", "node-2"))

    @given(st.dictionaries(st.sampled_from(["job_state", "nodes", "exit_code", "priority", "tasks", "start_time", "array_task_id"]), JSON))
    def test_no_value_of_a_known_field_breaks_reading(self, fields: dict[str, Any]) -> None:
        assert one_job(**fields).job_id


class TestQueuedArrayTasks:
    @pytest.mark.parametrize("task", ["12_4", "12_6", "12_9"])
    def test_a_task_waits_among_others(self, task: str) -> None:
        job = one_job(job_id=12, job_state="PENDING", array_job_id=12, array_task_string="1-4:3,6,8-9%2")
        assert parsing.holds_array_task(job, task)

    @pytest.mark.parametrize("task", ["12_2", "12_7", "13_4", "12", "1_4"])
    def test_others_do_not(self, task: str) -> None:
        job = one_job(job_id=12, job_state="PENDING", array_job_id=12, array_task_string="1-4:3,6,8-9%2")
        assert not parsing.holds_array_task(job, task)


def test_a_comment_keeps_what_is_meant_for_us_and_no_secret() -> None:
    job = one_job(comment="backstay:mode=auto HF_TOKEN=hf_abcdefghijklmnopqrst")
    assert job.comment == "backstay:mode=auto HF_TOKEN=[redacted: Hugging Face token]"


class TestListingAfterListing:
    def test_an_entry_that_has_not_changed_keeps_its_record(self) -> None:
        listings = parsing.Listings()
        (before,) = listings.jobs_from(a_listing(comment="backstay"))
        (after,) = listings.jobs_from(a_listing(comment="backstay"))
        assert after is before

    def test_an_entry_that_has_changed_is_read_anew_and_one_that_went_is_gone(self) -> None:
        listings = parsing.Listings()
        listings.jobs_from(recorded("24.11", "squeue.json"))
        (job,) = listings.jobs_from(a_listing(job_state="FAILED"))
        assert job.state is JobState.FAILED

    def test_half_a_character_in_a_comment_is_no_obstacle(self) -> None:
        listing = a_listing(comment="half a \ud800 character")
        listings = parsing.Listings()
        assert listings.jobs_from(listing) == listings.jobs_from(listing)
