"""How a command ends: the exit codes, and the errors that commands raise themselves, each one sentence with its mend.

`main` turns them into exit codes; every other error that a person may meet is in explaining.py.
"""

from enum import IntEnum


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
