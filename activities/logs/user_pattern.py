"""A user's own regular expression for an iteration line, made safe: bounded, and compiled by both engines or refused.

Called by the reading of comments (to warn) and by the progress reader (to use it).
"""

import re
from functools import lru_cache

from activities.scanning.scan import MultiPattern, PatternRefused

LONGEST_PATTERN = 500
_MOST_UNBOUNDED = 8
_UNBOUNDED = re.compile(r"[*+]|\{\d+,\}")
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))(?P<repeated>[*+?]|\{\d*,?\d*\})?|(?P<quantifier>[*+]|\{\d+,\})|.", re.DOTALL
)


class ProgressPatternRefused(ValueError):
    """A progress pattern that will not be used; the message says why and the mend."""


@lru_cache(maxsize=1024)
def compiled_progress_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles `pattern`, which must have a group named `iteration` (and may have `step_seconds` and `loss`).

    Raises:
        ProgressPatternRefused: too long, not a regular expression, without that group, or able to take exponential time.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ProgressPatternRefused(f"progress pattern: {len(pattern)} characters; use at most {LONGEST_PATTERN}")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as refusal:
        raise ProgressPatternRefused(f"progress pattern {pattern!r}: not a regular expression ({refusal})") from refusal
    if "iteration" not in compiled.groupindex:
        raise ProgressPatternRefused(f"progress pattern {pattern!r}: no group named iteration; write the number as (?P<iteration>\\d+)")
    if len(_UNBOUNDED.findall(pattern)) > _MOST_UNBOUNDED or _repeats_a_repeat(pattern):
        raise ProgressPatternRefused(
            f"progress pattern {pattern!r}: a repeated group that itself repeats, or too many repeats; use plain \\d+ and .*? instead"
        )
    try:
        MultiPattern({"progress": pattern})
    except PatternRefused as refusal:
        raise ProgressPatternRefused(f"progress pattern {pattern!r}: {refusal.why}; no look-around or back-references") from refusal
    return compiled


def _repeats_a_repeat(pattern: str) -> bool:
    """True for `(a+)+` and its kin, which make a backtracking matcher take exponential time."""
    groups: list[bool] = [False]
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            groups.append(False)
        elif token["close"]:
            inner = groups.pop() if len(groups) > 1 else False
            repeated = token["repeated"] is not None and token["repeated"] != "?"
            if inner and repeated:
                return True
            groups[-1] = groups[-1] or inner or repeated
        elif token["quantifier"]:
            groups[-1] = True
    return False
