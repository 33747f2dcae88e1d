"""Reading the configuration: a YAML file, environment overrides on top, and errors that name the line and the nearest key.

The only reader; every process calls `load_configuration` once, at its start. What the keys mean stands in `configuration.py`.
"""

import difflib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from io import StringIO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from activities.configuration import Configuration

ENVIRONMENT_PREFIX = "BACKSTAY__"  # BACKSTAY__POLICY__MODE=auto; one underscore is `BACKSTAY_CONFIG`, which is no key
ERRORS_TOLD = 3  # of many: enough to mend a file, little enough to read


class ConfigurationError(Exception):
    """The configuration cannot be right. The message names the place and the mend."""


def load_configuration(path: Path, environment: Mapping[str, str] | None = None) -> Configuration:
    """The configuration of a file, with the environment's overrides.

    Args:
        path: the YAML file.
        environment: default: the process's own.

    Raises:
        ConfigurationError: the file cannot be read, is no YAML mapping, or says something that cannot be right.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {error.start}); save it as such") from error
    return parse_configuration(text, str(path), os.environ if environment is None else environment)


def parse_configuration(text: str, source: str, environment: Mapping[str, str]) -> Configuration:
    """The configuration of a text; `source` names it in errors. See `load_configuration`."""
    document = _parsed(text, source)
    if document is None:
        document = CommentedMap()
    if not isinstance(document, CommentedMap):
        raise ConfigurationError(f"{source} must be a mapping such as `cluster: {{name: alpha}}`")
    from_environment = _override(document, environment)
    try:
        return Configuration.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        told = [_in_words(problem, document, source, from_environment) for problem in problems[:ERRORS_TOLD]]
        more = len(problems) - len(told)
        raise ConfigurationError("; ".join(told) + (f"; and {more} more" if more > 0 else "")) from error


def _parsed(text: str, source: str) -> Any:
    try:
        return YAML(typ="rt").load(StringIO(text))  # round-trip: the only loader that keeps line numbers
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{source}{line}: not valid YAML, {(error.problem or 'unreadable').splitlines()[0]}") from error
    except YAMLError as error:
        raise ConfigurationError(f"{source}: not valid YAML, {str(error).splitlines()[0]}") from error


# ------------------------------------------------------------------------------------------------- environment overrides


def _override(document: CommentedMap, environment: Mapping[str, str]) -> Mapping[tuple[str, ...], str]:
    """Writes the environment's values into the document; returns which variable each of them came from."""
    sources: dict[tuple[str, ...], str] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        keys = tuple(part.lower() for part in variable.removeprefix(ENVIRONMENT_PREFIX).split("__"))
        if not all(keys):
            raise ConfigurationError(f"{variable} names no key; write it such as {ENVIRONMENT_PREFIX}POLICY__MODE")
        section: MutableMapping[str, Any] = document
        for key in keys[:-1]:
            inner = section.get(key)
            if not isinstance(inner, MutableMapping):
                inner = section[key] = CommentedMap()
            section = inner
        section[keys[-1]] = _parsed(text, variable)  # as in the file, so that `[a, b]` and `null` mean the same
        sources[keys] = variable
    return sources


# ------------------------------------------------------------------------------------------------------------- errors


def _in_words(problem: ErrorDetails, document: CommentedMap, source: str, from_environment: Mapping[tuple[str, ...], str]) -> str:
    location = problem["loc"]
    path = _known_part(location, document)
    variable = next((name for keys, name in from_environment.items() if path[: len(keys)] == keys), None)
    line = None if variable else _line_of(path, document)
    if path and line is None and variable is None:  # a whole section that only the environment speaks of
        variable = next((name for keys, name in from_environment.items() if keys[: len(path)] == path), None)
    place = variable or (f"{source} line {line}" if line else source)
    key = ".".join(str(part) for part in location if isinstance(part, int) or str(part).isidentifier())
    match problem["type"]:
        case "extra_forbidden":
            near = _nearest(str(location[-1]), _section_at(location[:-1]))
            return f"{place}: unknown key {key}" + (f"; did you mean {near}?" if near else "")
        case "missing":
            return f"{place}: {key} is missing"
        case "enum" | "literal_error":
            expected = problem.get("ctx", {}).get("expected", "")
            return f"{place}: {key} is {problem['input']!r}; it must be {expected}"
        case _:
            return f"{place}: {key} is {problem['input']!r}; {problem['msg'][:1].lower()}{problem['msg'][1:]}"


def _known_part(location: tuple[int | str, ...], document: Any) -> tuple[int | str, ...]:
    """As much of the place as the document has; pydantic also names the branches of unions."""
    known: list[int | str] = []
    for part in location:
        in_mapping = isinstance(document, Mapping) and part in document
        in_list = isinstance(document, list) and isinstance(part, int) and part < len(document)
        if not (in_mapping or in_list):
            break
        document = document[part]
        known.append(part)
    return tuple(known)


def _line_of(path: tuple[int | str, ...], document: Any) -> int | None:
    """1-based line of a key or list element; its section's where the element has none."""
    line: int | None = None
    for part in path:
        if isinstance(document, CommentedMap) and part in document.lc.data:
            line = document.lc.key(part)[0] + 1
        elif isinstance(document, CommentedSeq):
            line = document.lc.item(part)[0] + 1
        document = document[part]
    return line


def _section_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The section of the configuration that a place stands in."""
    section: type[BaseModel] = Configuration
    for part in location:
        if isinstance(part, str) and part in section.model_fields:
            section = next(_models_in(section.model_fields[part].annotation), section)
    return section


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated, tuple):
        for argument in get_args(annotation):
            yield from _models_in(argument)


def _nearest(key: str, section: type[BaseModel]) -> str | None:
    return next(iter(difflib.get_close_matches(key, section.model_fields, n=1, cutoff=0.5)), None)
