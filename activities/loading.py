"""Reads the configuration file: YAML, environment overrides, validation, and errors that name the line and the mend.

Called by every command at its start; `configuration.py` holds the types. Nothing here decides anything about jobs.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from activities.configuration import LONGEST_DURATION, Configuration, Section
from activities.diagnosis.causes import UNKNOWN, causes
from activities.logs.user_pattern import ProgressPatternRefused, compiled_progress_pattern
from activities.outside_text import TextRefused, yaml_document, yaml_value

PREFIX = "BACKSTAY__"
"""Begins every override: `BACKSTAY__POLICY__MODE=auto` is `policy: {mode: auto}`. Lists are written as YAML: `[a, b]`."""

FILE_VARIABLE = "BACKSTAY_CONFIG"


class ConfigurationError(Exception):
    """The configuration cannot be used. `problems` has one sentence for each, with its place and its mend."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


S = TypeVar("S", bound=Section)

Place = tuple[str | int, ...]
"""A key by its way from the top: ("policy", "rules", 0, "do")."""


class _Source(NamedTuple):
    """Where each value came from."""

    file: Path
    tree: Node | None
    variables: Mapping[Place, str]


def load_configuration(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Configuration:
    """The configuration, complete and validated; relative paths are resolved against the file's directory, `~` is expanded.

    Args:
        path: the file; default: what `BACKSTAY_CONFIG` names.
        environ: the environment; default: this process's.

    Raises:
        ConfigurationError: no file, no YAML, an unknown key or a wrong value; each with its line.
    """
    environ = os.environ if environ is None else environ
    if path is None:
        if not environ.get(FILE_VARIABLE):
            raise ConfigurationError(f"no configuration file: give one with -c FILE or set {FILE_VARIABLE}")
        path = Path(environ[FILE_VARIABLE])
    tree, data = _read(path)
    variables, overrides = _overrides(environ)
    source = _Source(path, tree, variables)
    merged = _merged(data, overrides)
    if not merged:
        raise ConfigurationError(f"{path}: is empty; it needs at least `cluster: {{name: ...}}`")
    try:
        configuration = Configuration.model_validate(merged)
    except ValidationError as error:
        raise ConfigurationError(*_problems(error.errors(include_url=False), source)) from error
    if problems := [f"{_where(place, source)}: {_dotted(place)}: {said}" for place, said in _cross_checks(configuration)]:
        raise ConfigurationError(*problems)
    return _with_absolute_paths(configuration, path.absolute().parent, path)


# ------------------------------------------------------------------------------------------------ reading


def _read(path: Path) -> tuple[Node | None, dict[str, Any]]:
    """The file as nodes that know their lines, and as plain values."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file; give the right one with -c FILE or {FILE_VARIABLE}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    try:
        tree, data = yaml_document(text)
    except TextRefused as refusal:
        place = f"{path}:{refusal.line}" if refusal.line else f"{path}"
        raise ConfigurationError(f"{place}: {refusal}") from None
    if data is None:
        return None, {}
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}:1: must hold keys such as `cluster:`, not a {type(data).__name__}")
    return tree, data


def _overrides(environ: Mapping[str, str]) -> tuple[dict[Place, str], dict[str, Any]]:
    """Which variable sets which key, and the values as a nested mapping."""
    variables: dict[Place, str] = {}
    values: dict[str, Any] = {}
    for variable in sorted(name for name in environ if name.upper().startswith(PREFIX)):
        keys = variable[len(PREFIX) :].lower().split("__")
        if not all(keys):
            raise ConfigurationError(f"environment variable {variable}: names no key; write {PREFIX}POLICY__MODE for policy.mode")
        variables[tuple(keys)] = variable
        here = values
        for key in keys[:-1]:
            below = here.setdefault(key, {})
            if not isinstance(below, dict):
                raise ConfigurationError(f"environment variable {variable}: another variable sets all of {key}; keep one of them")
            here = below
        here[keys[-1]] = _value(variable, environ[variable])
    return variables, values


def _value(variable: str, text: str) -> Any:
    """Lists and mappings are YAML; any other text stays text, so that a name such as 007 keeps its zeros."""
    if not text or text.strip() in ("null", "~"):
        return None
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return yaml_value(text)
    except TextRefused as refusal:
        why = f"is not a valid YAML list or mapping: {_shown(text)}" if refusal.is_syntax else str(refusal)
        raise ConfigurationError(f"environment variable {variable}: {why}") from None


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in over.items():
        below = both.get(key)
        both[key] = _merged(below if isinstance(below, dict) else {}, value) if isinstance(value, dict) else value
    return both


# ------------------------------------------------------------------------------------------------ what is wrong, and where


def _problems(errors: Sequence[ErrorDetails], source: _Source) -> list[str]:
    """One sentence a place. pydantic tells every branch of a union; the deepest place and the most telling branch is kept."""
    by_place: dict[Place, list[ErrorDetails]] = {}
    for error in errors:
        by_place.setdefault(_real_place(error["loc"], error["type"]), []).append(error)
    deepest = [place for place in by_place if not any(place != other and other[: len(place)] == place for other in by_place)]
    return [
        f"{_where(place, source)}: {_dotted(place)}: {_said(place, min(by_place[place], key=_dullness), source)}"
        for place in sorted(deepest, key=lambda place: (_line(place, source) or 0, _dotted(place)))
    ]


def _dullness(error: ErrorDetails) -> int:
    return 0 if error["type"] in ("enum", "literal_error") else 2 if error["type"] == "tuple_type" else 1


def _real_place(loc: Place, kind: str) -> Place:
    """pydantic's location without the names of union branches that it mixes in."""
    place: list[str | int] = []
    for index, part in enumerate(loc):
        last_and_unknown = kind == "extra_forbidden" and index == len(loc) - 1
        if isinstance(part, int) or last_and_unknown or part in _fields(_section(tuple(place))):
            place.append(part)
    return tuple(place)


_MOST_SHOWN = 80  # characters of a wrong value: enough to find it


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _said(place: Place, error: ErrorDetails, source: _Source) -> str:
    value, context = error["input"], error.get("ctx", {})
    found = _shown(value)
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key; {_nearest_key(place, source)}"
        case "missing":
            return "is missing and has no default"
        case "enum" | "literal_error":
            allowed = str(context.get("expected", ""))
            near = difflib.get_close_matches(str(value), re.findall(r"'([^']+)'", allowed), 1)
            return f"{found} is not known; " + (f"did you mean {near[0]}?" if near else f"use one of {allowed.replace(chr(39), '')}")
        case "said_in_full":
            return f"{found} {error['msg']}"
        case "finite_number":
            return f"{found} is no number to count with; write a finite one"
        case "time_delta_parsing" | "time_delta_type":
            return f"{found} is no duration; write 90s, 15m, 24h or 7d"
        case "greater_than" if "timedelta" in error["msg"]:
            return f"{found} is out of range; it must be longer than 0 s"
        case "less_than_equal" if "timedelta" in error["msg"]:
            return f"{found} is out of range; it must be {LONGEST_DURATION.days}d or less"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return f"{found} is out of range; it {error['msg'].replace('Input should', 'must')}"
        case "string_pattern_mismatch":
            return f"{found} does not have the form {context.get('pattern')}"
        case "string_type":
            return f"{found} is no text; put it in quotes"
        case "model_type" | "model_attributes_type":
            return f"needs keys below it ({', '.join(_fields(_section(place)))}), not {found}"
        case "tuple_type":
            return f"{found} is no list; write [{found.strip(chr(39))}]"
        case _:
            return f"{error['msg'].replace('Input should', 'must').lower()} (found {found})"


def _nearest_key(place: Place, source: _Source) -> str:
    key, known = str(place[-1]), list(_fields(_section(place[:-1])))
    spell = (lambda name: f"{PREFIX}{'__'.join([*map(str, place[:-1]), name])}".upper()) if place in source.variables else str
    if near := difflib.get_close_matches(key, known, 1):
        return f"did you mean {spell(near[0])}?"
    elsewhere = [_dotted((*parent, key)) for parent, section in _sections(Configuration) if key in section.model_fields]
    if elsewhere:
        return f"it belongs to {elsewhere[0].rpartition('.')[0] or 'the top level'}"
    return f"known here: {', '.join(known)}"


def _where(place: Place, source: _Source) -> str:
    for length in range(len(place), 0, -1):
        if place[:length] in source.variables:
            return f"environment variable {source.variables[place[:length]]}"
    line = _line(place, source)
    return f"{source.file}:{line}" if line else str(source.file)


def _line(place: Place, source: _Source) -> int | None:
    """1-based line of the key, or of the nearest key above it that the file has."""
    node, line = source.tree, None
    for part in place:
        match node:
            case MappingNode():
                found = next(((key, value) for key, value in node.value if key.value == part), None)
                if found is None:
                    return line
                line, node = found[0].start_mark.line + 1, found[1]
            case SequenceNode() if isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            case _:
                return line
    return line


def _dotted(place: Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


# ------------------------------------------------------------------------------------------------ the types, by place


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, tuple):
        for argument in get_args(annotation):
            yield from _models_in(argument)


def _section(place: Place) -> type[BaseModel] | None:
    here: type[BaseModel] | None = Configuration
    for part in place:
        if isinstance(part, int):
            continue
        field = here.model_fields.get(part) if here is not None else None
        here = next(_models_in(field.annotation), None) if field is not None else None
    return here


def _fields(section: type[BaseModel] | None) -> Sequence[str]:
    return tuple(section.model_fields) if section is not None else ()


def _sections(section: type[BaseModel], place: Place = ()) -> Iterator[tuple[Place, type[BaseModel]]]:
    yield place, section
    for name, field in section.model_fields.items():
        for below in _models_in(field.annotation):
            yield from _sections(below, (*place, name))


# ------------------------------------------------------------------------------------------------ after validation


def _cross_checks(configuration: Configuration) -> Iterator[tuple[Place, str]]:
    """What no single field can tell. A rule for a misspelt cause would silently never match."""
    pattern = configuration.watch.progress_pattern
    if pattern is not None:
        place: Place = ("watch", "progress_pattern")
        try:
            compiled_progress_pattern(pattern)
        except ProgressPatternRefused as refusal:
            yield place, refusal.why
    if configuration.attribution.signatures:
        return  # the operator's own signatures may bring causes of their own
    known = [*causes(), UNKNOWN]
    for number, rule in enumerate(configuration.policy.rules):
        wanted = rule.when.cause or ()
        for cause in (wanted,) if isinstance(wanted, str) else wanted:
            if cause not in known:
                near = difflib.get_close_matches(cause, known, 1)
                mend = f"did you mean {near[0]}?" if near else "`backstay policy check` lists them"
                yield ("policy", "rules", number, "when", "cause"), f"{cause!r} is no cause; {mend}"


def _with_absolute_paths(section: S, base: Path, file: Path) -> S:
    def absolute(value: Any) -> Any:
        match value:
            case Path():
                try:
                    return base / value.expanduser()
                except RuntimeError:
                    raise ConfigurationError(f"{file}: {value}: no home directory is known for `~`; write the whole path") from None
            case Section():
                return _with_absolute_paths(value, base, file)
            case tuple():
                return tuple(absolute(item) for item in value)
            case _:
                return value

    return section.model_copy(update={name: absolute(getattr(section, name)) for name in type(section).model_fields})
