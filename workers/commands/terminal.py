"""What reaches a person's terminal or a pipe: lines and JSON on standard output, sentences on standard error.

Called by each command and by `main`; it knows nothing of ours, so that it is there at once.
"""

import os
import re
import shutil
import sys
import unicodedata
from typing import Any

import orjson
from rich.cells import cell_len, chop_cells
from rich.console import Console

NARROWEST = 40  # columns; in a narrower window the terminal breaks the lines itself
HANGING = 2  # columns by which the rest of a folded line stands in from its beginning
MOST_MARKS = 3  # on one letter; no script needs more, and a thousand of them paint over the lines above


def printable(text: str) -> str:
    """Log text on a person's terminal: escapes and other control characters must not reach it, nor what makes letters overlap or
    a line's width a matter of opinion (heaps of combining marks, variation selectors)."""
    if text.isascii() and text.isprintable():
        return text
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks > MOST_MARKS or "\ufe00" <= character <= "\ufe0f":
            continue
        kept.append(character if character.isprintable() else " ")
    return "".join(kept)


def window() -> int | None:
    """Columns to fold lines to: the terminal's, or what COLUMNS says. None for a pipe or a file: a program reads lines whole."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        return None
    return max(shutil.get_terminal_size().columns, NARROWEST)


def folded(line: str, width: int) -> list[str]:
    """One printable line as lines of at most `width` columns, broken between words where that is possible; what follows the first stands
    in a little further than it does. Columns are the terminal's: a wide letter takes two."""
    if cell_len(line) <= width:
        return [line]
    indent = min(len(line) - len(line.lstrip(" ")), width // 2)
    margin = " " * (indent + HANGING)
    lines, current = [], " " * indent
    for word in re.findall(r"\S+ *", line):
        if cell_len(current + word.rstrip(" ")) > width and current.strip():
            lines.append(current.rstrip(" "))
            current = margin
        rest = word
        while cell_len(current + rest.rstrip(" ")) > width:
            head = chop_cells(rest, width - cell_len(current))[0]
            lines.append(current + head)
            current, rest = margin, rest[len(head) :]
        current += rest
    return [*lines, current.rstrip(" ")]


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


def screen() -> Console:
    """Standard output for people. Text is ours or a log's, so neither markup nor emoji codes are read from it."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def tell(line: str, *, fold: bool = True) -> None:
    """One line on standard output for people, folded to their window. Job names, comments and log lines are their users' own bytes:
    whatever could move the cursor, change the title or begin another line is a space by the time it reaches an operator's terminal.

    Args:
        fold: False for an address, which is no address any more once it is broken.
    """
    width = window() if fold else None
    told = printable(line)
    for each in [told] if width is None else folded(told, width):
        screen().print(each)


def complain(sentence: str) -> None:
    """A sentence on standard error; each of several problems gets a line of its own."""
    sys.stderr.writelines(f"backstay: {printable(line)}\n" for line in sentence.splitlines())
