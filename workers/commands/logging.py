"""Where log lines go: one JSON object a line on standard error for services, whoever speaks (we, the Temporal SDK, asyncio, a warning, an
uncaught exception); a file while a demo tells its story. A command that only asks keeps its standard output for the answer.
"""

import logging
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, cast

import structlog
import typer
from structlog.typing import EventDict, WrappedLogger

from activities.redaction import redact_value
from workers.commands.errors import CommandFailed, ExitCode

LIBRARY_SAID = "library_said"
"""The event of every line that is not ours: what a library writes is prose, so it stands under `message`."""


def log_to(stream: TextIO | None = None) -> None:
    """Send every log line of this process to a stream (default: standard error) as JSON with UTC times."""
    lines = cast(TextIO, _Lines(stream or sys.stderr))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _without_secrets,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=structlog.WriteLoggerFactory(lines),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, _library_said],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _without_secrets,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    _log_what_nobody_catches()


def _without_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Job names, log lines and other programs' errors are logged as they came."""
    left: EventDict = redact_value(event)
    return left


def log_to_file(path: Path) -> TextIO:
    """Send them to a file, which the caller closes."""
    stream = path.open("a", encoding="utf-8")
    log_to(stream)
    return stream


def keep_standard_output_clean() -> None:
    """For commands that ask something and end: our own lines and the libraries' errors go to standard error. What the SDK retries is not
    told line by line; how it ended is the command's one sentence."""
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")


@contextmanager
def serving() -> Iterator[None]:
    """While open, this process is a service: its standard error is a log, and what ends it is told there as one line like every other.

    On a terminal a person reads the sentence that `main` prints, so there the error passes through.
    """
    log_to()
    try:
        yield
    except Exception as error:
        if sys.stderr.isatty():
            raise
        raise typer.Exit(_told(error)) from error


def _told(error: Exception) -> ExitCode:
    """Logs what ended the service, and says with which exit code."""
    log = structlog.get_logger()
    known: tuple[ExitCode, str] | None
    if isinstance(error, CommandFailed):
        known = error.exit_code, str(error)
    else:
        known = import_module("workers.commands.explaining").explain(error)
    if known is None:
        log.critical("service_failed", exit_code=int(ExitCode.BAD), exc_info=error)
        return ExitCode.BAD
    code, why = known
    log.error("service_ended", why=why, exit_code=int(code))
    return code


def _library_said(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """One line of a library: who said what, when it said it, and what the SDK's native part gives as fields."""
    record: logging.LogRecord = event["_record"]
    event["message"], event["event"], event["logger"] = event["event"], LIBRARY_SAID, record.name
    event["timestamp"] = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
    if (native := getattr(record, "temporal_log", None)) is not None:
        with suppress(Exception):  # a field that is no JSON of theirs must not cost the line
            event["fields"] = dict(native.fields)
    return event


def _log_what_nobody_catches() -> None:
    """Tracebacks that Python itself would print go the same way."""
    log = structlog.get_logger()

    def uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        log.critical("exception_not_caught", exc_info=(kind, error, trace))

    def in_a_thread(told: threading.ExceptHookArgs) -> None:
        if told.exc_value is not None and not isinstance(told.exc_value, SystemExit):
            thread = told.thread.name if told.thread else None
            log.critical("exception_not_caught", thread=thread, exc_info=(told.exc_type, told.exc_value, told.exc_traceback))

    def unraisable(told: Any) -> None:
        log.error("exception_ignored", where=repr(told.object)[:300], why=told.err_msg, exc_info=told.exc_value)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_a_thread, unraisable


class _Lines:
    """A stream whose failure never reaches who logs: on a full disk a worker goes on without its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: closed
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()
