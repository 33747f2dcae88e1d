"""What a job's `--comment`, or the operator in its place, says about watching it. Pure, never raises: what is garbled costs a warning.

Forms (facts about quoting: an `#SBATCH --comment={"a":1}` line arrives as `{a:1}`, sbatch eats the double quotes):
`backstay` · `backstay:mode=approve,checkpoints=/path,log=/path,dumps=/path,progress=REGEX` · `{"backstay": {"mode": "approve"}}` ·
`{backstay:{mode:approve}}`, each with other tools' text around it. Called by discovery and by each look at a job.
"""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from activities.configuration import OptInBy, WatchSection
from activities.logs.user_pattern import ProgressPatternRefused, compiled_progress_pattern
from activities.records import Job, Mode, OptIn

LONGEST_COMMENT = 16_384
_LONGEST_SHOWN = 60
_MOST_WARNINGS = 10  # they stand in the job's history
_MOST_BRACES = 64

_WORD = re.compile(r"(?<![\w./-])backstay(?![\w/-]|\.\w)", re.IGNORECASE)
_BRACED = re.compile(r"""['"]?backstay['"]?\s*[:=]\s*\{""", re.IGNORECASE)

# Key as users write it -> field of OptIn.
_KEYS = {
    "mode": "mode",
    "checkpoints": "checkpoints",
    "checkpoint": "checkpoints",
    "log": "log",
    "dumps": "dumps",
    "progress": "progress_pattern",
    "progress_pattern": "progress_pattern",
}
_SHOWN_KEYS = ("mode", "checkpoints", "log", "dumps", "progress")
_NO = ("off", "no", "false", "none", "never", "0", "disable", "disabled")
_YES = ("on", "yes", "true", "1", "enable", "enabled", "")
_AFTER_WORD = re.compile(r"\s*[:=]\s*|[\s,]+(?=(?:" + "|".join(_KEYS) + r")=)", re.IGNORECASE)
_LOOSE_COMMA = re.compile(r",\s+(?=[\w-]+\s*[=:]|$)")
_PATTERN_KEY = re.compile(r"\bprogress(?:_pattern)?[=:]", re.IGNORECASE)
_KEY_BEYOND = re.compile(r"[;\s]+(?P<key>" + "|".join(_KEYS) + r")=", re.IGNORECASE)
_NEXT_KEY = re.compile(r",\s*(?=(?:" + "|".join(_KEYS) + r")\s*[=:])", re.IGNORECASE)


def read_comment(comment: str) -> OptIn:
    """Reads one job comment.

    Args:
        comment: Slurm's `Comment` of the job, as told.

    Returns:
        `opted_in` is True when the comment names Backstay unmistakably and does not say no. What could not be understood is
        left None and named in `warnings`, with the mend.
    """
    opt_in = _read(comment[:LONGEST_COMMENT])
    if len(opt_in.warnings) <= _MOST_WARNINGS:
        return opt_in
    rest = _warning(f"{len(opt_in.warnings) - _MOST_WARNINGS} more mistakes of this kind", "mend those above first")
    return opt_in.model_copy(update={"warnings": (*opt_in.warnings[:_MOST_WARNINGS], rest)})


def _read(comment: str) -> OptIn:
    if "backstay" not in comment.lower():
        return OptIn()
    said = _json_value(comment)
    if said is not _NOTHING:
        return _from_value(said)
    braced = _BRACED.search(comment)
    if braced is not None:
        return _from_braces(comment, braced.end())
    word = _WORD.search(comment)
    return _from_words(comment[word.end() :]) if word is not None else OptIn()


_read_comment = lru_cache(maxsize=4096)(read_comment)
"""Comments hardly ever change, and each look lists all of them again."""


def opted_in(job: Job, watch: WatchSection) -> OptIn:
    """What the job's comment says; with `opt_in: all` the operator's partitions, accounts and users opt it in."""
    said = _read_comment(job.comment)
    by_operator = (
        watch.opt_in is OptInBy.ALL
        and job.is_batch is True
        and (not watch.accounts or job.account in watch.accounts)
        and (not watch.users or job.user in watch.users)
    )
    return said.model_copy(update={"opted_in": True}) if by_operator and not said.opted_in else said


_NOTHING = object()


def _json_value(comment: str) -> Any:
    """The value of the key `backstay` of a JSON object anywhere in the comment, or `_NOTHING`."""
    decoder = json.JSONDecoder()
    start = comment.find("{")
    for _ in range(_MOST_BRACES):
        if start < 0:
            break
        try:
            value, end = decoder.raw_decode(comment, start)
        except (ValueError, RecursionError):
            start = comment.find("{", start + 1)
            continue
        if isinstance(value, dict):
            for key, said in value.items():
                if key.lower() == "backstay":
                    return said
        start = comment.find("{", end)
    return _NOTHING


def _from_value(said: Any) -> OptIn:
    match said:
        case dict():
            return _from_pairs(said.items())
        case bool() | None:
            return OptIn(opted_in=bool(said))
        case str():
            return _from_words(f":{said}")
        case _:
            return OptIn(opted_in=True, warnings=(_warning(f"backstay is {_shown(said)}", 'write {"backstay": {"mode": "approve"}}'),))


