"""`backstay audit JOB`: what happened, from the workflow history alone, one line a fact with its event ID."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import ParseError
from rich.cells import cell_len
from temporalio.client import WorkflowHistory

from activities.configuration import Configuration
from activities.outside_text import json_value
from activities.records import as_json as plain
from workers.client import connect
from workers.commands.errors import BadUsage
from workers.commands.facts import Fact, facts_of
from workers.commands.lookup import find_job, run_chain
from workers.commands.options import ConfigOption, JobArgument, JsonOption, open_configuration, run
from workers.commands.terminal import complain, print_json_line, printable, tell, window
from workers.commands.words import clock

BENEATH = " " * 7  # as far in as the time stands


def audit(
    job: JobArgument,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    history: Annotated[
        Path | None,
        typer.Option("--history", metavar="FILE", help="Read an exported history (JSON) instead of asking Temporal.", show_default=False),
    ] = None,
) -> None:
    """Tell a job's story from its workflow history alone: who did what, when, on which grounds."""
    if history is not None:
        facts, note = facts_of(exported(history, job)), None
    else:
        facts, note = run(_read(open_configuration(config), job))
    for fact in facts:
        if as_json:
            print_json_line(plain(fact))
        else:
            for line in in_words(fact, window()):
                tell(line)
    if note:
        complain(note)


async def _read(configuration: Configuration, job_id: str) -> tuple[list[Fact], str | None]:
    client = await connect(configuration)
    histories, note = await run_chain(client, await find_job(client, configuration.cluster.name, job_id))
    return [fact for history in histories for fact in facts_of(history)], note


# The SDK and protobuf look at no shape first: what they raise where something else stands than they expect.
_NO_HISTORY = (ValueError, TypeError, AttributeError, LookupError, ParseError, RecursionError, RuntimeError)


def exported(path: Path, job_id: str) -> WorkflowHistory:
    """A history as the Temporal UI, its command line or an SDK exports it.

    Raises:
        BadUsage: the file cannot be read as one.
    """
    try:
        document = json_value(path.read_bytes())
        if not isinstance(document, dict):
            raise TypeError(f"it holds a {type(document).__name__}")
        history = WorkflowHistory.from_json(f"job/{job_id}", document)
        _ = history.run_id  # which looks at the first event
    except OSError as error:
        raise BadUsage(f"cannot read {path}: {error.strerror}") from error
    except _NO_HISTORY as error:
        raise BadUsage(f"{path} is no exported workflow history ({error}); export it with `temporal workflow show -o json`") from error
    return history


def in_words(fact: Fact, width: int | None) -> Iterator[str]:
    """`#event  time  fact  words`, on one line in a pipe; in a window of `width` columns the words go beneath where they do not fit.
    The run is told where a run begins, not on every line."""
    head = f"#{fact.event_id:<5} {clock(fact.at)}  {fact.name}"
    words = printable(fact.text)
    if not words:
        yield head
    elif width is None or cell_len(f"{head}  {words}") <= width:
        yield f"{head}  {words}"
    else:
        yield head
        yield f"{BENEATH}{words}"
