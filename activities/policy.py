"""Rules × diagnosis × history × the cluster's nodes → one sealed `Recommendation`. Pure: reads no clock, touches nothing.

First the rules say what the cause calls for (the operator's, then `policy_rules.yaml`; first match wins), then the guards
of `policy_guards.py` say whether that may be done. Called by the step `recommend`, by `diagnose` and by `policy check`.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from activities.configuration import PolicySection, Rule, When
from activities.diagnosis.causes import UNKNOWN, causes
from activities.modes import judged_as
from activities.opinions.weighing import agree
from activities.policy_guards import Draft, Situation, apply_guards, expiry_of, suspect_nodes
from activities.records import Action, Domain, JobState, Judgement, Mode, Recommendation, SymptomKind

__all__ = ["Situation", "Spoken", "default_rules", "in_words", "recommend", "suspect_nodes"]

_RULES_FILE = Path(__file__).with_name("policy_rules.yaml")

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}

_LAST_RESORT = Rule(name="no-rule", do=Action.HOLD, why="no rule speaks of this, so a person decides")


@cache
def default_rules() -> tuple[Rule, ...]:
    """The rules Backstay comes with, in order; the last matches everything."""
    return TypeAdapter(tuple[Rule, ...]).validate_python(tuple(YAML(typ="safe").load(_RULES_FILE)))


def recommend(situation: Situation, policy: PolicySection, rules: Sequence[Rule] | None = None) -> Recommendation:
    """What to do about one incident.

    Args:
        situation: everything that is known, as records.
        policy: the operator's limits and switches. Its `rules` are not read here when `rules` is given.
        rules: tried in order, first match wins; default: the operator's rules, then the default rules.

    Returns:
        A recommendation sealed with its digest. `exclude_nodes` is the whole list the next attempt must be kept off: this
        incident's suspects, nodes Backstay excludes already, and the user's own exclusions; `suspect_nodes` tells the first apart,
        `user_excluded` the last.
    """
    named = _named(rules if rules is not None else (*policy.rules, *default_rules()))
    name, rule = next(
        ((name, rule) for name, rule in named if _matches(rule.when, situation, policy)),
        (_LAST_RESORT.name or "", _LAST_RESORT),
    )
    draft = Draft(action=rule.do, rule=name, why=_sentence(situation, rule), needs_approval=rule.needs_approval)
    draft = apply_guards(draft, situation, policy, without_suspects=Action(rule.without_suspects))
    if draft.action in (Action.RESTART, Action.RESTART_EXCLUDING) and (begins := _begins_by_itself(situation)):
        draft = draft.model_copy(update={"why": f"{draft.why}; {begins}"})

    judgement = Judgement(symptom=situation.symptom.kind, diagnosis=situation.diagnosis, attribution=situation.attribution)
    agreement = agree(judgement, situation.opinions, action=draft.action)
    if agreement.needs_approval:
        lowered = f"{situation.diagnosis.confidence:.2f} lowered to {situation.diagnosis.confidence * agreement.factor:.2f}"
        draft = draft.model_copy(update={"needs_approval": True, "why": f"{draft.why}; {agreement.note}: confidence {lowered}"})

    drains: tuple[str, ...] = ()
    if rule.drain and policy.drain_nodes and draft.action is Action.RESTART_EXCLUDING:
        # A drain is for every job, and what a job printed is its user's word: a second source must agree.
        drains = tuple(name for name in suspect_nodes(situation, policy) if name in situation.corroborated)
    expires_at, expiry_reason = expiry_of(draft.action, situation, policy)
    return Recommendation(
        action=draft.action,
        exclude_nodes=draft.exclude_nodes,
        user_excluded=tuple(name for name in draft.exclude_nodes if name in situation.users_own_exclusions),
        drain_nodes=drains,
        why=draft.why,
        rule=draft.rule,
        expires_at=expires_at,
        expiry_reason=expiry_reason,
        needs_approval=draft.needs_approval,
        short_of_nodes=draft.short_of_nodes,
    ).sealed(incident_id=situation.incident_id, restart_count=situation.restart_count)


def _named(rules: Iterable[Rule]) -> list[tuple[str, Rule]]:
    """Each rule with the name people see: its own, or its place in the list."""
    return [(rule.name or f"rule {number}", rule) for number, rule in enumerate(rules, start=1)]


def _sentence(situation: Situation, rule: Rule) -> str:
    diagnosis = situation.diagnosis
    fact = diagnosis.summary or situation.symptom.summary or diagnosis.cause
    why = rule.why or f"the rule says: {rule.do.in_words}"
    return f"{fact.rstrip('. ')} ({diagnosis.cause}, confidence {diagnosis.confidence:.2f}): {why}"


def _begins_by_itself(situation: Situation) -> str:
    """How long there is to decide on a job that was requeued before anyone could: off a lost node Slurm itself does that."""
    job = situation.job
    if job.state is not JobState.PENDING or job.restart_count <= situation.restart_count or job.is_held or job.eligible_at is None:
        return ""
    if job.eligible_at <= situation.now:
        return ""
    return f"it waits in the queue already, and Slurm starts it by itself from {job.eligible_at:%H:%M:%S} UTC on"


# ------------------------------------------------------------------------------------------------ matching


def _any_of(wanted: tuple[Any, ...] | Any | None, found: Iterable[Any]) -> bool:
    if wanted is None:
        return True
    return not set(wanted if isinstance(wanted, tuple) else (wanted,)).isdisjoint(found)


def _compares(condition: str | None, value: float) -> bool:
    if condition is None:
        return True
    sign = condition[: 2 if condition[1] == "=" else 1]
    return _COMPARE[sign](value, float(condition[len(sign) :]))


def _matches(when: When, situation: Situation, policy: PolicySection) -> bool:
    """True when everything that `when` names holds."""
    job, diagnosis = situation.job, situation.diagnosis
    likeliest = max((suspect.confidence for suspect in situation.attribution.suspects if suspect.node), default=0.0)
    return (
        _any_of(when.domain, [diagnosis.domain])
        and _any_of(when.cause, [diagnosis.cause])
        and _any_of(when.symptom, [situation.symptom.kind])
        and _any_of(when.mode, [judged_as(situation.mode)])
        and _any_of(when.partition, job.partition.split(","))
        and _any_of(when.user, [job.user])
        and _compares(when.confidence, diagnosis.confidence)
        and _compares(when.suspect_confidence, likeliest)
        and _compares(when.earlier_same_cause, len(situation.earlier_same_cause))
        and (when.has_suspects is None or when.has_suspects == bool(suspect_nodes(situation, policy)))
    )


# ------------------------------------------------------------------------------------------------ policy check


class Spoken(NamedTuple):
    """What the policy would do for one cause."""

    cause: str
    action: Action
    words: str
    decides: str = ""
    """The rule that decides the plain case, by the name people see."""


def in_words(rules: Sequence[Rule], by_domain: Mapping[str, Sequence[str]] | None = None) -> list[Spoken]:
    """What the rules would do for each cause, before the guards.

    `action` is for the plain case (a crash, confidently diagnosed, a node named, the first time, mode auto); `words` tells the rest, rule
    by rule in the order they are tried. `by_domain` maps a domain to its causes; default: the closed vocabulary.
    """
    table = by_domain if by_domain is not None else _vocabulary()
    return [_spoken(rules, Domain(domain), cause) for domain, slugs in table.items() for cause in slugs]


def _vocabulary() -> Mapping[str, Sequence[str]]:
    by_domain: dict[str, list[str]] = {}
    for slug, cause in causes().items():
        by_domain.setdefault(cause.domain, []).append(slug)
    return {**by_domain, Domain.UNKNOWN: [UNKNOWN]}


def _spoken(rules: Sequence[Rule], domain: Domain, cause: str) -> Spoken:
    plain: Action | None = None
    decides = ""
    phrases: list[str] = []
    for name, rule in _named(rules):
        if not (_any_of(rule.when.domain, [domain]) and _any_of(rule.when.cause, [cause])):
            continue
        if rule.when.symptom is SymptomKind.NONE:
            continue  # true of every cause; saying it 130 times helps nobody
        conditions = _conditions(rule.when)
        if plain is None and _holds_plainly(rule.when):
            plain, decides = rule.do, name
        phrases.append(f"{' and '.join(conditions) or ('otherwise' if phrases else 'always')}: {_act(rule)} [{name}]")
        if not conditions:
            break
    else:
        if plain is None:
            plain, decides = _LAST_RESORT.do, _LAST_RESORT.name or ""
        phrases.append(f"otherwise: {_LAST_RESORT.do.in_words} [{_LAST_RESORT.name}]")
    return Spoken(cause, plain or _LAST_RESORT.do, "; ".join(phrases), decides)


def _act(rule: Rule) -> str:
    said = rule.do.in_words
    if rule.do is Action.RESTART_EXCLUDING:
        said += f" the suspect (no node named: {Action(rule.without_suspects).in_words})"
    if rule.drain:
        said += " and drain"
    return said + (", after approval" if rule.needs_approval else "")


def _holds_plainly(when: When) -> bool:
    """Whether the rule matches the plain case that `in_words` describes."""
    return (
        _any_of(when.symptom, [SymptomKind.CRASH])
        and _any_of(when.mode, [Mode.AUTO])
        and _compares(when.confidence, 0.95)
        and _compares(when.suspect_confidence, 0.95)
        and _compares(when.earlier_same_cause, 0)
        and when.has_suspects is not False
        and when.partition is None
        and when.user is None
    )


# A key of `when` -> how what is left of it is told, in this order. Domain and cause are known by then.
_ASKED: Mapping[str, str] = {
    "symptom": "symptom {}",
    "mode": "mode {}",
    "confidence": "confidence {}",
    "suspect_confidence": "suspect's confidence {}",
    "has_suspects": "{}",
    "earlier_same_cause": "seen {} times before without progress since",
    "partition": "partition {}",
    "user": "user {}",
}


def _conditions(when: When) -> list[str]:
    """What remains to be asked once domain and cause are known."""
    return [words.format(_wanted(value)) for key, words in _ASKED.items() if (value := getattr(when, key)) is not None]


def _wanted(value: Any) -> str:
    match value:
        case bool():
            return "a node is named" if value else "no node is named"
        case tuple():
            return " or ".join(map(str, value))
        case _:
            return str(value)
