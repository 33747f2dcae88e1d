"""`jobs` in the windows people have: what one needs is whole in each, and no line is wider than the window."""

from collections.abc import Sequence
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from activities.records import Action, DecisionKind, Mode, Outcome, OutcomeState, Progress, SymptomKind
from tests.builders import (
    a_decision,
    a_job,
    a_key,
    a_recommendation,
    a_symptom,
    an_attempt,
    an_attribution,
    an_incident,
    node_names,
    some_progress,
)
from tests.commands.states import a_state
from workers.commands.job_table import LONGEST_NAME, as_lines, counts_in_words, first_things_first, warnings_in_words
from workers.commands.jobs import Wanted, in_words
from workers.commands.lookup import Found
from workflows.state import Stage

HOSTILE = "\x1b[2J\x1b]0;owned\x07name\nline two\u202e[red]x[/red] :smile:"
NAMES = [
    "train",
    HOSTILE,
    "n" * 1000,
    "ü" * 500,
    "日本語のジョブ" * 30,
    "שלום עולם " * 20,
    "a" + "\u0300" * 900,
    "\u200b\u200d\ufeff" * 50,
    "👩\u200d👩\u200d👧 ☎️" * 30,
]
WINDOWS = [80, 100, 132, 200]
OBSERVED = an_incident(decision=a_decision(DecisionKind.OBSERVED), outcome=Outcome(state=OutcomeState.NOT_ACTED, summary="observe"))
PENDING = an_incident(decision=None)
BREAKER = "the breaker is tripped since noon"
HELD = an_incident(recommendation=a_recommendation(Action.HOLD), outcome=Outcome(state=OutcomeState.HELD, summary=BREAKER))
FAILED = an_incident(outcome=Outcome(state=OutcomeState.FAILED, summary="Slurm would not requeue"))


def found(job_id: str = "17", *, name: str = "train", blind: str | None = None, warnings: Sequence[str] = (), **changes: Any) -> Found:
    nodes = changes.pop("nodes", node_names(2))
    job = a_job(job_id, name=name, nodes=nodes, **({"user": changes.pop("user")} if "user" in changes else {}))
    state = a_state(key=a_key(job_id), job=job, attempt=an_attempt(nodes=nodes), **changes)
    return Found(f"job/alpha/{job_id}/1", state, state.progress, (*warnings, *([blind] if blind else [])), blind=blind)


def waiting(job_id: str = "17", **changes: Any) -> Found:
    return found(job_id, stage=Stage.AWAITING_DECISION, mode=Mode.APPROVE, incidents=(PENDING,), **changes)


def a_night(name: str = "train") -> list[Found]:
    """One job of each kind that an operator meets, all of one name."""
    return [
        found("1234567_1023", name=name),
        waiting("1234568", name=name),
        found("1234569", name=name, stage=Stage.FOLLOWING, incidents=(HELD,), user="a_user_with_a_long_name"),
        found("1234570", name=name, stage=Stage.FOLLOWING, mode=Mode.OBSERVE, incidents=(OBSERVED,), nodes=node_names(512)),
        found("1234571", name=name, blind="progress cannot be seen; crashes only"),
        found("1234572", name=name, stage=Stage.FOLLOWING, incidents=(FAILED,), progress=Progress(iteration=123_456_789)),
        found("1234573", name=name, stage=Stage.VERIFYING, summary="waiting for the new attempt to run, step and write a checkpoint"),
    ]


def as_drawn(lines: Sequence[str], width: int) -> list[str]:
    """The lines as rich draws them on a terminal of that width: a line that is too wide comes out as two."""
    console = Console(width=width, markup=False, emoji=False, highlight=False, force_terminal=True, color_system=None)
    with console.capture() as capture:
        for line in lines:
            console.print(line)
    return capture.get().splitlines()


