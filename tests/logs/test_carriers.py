"""JSON around lines is taken off, and nothing else is touched."""

import json

import pytest

from activities.logs.carriers import plain_bytes
from activities.logs.prefixes import parse_prefix
from activities.logs.progress import MarkKind, ProgressReader

AT = "2026-03-02T09:00:00.000001Z"


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ({"log": "boom\n", "stream": "stderr", "time": AT}, f"{AT} boom"),
        ({"event": "boom", "level": "error", "timestamp": AT}, f"{AT} boom"),
        ({"message": "boom", "levelname": "ERROR", "lineno": 7, "asctime": "2026-03-02 09:00:00,123"}, "2026-03-02 09:00:00,123 boom"),
        ({"MESSAGE": "boom", "_HOSTNAME": "gpu-07", "__REALTIME_TIMESTAMP": "1772442000000001"}, f"[pod/gpu-07] {AT} boom"),
        ({"log": "boom", "date": 1772442000.000001}, f"{AT} boom"),
        ({"msg": "boom", "rank": 3}, "[rank3]: boom"),
        ({"message": "failed", "exc_info": "Traceback:\nValueError: x"}, "failed\rTraceback:\rValueError: x"),
        ({"event": "step", "step": 7, "loss": 2.5}, 'step {"step": 7, "loss": 2.5}'),
        ({"log": "\x1b[31mboom\x1b[0m"}, "boom"),
    ],
)
def test_a_wrapped_line_becomes_the_line_behind_its_time_its_host_and_its_rank(line: dict[str, object], plain: str) -> None:
    assert plain_bytes(json.dumps(line).encode() + b"\n") == plain.encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        "plain",
        '{"step": 7, "loss": 2.5}',
        "{'loss': 2.5}",
        '{"message": 5}',
        '{"message": "torn',
        'config: {"a": {"b": 1}}',
        '["message"]',
        '{"log": ' + "[" * 5000 + "}",
    ],
)
def test_what_wraps_no_line_stays_as_it_is(line: str) -> None:
    assert plain_bytes(line.encode()) == line.encode()


def test_wrapped_lines_among_plain_ones_keep_their_places() -> None:
    data = b'banner\n{"event": "a\\nb", "level": "info"}\r\nTraceback\n{"event": "c"}'
    assert plain_bytes(data) == b"banner\na\rb\nTraceback\nc"


def test_a_wrapper_in_a_wrapper_and_behind_a_runtimes_time() -> None:
    inner = json.dumps({"event": "boom", "timestamp": AT})
    assert parse_prefix(plain_bytes(json.dumps({"log": inner + "\n", "time": AT}).encode()).decode()).text == "boom"
    assert parse_prefix(plain_bytes(f"{AT} stderr F {inner}".encode()).decode()).text == "boom"
    assert parse_prefix(plain_bytes(f"trainer-1  | {inner}".encode()).decode()).text == "boom"


def test_progress_of_a_live_log_is_read_through_the_wrapper() -> None:
    lines = [json.dumps({"log": f"[rank0]: iteration {n}/ 100 | loss: 2.5 |\n", "stream": "stdout", "time": AT}) for n in (1, 2)]
    marks = ProgressReader().read(plain_bytes("\n".join(lines).encode() + b"\n"))
    assert [(mark.kind, mark.iteration) for mark in marks] == [(MarkKind.ITERATION, 1), (MarkKind.ITERATION, 2)]
    assert marks[0].at is not None


def test_a_column_before_every_line_names_the_source_and_a_tables_first_column_stays() -> None:
    lines = [f"line {number}" for number in range(6)]
    for form in ("trainer  | {}", "trainer-a1 worker {}"):
        plain = plain_bytes("\n".join(form.format(line) for line in lines).encode()).decode()
        assert [parse_prefix(line).text for line in plain.split("\n")] == lines
    table = "\n".join(f"{name}  | 2.5" for name in ("loss", "lr", "step", "norm", "time", "tokens")).encode()
    assert plain_bytes(table) == table
    assert plain_bytes(b"trainer  | one\nanother") == b"trainer  | one\nanother"
