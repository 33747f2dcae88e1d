"""What an input or output in a workflow history says, as one sentence for people.

Recognised by the fields it has, not by the name of the activity that wrote it: an audit also reads histories of older
and newer workers. What no row recognises is shown as shortened JSON, never left out. Called by `facts.py` only.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from activities.records import Action

LONGEST = 240  # characters of JSON shown for what no row recognises

Shape = Mapping[str, Any]


def in_words(value: Any) -> str:
    """One line about a decoded payload; empty for nothing."""
    match value:
        case None:
            return ""
        case dict():
            for fields, words in SENTENCES:
                if fields <= value.keys():
                    return words(value)
            return _shortened(value)
        case str():
            return _one_line(value)
        case _:
            return _shortened(value)


def _symptom(symptom: Shape) -> str:
    return f"{symptom['kind']} since {symptom['onset']}: {symptom['summary']}"


def _watch(result: Shape) -> str:
    if result["symptom"]:
        return f"{result['kind']}: {_symptom(result['symptom'])}"
    progress = result["progress"]
    reached = ", ".join(
        f"{words} {progress[field]}"
        for field, words in (("iteration", "iteration"), ("checkpoint_iteration", "checkpoint"))
        if progress.get(field) is not None
    )
    return ": ".join(part for part in (result["kind"], result.get("summary") or reached) if part)


def _change(change: Shape) -> str:
    return ": ".join(part for part in (change["kind"], change.get("summary")) if part)


def _diagnosis(diagnosis: Shape) -> str:
    return f"{diagnosis['domain']}/{diagnosis['cause']} at confidence {diagnosis['confidence']}: {diagnosis.get('summary') or 'no summary'}"


def _judgement(judgement: Shape) -> str:
    attribution = in_words(judgement.get("attribution"))
    return _diagnosis(judgement["diagnosis"]) + (f"; {attribution}" if attribution else "")


def _attribution(attribution: Shape) -> str:
    named = [_suspect(suspect) for suspect in attribution["suspects"]]
    return f"suspects {', '.join(named)}" if named else "no suspect named"


def _suspect(suspect: Shape) -> str:
    where = " ".join(f"{kind} {suspect[kind]}" for kind in ("node", "gpu", "rank") if suspect.get(kind) is not None)
    return f"{where or 'unnamed'} ({suspect['confidence']})"


def _recommendation(recommendation: Shape) -> str:
    users = recommendation.get("user_excluded") or ()
    ours = [node for node in recommendation.get("exclude_nodes") or () if node not in users]
    nodes = f" {', '.join(ours)}" if ours else ""
    nodes += f" (the user's own list: {', '.join(users)})" if users else ""
    digest = f" [{recommendation['digest']}]" if recommendation.get("digest") else ""
    return f"{_action(recommendation['action'])}{nodes}{digest} by rule {recommendation['rule']}: {recommendation['why']}"


def _action(name: str) -> str:
    """An act in words; one that this version does not know, by its name."""
    return Action(name).in_words if name in set(Action) else name


def _proposal(proposal: Shape) -> str:
    return f"{_recommendation(proposal['recommendation'])}; mode {proposal['mode']}"


def _decision(decision: Shape) -> str:
    return f"{decision['kind']} by {decision['actor']}" + (f": {decision['reason']}" if decision.get("reason") else "")


def _decision_request(request: Shape) -> str:
    verb = "approves" if request["approve"] else "rejects"
    return f"{request['actor']} {verb} {request['digest']}" + (f": {request['reason']}" if request.get("reason") else "")


def _mutation(result: Shape) -> str:
    if result.get("superseded"):
        return f"superseded: {result['superseded']}"
    if result.get("refused"):
        return f"refused: {result['refused']}"
    return str(result.get("detail") or ("done" if result.get("done") else "nothing done"))


def _opinion(opinion: Shape) -> str:
    return f"{opinion['source']} says {opinion['verdict']}: {opinion.get('why') or opinion.get('note') or 'no reason given'}"


def _permission(permission: Shape) -> str:
    return f"{'granted' if permission['granted'] else 'refused'}: {permission['why']}"


def _cluster_view(view: Shape) -> str:
    nodes = ", ".join(str(entry["node"]) for entry in view["excluded"]) or "no node"
    tripped = view["breaker"].get("tripped_at")
    users = ", ".join(str(stop["user"]) for stop in view["breaker"].get("users") or ())
    closed = f"breaker tripped for the jobs of {users}" if users else "breaker closed"
    return f"{nodes} excluded; " + (f"breaker tripped: {view['breaker'].get('reason')}" if tripped else closed)


def _persons_word(word: Shape) -> str:
    node = f"node {word['node']}, " if word.get("node") else ""
    return f"{node}by {word['actor']}: {word['reason'] or 'no reason given'}"


def _evidence(evidence: Shape) -> str:
    titles = ", ".join(str(excerpt["title"]) for excerpt in evidence["excerpts"])
    kept = f"{len(evidence['excerpts'])} excerpts kept: {titles}" if titles else "nothing could be kept"
    return "; lacks ".join((kept, *map(str, evidence.get("unreadable", ()))))


def _job_state(state: Shape) -> str:
    key = state["key"]
    return f"job {key['job_id']} of {key['cluster']}, mode {state['mode']}, {state.get('stage', 'watching')}"


def _watch_request(request: Shape) -> str:
    attempt = request["attempt"]
    nodes = ", ".join(attempt.get("nodes") or ()) or "no nodes yet"
    return f"attempt {attempt['restart_count']} on {nodes}, until {request['until']}"


def _mutation_request(request: Shape) -> str:
    nodes = f", nodes {', '.join(request['nodes'])}" if request.get("nodes") else ""
    return f"job {request['job_id']} after attempt {request['restart_count']}, {request['incident_id']}{nodes}"


def _job_key(key: Shape) -> str:
    return f"job {key['job_id']} of {key['cluster']}"


# Most telling first: a record with more of these fields stands above one with fewer.
SENTENCES: tuple[tuple[frozenset[str], Callable[[Shape], str]], ...] = (
    (frozenset({"key", "mode", "attempt"}), _job_state),
    (frozenset({"symptom", "diagnosis", "attribution"}), _judgement),
    (frozenset({"recommendation", "mode"}), _proposal),
    (frozenset({"action", "why", "rule"}), _recommendation),
    (frozenset({"kind", "onset", "summary"}), _symptom),
    (frozenset({"kind", "symptom", "progress"}), _watch),
    (frozenset({"kind", "at", "progress"}), _change),
    (frozenset({"approve", "actor", "digest"}), _decision_request),
    (frozenset({"kind", "actor", "at"}), _decision),
    (frozenset({"domain", "cause", "confidence"}), _diagnosis),
    (frozenset({"suspects", "abstained"}), _attribution),
    (frozenset({"step", "done"}), _mutation),
    (frozenset({"source", "verdict"}), _opinion),
    (frozenset({"granted", "why"}), _permission),
    (frozenset({"excerpts", "captured_at"}), _evidence),
    (frozenset({"attempt", "until", "opt_in"}), _watch_request),
    (frozenset({"job_id", "incident_id", "restart_count"}), _mutation_request),
    (frozenset({"excluded", "breaker"}), _cluster_view),
    (frozenset({"actor", "reason"}), _persons_word),
    (frozenset({"cluster", "job_id", "submitted_at"}), _job_key),
)


def _shortened(value: Any) -> str:
    text = _one_line(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _one_line(text: str) -> str:
    """Log text may carry terminal escapes and line ends; a line of an audit is one line and nothing but text."""
    return "".join(character if character.isprintable() else " " for character in text)
