"""The program `backstay`: its commands by name, and how an error becomes an exit code and one sentence.

Each command lives in a file of its own; this one only lists them. `main` is the entry point of the package.
"""

import os
import sys

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
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)  # what shells expect of a program that Ctrl-C ended
    except BrokenPipeError:
        # `backstay jobs | head`: the reader has seen enough. Python would complain once more while flushing at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.DONE)
    except Exception as error:  # whatever `explain` does not know is raised again
        known = explain(error)
        if known is None:
            raise
        code, sentence = known
        complain(sentence)
        sys.exit(code)


if __name__ == "__main__":
    main()
