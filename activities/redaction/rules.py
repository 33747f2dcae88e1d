"""The rules by which secrets are known: rules.yaml (ours) and issuers.yaml (gitleaks'), read once and compiled. Pure.

Two matchers share each pattern. Hyperscan finds the lines of a whole log in one pass; RE2 then says where in the line the secret
stands. Both are linear in the text, whatever a job prints.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import re2
from ruamel.yaml import YAML

from activities.scanning.scan import MultiPattern

WRAPPED = "wrapped"
"""The matcher's id of a line that ends inside a token whose length is known."""


class Value(StrEnum):
    """What a secret must look like besides (rules.yaml)."""

    ANY = "any"
    GIVEN = "given"
    TOKEN = "token"  # noqa: S105 the name of a kind of value
    RANDOM = "random"


class Rule(NamedTuple):
    """One way in which a secret stands in text."""

    kind: str
    """Names it in the mark that takes its place."""
    expression: Any
    """RE2's, over bytes."""
    groups: tuple[int, ...]
    """The groups of which one is the secret; none where all that matches is."""
    bare: int | None
    """Which of them stands without quotes: there it may be a piece of program text."""
    value: Value
    entropy: float
    """Bits a byte, at least."""
    lines: int


class Rules(NamedTuple):
    """All rules in order: the first that finds a secret names it."""

    rows: Sequence[Rule]
    lines: MultiPattern
    """Finds the lines; its ids are the rows' numbers, and `WRAPPED`."""


@cache
def rules() -> Rules:
    """Read and compiled once; takes about a second where no compiled matcher was kept (scanning/databases.py)."""
    table = _read("rules.yaml")
    parts = {name: _joined(text) for name, text in table["parts"].items()}
    rows = [(row, _joined(row["pattern"])) for row in (*table["rules"], *_read("issuers.yaml"))]
    lines = {
        str(number): _loosened(_begun(row.get("hint") or _filled(pattern, {**parts, "value": _VALUE_BEGINS})))
        for number, (row, pattern) in enumerate(rows)
    }
    lines[WRAPPED] = rf"(?:{'|'.join(map(re.escape, token_lengths()))})[A-Za-z0-9_-]*[ \t]*\\?\r?$"
    # Never the sparse mode for logs full of hits: every secret has to be seen.
    return Rules([_rule(row, _begun(_filled(pattern, parts))) for row, pattern in rows], MultiPattern(lines, dense_hits=1 << 60))


@cache
def token_lengths() -> Mapping[str, int]:
    """How a token begins, and how many characters all of it has."""
    return {str(prefix): int(length) for prefix, length in _read("rules.yaml")["token lengths"].items()}


@cache
def _read(name: str) -> Any:
    return YAML(typ="safe").load(files("activities.redaction").joinpath(name).read_text())


def _joined(text: str) -> str:
    return "".join(line.strip() for line in text.splitlines())


def _filled(pattern: str, parts: Mapping[str, str]) -> str:
    for name, text in parts.items():
        pattern = pattern.replace(f"<{name}>", text)
    return pattern


_WORD_BEGINS = re.compile(r"(?P<flags>(?:\(\?i\))?)\\b(?P<token>.+)", re.DOTALL)
_AFTER_ESCAPES = r"(?:\b|\\[nrt]|\[[0-9;]*m)"


def _begun(pattern: str) -> str:
    """A token also begins after a line break that JSON has escaped, and after a colour: `\\nhf_...` has no word's beginning."""
    begins = _WORD_BEGINS.fullmatch(pattern)
    return pattern if begins is None or "?P<" in pattern else f"{begins['flags']}{_AFTER_ESCAPES}(?P<token>{begins['token']})"


def _rule(row: Mapping[str, Any], pattern: str) -> Rule:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes as they come: a log need not be UTF-8
    options.log_errors = False
    expression = re2.compile(f"(?m){pattern}".encode(), options)
    groups = {name.decode(): number for name, number in expression.groupindex.items()}
    bare = groups.get("secret_bare", groups.get("secret"))
    asked = Value.ANY if not groups or "token" in groups else Value.GIVEN
    return Rule(
        kind=row["id"],
        expression=expression,
        groups=tuple(sorted(groups.values(), key=lambda number: number != bare)),  # the most usual one is asked first
        bare=bare,
        value=Value(row.get("value", asked)),
        entropy=row.get("entropy", 0.0),
        lines=row.get("lines", 1),
    )


