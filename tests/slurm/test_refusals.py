"""What Slurm says, and what it means. The texts were recorded on 22.05.8 with the controller up, down, and as another user."""

import pytest

from activities.slurm import scheduler as s
from activities.slurm.refusals import error_for

RECORDED = [
    ("Invalid job id specified for job 9999", s.JobUnknown),
    ("9999_3: Invalid job id specified", s.JobUnknown),
    ("slurm_load_jobs error: Invalid job id specified", s.JobUnknown),
    ("job script retrieval failed: Invalid job id specified", s.JobUnknown),
    ("Job is pending execution for job 7", s.JobPending),
    ("4_1-5: Job is pending execution", s.JobPending),
    ("Job is no longer pending execution for job 1", s.JobNotPending),
    ("Job has already finished for job 5", s.JobFinished),
    ("Kill job error on job id 1: Job/step already completing or completed", s.JobFinished),
    ("Requested operation is presently disabled for job 2", s.RequeueDisabled),
    ("Only batch jobs are accepted or processed for job 15", s.NotABatchJob),
    ("job script retrieval failed: Job script not specified", s.NotABatchJob),
    ("Invalid node name specified for job 7", s.NodeNameInvalid),
    ("slurm_update error: Invalid node name specified", s.NodeNameInvalid),
    ("Access/permission denied for job 3", s.PermissionDenied),
    ("slurm_update error: Invalid user id", s.PermissionDenied),
    ("Job not heterogeneous job leader for job 6", s.SchedulerRefused),
    ("slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)", s.SchedulerUnreachable),
    ("Unexpected message received for job 1", s.SchedulerUnreachable),
    ("slurm_load_jobs error: Socket timed out on send/recv operation", s.SchedulerUnreachable),
    ("slurm_load_jobs error: Zero Bytes were transmitted or received", s.SchedulerUnreachable),
]


@pytest.mark.parametrize(("said", "meaning"), RECORDED)
def test_slurm_s_own_words_become_types(said: str, meaning: type[s.SchedulerError]) -> None:
    assert type(error_for("scontrol requeue 7", said)) is meaning


def test_no_answer_goes_before_any_reading_of_an_answer() -> None:
    error = error_for(
        "scontrol hold 7", "Invalid job id specified\nslurm_suspend error: Unable to contact slurm controller (connect failure)"
    )
    assert isinstance(error, s.SchedulerUnreachable)


def test_an_unknown_text_is_a_refusal_that_quotes_it() -> None:
    error = error_for("scontrol requeue 7", "The moon is full")
    assert type(error) is s.SchedulerRefused
    assert "scontrol requeue 7: The moon is full" in str(error)


def test_a_failure_without_a_word_is_no_refusal() -> None:
    assert type(error_for("scontrol show config", " \n")) is s.SchedulerUnreadable