def _from_braces(comment: str, start: int) -> OptIn:
    """`{backstay:{mode:approve,...}}` as sbatch leaves it: pairs up to the brace that closes."""
    depth, end = 1, start
    while end < len(comment) and depth:
        depth += {"{": 1, "}": -1}.get(comment[end], 0)
        end += 1
    closed = depth == 0
    opt_in = _from_pairs(_split_pairs(comment[start : end - 1 if closed else end]))
    if closed:
        return opt_in
    missing = _warning("the brace after backstay is not closed", "close it, or write backstay:mode=...,checkpoints=...")
    return opt_in.model_copy(update={"warnings": (*opt_in.warnings, missing)})


def _from_words(rest: str) -> OptIn:
    """What stands behind the word: nothing, a mode, yes or no, or `key=value` pairs up to `;` or a space."""
    match = _AFTER_WORD.match(rest)
    if match is None:
        return OptIn(opted_in=True)
    rest = rest[match.end() :]
    pattern = _PATTERN_KEY.search(rest)
    before = _LOOSE_COMMA.sub(",", rest[: pattern.start()] if pattern else rest)
    if pattern is None or re.search(r"[;\s]", before):
        said = re.split(r"[;\s]", before, maxsplit=1)[0]
        beyond = before[len(said) :] + (rest[pattern.start() :] if pattern else "")
        said = said.rstrip("}")  # `{backstay:true}`
    else:
        # A regular expression may hold spaces and commas: from `progress=` on, only a semicolon ends it.
        said, mark, behind = rest[pattern.start() :].partition(";")
        said, beyond = before + said, mark + behind
    opt_in = _from_pairs(_split_pairs(said.strip().rstrip(",")))
    unread = _KEY_BEYOND.match(beyond)
    if unread is None:
        return opt_in
    warning = _warning(f"{unread['key']}= behind a semicolon or a space is not read", "separate the keys by commas alone")
    return opt_in.model_copy(update={"warnings": (*opt_in.warnings, warning)})


def _split_pairs(said: str) -> list[tuple[str, str]]:
    """`mode=approve,log=/x` or `mode:approve`; a regular expression keeps its commas up to the next key of ours."""
    pairs: list[tuple[str, str]] = []
    while said.strip(" ,"):
        said = said.strip(" ,")
        key = re.match(r"""['"]?(?P<key>[\w-]*)['"]?\s*[=:]\s*""", said)
        is_pattern = key is not None and _KEYS.get(key["key"].lower()) == "progress_pattern"
        parts = (_NEXT_KEY if is_pattern else re.compile(r",")).split(said, maxsplit=1)
        part, said = parts[0], parts[1] if len(parts) > 1 else ""
        if key is None:
            pairs.append(("", part.strip(" '\"")))
        else:
            pairs.append((key["key"], _unquoted(part[key.end() :].strip())))
    return pairs


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _from_pairs(pairs: Iterable[tuple[str, Any]]) -> OptIn:
    fields: dict[str, Any] = {}
    warnings: list[str] = []
    opted_in = True
    for raw_key, raw_value in pairs:
        key = str(raw_key).strip().lower()
        value = "" if raw_value is None else str(raw_value).strip()
        if not key:
            # `backstay:approve`, `backstay=off`: the mode without its key.
            key = "mode"
        if key not in _KEYS:
            near = get_close_matches(key, _SHOWN_KEYS, n=1) if len(warnings) < _MOST_WARNINGS else []
            mend = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(_SHOWN_KEYS)}"
            warnings.append(_warning(f"unknown key {_shown(key)}", mend))
        elif raw_value is None and key != "mode":
            continue  # JSON's null says nothing of a log or a directory
        elif isinstance(raw_value, (dict, list)):
            warnings.append(_warning(f"{key} is {_shown(raw_value)}", f'write it as text: {{"backstay": {{"{key}": "..."}}}}'))
        elif key == "mode" and value.lower() in _NO:
            opted_in = False
        elif key == "mode" and value.lower() in _YES:
            continue
        else:
            field = _KEYS[key]
            read = _READERS[field](value)
            if isinstance(read, _Garbled):
                warnings.append(read.warning)
            else:
                fields[field] = read
    return OptIn(opted_in=opted_in, warnings=tuple(warnings), **fields)


class _Garbled:
    def __init__(self, warning: str) -> None:
        self.warning = warning


def _mode(value: str) -> Mode | _Garbled:
    try:
        return Mode(value.lower())
    except ValueError:
        near = get_close_matches(value.lower(), [mode.value for mode in Mode], n=1)
        modes = ", ".join(mode.value for mode in Mode)
        return _Garbled(_warning(f"unknown mode {_shown(value)}", f"did you mean '{near[0]}'?" if near else f"the modes are {modes}"))


def _path(key: str, value: str) -> str | _Garbled:
    if not value:
        return _Garbled(_warning(f"{key} is empty", f"write {key}=/full/path"))
    if value.startswith("~") or "$" in value:
        return _Garbled(_warning(f"{key} is {_shown(value)}", "a comment is not expanded by any shell: write the full path"))
    if not value.isprintable():
        return _Garbled(_warning(f"{key} is {_shown(value)}", "a path of printable characters is needed"))
    return value


def _pattern(value: str) -> str | _Garbled:
    try:
        compiled_progress_pattern(value)
    except ProgressPatternRefused as refusal:
        return _Garbled(f"job comment: {refusal}")
    return value


_READERS: Mapping[str, Any] = {
    "mode": _mode,
    "checkpoints": lambda value: _path("checkpoints", value),
    "log": lambda value: _path("log", value),
    "dumps": lambda value: _path("dumps", value),
    "progress_pattern": _pattern,
}


def _warning(what: str, mend: str) -> str:
    return f"job comment: {what}; {mend}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:  # as deep as json reads, and read from deep within
        return "nested too deeply"
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…'"
