"""`backstay policy check`: in words, what the policy would do for each cause."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from activities.configuration import PolicySection
from activities.modes import highest_mode
from activities.policy import Spoken, default_rules, in_words
from activities.records import Action
from workers.commands.errors import BadUsage
from workers.commands.options import ConfigOption, JsonOption, open_configuration
from workers.commands.terminal import print_json, tell
from workers.commands.words import duration

policy = typer.Typer(name="policy", help="Look at the policy.", no_args_is_help=True)


@policy.callback()
def _group() -> None:
    """Look at the policy."""


@policy.command()
def check(
    config: ConfigOption = None,
    cause: Annotated[str | None, typer.Option("--cause", help="Only this cause, with all its rules.", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Every cause with all its rules, not the causes by what is done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say in words what would be done for which causes, by which rule, and which limits stand."""
    section = open_configuration(config).policy
    spoken = in_words((*section.rules, *default_rules()))
    if cause is not None:
        spoken = [each for each in spoken if each.cause == cause]
        if not spoken:
            raise BadUsage(f"{cause} is no known cause; `backstay policy check` lists them all")
    if as_json:
        print_json([_row(each) for each in spoken])
        return
    for line in (*_limits_in_words(section), *(_each_in_words(spoken) if every or cause else _by_what_is_done(spoken))):
        tell(line)


def _row(spoken: Spoken) -> dict[str, str]:
    return {"cause": spoken.cause, "action": spoken.action.value, "words": spoken.words}


def _each_in_words(spoken: Sequence[Spoken]) -> Iterator[str]:
    for each in spoken:
        yield f"{each.cause}: {each.action.in_words}"
        yield f"    {each.words}"


def _by_what_is_done(spoken: Sequence[Spoken]) -> Iterator[str]:
    """The causes together that one rule decides, in the order of the acts: the plain case, of a crash with a node named, seen for the first
    time. What is true of nearly all is said once."""
    causes: dict[Action, dict[str, list[str]]] = {}
    for each in spoken:
        causes.setdefault(each.action, {}).setdefault(each.decides, []).append(each.cause)
    for action in Action:
        by_rule: Mapping[str, Sequence[str]] = causes.get(action, {})
        if by_rule:
            suspect = " the suspect" if action is Action.RESTART_EXCLUDING else ""
            yield f"{action.in_words}{suspect}:"
        for rule, names in by_rule.items():
            yield f"  [{rule}] {', '.join(names)}"
    yield "This is the plain case: a first crash, diagnosed with confidence, a node named, mode auto."
    yield "For repeats, doubt and other symptoms: `backstay policy check --cause CAUSE`, or `--all` for every cause"


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
    yield (
        f"breaker: trips when {limits.breaker_jobs} jobs of several users fail in {duration(limits.breaker_window)}, or "
        f"{limits.breaker_fraction:.0%} of the watched jobs where that is more; one user's failures stop acts on that user's jobs only"
    )
    yield f"rules: {len(section.rules)} of your own, tried first, then {len(default_rules())} built in; in brackets the one that decides"
