"""Our own log lines and the SDK's hold no secret of what they quote."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from workers.commands.logging import log_to

TOKEN = "hf_" + "Zx9" * 12


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    stream = io.StringIO()
    log_to(stream)
    yield stream
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def test_an_events_fields_and_traceback_hold_no_secret_and_stay_json(stream: io.StringIO) -> None:
    try:
        raise ValueError(f"cannot pull with password=hunter22 and Cookie: {TOKEN}")
    except ValueError:
        structlog.get_logger().exception("pull_failed", job=f"train-{TOKEN}", nodes=["node-001", f"x {TOKEN}"])
    line = json.loads(stream.getvalue())
    assert line["job"] == "train-[redacted: Hugging Face token]"
    assert TOKEN not in stream.getvalue()
    assert "hunter22" not in stream.getvalue()
    assert "Traceback" in line["exception"]


def test_the_sdks_lines_hold_no_secret(stream: io.StringIO) -> None:
    try:
        raise ValueError(f"refused {TOKEN}")
    except ValueError:
        logging.getLogger("temporalio.worker").exception("activity failed: https://bob:hunter22@x")
    assert "activity failed: https://[redacted: URL credentials]@x" in stream.getvalue()
    assert "ValueError: refused [redacted: Hugging Face token]" in stream.getvalue()
