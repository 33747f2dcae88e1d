"""What people read of a job on their terminal: its own text may say anything and do nothing."""

import pytest

from tests.builders import an_excerpt, an_incident, some_evidence
from tests.commands.states import a_state
from workers.commands.payload_words import in_words
from workers.commands.shapes import job_document, warnings_of
from workers.commands.terminal import complain, tell
from workers.commands.words import job_in_words

HOSTILE = "\x1b[2J\x1b]0;owned\x07name\nline two\u202e[red]x[/red] :smile:"


def test_a_line_told_is_one_line_without_escapes_markup_or_reversal(capsys: pytest.CaptureFixture[str]) -> None:
    tell(f"job 1: {HOSTILE}")
    told = capsys.readouterr().out
    assert told == "job 1:  [2J ]0;owned name line two [red]x[/red] :smile:\n"


def test_a_complaint_carries_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    complain("no job \x1b[31m1 is known")
    assert capsys.readouterr().err == "backstay: no job  [31m1 is known\n"


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
