"""Regular expressions that users and operators wrote, matched by RE2: time grows with the text alone, whatever the pattern is.

Python's `re` tries one way after another and may hold the interpreter for ever on one line. `re` and hyperscan are for our own
patterns, and hyperscan for the operator's signatures: it matches in linear time as well, but may compile for long.
"""

from typing import Any

import re2

# RE2 refuses what compiles to more, and matches within it (re2.h, `max_mem`). Measured with 500 characters made to be costly:
# up to 0.2 s to compile; with 1 MiB a second.
_MEMORY_BYTES = 256 << 10
# RE2's slow way, where its automaton has too many states, takes about 8 ns an instruction and byte (measured). An honest pattern
# compiles to about 50 instructions, one with `\pL` to 1,200.
LARGEST_PROGRAM = 2000
_SYNTAX = "use RE2's syntax: no look-around, no back-references, a counted repeat up to 1000"


class PatternNotUsable(ValueError):
    """A regular expression that is not used; the message says why and the fix."""


def linear(pattern: str, *, largest: int = LARGEST_PROGRAM) -> Any:
    """`pattern` compiled for single lines: `^` and `$` are the line's, and nothing matches a line break.

    Args:
        largest: instructions it may compile to: what bounds the time for one line.
    Returns:
        RE2's compiled pattern, with `search`, `groupindex` and the rest of `re.Pattern`; `\\d` and `\\w` are ASCII.
    Raises:
        PatternNotUsable: not a regular expression as RE2 knows them, or too large when compiled.
    """
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.never_nl = True
    options.log_errors = False  # it would write to stderr
    try:
        compiled = re2.compile(f"(?m){pattern}", options)
    except UnicodeEncodeError:
        raise PatternNotUsable("holds half of a surrogate pair; write the character itself") from None
    except re2.error as refusal:
        said = refusal.args[0] if refusal.args else "refused"
        said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        if "too large" in said:
            raise PatternNotUsable("is too large when compiled; use smaller counted repeats and fewer classes such as \\pL") from None
        raise PatternNotUsable(f"is not a regular expression that can be used ({said.replace('(?m)', '', 1)}); {_SYNTAX}") from None
    if compiled.programsize > largest:
        raise PatternNotUsable(f"compiles to {compiled.programsize} instructions, more than {largest}; use smaller counted repeats")
    return compiled
