"""Builders for a job's workflow state, beside the records of tests/builders.py."""

from typing import Any

from activities.records import Mode, Progress
from tests.builders import a_job, a_key, an_attempt
from workflows.state import TrainingJobState


def a_state(**changes: Any) -> TrainingJobState:
    """A watched job, healthy, in its first attempt."""
    defaults: dict[str, Any] = {
        "key": a_key(),
        "mode": Mode.AUTO,
        "job": a_job(),
        "attempt": an_attempt(),
        "progress": Progress(iteration=40, checkpoint_iteration=40),
        "summary": "no fault seen",
    }
    return TrainingJobState(**{**defaults, **changes})
