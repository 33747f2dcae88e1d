"""`backstay doctor`: one line a check, with the mend; the exit code says whether any failed."""

import typer

from workers.commands.checks import Check, Status, all_checks
from workers.commands.controller import CommandController
from workers.commands.errors import ExitCode
from workers.commands.options import ConfigOption, JsonOption, open_configuration, run
from workers.commands.terminal import print_json, tell
from workers.reaching import scheduler_of, transport_of

MARKS = {Status.OK: "ok     ", Status.WARNING: "warning", Status.FAILED: "FAILED "}


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check that Backstay can work here: Temporal, Slurm, its own rights, delays, logs, comments, clocks, evidence."""
    configuration = open_configuration(config)
    controller = CommandController(transport_of(configuration), configuration.cluster.scheduler.timeout)
    checks = run(all_checks(configuration, scheduler_of(configuration), controller))
    if as_json:
        print_json([check.model_dump(mode="json") for check in checks])
    else:
        for check in checks:
            tell(in_one_line(check))
    if any(check.status is Status.FAILED for check in checks):
        raise typer.Exit(ExitCode.BAD)


def in_one_line(check: Check) -> str:
    """Status, what was asked, what was found, and the mend where one is needed."""
    return f"{MARKS[check.status]}  {check.name}: {check.found}" + (f"; {check.mend}" if check.mend else "")
