"""Runs recorded cases through the engine and the default policy, and scores them as tests/cases/README.md says.

`python -m tests.cases.score [DIRECTORY] [-v]` prints the table; test_cases.py asserts the reach."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from activities.configuration import PolicySection
from activities.diagnosis.casefile import read_case
from activities.diagnosis.engine import Engine
from activities.diagnosis.scheduler_facts import facts_of
from activities.diagnosis.signals import Signals
from activities.policy import Situation, recommend, suspect_nodes
from activities.records import Job, JobState, Judgement, Recommendation, Symptom, SymptomKind

HERE = Path(__file__).parent
KINDS = {
    # finer symptoms count as their kind (README)
    SymptomKind.NODE_FAULT: SymptomKind.CRASH,
    SymptomKind.BAD_NUMBERS: SymptomKind.CRASH,
    SymptomKind.NO_CHECKPOINT: SymptomKind.HANG,
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def directory() -> Path:
    """The cases to run: BACKSTAY_CASES, the shared ones beside the checkout, or the copies that came with it."""
    if told := os.environ.get("BACKSTAY_CASES"):
        return Path(told)
    shared = HERE.parents[2] / "shared" / "cases" / "dev"
    return shared if shared.is_dir() else HERE / "dev"


@dataclass
class Scored:
    """One case, what we said, and whether that is right."""

    name: str
    expected: Mapping[str, Any]
    judgement: Judgement
    recommendation: Recommendation
    blamed: set[str] = field(default_factory=set)
    guilty: set[str] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    right: dict[str, bool] = field(default_factory=dict)

    @property
    def is_benign(self) -> bool:
        return str(self.expected["domain"]) == "none"


def run(path: Path, engine: Engine) -> Scored:
    """Judges one case and asks the default policy, with an empty history, what to do."""
    signals, document = read_case(path)
    return judged(path.stem, signals, document["expected"], engine)


def judged(name: str, signals: Signals, expected: Mapping[str, Any], engine: Engine) -> Scored:
    """The same for signals already read."""
    judgement = engine.judge(signals)
    facts = facts_of(signals)
    job = Job(
        job_id="1",
        numeric_id=1,
        state=JobState(facts.state) if facts.state in JobState.__members__ else JobState.UNKNOWN,
        nodes=facts.nodes,
        is_batch=True,
        may_requeue=True,
    )
    situation = Situation(
        symptom=Symptom(kind=judgement.symptom, onset=NOW, detected_at=NOW, summary=judgement.diagnosis.summary),
        diagnosis=judgement.diagnosis,
        attribution=judgement.attribution,
        job=job,
        progress=judgement.progress,
        now=NOW,
    )
    policy = PolicySection()
    recommendation = recommend(situation, policy)
    scored = Scored(name, expected, judgement, recommendation)
    scored.blamed = {suspect.node for suspect in judgement.attribution.suspects if suspect.node}
    scored.guilty = set(expected.get("suspect_nodes") or [])
    scored.excluded = set(suspect_nodes(situation, policy)) if recommendation.action == "restart_excluding" else set()
    symptom = KINDS.get(judgement.symptom, judgement.symptom)
    scored.right = {
        "symptom": symptom in _acceptable(expected, "symptom"),
        "domain": judgement.diagnosis.domain in _acceptable(expected, "domain"),
        "cause": judgement.diagnosis.cause in _acceptable(expected, "cause"),
        "action": recommendation.action in _acceptable(expected, "action"),
        "no healthy node excluded": scored.excluded <= scored.guilty,
        "no false alarm": not scored.is_benign
        or ((symptom is SymptomKind.NONE or recommendation.action in ("none", "hold")) and not scored.blamed),
    }
    return scored


def _acceptable(expected: Mapping[str, Any], what: str) -> set[str]:
    return {str(value) for value in [expected.get(what), *(expected.get(f"acceptable_{what}s") or [])] if value is not None}


@dataclass
class Totals:
    """The figures of a run."""

    shares: dict[str, float]
    suspect_precision: float
    suspect_recall: float
    false_alarms: list[str]
    healthy_excluded: list[str]


def totals(scored: Sequence[Scored]) -> Totals:
    """Shares of right answers; precision and recall over node names."""
    count = Counter(what for case in scored for what, is_right in case.right.items() if is_right)
    blamed = sum(len(case.blamed) for case in scored)
    guilty = sum(len(case.guilty) for case in scored)
    found = sum(len(case.blamed & case.guilty) for case in scored)
    return Totals(
        shares={what: count[what] / len(scored) for what in ("symptom", "domain", "cause", "action")},
        suspect_precision=found / blamed if blamed else 1.0,
        suspect_recall=found / guilty if guilty else 1.0,
        false_alarms=[case.name for case in scored if not case.right["no false alarm"]],
        healthy_excluded=[case.name for case in scored if not case.right["no healthy node excluded"]],
    )


def report(scored: Sequence[Scored], *, verbose: bool = False) -> str:
    """The table a person reads: figures, then every case that is not entirely right."""
    figures = totals(scored)
    lines = [f"{len(scored)} cases"]
    lines += [f"  {what:<26}{share:7.1%}" for what, share in figures.shares.items()]
    lines += [f"  {'suspect precision':<26}{figures.suspect_precision:7.2f}", f"  {'suspect recall':<26}{figures.suspect_recall:7.2f}"]
    lines += [
        f"  {'false alarms on benign':<26}{len(figures.false_alarms):4}",
        f"  {'healthy nodes excluded':<26}{len(figures.healthy_excluded):4}",
    ]
    for case in scored:
        wrong = [what for what, is_right in case.right.items() if not is_right]
        if case.blamed != case.guilty:
            wrong.append("suspects")
        if wrong or verbose:
            said = case.judgement
            lines.append(f"{'x' if wrong else ' '} {case.name}: {', '.join(wrong)}")
            lines.append(
                f"      said {said.symptom}/{said.diagnosis.domain}/{said.diagnosis.cause} {said.diagnosis.confidence} "
                f"-> {case.recommendation.action} ({case.recommendation.rule}) blames {sorted(case.blamed)}"
            )
            expected = case.expected
            lines.append(
                f"      want {expected['symptom']}/{expected['domain']}/{expected['cause']} "
                f"-> {expected.get('acceptable_actions')} blames {sorted(case.guilty)}"
            )
            primary = said.diagnosis.primary
            if primary:
                lines.append(f"      on   {primary.source} {primary.line}: {primary.text[:150]}")
    return "\n".join(lines)


def run_all(paths: Iterable[Path]) -> list[Scored]:
    engine = Engine()
    return [run(path, engine) for path in sorted(paths)]


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    place = Path(arguments[0]) if arguments else directory()
    print(report(run_all(place.glob("*.yaml") if place.is_dir() else [place]), verbose="-v" in sys.argv))
