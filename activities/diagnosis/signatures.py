"""The signature table as types: loading, validating and merging signatures.yaml with the operator's own files.

A row is data; a bad one is refused with its file, line and the mend. The engine and the tests read the table through here."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from ruamel.yaml.nodes import SequenceNode

from activities.diagnosis.causes import causes
from activities.outside_text import TextRefused, yaml_document
from activities.records import Domain, Record
from activities.scanning.linear import linear
from activities.scanning.scan import MultiPattern, PatternRefused


class Role(StrEnum):
    """What a line that matches means for the search of the first cause."""

    PRIMARY = "primary"  # may be where it began
    CASCADE = "cascade"  # somebody noticing that something else broke
    TEARDOWN = "teardown"  # the launcher or the scheduler cleaning up
    HINT = "hint"  # no fault by itself; makes a cause more certain when there is one
    BENIGN = "benign"  # looks alarming and is not; hides the line from every other row
    PROGRESS = "progress"  # the job is doing something


class Where(StrEnum):
    """Which text a row is looked for in."""

    LOG = "log"
    SCHEDULER = "scheduler"
    ANY = "any"


class Doing(StrEnum):
    """What a job is busy with between its steps."""

    TRAINING = "training"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    PREPROCESS = "preprocess"


class Turn(StrEnum):
    """What a progress row's line says: the job begins (+) or ends (-) doing something."""

    TRAINING_BEGINS = "+training"
    TRAINING_ENDS = "-training"
    CHECKPOINT_BEGINS = "+checkpoint"
    CHECKPOINT_ENDS = "-checkpoint"
    EVALUATION_BEGINS = "+evaluation"
    EVALUATION_ENDS = "-evaluation"
    PREPROCESS_BEGINS = "+preprocess"
    PREPROCESS_ENDS = "-preprocess"

    @property
    def doing(self) -> Doing:
        return Doing(self.value[1:])

    @property
    def begins(self) -> bool:
        return self.value.startswith("+")


class Signature(Record):
    """One row of the table."""

    id: str = Field(pattern=r"^[a-z0-9_]+$", description="unique; what reports and fingerprints name")
    pattern: str = Field(description="hyperscan regular expression, matched inside a line")
    cause: str | None = Field(default=None, description="slug of causes.yaml; None for teardown, progress and unspecific rows")
    role: Role
    weight: float = Field(
        default=0.8, ge=0, le=1, description="how sure one such line alone makes us of the cause; decides between primaries"
    )
    extracts: str | None = Field(
        default=None,
        description="RE2 regular expression: groups rank, node, peer, gpu, code, seq, last, op, path; "
        "about = a rank that the line is about, whoever printed it",
    )
    where: Where = Where.LOG
    phase: Turn | None = Field(default=None, description="progress rows: what the job begins (+) or ends (-) doing")
    source: str = Field(description="where the wording is from")
    positive: str = Field(description="a line that must match")
    negative: str = Field(description="a line that looks alike and must not match")

    @field_validator("extracts")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            compiled_extracts(value)
        return value

    @property
    def domain(self) -> Domain:
        return causes()[self.cause].domain if self.cause else Domain.UNKNOWN


LARGEST_EXTRACTS = 5000  # instructions; the largest of the built-in table has 2,600, with two counted repeats of any character


def compiled_extracts(extracts: str) -> Any:
    """`Signature.extracts` compiled. An operator's file brings them as well: matched in time that grows with the line alone.

    Raises:
        PatternNotUsable: with why and the fix.
    """
    return linear(extracts, largest=LARGEST_EXTRACTS)


class SignaturesRefused(ValueError):
    """A signature file that cannot be used; the message names file, line, row and the mend."""


@cache
def built_in() -> tuple[Signature, ...]:
    """The table that comes with Backstay."""
    place = files("activities.diagnosis").joinpath("signatures.yaml")
    # Its examples are run by the tests, not at every start: compiling each row alone costs a second.
    return parse(place.read_text(), "signatures.yaml", check_examples=False)


def load(operator_files: Sequence[Path] = ()) -> tuple[Signature, ...]:
    """The built-in table and the operator's rows; an operator's row with a built-in id replaces it.

    Raises:
        SignaturesRefused: a file is missing, is not YAML, or holds a bad row.
    """
    rows = {row.id: row for row in built_in()}
    for path in operator_files:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as why:
            raise SignaturesRefused(
                f"{path}: cannot be read ({why.strerror}); correct attribution.signatures in the configuration"
            ) from why
        except UnicodeDecodeError as why:
            raise SignaturesRefused(f"{path}: is not UTF-8 text (byte {why.start}); save it as UTF-8") from why
        rows |= {row.id: row for row in parse(text, str(path))}
    return tuple(rows.values())


def parse(text: str, name: str, *, check_examples: bool = True) -> tuple[Signature, ...]:
    """The rows of one file; `check_examples` runs each row on its own example lines.

    Raises:
        SignaturesRefused: with `name:line` of the first bad row.
    """
    try:
        node, document = yaml_document(text)
    except TextRefused as refusal:
        raise SignaturesRefused(f"{name}:{refusal.line or 1}: {refusal}") from refusal
    if document is None:
        return ()
    if not isinstance(node, SequenceNode):
        raise SignaturesRefused(f"{name}:1: a signature file is a list of rows, each beginning with `- id:`")
    rows: dict[str, Signature] = {}
    for index, item in enumerate(document):
        place = f"{name}:{node.value[index].start_mark.line + 1}"
        row = _row(item, place)
        if check_examples:
            _check_examples(row, place)
        if row.id in rows:
            raise SignaturesRefused(f"{place}: id '{row.id}' is used twice in this file; ids are unique")
        rows[row.id] = row
    return tuple(rows.values())


def compiled(rows: Sequence[Signature]) -> MultiPattern:
    """All patterns of `rows` as one matcher, keyed by id."""
    return MultiPattern({row.id: row.pattern for row in rows}, dense_hits=4000)


def _row(item: Any, place: str) -> Signature:
    if not isinstance(item, Mapping):
        raise SignaturesRefused(f"{place}: a row is a mapping with id, pattern, role, cause, source, positive, negative")
    known = set(Signature.model_fields)
    for key in item:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            raise SignaturesRefused(
                f"{place}: unknown key '{key}'" + (f"; did you mean '{near[0]}'?" if near else f"; known: {sorted(known)}")
            )
    try:
        row = Signature.model_validate(dict(item))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        raise SignaturesRefused(f"{place}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from wrong
    if row.cause is not None and row.cause not in causes():
        near = get_close_matches(row.cause, causes(), n=1)
        raise SignaturesRefused(f"{place}: cause '{row.cause}' is not in causes.yaml" + (f"; did you mean '{near[0]}'?" if near else ""))
    if row.role in (Role.PRIMARY, Role.BENIGN) and row.cause is None:
        raise SignaturesRefused(f"{place}: a {row.role} row needs a cause; take one of causes.yaml")
    return row


def _check_examples(row: Signature, place: str) -> None:
    try:
        matcher = MultiPattern({row.id: row.pattern})
    except PatternRefused as refusal:
        raise SignaturesRefused(f"{place}: {refusal}") from refusal
    if not matcher.matches(row.positive.encode()):
        raise SignaturesRefused(f"{place}: '{row.id}' does not match its own positive example; mend the pattern or the example")
    if matcher.matches(row.negative.encode()):
        raise SignaturesRefused(f"{place}: '{row.id}' matches its own negative example; make the pattern narrower")
