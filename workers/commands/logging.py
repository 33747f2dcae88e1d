"""Where our own log lines go: one JSON object a line on standard error for services, a file while a demo tells its story."""

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from activities.redaction import redact, redact_value


def log_to(stream: TextIO = sys.stderr) -> None:
    """Send structlog's and the SDK's lines to a stream, as JSON with UTC times."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _without_secrets,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(stream=stream, level=logging.WARNING, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_LinesWithoutSecrets("%(asctime)s %(levelname)s %(name)s: %(message)s"))


def _without_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Job names, log lines and other programs' errors are logged as they came."""
    left: EventDict = redact_value(event)
    return left


class _LinesWithoutSecrets(logging.Formatter):
    """For the SDK's lines, whose tracebacks quote what failed."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def log_to_file(path: Path) -> TextIO:
    """Send them to a file, which the caller closes."""
    stream = path.open("a", encoding="utf-8")
    log_to(stream)
    return stream
