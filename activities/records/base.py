"""What every record is, and the two conversions all of them share. Imports nothing of ours."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Confidence = Annotated[float, Field(ge=0.0, le=1.0)]


class Record(BaseModel):
    """A frozen value. Unknown fields are ignored, so that an older worker reads a newer worker's history."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def utc(timestamp: float) -> datetime:
    """A UTC time from seconds since the epoch."""
    return datetime.fromtimestamp(timestamp, tz=UTC)


def as_json(record: BaseModel) -> Any:
    """The record as plain JSON values; times are ISO 8601 with a trailing Z."""
    return record.model_dump(mode="json")
