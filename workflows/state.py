"""What a job's workflow remembers: one record, passed on by continue-as-new and answered to the query `state`.

Holds no rules; `training_job.py` writes it, the commands read it.
"""

from datetime import timedelta
from enum import StrEnum

from pydantic import AwareDatetime, Field

from activities.records import (
    Attempt,
    Cursor,
    FileCursor,
    Incident,
    Job,
    JobHistory,
    JobKey,
    Mode,
    OptIn,
    Progress,
    Record,
    SymptomKind,
    WatchResult,
)


class Stage(StrEnum):
    """Where the job stands; the search attribute `BackstayState` holds it."""

    WATCHING = "watching"
    DIAGNOSING = "diagnosing"
    AWAITING_DECISION = "awaiting_decision"
    ACTING = "acting"
    VERIFYING = "verifying"
    FOLLOWING = "following"
    ENDED = "ended"


class Terms(Record):
    """What the workflow needs to know of the configuration: times only, no judgement."""

    heartbeat_timeout: timedelta = timedelta(seconds=30)
    opinion_deadline: timedelta = timedelta(seconds=60)
    opinions: tuple[str, ...] = Field(default=(), description="outside opinions to ask, by activity name")
    running_within: timedelta = timedelta(hours=24)
    stepping_within: timedelta = timedelta(minutes=30)
    checkpoint_within: timedelta = timedelta(hours=4)


class TrainingJobState(Record):
    """One watched job's whole memory."""

    key: JobKey
    mode: Mode
    opt_in: OptIn = OptIn(opted_in=True)
    terms: Terms = Terms()
    stage: Stage = Stage.WATCHING
    job: Job | None = None
    attempt: Attempt
    progress: Progress = Progress()
    newest_checkpoint: int | None = Field(default=None, description="iteration of the newest checkpoint seen, whichever attempt wrote it")
    stepped_before: bool = Field(default=False, description="the newest attempt that could tell, before this one, was seen to step")
    cursor: Cursor | None = None
    logs_began: tuple[FileCursor, ...] = Field(default=(), description="where this attempt's part of the logs begins")
    warnings: tuple[str, ...] = ()
    incidents: tuple[Incident, ...] = Field(default=(), description="the newest last; at most `KEPT_INCIDENTS`")
    incidents_dropped: int = 0
    history: JobHistory = JobHistory()
    known_symptoms: tuple[SymptomKind, ...] = Field(default=(), description="reported for this attempt already and left alone")
    known_onset: AwareDatetime | None = None
    carried: WatchResult | None = Field(default=None, description="a symptom met while verifying: the next incident begins with it")
    summary: str = ""


HELD_BY_GUARD_RAILS = "held_by_guard_rails"
"""The step of an outcome by which `approve` knows that what it approved waits again."""

KEPT_INCIDENTS = 20
KEPT_WARNINGS = 20
