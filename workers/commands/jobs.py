"""`backstay jobs`: every watched job of the cluster and where it stands."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from activities.configuration import Configuration
from activities.slurm.hostlist import collect
from workers.client import connect
from workers.commands.lookup import Found, read_jobs
from workers.commands.options import ConfigOption, JsonOption, open_configuration, run
from workers.commands.shapes import Json, job_row, pending_recommendation, warnings_of
from workers.commands.standing import cluster_troubles
from workers.commands.terminal import complain, print_json, printable, screen, tell
from workers.commands.words import action_in_words, clipped

LONGEST_NAME = 40  # letters; Slurm takes names of a thousand, and one of them would push every other column off the screen


def jobs(
    config: ConfigOption = None,
    include_closed: Annotated[bool, typer.Option("--all", help="Also jobs that are no longer watched.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the watched jobs, newest first, and which of them need you: to decide, or because nothing was done."""
    configuration = open_configuration(config)
    found, problems = run(_read(configuration, include_closed))
    for problem in problems:
        complain(problem)
    if as_json:
        print_json([job_row(each.state, each.progress, each.warnings) for each in found])
        return
    if not found:
        tell(f"No job of cluster {configuration.cluster.name} is watched now.")
        return
    screen(wide=True).print(as_table(found))
    for each in found:
        for warning in warnings_of(each.state, each.warnings):
            tell(f"warning: job {each.state.key.job_id}: {warning}")


async def _read(configuration: Configuration, include_closed: bool) -> tuple[list[Found], list[str]]:
    client, cluster = await connect(configuration), configuration.cluster.name
    found, problems = await read_jobs(client, cluster, include_closed=include_closed)
    return found, [*problems, *await cluster_troubles(client, configuration)]


def as_table(found: list[Found]) -> Table:
    """One row a job, each on one line; what waits for a person names its digest, what was left to one says why.

    Only the last column gives way to a narrow window. rich shrinks columns that may wrap before any other, and all alike where none may:
    so the column may and its cells do not."""
    table = Table(box=None)
    for heading in ("JOB", "NAME", "USER", "STATE", "NEEDS YOU", "MODE", "TRY", "ITERATION", "CHECKPOINT", "NODES"):
        table.add_column(heading, no_wrap=True)
    table.add_column(Text("WHERE IT STANDS", no_wrap=True))
    for each in found:
        row = job_row(each.state, each.progress)
        pending = pending_recommendation(each.state)
        nodes = row["job"]["nodes"]
        table.add_row(
            row["job"]["job_id"],
            clipped(row["job"]["name"], LONGEST_NAME),
            row["job"]["user"],
            row["state"],
            row["needs_you"] or "-",
            row["mode"],
            *("-" if row[name] is None else str(row[name]) for name in ("attempt", "iteration", "checkpoint_iteration")),
            collect(nodes) if nodes else "-",
            Text(
                printable(f"{pending.digest}: {action_in_words(pending)}? {row['outcome']}".strip() if pending else _standing(row)),
                no_wrap=True,
                overflow="ellipsis",
            ),
        )
    return table


def _standing(row: Json) -> str:
    """Where a job with nothing to decide stands: why nothing was done, where that is what a person has to mend."""
    return f"{row['needs_you']}: {row['outcome']}" if row["needs_you"] and row["outcome"] else str(row["summary"])
