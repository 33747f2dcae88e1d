"""JSON and YAML that others wrote, as plain values or as one refusal: nothing in them can end in a traceback further in.

Refused: what nests too deeply, integers that no machine word holds, text that is neither. Called wherever a file, a service, a job's
comment or a history is parsed; each caller adds the place and turns the refusal into an error of its own.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner

DEEPEST = 100
"""Levels: far above what any format here has, and far below Python's recursion limit and orjson's 254 levels."""

LARGEST_INTEGER = 2**64 - 1  # Slurm's and Temporal's largest; orjson writes no larger one
MOST_NODES = 1_000_000  # of YAML with its aliases followed: ten lines of them can stand for a billion
LARGEST_YAML_BYTES = 64 << 20

_SURROGATES = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile("[\0\r\n\x85\u2028\u2029]")


class TextRefused(ValueError):
    """Outside text that is not read. The message says why and the fix; `line` is the 1-based line in YAML, where it is known.
    `is_syntax`: it is no JSON or YAML at all, rather than beyond what is read of it."""

    def __init__(self, why: str, line: int | None = None, *, is_syntax: bool = False) -> None:
        super().__init__(why)
        self.line = line
        self.is_syntax = is_syntax


def json_value(text: str | bytes) -> Any:
    """The value of a JSON document. NaN and Infinity are read as such: json-c prints them; half surrogate pairs become U+FFFD.

    Raises:
        TextRefused: no JSON, nested deeper than `DEEPEST`, or with an integer beyond 64 bits.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        value = json.loads(text.removeprefix("\ufeff"), parse_int=_integer, strict=False)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise TextRefused(f"is not UTF-8 text (byte {error.start}); save it as UTF-8", is_syntax=True) from None
    except TextRefused:
        raise
    except ValueError as error:
        raise TextRefused(f"is no JSON ({error}); correct it there", is_syntax=True) from None
    if _depth_exceeds(value, DEEPEST):
        raise _too_deep()
    return _without_surrogates(value) if _SURROGATES.search(text) or "\\ud" in text.lower() else value


def _too_deep(line: int | None = None) -> TextRefused:
    return TextRefused(f"nests deeper than {DEEPEST} levels; flatten it", line)


def _integer(digits: str) -> int:
    if len(digits) <= 21 and abs(number := int(digits)) <= LARGEST_INTEGER:
        return number
    raise TextRefused(f"holds an integer of {len(digits.lstrip('-'))} digits; numbers here have 64 bits at most: correct or quote it")


def _depth_exceeds(value: Any, deepest: int) -> bool:
    level = [value]
    for _ in range(deepest):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATES.sub("\ufffd", value)
        case dict():
            return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
        case list():
            return [_without_surrogates(inner) for inner in value]
        case _:
            return value


def whole_number(digits: str) -> int | None:
    """What is written in up to 18 ASCII digits; None for anything else. `int` raises beyond 4,300 digits, and `"²".isdigit()` holds."""
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdecimal() else None


# ------------------------------------------------------------------------------------------------ YAML


def yaml_value(text: str) -> Any:
    """The value of a YAML document; None of an empty one.

    Raises:
        TextRefused: with the line, where it is known.
    """
    return yaml_document(text)[1]


def yaml_document(text: str) -> tuple[Node | None, Any]:
    """A YAML document as nodes, which know their lines, and as plain values (YAML 1.2's core types).

    Raises:
        TextRefused: no YAML, nested deeper than `DEEPEST`, larger with its aliases than `MOST_NODES`, a number or a date that is
            none, or NUL and half surrogate pairs in a text; with the line, where it is known.
    """
    if len(text) > LARGEST_YAML_BYTES:
        raise TextRefused(f"is larger than {LARGEST_YAML_BYTES >> 20} MiB; split it")
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _QuickScanner
    try:
        node = yaml.compose(text)
        if node is None:
            return None, None
        _check(node)
        return node, yaml.constructor.construct_document(node)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = (error.problem or error.context or "cannot be parsed").splitlines()[0]
        why = f"is not valid YAML: {said}; check the indentation and quotes there"
        raise TextRefused(why, mark.line + 1 if mark else None, is_syntax=True) from None
    except YAMLError as error:
        raise TextRefused(f"is not valid YAML: {str(error).splitlines()[0]}", is_syntax=True) from None
    except RecursionError:
        raise _too_deep() from None


class _QuickScanner(Scanner):
    """ruamel walks through comments character by character, 3 µs each: a mebibyte of them took ten seconds."""

    def scan_to_next_token(self) -> Any:
        """As ruamel's own, line by line where it goes character by character."""
        reader = self.reader
        if reader.index == 0 and reader.peek() == "\ufeff":
            reader.forward()
        blanks = " \t" if self.flow_level else " "
        while True:
            while reader.peek() in blanks:
                reader.forward()
            if reader.peek() == "#":
                self._skip_to_the_lines_end()
            if not self.scan_line_break():
                return
            if not self.flow_level:
                self.allow_simple_key = True

    def _skip_to_the_lines_end(self) -> None:
        reader = self.reader
        end = _LINE_END.search(reader.buffer, reader.pointer)
        if end is not None:  # the reader ends its buffer with NUL
            skipped = end.start() - reader.pointer
            reader.pointer, reader.index, reader.column = reader.pointer + skipped, reader.index + skipped, reader.column + skipped


def _check(root: Node) -> None:
    """Follows the nodes as they will be used, aliases and all, without recursion."""
    scalars = YAML(typ="safe", pure=True).constructor
    checked: set[int] = set()
    pending: list[tuple[Node, int]] = [(root, 1)]
    seen = 0
    while pending:
        node, depth = pending.pop()
        seen += 1
        line = node.start_mark.line + 1
        if depth > DEEPEST:
            raise _too_deep(line)
        if seen > MOST_NODES:
            raise TextRefused(f"stands for more than {MOST_NODES} values with its aliases; write it without", line)
        match node:
            case ScalarNode() if id(node) not in checked:
                checked.add(id(node))
                _check_scalar(scalars, node, line)
            case SequenceNode():
                pending += [(inner, depth + 1) for inner in node.value]
            case MappingNode():
                pending += [(inner, depth + 1) for pair in node.value for inner in pair]
            case _:
                continue


def _check_scalar(constructor: Any, node: ScalarNode, line: int) -> None:
    if "\0" in node.value or _SURROGATES.search(node.value):
        raise TextRefused("holds NUL or half of a surrogate pair in a text; write the character itself", line)
    if len(node.value) > 4000 and str(node.tag).endswith(":int"):
        raise TextRefused(f"holds an integer of {len(node.value)} digits; correct it, or put it in quotes if it is a text", line)
    try:
        value = constructor.construct_object(node)
    except (
        ValueError,
        ArithmeticError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # what ruamel lets through of int() and datetime()
        shown = node.value if len(node.value) <= 40 else f"{node.value[:40]}…"
        raise TextRefused(f"{shown!r} is no {str(node.tag).rpartition(':')[2]} ({error}); correct it, or put it in quotes", line) from None
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise TextRefused(f"holds an integer of {len(node.value)} digits; numbers here have 64 bits at most", line)
