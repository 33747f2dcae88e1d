"""What reaches a person's terminal or a pipe: lines and JSON on standard output, sentences on standard error.

Called by each command and by `main`; it knows nothing of ours, so that it is there at once.
"""

import re
import shutil
import sys
from typing import Any

import orjson
from rich.console import Console

PIPE_WIDTH = 240  # characters
NARROWEST_TABLE = 132  # characters; a narrower window breaks the rows, which loses nothing, where cut columns lose the job's ID


def printable(text: str) -> str:
    """Log text on a person's terminal: escapes and other control characters must not reach it."""
    return "".join(character if character.isprintable() else " " for character in text)


# What moves a cursor, or the text itself, and what JSON lets stand in a string: DEL, the C1 controls, line and paragraph separators,
# the marks that turn the direction of writing.
_MOVES = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_SURROGATES = re.compile("[\ud800-\udfff]")


def _as_json(value: Any, options: int) -> str:
    """JSON that may be read on a terminal: the same document, with what moves a cursor escaped. Text that is not Unicode, as a name
    in Latin-1 on a disk, is shown with U+FFFD."""
    try:
        document = orjson.dumps(value, option=options).decode()
    except TypeError:
        document = orjson.dumps(_as_unicode(value), option=options).decode()
    return _MOVES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _as_unicode(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATES.sub("\ufffd", value)
        case dict():
            return {_as_unicode(key): _as_unicode(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_as_unicode(inner) for inner in value]
        case _:
            return value


def print_json(value: Any) -> None:
    """One JSON document on standard output, indented."""
    sys.stdout.write(_as_json(value, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def print_json_line(value: Any) -> None:
    """One JSON document on one line of standard output."""
    sys.stdout.write(_as_json(value, orjson.OPT_APPEND_NEWLINE))


def screen(*, wide: bool = False) -> Console:
    """Standard output for people. Text is ours or a log's, so neither markup nor emoji codes are read from it.

    Args:
        wide: a table keeps its rows whole where nobody's window is in the way (a pipe or a file), and its columns in any window.
    """
    width = None
    if wide:
        width = max(shutil.get_terminal_size().columns, NARROWEST_TABLE) if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=not wide, width=width)


def tell(line: str) -> None:
    """One line on standard output for people. Job names, comments and log lines are their users' own bytes: whatever could move
    the cursor, change the title or begin another line is a space by the time it reaches an operator's terminal."""
    screen().print(printable(line))


def complain(sentence: str) -> None:
    """A sentence on standard error; each of several problems gets a line of its own."""
    sys.stderr.writelines(f"backstay: {printable(line)}\n" for line in sentence.splitlines())
