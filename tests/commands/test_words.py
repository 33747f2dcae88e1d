"""What people read of a job on their terminal: its own text may say anything and do nothing."""

import re

import pytest

from activities.records import Outcome, OutcomeState
from tests.builders import a_job, a_recommendation, an_excerpt, an_incident, some_evidence
from tests.commands.states import a_state
from workers.commands.jobs import LONGEST_NAME, as_table
from workers.commands.lookup import Found
from workers.commands.payload_words import in_words
from workers.commands.shapes import job_document, warnings_of
from workers.commands.terminal import complain, screen, tell
from workers.commands.words import job_in_words
from workflows.state import Stage

HOSTILE = "\x1b[2J\x1b]0;owned\x07name\nline two\u202e[red]x[/red] :smile:"


def test_a_line_told_is_one_line_without_escapes_markup_or_reversal(capsys: pytest.CaptureFixture[str]) -> None:
    tell(f"job 1: {HOSTILE}")
    told = capsys.readouterr().out
    assert told == "job 1:  [2J ]0;owned name line two [red]x[/red] :smile:\n"


def test_a_complaint_carries_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    complain("no job \x1b[31m1 is known")
    assert capsys.readouterr().err == "backstay: no job  [31m1 is known\n"


@pytest.mark.parametrize("name", [HOSTILE, "n" * 1000, "ü" * 500])
def test_no_name_moves_the_cursor_or_pushes_the_other_columns_out(capsys: pytest.CaptureFixture[str], name: str) -> None:
    state = a_state(job=a_job(name=name), summary="no fault\x1b[2J seen")
    screen(wide=True).print(as_table([Found("job/alpha/1/1", state, state.progress)]))
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert len(told.splitlines()) == 2
    assert "no fault [2J seen" in told
    assert name[: LONGEST_NAME + 1] not in told


def test_a_job_left_to_a_person_says_so_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    held = an_incident(outcome=Outcome(state=OutcomeState.HELD, summary="the breaker is tripped since noon"))
    state = a_state(stage=Stage.FOLLOWING, incidents=(held,), summary="the job has ended")
    screen(wide=True).print(as_table([Found("job/alpha/1/1", state, state.progress)]))
    heading, line = capsys.readouterr().out.splitlines()
    assert line[heading.index("NEEDS YOU") :].startswith("held ")
    assert "held: the breaker is tripped since noon" in line


def test_what_waits_because_the_guard_rails_refused_it_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    refused = Outcome(state=OutcomeState.HELD, summary="the breaker is tripped since noon")
    pending = an_incident(recommendation=a_recommendation(), decision=None, outcome=refused)
    state = a_state(stage=Stage.AWAITING_DECISION, incidents=(pending,))
    screen(wide=True).print(as_table([Found("job/alpha/1/1", state, state.progress)]))
    [_, line] = capsys.readouterr().out.splitlines()
    assert f"{a_recommendation().digest}: restart without node-002? the breaker is tripped since noon" in line


def test_a_long_reason_leaves_every_other_column_whole(capsys: pytest.CaptureFixture[str]) -> None:
    held = an_incident(outcome=Outcome(state=OutcomeState.HELD, summary="a broken device stays with its node; " * 20))
    state = a_state(stage=Stage.FOLLOWING, incidents=(held,))
    screen(wide=True).print(as_table([Found("job/alpha/1/1", state, state.progress), Found("job/alpha/1/1", a_state(), state.progress)]))
    heading, line, _ = capsys.readouterr().out.splitlines()
    assert re.sub(r"\s+", " ", heading.strip()) == "JOB NAME USER STATE NEEDS YOU MODE TRY ITERATION CHECKPOINT NODES WHERE IT STANDS"
    assert line.split()[:5] == [state.key.job_id, a_job().name, a_job().user, "following", "held"]
    assert line.rstrip().endswith("…")


def test_what_the_state_and_the_live_watch_both_warn_of_is_said_once() -> None:
    state = a_state(warnings=("no log file is known", "not a batch job"))
    live = ("no log file is known", "no worker answers")
    assert warnings_of(state, live) == ("no log file is known", "not a batch job", "no worker answers")
    assert sum("no log file is known" in line for line in job_in_words(state, extra_warnings=live)) == 1
    assert job_document(state, extra_warnings=live)["warnings"] == list(warnings_of(state, live))


def test_where_the_evidence_was_kept_is_told_to_whoever_would_resubmit_the_job() -> None:
    kept = [an_excerpt("#!/bin/bash", stored_at=f"/var/lib/backstay/i-1/{name}") for name in ("batch_script.sh", "log-1.txt")]
    incident = an_incident(evidence=some_evidence().model_copy(update={"excerpts": (*kept, an_excerpt("in the history only"))}))
    assert "  evidence: /var/lib/backstay/i-1: batch_script.sh, log-1.txt" in list(job_in_words(a_state(incidents=(incident,))))


def test_what_could_not_be_captured_is_told_where_the_evidence_is_counted_on() -> None:
    full = "evidence directory /var/lib/backstay cannot be written (No space left on device); only excerpts were kept"
    incident = an_incident(evidence=some_evidence(unreadable=(full,)))
    assert f"  evidence lacks: {full}" in list(job_in_words(a_state(incidents=(incident,))))
    captured = {"captured_at": "2026-01-05T12:00:00Z", "excerpts": [{"title": "train.log"}], "unreadable": [full]}
    assert in_words(captured) == f"1 excerpts kept: train.log; lacks {full}"