_VALUE_BEGINS = r"""(?:\\*["'][^"'\\\n]|[^\s"',;\\])"""
_COUNTED = re.compile(r"\{(\d+)(?:,\d*)?\}\??")
_ENDS_REPEATING = re.compile(r"(?P<last>[\])a-z])(?:\{[1-9]\d*(?:,\d*)?\}|\+)(?P<closed>\)*)$")
_NAMED = re.compile(r"\?P<\w+>")


def _loosened(pattern: str) -> str:
    """For the matcher that finds the lines. Counted repeats take it seconds to compile, and a repeat at the end is a hit at each byte;
    a line too many costs little."""
    pattern = _ENDS_REPEATING.sub(r"\g<last>\g<closed>", pattern)
    return _COUNTED.sub(lambda counted: "*" if counted[1] == "0" else "+", _NAMED.sub("?:", pattern))


# --------------------------------------------------------------------------------------------------------- values

_LOOKED_AT_BYTES = 200
"""What is no secret is short."""

_PLACEHOLDER = rb"""
    (?i: none | null | nil | true | false | yes | no | empty | dummy | required | missing | invalid | expired | incorrect | wrong
      | unset | undefined | optional | not | set | found | given | hidden | masked | redacted | removed | default | disabled | enabled
      | prompt | failed | denied | string | bytes | float | bool | object | any | changeme | todo | example | placeholder | value
      | bearer | basic | digest | negotiate | token ) ['"`.,:;)\]}]*
    | [*x.#\-_=]{3,}.* | \xe2\x80\xa6.*          # stars, crosses, an ellipsis
    | <[A-Za-z_][\w\ |.-]*>? | <.*> | \[[A-Z]+\] | \{\{.* | \$\{\{.* | %[a-z_(][^%]*[%)]s?   # <your key>, templates
    | \$\(.* | `.* | \$\{?[A-Za-z_]\w*(?: :?[-?+=] [^}]* )?\}? | \$[0-9@*#?]                # what a shell puts there
    | \[redacted:?.*
"""
"""Stands for a secret, or refers to one."""

_PATH = rb"""
    (?:~|\.{1,2}|/(?:bin|etc|home|opt|tmp|usr|var|mnt|data|scratch|shared|lustre|gpfs|nfs|run|root|srv|work|projects?|secrets))
    /[\w@%+.,:/-]*
"""

_PROGRAM_TEXT = rb"""
    (?: self | cls | args | cfg | conf | config | settings | opts? | options | params | kwargs | hparams | flags | FLAGS | os | env
      | environ | secrets | request | ctx | context | user | creds? | credentials | client | getenv | process ) [.\[(] .*  # args.token
    | [A-Za-z_][A-Za-z_.]*[(\[] .*                                                                           # get_token(), List[str]
    | [a-z]+(?:_[a-z]+)*_(?:key|token|password|passwd|secret)s? [)\]},:]*                                   # api_key=api_key
    | (?:str|int|bytes|float|bool|Any|None|SecretStr) [)\]},:|]*                                            # annotations
"""

_NO_TOKEN = rb"""
    [0-9.,:_+-]+(?:[eE][+-]?[0-9]+)?[)\]},;:]*   # a number
    | [<\[|].* | .*[>\]|][)},;:]*                # <pad>, [CLS]
"""


@cache
def _harmless(value: Value, *, is_bare: bool) -> re.Pattern[bytes]:
    parts = [_PLACEHOLDER, _PATH, *([_PROGRAM_TEXT] if is_bare else []), *([_NO_TOKEN] if value is Value.TOKEN else [])]
    return re.compile(rb"(?xs)" + b" | ".join(parts))


def is_secret(value: bytes, rule: Rule, *, is_bare: bool) -> bool:
    """Whether what a rule found looks like one: no placeholder, no reference, no program text, random enough."""
    if rule.value is not Value.ANY:
        if len(value) <= _LOOKED_AT_BYTES and _harmless(rule.value, is_bare=is_bare).fullmatch(value):
            return False
        if rule.value is Value.RANDOM and not looks_random(value[:_LOOKED_AT_BYTES]):
            return False
    return not rule.entropy or entropy(value[:_LOOKED_AT_BYTES]) >= rule.entropy


_CASE_TURNS = re.compile(rb"[a-z](?=[A-Z])")


def looks_random(value: bytes) -> bool:
    """Letters with digits among them, or that change their case oftener than CamelCase does: no word, no name and no number."""
    if value.upper() == value.lower():
        return False
    turns = len(_CASE_TURNS.findall(value))
    return any(48 <= byte <= 57 for byte in value) or (turns > 1 and turns * 8 >= len(value))


def entropy(value: bytes) -> float:
    """Shannon's, in bits a byte, as gitleaks counts it."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values()) if size else 0.0
