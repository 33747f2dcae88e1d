"""`show`, `audit` and `policy check` in the windows people have: folded there, whole in a pipe, and harmless in both."""

from pathlib import Path

import pytest
from rich.cells import cell_len

from activities.configuration import TemporalSection
from activities.policy import default_rules, in_words
from activities.records import Action, DecisionKind, Outcome, OutcomeState, Step
from tests.builders import (
    NOON,
    a_decision,
    a_job,
    a_primary_event,
    a_recommendation,
    an_attempt,
    an_excerpt,
    an_incident,
    node_names,
    some_evidence,
)
from tests.commands.states import a_state
from tests.commands.test_job_table import HOSTILE, NAMES
from workers.commands.audit import audit
from workers.commands.policy import check
from workers.commands.temporal_ui import page_of
from workers.commands.terminal import folded, printable, tell
from workers.commands.words import action_in_words, job_in_words
from workflows.state import HELD_BY_GUARD_RAILS, Stage, TrainingJobState

RECORDED = Path(__file__).parent / "recorded" / "approved_and_recovered.json"
WIDTHS = [80, 100, 132]
DIGEST = a_recommendation().digest


@pytest.fixture
def in_a_window(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    width: int = request.param
    monkeypatch.setenv("COLUMNS", str(width))
    return width


def wide_windows(lines: str, width: int) -> list[str]:
    return [line for line in lines.splitlines() if cell_len(line) > width]


def a_long_story(name: str) -> TrainingJobState:
    """A job of many nodes whose incident has everything that `show` tells, each long."""
    path = "/shared/very/long/directory/of/a/run/" + "x" * 60
    excerpts = tuple(an_excerpt("…", stored_at=f"{path}/{file}") for file in ("batch_script.sh", "log-1.txt"))
    incident = an_incident(
        evidence=some_evidence(unreadable=(f"{path} cannot be read",)).model_copy(update={"excerpts": excerpts}),
        decision=None,
        outcome=Outcome(
            state=OutcomeState.HELD,
            summary="the breaker is tripped; " * 10,
            steps=(Step(name=HELD_BY_GUARD_RAILS, at=NOON, detail="4 of 20 nodes would be excluded at once " * 5),),
        ),
    )
    hostile = incident.diagnosis.model_copy(update={"primary": a_primary_event(HOSTILE * 5)})
    return a_state(
        job=a_job("1234567_1023", name=name, nodes=node_names(512)),
        attempt=an_attempt(nodes=node_names(512)),
        stage=Stage.AWAITING_DECISION,
        incidents=(incident.model_copy(update={"diagnosis": hostile}),),
        warnings=("no log file is known " * 10,),
    )


@pytest.mark.parametrize("in_a_window", WIDTHS, indirect=True)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_show_fits_the_window_with_all_that_one_needs(in_a_window: int, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in job_in_words(a_long_story(name)):
        tell(line)
    out = capsys.readouterr().out
    assert wide_windows(out, in_a_window) == []
    assert "\x1b" not in out
    told = " ".join(out.split())
    assert "left to a person by the guard rails: 4 of 20 nodes" in told
    assert "outcome: left to a person, the breaker is tripped" in told
    assert "512 nodes: node-[001-512]" in told
    assert f"  backstay approve 17 --digest {DIGEST}" in out.splitlines(), "a command is copied as it stands"


@pytest.mark.parametrize("in_a_window", WIDTHS, indirect=True)
def test_audit_fits_the_window(in_a_window: int, capsys: pytest.CaptureFixture[str]) -> None:
    audit("1", history=RECORDED)
    out = capsys.readouterr().out
    assert wide_windows(out, in_a_window) == []
    assert "#21    2026-11-29 16:24:01  diagnose_completed\n" in out, "event, time and fact stand together on one line"
    told = " ".join(out.split())
    assert "uncorrectable memory error of a GPU ended the context on node-002; suspects node node-002 rank 2 (0.92)" in told
    assert "bob approves ff6c5bc23393: go" in told


def test_audit_in_a_pipe_is_one_line_a_fact(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    audit("1", history=RECORDED)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("#") for line in lines)
    assert max(map(cell_len, lines)) > 132


# ------------------------------------------------------------------------------------------------ policy check


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "backstay.yaml"
    rule = "{name: my-rule, when: {cause: cuda_oom}, do: hold}"
    path.write_text(f"cluster: {{name: alpha}}\npolicy: {{rules: [{rule}]}}\n")
    return path


@pytest.mark.parametrize("in_a_window", [80], indirect=True)
def test_policy_check_is_short_and_names_each_cause_once(in_a_window: int, configuration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(configuration)
    out = capsys.readouterr().out
    assert wide_windows(out, in_a_window) == []
    assert len(out.splitlines()) < 90
    words = out.replace(",", " ").split()
    spoken = in_words(default_rules())
    assert [each.cause for each in spoken if words.count(each.cause) != 1 and each.cause != "unknown"] == []
    assert "[my-rule] cuda_oom" in out
    assert "leave to a person:" in out
    assert "hold" not in words


def test_policy_check_tells_every_cause_with_all_its_rules_when_asked(configuration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(configuration, every=True)
    every = capsys.readouterr().out
    assert "always: leave to a person [my-rule]" in every
    assert "hold" not in every.split()
    assert len(every.splitlines()) > 200
    check(configuration, cause="cuda_oom")
    one = capsys.readouterr().out
    assert "cuda_oom: leave to a person\n    always: leave to a person [my-rule]\n" in one


def test_each_group_of_the_short_form_is_of_the_rule_that_decides() -> None:
    spoken = {each.cause: each for each in in_words(default_rules())}
    assert (spoken["ecc_uncorrectable"].decides, spoken["ecc_uncorrectable"].action) == ("broken-device", Action.RESTART_EXCLUDING)
    assert (spoken["unknown"].decides, spoken["unknown"].action) == ("unknown-once", Action.RESTART)
    assert all(each.decides for each in spoken.values())


# ------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize("action", list(Action))
def test_no_act_is_told_by_a_word_that_slurm_has_for_another_thing(action: Action) -> None:
    recommendation = a_recommendation(action)
    told = f"{action_in_words(recommendation)} {recommendation.in_short}"
    assert "hold" not in told
    assert "_" not in told


def test_what_was_decided_and_left_alone_is_told_in_words() -> None:
    held = an_incident(
        recommendation=a_recommendation(Action.HOLD),
        decision=a_decision(DecisionKind.AUTO),
        outcome=Outcome(state=OutcomeState.HELD, summary="the cause is not known"),
    )
    told = "\n".join(job_in_words(a_state(incidents=(held,))))
    assert "recommendation: leave to a person" in told
    assert "outcome: left to a person, the cause is not known" in told
    assert "hold" not in told
    assert "held" not in told


def test_show_does_not_say_of_a_blind_watch_that_no_fault_was_seen() -> None:
    told = list(job_in_words(a_state(), blind="progress cannot be seen; crashes only"))
    assert "  cannot be seen: progress cannot be seen; crashes only" in told
    assert "  no fault seen" not in told
    assert "  no fault seen" in list(job_in_words(a_state()))


# ------------------------------------------------------------------------------------------------ folding


def test_what_is_folded_stands_in_further_and_loses_no_word() -> None:
    line = "  suspect: node node-002, confidence 0.90: " + "the log shows rank 2 on node-002 " * 5
    lines = folded(line, 60)
    assert [text for text in lines[1:] if not text.startswith("    t") and not text.startswith("    ")] == []
    assert " ".join(" ".join(lines).split()) == " ".join(line.split())
    assert folded("short", 60) == ["short"]


def test_a_word_longer_than_the_window_is_broken_where_it_ends() -> None:
    lines = folded(f"  evidence: {'/x' * 100}", 40)
    assert max(map(cell_len, lines)) == 40
    assert "".join(line.strip() for line in lines) == f"evidence:{'/x' * 100}"


def test_wide_letters_count_as_the_columns_they_take() -> None:
    assert max(map(cell_len, folded("日本語" * 60, 41))) <= 41


def test_marks_cannot_be_heaped_on_a_letter() -> None:
    assert printable("e" + "\u0301" * 500) == "e" + "\u0301" * 3
    assert printable("à la carte") == "à la carte"
    assert printable("☎\ufe0f") == "☎"


# ------------------------------------------------------------------------------------------------ the page in the Temporal UI


def test_the_page_of_a_workflow_is_that_of_the_embedded_server_or_the_configured_ui() -> None:
    workflow_id = "job/alpha/1234_7/1767614400"
    page = "/namespaces/default/workflows/job%2Falpha%2F1234_7%2F1767614400"
    assert page_of(TemporalSection(), workflow_id) == f"http://127.0.0.1:8233{page}"
    assert page_of(TemporalSection(ui_port=9000), workflow_id) == f"http://127.0.0.1:9000{page}"
    elsewhere = TemporalSection(address="temporal.example.org:7233", ui_url="https://ui.example.org/")
    assert page_of(elsewhere, workflow_id) == f"https://ui.example.org{page}"


def test_where_nobody_said_which_ui_shows_it_no_page_is_guessed() -> None:
    assert page_of(TemporalSection(address="temporal.example.org:7233"), "job/alpha/1/1") is None


@pytest.mark.parametrize("in_a_window", [80], indirect=True)
def test_an_address_is_never_broken(in_a_window: int, capsys: pytest.CaptureFixture[str]) -> None:
    address = "http://127.0.0.1:8233/" + "x" * 2 * in_a_window
    tell(address, fold=False)
    assert capsys.readouterr().out == f"{address}\n"
