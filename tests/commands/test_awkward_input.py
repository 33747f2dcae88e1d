"""What people give a command, and what users put into names and logs: one sentence instead of a traceback, no control character out."""

import base64
import json
from pathlib import Path

import orjson
import pytest

from tests.commands.states import a_state
from tests.commands.test_main import backstay
from tests.commands.test_recorded_history import RECORDED
from workers.commands.shapes import job_document
from workers.commands.terminal import print_json, print_json_line, tell

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 4300
C1 = "".join(map(chr, range(0x7F, 0xA0)))
TURNS = "\u202e\u2066\u2028\u200f"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("case.yaml", f'{{"signals": {DEEP}}}', "nests deeper than 100 levels; flatten it"),
        ("case.yml", DEEP, "nests deeper than 100 levels; flatten it"),
        ("case.yaml", f"signals:\n  rank: {DIGITS}\n", ":2: holds an integer of 4300 digits; correct it"),
    ],
)
def test_a_case_file_beyond_all_bounds_is_one_sentence(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    told = backstay("diagnose", str(path), "--json", directory=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(f"backstay: {path}")
    assert says in told.stderr
    assert told.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (DEEP.encode(), "nests deeper than 100 levels; flatten it"),
        (f'{{"a": {DIGITS}}}'.encode(), "holds an integer of 4300 digits"),
        (b'{"a": 1', "is no JSON"),
        (b"\xff\xfe{\x00}\x00", "is not UTF-8 text"),
        (b"[]", "must hold a JSON object"),
        (b"", "is no JSON"),
    ],
)
def test_an_option_that_names_json_says_what_is_wrong_with_it(tmp_path: Path, content: bytes, says: str) -> None:
    path, log = tmp_path / "given.json", tmp_path / "train.log"
    path.write_bytes(content)
    log.write_text("step 1\n")
    for option in ("--scheduler", "--gpu"):
        told = backstay("diagnose", str(log), option, str(path), directory=tmp_path)
        assert told.returncode == 2, told.stderr
        assert str(path) in told.stderr
        assert says in told.stderr
        assert "Traceback" not in told.stderr


def test_json_with_a_byte_order_mark_and_numbers_that_are_none_is_read(tmp_path: Path) -> None:
    path, log = tmp_path / "given.json", tmp_path / "train.log"
    path.write_bytes(b'\xef\xbb\xbf{"state": "FAILED", "exit_code": NaN, "node_count": 1e999, "reason": "\\ud800\\u009b31m"}')
    log.write_text("step 1\n")
    told = backstay("diagnose", str(log), "--scheduler", str(path), "--json", directory=tmp_path)
    assert told.returncode == 1, told.stderr  # Slurm says that the job failed
    assert json.loads(told.stdout)


@pytest.mark.parametrize(
    "content",
    [
        DEEP, "[]", "null", "{", "", '{"events": 1}', '{"events": [1]}', '{"events": [{"eventId": "x"}]}', f'{{"events": {DIGITS}}}',
        '{"events": [{"eventType": "x"}]}', '{"events": [{"eventTime": "x"}]}', '{"events": {"a": 1}}', '{"other": 1}',
    ],
)  # fmt: skip
def test_a_history_that_is_none_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(content)
    told = backstay("audit", "1", "--history", str(path), directory=tmp_path)
    assert told.returncode == 2, told.stdout
    assert told.stderr.startswith(f"backstay: {path} is no exported workflow history")
    assert "export it with `temporal workflow show -o json`" in told.stderr
    assert "Traceback" not in told.stderr


def test_a_history_whose_payloads_are_awkward_is_told(tmp_path: Path) -> None:
    """A user's text in a payload: the history is whole, the payload says why it is not shown."""
    document = json.loads(RECORDED.read_text())
    awkward = [f'{{"summary": {DEEP}}}', f'{{"a": {DIGITS}}}', '{"a": "\\ud800"}', '"\\u009b31m"']
    started = document["events"][0]["workflowExecutionStartedEventAttributes"]
    payload = started["input"]["payloads"][0]
    started["input"]["payloads"] = [{**payload, "data": base64.b64encode(text.encode()).decode()} for text in awkward]
    path = tmp_path / "history.json"
    path.write_text(json.dumps(document))
    for options in ([], ["--json"]):
        told = backstay("audit", "1", "--history", str(path), *options, directory=tmp_path)
        assert (told.returncode, told.stderr) == (0, "")
        assert not set(told.stdout) & set(C1)
    facts = [json.loads(line) for line in told.stdout.splitlines()]
    assert "not shown: nests deeper" in str(facts[0])


@pytest.mark.parametrize("write", [print_json, print_json_line])
def test_json_has_no_control_character_and_is_the_same_document(write: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(write)
    value = {f"name{C1}": [f"é{C1}{TURNS}\x1b[31m\x00", "日本 \U0001f600"]}
    write(value)
    out = capsys.readouterr().out
    assert not set(out) & {*C1, *TURNS, "\x1b", "\x00"}
    assert "é" in out
    assert "日本 \U0001f600" in out
    assert json.loads(out) == value


def test_json_of_text_that_is_not_unicode_is_written_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"path": b"/runs/caf\xe9".decode(errors="surrogateescape"), "items": ("\ud800",)})
    assert json.loads(capsys.readouterr().out) == {"path": "/runs/caf\ufffd", "items": ["\ufffd"]}


def test_show_of_a_job_with_a_terminals_commands_in_its_name_and_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    state = a_state(warnings=("\x9b2J gone",))
    print_json(job_document(state))
    out = capsys.readouterr().out
    assert "\x9b" not in out
    assert orjson.loads(out)["warnings"] == ["\x9b2J gone"]
    tell("\x9b2J gone\u202e")
    assert not set(capsys.readouterr().out) & {"\x9b", "\u202e"}


def test_a_task_of_an_array_with_digits_without_end_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "backstay.yaml"
    config.write_text("cluster: {name: alpha}\ntemporal: {address: '127.0.0.1:9'}\n")
    told = backstay("show", f"1_{DIGITS}", "-c", str(config), directory=tmp_path)
    assert told.returncode in (2, 3)
    assert "Traceback" not in told.stderr
