"""`backstay jobs`: every watched job of the cluster and where it stands, once or again and again (`--watch`)."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer
from temporalio.client import Client

from activities.configuration import Configuration
from workers.client import connect
from workers.commands.errors import BadUsage
from workers.commands.job_table import as_lines, counts_in_words, first_things_first, warnings_in_words
from workers.commands.lookup import Found, read_jobs
from workers.commands.options import ConfigOption, JsonOption, open_configuration, run
from workers.commands.refreshing import keep_fresh
from workers.commands.service_health import cluster_troubles
from workers.commands.shapes import job_row
from workers.commands.terminal import complain, print_json, tell, window
from workflows.state import Stage

UserOption = Annotated[list[str] | None, typer.Option("--user", help="Only this user's jobs; may be given again.", show_default=False)]
StateOption = Annotated[
    list[Stage] | None, typer.Option("--state", help="Only jobs in this state; may be given again.", show_default=False)
]


def jobs(
    *,
    config: ConfigOption = None,
    include_closed: Annotated[bool, typer.Option("--all", help="Also jobs that are no longer watched.")] = False,
    user: UserOption = None,
    state: StateOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and keep the list fresh until Ctrl-C; needs a terminal.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the watched jobs, those that need you first: to decide, or because nothing was done; then the newest."""
    configuration = open_configuration(config)
    # A job that has ended is no longer watched, so whoever asks for ended ones asks for those too.
    wanted = Wanted(users=tuple(user or ()), states=tuple(state or ()), include_closed=include_closed or Stage.ENDED in (state or ()))
    if watch:
        if as_json or not sys.stdout.isatty():
            raise BadUsage("--watch needs a terminal; a program calls `backstay jobs --json` as often as it needs the answer")
        with suppress(KeyboardInterrupt):  # before the first look, while Temporal is being reached
            run(_watch(configuration, wanted))
        return
    found, problems = run(_read_once(configuration, wanted))
    for problem in problems:
        complain(problem)
    if as_json:
        print_json([job_row(each.state, each.progress, each.warnings, blind=each.blind) for each in found])
        return
    for line in in_words(found, wanted, configuration.cluster.name, window()):
        tell(line)


@dataclass(frozen=True)
class Wanted:
    """Which jobs of the cluster are listed; nothing named: all."""

    users: tuple[str, ...] = ()
    states: tuple[Stage, ...] = ()
    include_closed: bool = False

    def holds(self, found: Found) -> bool:
        user = found.state.job.user if found.state.job else ""
        return (not self.users or user in self.users) and (not self.states or found.state.stage in self.states)


async def _read_once(configuration: Configuration, wanted: Wanted) -> tuple[list[Found], list[str]]:
    return await _read(await connect(configuration), configuration, wanted)


async def _read(client: Client, configuration: Configuration, wanted: Wanted) -> tuple[list[Found], list[str]]:
    found, problems = await read_jobs(client, configuration.cluster.name, include_closed=wanted.include_closed)
    listed = first_things_first([each for each in found if wanted.holds(each)])
    return listed, [*problems, *await cluster_troubles(client, configuration)]


async def _watch(configuration: Configuration, wanted: Wanted) -> None:
    client, cluster = await connect(configuration), configuration.cluster.name

    async def look() -> list[str]:
        found, problems = await _read(client, configuration, wanted)
        return [*(f"backstay: {problem}" for problem in problems), *in_words(found, wanted, cluster, window())]

    await keep_fresh(look, title=f"cluster {cluster}")


def in_words(found: Sequence[Found], wanted: Wanted, cluster: str, width: int | None) -> Iterator[str]:
    """The list for people: in columns, then how many need them, then what is amiss. `width`: of their window, None for a pipe."""
    if not found:
        narrowed = wanted.users or wanted.states
        yield f"No job of cluster {cluster} fits --user and --state." if narrowed else f"No job of cluster {cluster} is watched now."
        return
    yield from as_lines(found, width)
    if width is not None:  # a program counts the lines itself
        yield counts_in_words(found)
    yield from warnings_in_words(found)
