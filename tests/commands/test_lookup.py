"""What `show` and `jobs` learn from activities in flight: where a watch stands, what it cannot see, which step is tried again."""

import asyncio
import json
import re
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import ActivityType, Payload, Payloads
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client, WorkflowExecutionStatus

from activities.discover import Discovered
from activities.records import Cursor, Mode, Progress
from activities.sending import Sending
from tests.builders import NOON, a_key, an_attempt
from tests.commands.states import a_state
from workers.commands.errors import CommandFailed
from workers.commands.lookup import Live, blindness, discovery_troubles, find_job, live_from, troubles_in, unwatched
from workflows.state import Stage, TrainingJobState

STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
SILENT = "Slurm has not answered since 2026-01-01 00:00:00 UTC; `backstay doctor` tells why"


def a_watch(
    *,
    blind: str | None = None,
    state: PendingActivityState.ValueType = STARTED,
    failed: str | None = None,
    mode: Mode | None = None,
) -> PendingActivityInfo:
    cursor = Cursor(restart_count=0, progress=Progress(iteration=40), blind=blind, mode=mode)
    beat = Payload(metadata={"encoding": b"json/plain"}, data=cursor.model_dump_json().encode())
    return PendingActivityInfo(
        activity_type=ActivityType(name="watch_attempt"),
        state=state,
        attempt=1 if failed is None else 2,
        heartbeat_details=Payloads(payloads=[beat]),
        last_failure=None if failed is None else Failure(message=failed),
    )


@pytest.mark.parametrize(
    ("stage", "shown"),
    [(Stage.WATCHING, Mode.AUTO), (Stage.VERIFYING, Mode.AUTO), (Stage.FOLLOWING, Mode.AUTO), (Stage.AWAITING_DECISION, Mode.APPROVE)],
)
def test_the_mode_shown_is_the_one_the_watching_worker_would_act_by_and_of_what_waits_its_own(stage: Stage, shown: Mode) -> None:
    state = TrainingJobState(key=a_key(), attempt=an_attempt(), mode=Mode.APPROVE, stage=stage)
    assert live_from([a_watch(mode=Mode.AUTO)]).corrects(state).mode is shown
    assert live_from([a_watch()]).corrects(state).mode is Mode.APPROVE


def test_what_a_requeue_tells_before_it_is_sent_is_no_watchs_word() -> None:
    words = Sending("requeue_job", 0, NOON).in_words
    step = a_step(attempt=3, failed="slurmctld is silent")
    step.heartbeat_details.payloads.append(Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(words).encode()))
    live = live_from([step])
    assert (live.progress, live.mode) == (None, None)
    assert live.warnings == ("requeue_job failed 2 times and is tried again: slurmctld is silent",)


def a_step(*, attempt: int, failed: str | None) -> PendingActivityInfo:
    return PendingActivityInfo(
        activity_type=ActivityType(name="requeue_job"),
        state=STARTED,
        attempt=attempt,
        last_failure=None if failed is None else Failure(message=failed),
    )


def test_a_watch_tells_its_progress_and_what_it_cannot_see() -> None:
    live = live_from([a_watch(blind=SILENT)])
    assert live.progress is not None
    assert (live.progress.iteration, live.warnings, live.blind) == (40, (SILENT,), SILENT)


def test_what_a_job_cannot_be_seen_by_is_what_its_present_watch_says() -> None:
    passed_on = a_state(cursor=Cursor(restart_count=0, blind=SILENT))
    assert blindness(passed_on, live_from([a_watch(blind="another")])) == "another"
    assert blindness(passed_on, live_from([a_watch()])) is None, "it sees again"
    assert blindness(passed_on, Live()) == SILENT, "the watch has not told anything yet"
    assert blindness(a_state(attempt=an_attempt(restart_count=1), cursor=passed_on.cursor), Live()) is None
    assert blindness(a_state(stage=Stage.FOLLOWING, cursor=passed_on.cursor), Live()) is None
    assert blindness(a_state(), Live()) is None


def test_the_progress_of_the_attempt_before_is_not_told_as_that_of_one_that_waits_to_run() -> None:
    assert live_from([a_watch()], restart_count=1).progress is None


def test_a_watch_that_went_on_after_a_failure_is_no_matter_of_concern() -> None:
    assert live_from([a_watch(failed="activity Heartbeat timeout")]).warnings == ()


def test_a_watch_that_nobody_has_taken_up_again_is() -> None:
    (warning,) = live_from([a_watch(failed="activity Heartbeat timeout", state=SCHEDULED)]).warnings
    assert warning == "watch_attempt failed once and waits for a worker: activity Heartbeat timeout"


def test_a_step_that_is_tried_again_says_how_often_and_why() -> None:
    (warning,) = live_from([a_step(attempt=4, failed="squeue: Unable to contact slurm controller")]).warnings
    assert warning == "requeue_job failed 3 times and is tried again: squeue: Unable to contact slurm controller"


def test_a_step_in_its_first_try_says_nothing() -> None:
    assert live_from([a_step(attempt=1, failed=None)]).warnings == ()


def test_a_workflow_ended_by_hand_is_not_shown_as_if_it_watched_on() -> None:
    [said] = unwatched(WorkflowExecutionStatus.TERMINATED)
    assert "(terminated), so nobody watches this job any more" in said
    assert unwatched(WorkflowExecutionStatus.RUNNING) == unwatched(WorkflowExecutionStatus.COMPLETED) == ()


def a_discovery(*, state: PendingActivityState.ValueType = STARTED, **told: Any) -> PendingActivityInfo:
    beat = Payload(metadata={"encoding": b"json/plain"}, data=Discovered(since=NOON, **told).model_dump_json().encode())
    return PendingActivityInfo(activity_type=ActivityType(name="discover_jobs"), state=state, heartbeat_details=Payloads(payloads=[beat]))


def test_why_new_jobs_are_not_seen_is_told() -> None:
    assert troubles_in([a_discovery()]) == ()
    [silent] = troubles_in([a_discovery(unreachable_since=NOON)])
    assert silent == "Slurm has not answered since 2026-01-05 12:00:00 UTC, so new jobs are not seen; `backstay doctor` tells why"
    [nobody] = troubles_in([a_discovery(state=SCHEDULED)])
    assert "start `backstay worker`" in nobody


async def test_a_cluster_that_nobody_ever_watched_is_told(client: Client) -> None:
    [never] = await discovery_troubles(client, uuid4().hex)
    assert "has never been watched" in never


@pytest.mark.parametrize(
    ("job_id", "mend"), [("26", "name one, such as 26_7"), ("26+1", "by its leader: 26"), ("27", "see `backstay jobs --all`")]
)
async def test_whoever_names_an_array_or_a_component_is_told_what_to_name_instead(client: Client, job_id: str, mend: str) -> None:
    cluster = uuid4().hex
    await client.start_workflow("TrainingJob", id=f"job/{cluster}/26_7/1795991940", task_queue="nobody")
    async with asyncio.timeout(30):
        while True:
            try:
                await find_job(client, cluster, "26_7")
            except CommandFailed:  # not listed yet: the server's lists come a moment after its histories
                await asyncio.sleep(0.05)
            else:
                break
    with pytest.raises(CommandFailed, match=re.escape(mend)):
        await find_job(client, cluster, job_id)
