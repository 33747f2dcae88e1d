"""What every command shares: the options that mean the same everywhere, the configuration file, and the event loop.

Called by each command. Options are declared once, so that `-c`, `--json` or `--actor` never differ between two commands.
"""

import asyncio
import getpass
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from activities.configuration import Configuration
from activities.loading import ConfigurationError, load_configuration
from workers.commands.errors import BadUsage

Answer = TypeVar("Answer")

SITE_CONFIGURATION = Path("/etc/backstay/backstay.yaml")  # where deploy/backstay.service keeps it

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="BACKSTAY_CONFIG",
        metavar="FILE",
        help=f"Configuration file. Default: {SITE_CONFIGURATION}, where it exists.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
ActorOption = Annotated[str | None, typer.Option("--actor", help="Who decides. Default: your login name.", show_default=False)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the workflow history.")]
DigestOption = Annotated[
    str | None,
    typer.Option("--digest", help="The recommendation meant, as `show` prints it. Default: the one now pending.", show_default=False),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Slurm job ID; an array task as 1234_7.", show_default=False)]


def open_configuration(path: Path | None) -> Configuration:
    """The configuration of the file given, or of the site's file.

    Raises:
        BadUsage: there is no file, or what stands in it cannot be right.
    """
    chosen = path or (SITE_CONFIGURATION if SITE_CONFIGURATION.is_file() else None)
    if chosen is None:
        raise BadUsage(f"no configuration: give -c FILE, set BACKSTAY_CONFIG, or write {SITE_CONFIGURATION}")
    try:
        return load_configuration(chosen)
    except ConfigurationError as error:
        raise BadUsage("\n".join(error.problems)) from error


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a command's asynchronous part to its end."""
    return asyncio.run(work)


def actor_or_login(actor: str | None) -> str:
    """The name given, or the login name of whoever runs this.

    Raises:
        BadUsage: an empty name (a script's unset variable) names nobody, and must not pass for whoever runs the script.
    """
    if actor is not None:
        if not actor.strip():
            raise BadUsage("--actor is empty; name who decides, or leave it out for your login name")
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # a container's user without a name; 3.13 raises OSError
        raise BadUsage("your user has no login name here; say who decides with --actor NAME") from error


def digest_or_pending(digest: str | None) -> str:
    """The digest given, or an empty one, by which the recommendation now pending is meant.

    Raises:
        BadUsage: an empty digest was given: a script's unset variable must not approve whatever is pending.
    """
    if digest is not None and not digest.strip():
        raise BadUsage("--digest is empty; give the one that `backstay show` prints, or leave it out for the recommendation now pending")
    return digest or ""
