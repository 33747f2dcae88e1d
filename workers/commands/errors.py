"""How a command ends: the exit codes, and every error a person may meet as one sentence with its mend.

`main` calls `explain` for whatever a command raised; commands raise `CommandFailed` themselves. No traceback reaches a
person for an error named here; an error not named here is a defect of ours and does show its traceback.
"""

from enum import IntEnum

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.slurm.scheduler import PermissionDenied, SchedulerError, SchedulerUnreachable, SchedulerUnreadable
from workers.client import SearchAttributesMissing, TemporalUnreachable
from workers.embedded.temporal import EmbeddedTemporalFailed


class ExitCode(IntEnum):
    """What scripts may rely on."""

    DONE = 0
    BAD = 1  # the thing asked about is bad, or the answer to what was asked is no
    USAGE = 2  # usage or configuration
    UNREACHABLE = 3  # a service gives no answer


class CommandFailed(Exception):
    """A command cannot do what was asked. The message is one sentence with the mend."""

    exit_code = ExitCode.BAD


class BadUsage(CommandFailed):
    """What was asked for, or the configuration, cannot be right."""

    exit_code = ExitCode.USAGE


class Unreachable(CommandFailed):
    """A service that is needed gives no answer."""

    exit_code = ExitCode.UNREACHABLE


def refusal(error: WorkflowUpdateFailedError) -> str:
    """The workflow's own sentence, which stands in the innermost failure."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return getattr(cause, "message", "") or str(cause)


def explain(error: BaseException) -> tuple[ExitCode, str] | None:
    """The exit code and the sentence for an error, or None when it is none that people should have to read."""
    match error:
        case CommandFailed():
            return error.exit_code, str(error)
        case SchedulerUnreachable() | SchedulerUnreadable():
            return ExitCode.UNREACHABLE, str(error)
        case PermissionDenied():
            return ExitCode.BAD, f"{error}; run it as root, SlurmUser or a Slurm operator"
        case SchedulerError():
            return ExitCode.BAD, str(error)
        case SearchAttributesMissing():
            return ExitCode.BAD, str(error)
        case TemporalUnreachable() | EmbeddedTemporalFailed():
            return ExitCode.UNREACHABLE, str(error)
        case RPCError() if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
            return ExitCode.UNREACHABLE, f"Temporal gave no answer ({error.message}); see `backstay doctor`"
        case RPCError() if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
            return ExitCode.UNREACHABLE, f"Temporal refused us ({error.message}); check temporal.api_key_file and the TLS keys"
        case RPCError():
            return ExitCode.BAD, f"Temporal said no: {error.message}"
        case _:
            return None
