"""The program `backstay`: its commands by name, and how an error becomes an exit code and one sentence.

Each command lives in a file of its own; this one only lists them. `main` is the entry point of the package.
"""

import os
import signal
import sys
import traceback
from contextlib import suppress

import typer

from workers.commands.approve import approve, reject
from workers.commands.audit import audit
from workers.commands.breaker import breaker
from workers.commands.demo import demo
from workers.commands.diagnose import diagnose
from workers.commands.doctor import doctor
from workers.commands.errors import ExitCode, explain
from workers.commands.failopen import failopen
from workers.commands.jobs import jobs
from workers.commands.options import complain
from workers.commands.policy import policy
from workers.commands.show import show
from workers.commands.up import up
from workers.commands.worker import worker

app = typer.Typer(
    name="backstay",
    help="Keeps distributed training runs alive on Slurm: detects a fault, diagnoses it, recommends, acts, verifies a new checkpoint.",
    epilog="Exit codes: 0 done, 1 the thing asked about is bad, 2 usage or configuration, 3 a service cannot be reached.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, up, worker, jobs, show, approve, reject, audit, breaker, doctor, failopen, diagnose):
    app.command()(command)
app.add_typer(policy, name="policy")


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
        app()
    except SystemExit as ended:  # how the framework reports usage errors and `typer.Exit`
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # what shells expect of a program that Ctrl-C ended
    except BrokenPipeError:
        return ExitCode.DONE
    except Exception as error:  # noqa: BLE001 - the last line of defence; what is no known error shows its traceback
        known = explain(error)
        if known is None:
            traceback.print_exception(error)
            return ExitCode.BAD
        code, sentence = known
        complain(sentence)
        return code
    return ExitCode.DONE


if __name__ == "__main__":
    main()