def unfolded(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", WINDOWS)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_line_is_wider_than_the_window_whatever_a_job_is_called(name: str, width: int) -> None:
    lines = list(in_words(first_things_first(a_night(name)), Wanted(), "alpha", width))
    assert [line for line in lines if cell_len(line) > width or not line.isprintable()] == []
    assert as_drawn(lines, width) == lines


@pytest.mark.parametrize("width", WINDOWS)
def test_job_id_name_state_and_what_needs_you_are_whole_in_every_window(width: int) -> None:
    name = "llama-70b-sft-long-context-run-31"
    lines = list(in_words(a_night(name), Wanted(), "alpha", width))
    for job_id in ("1234567_1023", *(str(number) for number in range(1234568, 1234574))):
        assert sum(line.startswith(job_id) for line in lines) == 1
    assert column("NAME", lines).startswith(name)
    assert "awaiting decision" in column("STATE", lines)
    told = unfolded(lines)
    assert "needs your decision: restart excluding node-002? crash after iteration 120: ecc_uncorrectable, suspect node-002" in told
    assert f"left to you: crash after iteration 120: ecc_uncorrectable, suspect node-002: {BREAKER}" in told
    assert "failed, needs you: crash after iteration 120: ecc_uncorrectable, suspect node-002: Slurm would not requeue" in told
    assert "cannot be seen: progress cannot be seen; crashes only" in told
    [command] = [line.strip() for line in lines if "backstay approve" in line]
    assert command == f"backstay approve 1234568 --digest {a_recommendation().digest}"


def column(heading: str, lines: Sequence[str]) -> str:
    """What stands under a heading in the first row and the lines it folds into; of STATE, in the row that waits."""
    at = lines[0].index(heading)
    rest = lines[0][at:]
    size = len(rest) - len(rest.split(maxsplit=1)[1]) if len(rest.split(maxsplit=1)) > 1 else len(rest)
    first = next(n for n, line in enumerate(lines) if "awaiting" in line) if heading == "STATE" else 1
    pieces = [lines[first][at : at + size].strip()]
    for line in lines[first + 1 :]:
        if not line.startswith(" " * 12):
            break
        pieces.append(line[at : at + size].strip())
    return " ".join(pieces).strip() if heading == "STATE" else "".join(pieces)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_name_takes_more_than_its_bound_in_a_pipe_or_breaks_its_line(name: str) -> None:
    heading, line = as_lines([found(name=name)], None)
    assert line.rstrip().endswith("no fault seen")
    assert cell_len(line[: line.index("alice")]) <= 5 + LONGEST_NAME + 4
    assert "\x1b" not in line
    words = "JOB NAME USER STATE NEEDS YOU MODE TRY ITERATION CHECKPOINT NODES WHERE IT STANDS"
    assert " ".join(heading.split()) == words


def test_a_pipe_gets_one_line_a_job_with_the_reason_bounded() -> None:
    endless = an_incident(outcome=Outcome(state=OutcomeState.HELD, summary="a broken device stays with its node; " * 100))
    _, line, healthy = as_lines([found(stage=Stage.FOLLOWING, incidents=(endless,)), found("18")], None)
    assert line.split()[:6] == ["17", "train", "alice", "following", "left", "to"]
    assert line.endswith("…; backstay show 17")
    assert healthy.endswith("no fault seen")


def test_a_healthy_job_takes_one_line_at_eighty_columns() -> None:
    assert len(list(as_lines([found(str(number)) for number in range(1_000_000, 1_000_050)], 80))) == 51


def test_iteration_goes_before_the_columns_that_one_needs_less() -> None:
    heading = next(as_lines([found("1234567_1023", user="0123456789", name="n" * 40)], 80))
    assert heading.split()[:5] == ["JOB", "NAME", "USER", "STATE", "ITERATION"]
    assert "NODES" in next(as_lines(a_night(), 132))


# ------------------------------------------------------------------------------------------------ what is said of a job


def told(each: Found) -> str:
    return unfolded(list(as_lines([each], 80))[1:])


def test_those_that_need_you_come_first_and_the_rest_stay_newest_first() -> None:
    night = a_night()
    listed = [each.state.key.job_id for each in first_things_first(night)]
    assert listed == ["1234568", "1234569", "1234572", "1234567_1023", "1234570", "1234571", "1234573"]
    assert counts_in_words(night) == "7 jobs: 3 need you (listed first); 1 cannot be seen in part"
    assert counts_in_words([found()]) == "1 job: none needs you"


def test_in_mode_observe_the_verdict_stands_in_the_list() -> None:
    line = told(found(stage=Stage.FOLLOWING, mode=Mode.OBSERVE, incidents=(OBSERVED,), summary="the job has ended; watching on"))
    assert "crash after iteration 120: ecc_uncorrectable, suspect node-002; would have: restart excluding node-002" in line
    unnamed = OBSERVED.model_copy(update={"attribution": an_attribution(), "recommendation": a_recommendation(Action.HOLD)})
    line = told(found(stage=Stage.WATCHING, mode=Mode.OBSERVE, incidents=(unnamed,)))
    assert "ecc_uncorrectable, nobody suspected; would have: leave to a person" in line


def test_the_verdict_on_an_earlier_attempt_is_not_told_of_the_next() -> None:
    attempt = an_attempt(restart_count=1)
    state = a_state(mode=Mode.OBSERVE, incidents=(OBSERVED,), attempt=attempt)
    assert "no fault seen" in told(Found("job/alpha/17/1", state, state.progress))


def test_a_hang_that_steps_again_does_not_read_as_one_that_stands() -> None:
    hang = OBSERVED.model_copy(update={"symptom": a_symptom(SymptomKind.HANG), "progress": some_progress(40)})
    assert "goes on again after a hang" in told(found(incidents=(hang,), progress=some_progress(41)))
    assert "hang after iteration 40" in told(found(incidents=(hang,), progress=some_progress(40)))


def test_a_blind_watch_does_not_read_as_if_no_fault_were_seen() -> None:
    line = told(found(blind="progress cannot be seen; crashes only"))
    assert "cannot be seen: progress cannot be seen; crashes only" in line
    assert "no fault seen" not in line


def test_a_job_that_no_worker_answers_for_does_not_read_as_if_it_were_watched() -> None:
    state = a_state()
    line = told(Found("job/alpha/17/1", state, state.progress, from_worker=False))
    assert "not seen now: no worker answers" in line
    assert "no fault seen" not in line


def test_what_waits_where_no_worker_tells_for_what_names_the_command_that_would() -> None:
    state = a_state(stage=Stage.AWAITING_DECISION)
    line = told(Found("job/alpha/17/1", state, state.progress, from_worker=False))
    assert "needs your decision: a recommendation waits; no worker tells which backstay show 17" in line


def test_what_waits_because_the_guard_rails_refused_it_says_why() -> None:
    refused = an_incident(decision=None, outcome=Outcome(state=OutcomeState.HELD, summary=BREAKER))
    line = told(found(stage=Stage.AWAITING_DECISION, incidents=(refused,)))
    assert f"restart excluding node-002? crash after iteration 120: ecc_uncorrectable, suspect node-002: {BREAKER}" in line


def test_nothing_people_read_of_a_job_left_to_them_says_hold() -> None:
    lines = " ".join(in_words([found(stage=Stage.FOLLOWING, incidents=(HELD,))], Wanted(), "alpha", 132))
    assert "left to you" in lines
    assert "hold" not in lines
    assert "held" not in lines


# ------------------------------------------------------------------------------------------------ warnings and filters


def test_a_warning_that_many_jobs_share_is_said_once() -> None:
    jobs = [found(str(number), warnings=("no worker answers",)) for number in range(1, 61)]
    [warning] = warnings_in_words(jobs)
    assert warning == "warning: 60 jobs (1, 2, 3, 4, 5 and 55 more): no worker answers"
    assert list(warnings_in_words([found("1", warnings=("not a batch job",))])) == ["warning: job 1: not a batch job"]


def test_warnings_do_not_push_the_list_off_the_screen_or_repeat_a_row() -> None:
    jobs = [found(str(number), warnings=(f"log {number} cannot be read",)) for number in range(40)]
    told = list(warnings_in_words(jobs))
    assert (len(told), told[-1]) == (11, "and 30 more warnings; `backstay show JOB` tells a job's own")
    assert list(warnings_in_words([found(blind="no log file is known")])) == []


def test_users_and_states_narrow_the_list() -> None:
    night = [found("1", user="alice"), found("2", user="bob"), waiting("3", user="bob")]
    assert [each.state.key.job_id for each in night if Wanted(users=("bob",)).holds(each)] == ["2", "3"]
    assert [each.state.key.job_id for each in night if Wanted(users=("bob",), states=(Stage.AWAITING_DECISION,)).holds(each)] == ["3"]
    assert all(Wanted().holds(each) for each in night)
    assert list(in_words([], Wanted(users=("eve",)), "alpha", 80)) == ["No job of cluster alpha fits --user and --state."]
