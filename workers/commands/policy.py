"""`backstay policy check`: in words, what the policy would do for each cause."""

from collections.abc import Iterator
from typing import Annotated

import typer

from activities.configuration import PolicySection
from activities.modes import highest_mode
from activities.policy import Spoken, default_rules, in_words
from workers.commands.errors import BadUsage
from workers.commands.options import ConfigOption, JsonOption, open_configuration
from workers.commands.terminal import print_json, screen
from workers.commands.words import duration

policy = typer.Typer(name="policy", help="Look at the policy.", no_args_is_help=True)


@policy.callback()
def _group() -> None:
    """Look at the policy."""


@policy.command()
def check(
    config: ConfigOption = None,
    cause: Annotated[str | None, typer.Option("--cause", help="Only this cause.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Say in words what would be done for each cause, rule by rule, and which limits stand."""
    section = open_configuration(config).policy
    spoken = in_words((*section.rules, *default_rules()))
    if cause is not None:
        spoken = [each for each in spoken if each.cause == cause]
        if not spoken:
            raise BadUsage(f"{cause} is no known cause; `backstay policy check` lists them all")
    if as_json:
        print_json([_row(each) for each in spoken])
        return
    out = screen()
    for line in _limits_in_words(section):
        out.print(line)
    for each in spoken:
        out.print(f"{each.cause}: {each.action.value}")
        out.print(f"    {each.words}")


def _row(spoken: Spoken) -> dict[str, str]:
    return {"cause": spoken.cause, "action": spoken.action.value, "words": spoken.words}


def _limits_in_words(section: PolicySection) -> Iterator[str]:
    limits = section.limits
    yield f"mode {section.mode.value}; a job's own comment may ask for {highest_mode(section).value} at most"
    yield "what is recorded in mode observe is what mode auto would do"
    yield (
        f"restarts of one job: {limits.restarts} in all, {limits.restarts_without_checkpoint} in a row without a new checkpoint, "
        f"{limits.same_cause} for one cause without progress"
    )
    yield (
        f"cluster: {limits.excluded_fraction:.0%} of a partition excluded at once, for {duration(limits.exclusion_ttl)}; "
        f"{limits.actions_per_window} actions in {duration(limits.window)}"
    )
    yield (f"breaker: trips at {limits.breaker_jobs} jobs in {duration(limits.breaker_window)}")
    yield f"rules: {len(section.rules)} of your own, tried first, then {len(default_rules())} built in; in brackets the one that decides"
