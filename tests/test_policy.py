"""Which action a cause gets by the rules, and how the rules are told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from activities.configuration import PolicySection, Rule, When
from activities.diagnosis.causes import causes
from activities.policy import Situation, default_rules, in_words, recommend
from activities.records import (
    Action,
    Domain,
    JobHistory,
    JobState,
    Mode,
    Opinion,
    Side,
    SymptomKind,
    Verdict,
)
from tests.builders import (
    a_diagnosis,
    a_job,
    a_past_incident,
    a_suspect,
    a_symptom,
    after,
    an_attribution,
)
from tests.situations import NO_BLAME, POLICY, a_situation, an_entry, some_nodes


def test_a_broken_device_is_restarted_off_its_node() -> None:
    said = recommend(a_situation(), POLICY)
    assert (said.action, said.exclude_nodes, said.rule) == (Action.RESTART_EXCLUDING, ("node-002",), "broken-device")
    assert not said.needs_approval
    assert "ecc_uncorrectable" in said.why
    assert len(said.digest) == 12


def test_the_digest_names_the_attempt_and_what_would_be_done() -> None:
    first = recommend(a_situation(), POLICY)
    assert recommend(a_situation(now=after(90)), POLICY).digest == first.digest
    assert recommend(a_situation(restart_count=1), POLICY).digest != first.digest
    assert recommend(a_situation(ledger=(an_entry("node-003"),)), POLICY).digest != first.digest


@pytest.mark.parametrize("kind", [SymptomKind.CRASH, SymptomKind.HANG])
def test_an_unknown_crash_or_hang_is_tried_once_more_where_someone_may_act_on_it(kind: SymptomKind) -> None:
    unknown = a_diagnosis("unknown", Domain.UNKNOWN, confidence=0.0)
    first = a_situation(symptom=a_symptom(kind), diagnosis=unknown, attribution=NO_BLAME)
    assert recommend(first, POLICY).action is Action.RESTART
    assert recommend(first.model_copy(update={"mode": Mode.APPROVE}), POLICY).action is Action.RESTART
    assert recommend(first.model_copy(update={"mode": Mode.OBSERVE}), POLICY).action is Action.RESTART
    assert recommend(first.model_copy(update={"mode": None}), POLICY).action is Action.HOLD, "nobody knows whether it was the first time"
    again = JobHistory(incidents=(a_past_incident(cause="unknown", domain=Domain.UNKNOWN),), restarts=1)
    assert recommend(first.model_copy(update={"history": again}), POLICY).action is Action.HOLD


def test_an_unknown_cause_never_excludes_a_node() -> None:
    said = recommend(a_situation(diagnosis=a_diagnosis("unknown", Domain.UNKNOWN)), POLICY)
    assert said.exclude_nodes == ()


def test_slowness_is_never_restarted_by_itself() -> None:
    slow = a_diagnosis("thermal_throttling")
    assert recommend(a_situation(symptom=a_symptom(SymptomKind.SLOWDOWN), diagnosis=slow), POLICY).action is Action.HOLD


def test_nothing_is_done_about_nothing() -> None:
    said = recommend(a_situation(symptom=a_symptom(SymptomKind.NONE)), POLICY)
    assert (said.action, said.expires_at) == (Action.NONE, None)


def test_the_operators_rules_come_first() -> None:
    mine = Rule(name="mine", when=When(partition="train", cause="ecc_uncorrectable"), do=Action.HOLD, why="we look at each")
    said = recommend(a_situation(), PolicySection(rules=(mine,)))
    assert (said.action, said.rule) == (Action.HOLD, "mine")
    elsewhere = a_situation(job=a_job(partition="other"), nodes=some_nodes(40, partitions=("other",)))
    assert recommend(elsewhere, PolicySection(rules=(mine,))).rule == "broken-device"


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        (When(confidence=">=0.95"), True),
        (When(confidence=">0.95"), False),
        (When(confidence="<0.95"), False),
        (When(suspect_confidence=">= 0.9"), True),
        (When(suspect_confidence=">0.9"), False),
        (When(has_suspects=False), False),
        (When(earlier_same_cause="<1"), True),
        (When(earlier_same_cause=">=1"), False),
        (When(user=("alice", "bob")), True),
        (When(user="bob"), False),
        (When(domain=(Domain.USER, Domain.HARDWARE)), True),
        (When(mode=Mode.APPROVE), False),
        (When(symptom=SymptomKind.HANG), False),
        (When(domain=Domain.HARDWARE, user="bob"), False),
    ],
)
def test_a_rule_matches_when_all_that_it_names_holds(when: When, matches: bool) -> None:
    rule = Rule(name="mine", when=when, do=Action.STOP)
    assert (recommend(a_situation(), PolicySection(rules=(rule,))).rule == "mine") is matches


def test_without_any_matching_rule_a_person_decides() -> None:
    assert recommend(a_situation(), POLICY, []).action is Action.HOLD


def test_draining_needs_both_the_rule_and_the_operators_permission() -> None:
    rule = Rule(when=When(domain=Domain.HARDWARE), do=Action.RESTART_EXCLUDING, drain=True)
    assert recommend(a_situation(), PolicySection(rules=(rule,))).drain_nodes == ()
    said = recommend(a_situation(ledger=(an_entry("node-003"),)), PolicySection(rules=(rule,), drain_nodes=True))
    assert said.drain_nodes == ("node-002",), "only what this incident implicates"


def test_a_node_is_drained_only_when_a_second_source_implicates_it() -> None:
    rule = Rule(when=When(domain=Domain.HARDWARE), do=Action.RESTART_EXCLUDING, drain=True)
    said = recommend(a_situation(corroborated=()), PolicySection(rules=(rule,), drain_nodes=True))
    assert (said.action, said.exclude_nodes, said.drain_nodes) == (Action.RESTART_EXCLUDING, ("node-002",), ())


def test_a_disagreeing_opinion_asks_for_a_person_and_says_why() -> None:
    against = Opinion(source="attrsvc", verdict=Verdict.STOP, side=Side.WORKLOAD)
    said = recommend(a_situation(opinions=(against,)), POLICY)
    assert (said.action, said.needs_approval) == (Action.RESTART_EXCLUDING, True)
    assert "attrsvc sees a fault of the workload" in said.why
    assert "0.95 lowered to 0.57" in said.why


def test_an_opinion_that_did_not_come_changes_nothing() -> None:
    silent = Opinion(source="attrsvc", verdict=Verdict.STOP, note="timed out after 60 s")
    assert recommend(a_situation(opinions=(silent,)), POLICY) == recommend(a_situation(), POLICY)


def test_every_cause_has_words_and_an_end() -> None:
    spoken = {said.cause: said for said in in_words(default_rules())}
    assert set(spoken) == set(causes()) | {"unknown"}
    assert all(said.words for said in spoken.values())
    assert spoken["xid_79_fell_off_bus"].action is Action.RESTART_EXCLUDING
    assert spoken["config_mismatch_checkpoint"].action is Action.STOP
    assert spoken["unknown"].words.endswith("otherwise: leave to a person [unknown]")


def test_words_tell_an_operators_rule_in_its_place() -> None:
    mine = Rule(when=When(cause="cuda_oom", confidence=">=0.9"), do=Action.HOLD, needs_approval=True)
    [said] = [said for said in in_words([mine, *default_rules()]) if said.cause == "cuda_oom"]
    assert said.action is Action.HOLD
    assert said.words.startswith("confidence >=0.9: leave to a person, after approval [rule 1]; ")


def test_every_cause_a_default_rule_names_is_in_the_vocabulary() -> None:
    named = {
        cause for rule in default_rules() for cause in ((rule.when.cause,) if isinstance(rule.when.cause, str) else rule.when.cause or ())
    }
    assert named <= set(causes())


# ------------------------------------------------------------------------------------------------ one policy, one preview

DOMAINS = {**{slug: Domain(cause.domain) for slug, cause in causes().items()}, "unknown": Domain.UNKNOWN}

situations = st.builds(
    lambda cause, symptom, confidence, suspect, state, restarts, earlier, requeue, batch, held_nodes, opinion: a_situation(
        symptom=a_symptom(symptom),
        diagnosis=a_diagnosis(cause, DOMAINS[cause], confidence=confidence),
        attribution=an_attribution(a_suspect(confidence=suspect)) if suspect else NO_BLAME,
        job=a_job(state=state, ended_at=after(61) if state.is_ended else None, may_requeue=requeue, is_batch=batch),
        history=JobHistory(
            incidents=tuple(a_past_incident(cause=cause, domain=DOMAINS[cause]) for _ in range(earlier)),
            restarts=restarts,
            restarts_without_checkpoint=min(restarts, earlier),
        ),
        ledger=tuple(an_entry(f"node-{number:03d}") for number in range(10, 10 + held_nodes)),
        opinions=(Opinion(source="attrsvc", verdict=opinion),) if opinion else (),
    ),
    cause=st.sampled_from(sorted(DOMAINS)),
    symptom=st.sampled_from(SymptomKind),
    confidence=st.sampled_from([0.0, 0.4, 0.6, 0.95]),
    suspect=st.sampled_from([0.0, 0.5, 0.9]),
    state=st.sampled_from([JobState.RUNNING, JobState.FAILED, JobState.PENDING]),
    restarts=st.integers(0, 9),
    earlier=st.integers(0, 3),
    requeue=st.booleans(),
    batch=st.booleans(),
    held_nodes=st.integers(0, 3),
    opinion=st.sampled_from([None, *Verdict]),
)
rules = st.lists(
    st.builds(
        lambda mode, symptom, do, approval: Rule(when=When(mode=mode, symptom=symptom), do=do, needs_approval=approval),
        mode=st.sampled_from([None, Mode.APPROVE, Mode.AUTO, (Mode.APPROVE, Mode.AUTO)]),
        symptom=st.sampled_from([None, *SymptomKind]),
        do=st.sampled_from(Action),
        approval=st.booleans(),
    ),
    max_size=3,
)


@given(situation=situations, own=rules)
@settings(max_examples=400)
def test_what_is_recorded_in_observe_is_what_auto_would_do(situation: Situation, own: list[Rule]) -> None:
    policy = PolicySection(rules=tuple(own))
    told = {mode: recommend(situation.model_copy(update={"mode": mode}), policy) for mode in (Mode.OBSERVE, Mode.AUTO)}
    assert told[Mode.OBSERVE] == told[Mode.AUTO]


@pytest.mark.parametrize("cause", sorted(DOMAINS))
@pytest.mark.parametrize("symptom", list(SymptomKind))
def test_observe_and_auto_agree_on_every_cause(cause: str, symptom: SymptomKind) -> None:
    situation = a_situation(symptom=a_symptom(symptom), diagnosis=a_diagnosis(cause, DOMAINS[cause]))
    assert recommend(situation.model_copy(update={"mode": Mode.OBSERVE}), POLICY) == recommend(situation, POLICY)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, (Mode.OBSERVE, Mode.APPROVE)])
def test_a_rule_for_observe_alone_is_refused(mode: Mode | tuple[Mode, ...]) -> None:
    with pytest.raises(ValidationError, match="name approve or auto, or leave mode out"):
        When(mode=mode)


def test_policy_check_tells_for_the_plain_case_what_observe_and_auto_recommend() -> None:
    for said in in_words(default_rules()):
        plain = a_situation(diagnosis=a_diagnosis(said.cause, DOMAINS[said.cause]), mode=Mode.OBSERVE)
        assert recommend(plain, POLICY).action is said.action, said.cause
