"""The program `backstay`: its commands by name, and how an error becomes an exit code and one sentence.

Each command lives in a file of its own, which is imported when the command is called and not before: Temporal's SDK alone takes
longer to import than `diagnose` to read a small log. `main` is the entry point of the package.
"""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import typer

from workers.commands.errors import CommandFailed, ExitCode
from workers.commands.terminal import complain

# Command: the module beside this one that has it as a function or a group of the same name, and what the list of commands says of it,
# which is what its own `--help` says (test_main.py holds the two together).
COMMANDS = {
    "demo": ("demo", "Watch a training job break and come back: private Slurm, embedded Temporal, one broken GPU, a new checkpoint."),
    "up": ("up", "Run everything for one Slurm cluster on this machine until SIGINT or SIGTERM; start it again and it goes on."),
    "worker": ("worker", "Run a worker until SIGINT or SIGTERM. Start as many as you like, on machines that reach Slurm and the logs."),
    "jobs": ("jobs", "List the watched jobs, those that need you first: to decide, or because nothing was done; then the newest."),
    "show": ("show", "Show where a job stands and every incident it had: symptom, cause, suspects, recommendation, decision, outcome."),
    "approve": ("approve", "Approve the recommendation that waits for this job; Backstay then acts on it."),
    "reject": ("approve", "Reject the recommendation that waits for this job; Backstay leaves the job alone and goes on watching."),
    "audit": ("audit", "Tell a job's story from its workflow history alone: who did what, when, on which grounds."),
    "breaker": (
        "breaker",
        "Show the cluster's breaker, excluded nodes and recent actions; `trip` it before maintenance, `reset` it after "
        "a storm has been looked into, `clear` a node.",
    ),
    "doctor": ("doctor", "Check that Backstay can work here: Temporal, Slurm, its own rights, delays, logs, comments, clocks, evidence."),
    "failopen": (
        "failopen",
        "Release every job that Backstay holds, without Temporal. For when Backstay is being switched off or is broken.",
    ),
    "diagnose": (
        "diagnose",
        "Say what happened first, why, who is suspected, what was a mere consequence, and what to do. Exit code 1: a failure was found, "
        "0: none.",
    ),
    "policy": ("policy", "Look at the policy."),
}


def program(arguments: Sequence[str]) -> typer.Typer:
    """The command line for these arguments: the command they name as it is, the others as lines in the list of commands."""
    app = typer.Typer(
        name="backstay",
        help="Keeps distributed training runs alive on Slurm: detects a fault, diagnoses it, recommends, acts, verifies a new checkpoint.",
        epilog="Exit codes: 0 done, 1 the thing asked about is bad, 2 usage or configuration, 3 a service cannot be reached.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, (module, sentence) in COMMANDS.items():
        if name != called:
            app.command(name, help=sentence)(_not_called)
            continue
        command = getattr(import_module(f"workers.commands.{module}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _not_called() -> None:
    """Stands for a command in the list of commands."""


def main() -> None:
    """Run the program; ends the process with one of the documented exit codes."""
    if "--json" in sys.argv[1:]:
        keep_standard_output_for_the_document()
    code = run_to_exit_code()
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `backstay jobs | head`: the reader has seen enough
        pass
    except OSError as error:  # a full disk: half a document must not pass for a whole one
        complain(f"the answer could not be written: {error.strerror}; free space on its disk")
        code = ExitCode.BAD
    with suppress(OSError):
        sys.stderr.flush()
    # Not sys.exit: a thread of the Temporal SDK's native part may still be about to take the interpreter's lock, and doing so
    # while the interpreter is being torn down aborts the process (seen with 1.35.0 after a refused connection).
    os._exit(code)


def keep_standard_output_for_the_document() -> None:
    """From here on, only what this program itself prints reaches standard output; whatever a library or its native part writes to file
    descriptor 1 goes to standard error. Programs read the document, and one stray line makes it none."""
    document = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = os.fdopen(document, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def run_to_exit_code() -> int:
    """Run the command named in `sys.argv` and say in one sentence what went wrong, where something did."""
    try:
        app = program(sys.argv[1:])
        if "structlog" in sys.modules:  # by itself it prints to standard output
            import_module("workers.commands.logging").keep_standard_output_clean()
        app()
    except SystemExit as ended:  # how the framework reports usage errors and `typer.Exit`
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # what shells expect of a program that Ctrl-C ended
    except BrokenPipeError:
        return ExitCode.DONE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return unexpected(error)
        complain(f"{error.filename or 'the answer'} could not be written: {error.strerror}; free space on its disk")
        return ExitCode.BAD
    except CommandFailed as error:
        complain(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return unexpected(error)
    return ExitCode.DONE


def unexpected(error: Exception) -> int:
    """The exit code and the sentence of an error that a command did not expect; what is no known error shows its traceback."""
    known: tuple[ExitCode, str] | None = import_module("workers.commands.explaining").explain(error)
    if known is None:
        traceback.print_exception(error)
        return ExitCode.BAD
    code, sentence = known
    complain(sentence)
    return code


if __name__ == "__main__":
    main()
