"""Where our own log lines go: one JSON object a line on standard error for services, a file while a demo tells its story."""

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog


def log_to(stream: TextIO = sys.stderr) -> None:
    """Send structlog's and the SDK's lines to a stream, as JSON with UTC times."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(stream=stream, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)


def log_to_file(path: Path) -> TextIO:
    """Send them to a file, which the caller closes."""
    stream = path.open("a", encoding="utf-8")
    log_to(stream)
    return stream
