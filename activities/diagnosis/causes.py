"""The closed vocabulary of causes (causes.yaml) as types. The engine, the signature table and the policy name causes through here."""

from enum import StrEnum
from functools import cache
from importlib.resources import files

from ruamel.yaml import YAML

from activities.records import Domain, Record, SymptomKind

UNKNOWN = "unknown"


class Blames(StrEnum):
    """Whether evidence of a cause makes a node a suspect."""

    NODE = "node"
    NAMED = "named"
    NOBODY = "nobody"


class Cause(Record):
    """One row of causes.yaml."""

    slug: str
    domain: Domain
    means: str
    symptom: SymptomKind
    blames: Blames
    same_as: str = ""


@cache
def causes() -> dict[str, Cause]:
    """Every cause by its slug; read once."""
    table = YAML(typ="safe").load(files("activities.diagnosis").joinpath("causes.yaml").read_text())
    return {slug: Cause(slug=slug, domain=Domain(domain), **row) for domain, rows in table.items() for slug, row in rows.items()}


def cause_of(slug: str) -> Cause | None:
    """The cause named `slug`; None for `unknown` and for names outside the vocabulary."""
    return causes().get(slug)
