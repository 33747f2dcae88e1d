"""Slurm's and Temporal's errors as one sentence with the mend. No traceback reaches a person for an error named here; an error not named
here is a defect of ours and does show its traceback.

`main` imports this when something went wrong, not before: what it names takes longer to import than most commands to run.
"""

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from activities.slurm.scheduler import PermissionDenied, SchedulerError, SchedulerUnreachable, SchedulerUnreadable
from workers.client import SearchAttributesMissing, TemporalUnreachable
from workers.commands.errors import ExitCode
from workers.embedded.temporal import EmbeddedTemporalFailed
from workers.reaching import NotReachableFromHere

CANNOT_WRITE = "shard status unknown"
"""What Temporal says to everything once a write to its database failed (seen with server 1.32 on a full disk)."""


def refusal(error: WorkflowUpdateFailedError) -> str:
    """The workflow's own sentence, which stands in the innermost failure."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return getattr(cause, "message", "") or str(cause)


def explain(error: BaseException) -> tuple[ExitCode, str] | None:
    """The exit code and the sentence for an error that is no `CommandFailed`; None when it is none that people should have to read."""
    match error:
        case SchedulerUnreachable() | SchedulerUnreadable():
            return ExitCode.UNREACHABLE, str(error)
        case PermissionDenied():
            return ExitCode.BAD, f"{error}; run it as root, SlurmUser or a Slurm operator"
        case SchedulerError():
            return ExitCode.BAD, str(error)
        case NotReachableFromHere():
            return ExitCode.USAGE, str(error)
        case SearchAttributesMissing():
            return ExitCode.BAD, str(error)
        case TemporalUnreachable() | EmbeddedTemporalFailed():
            return ExitCode.UNREACHABLE, str(error)
        case RPCError() if error.status is RPCStatusCode.UNAVAILABLE and CANNOT_WRITE in error.message:
            return ExitCode.UNREACHABLE, "Temporal cannot write its database, whose disk may be full; `backstay doctor` tells"
        case RPCError() if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
            return ExitCode.UNREACHABLE, f"Temporal gave no answer ({error.message}); see `backstay doctor`"
        case RPCError() if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
            return ExitCode.UNREACHABLE, f"Temporal refused us ({error.message}); check temporal.api_key_file and the TLS keys"
        case RPCError():
            return ExitCode.BAD, f"Temporal said no ({error.message.rstrip('.')}); see `backstay doctor`"
        case _:
            return None
