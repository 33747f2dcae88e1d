"""The program `backstay`: its commands by name, and how an error becomes an exit code and one sentence.

Each command lives in a file of its own, which is imported when the command is called and not before: Temporal's SDK alone takes
longer to import than `diagnose` to read a small log. `main` is the entry point of the package.
"""

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
    "jobs": ("jobs", "List the watched jobs, newest first, and which of them need you: to decide, or because nothing was done."),
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
    code = run_to_exit_code()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):  # `backstay jobs | head`: the reader has seen enough
            stream.flush()
    # Not sys.exit: a thread of the Temporal SDK's native part may still be about to take the interpreter's lock, and doing so
    # while the interpreter is being torn down aborts the process (seen with 1.35.0 after a refused connection).
    os._exit(code)


def run_to_exit_code() -> int:
    """Run the command named in `sys.argv` and say in one sentence what went wrong, where something did."""
    try:
        program(sys.argv[1:])()
    except SystemExit as ended:  # how the framework reports usage errors and `typer.Exit`
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # what shells expect of a program that Ctrl-C ended
    except BrokenPipeError:
        return ExitCode.DONE
    except CommandFailed as error:
        complain(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last line of defence; what is no known error shows its traceback
        known: tuple[ExitCode, str] | None = import_module("workers.commands.explaining").explain(error)
        if known is None:
            traceback.print_exception(error)
            return ExitCode.BAD
        code, sentence = known
        complain(sentence)
        return code
    return ExitCode.DONE


if __name__ == "__main__":
    main()
