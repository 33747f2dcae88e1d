"""Ways in which a log's lines travel: container runtimes, collectors, terminals, exporters. Each takes a log and gives it as it
arrives. test_carriers.py asks that a verdict does not depend on them; `python -m tests.cases.test_carriers` tries all cases."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from activities.logs.prefixes import parse_prefix

_WRAPPED_TIME = re.compile(r'^\{.*"time(?:stamp)?": ?"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})')
_RANKED = re.compile(r"\[rank(\d{1,6})\]")
BEGAN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def each(carry: Callable[[datetime, str], str]) -> Callable[[str], str]:
    """A carrier of one line at a time, given the moment the line came."""

    def carried(text: str) -> str:
        lines = text.removesuffix("\n").split("\n")
        return "\n".join(carry(at, line) for at, line in zip(_moments(lines), lines, strict=True)) + "\n"

    return carried


def _moments(lines: Sequence[str]) -> list[datetime]:
    """When each line came: as it tells itself, or with the one before it."""
    told = [_told(line) for line in lines]
    at = next((at for at in told if at is not None), BEGAN)
    moments = []
    for number in told:
        at = max(at, number or at) + timedelta(microseconds=1)
        moments.append(at)
    return moments


def _told(line: str) -> datetime | None:
    if found := _WRAPPED_TIME.search(line):
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    return parse_prefix(line, near=BEGAN).at


def _nano(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"


def _logger(at: datetime, **fields: str) -> str:
    return json.dumps({**fields, "timestamp": at.isoformat()})


def _docker(at: datetime, line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": _nano(at)}, separators=(",", ":"))


def _cloudwatch(text: str) -> str:
    """`aws logs filter-log-events --output json`, as it is laid out."""
    events = [
        {"logStreamName": "train/trainer/1f2e", "timestamp": 1772442000000, "message": line, "ingestionTime": 1772442000900,
         "eventId": "37892164827"}
        for line in text.split("\n")
    ]  # fmt: skip
    return json.dumps({"events": events, "searchedLogStreams": []}, indent=4) + "\n"


def _coloured(_: datetime, line: str) -> str:
    return f"\x1b[3{1 + len(line) % 6}m{line}\x1b[0m"


CARRIERS: dict[str, Callable[[str], str]] = {
    "docker json": each(_docker),
    "docker json, with attributes": each(
        lambda at, line: json.dumps({"log": line + "\n", "stream": "stdout", "attrs": {"tag": "trainer-1"}, "time": _nano(at)})
    ),
    "docker-compose": each(lambda _, line: f"trainer-1  | {line}"),
    "docker-compose, several": each(lambda at, line: f"trainer-{len(line) % 3 + 1}  | {line}"),
    "docker-compose, container_name": each(lambda _, line: f"trainer  | {line}"),
    "docker-compose, coloured": each(lambda _, line: f"\x1b[36mtrainer-1  |\x1b[0m {line}"),
    "docker-compose, with times": each(lambda at, line: f"trainer-1  | {_nano(at)} {line}"),
    "docker logs -t": each(lambda at, line: f"{_nano(at)} {line}"),
    "kubernetes cri": each(lambda at, line: f"{_nano(at)} stderr F {line}"),
    "kubernetes cri, with offset": each(lambda at, line: f"{_nano(at)[:-1]}+00:00 stdout F {line}"),
    "kubectl --prefix": each(lambda _, line: f"[pod/llm-worker-1/trainer] {line}"),
    "kubectl --prefix --timestamps": each(lambda at, line: f"[pod/llm-worker-1/trainer] {_nano(at)} {line}"),
    "stern": each(lambda _, line: f"llm-worker-1 trainer {line}"),
    "syslog": each(lambda at, line: f"{at:%b} {at.day:2d} {at:%H:%M:%S} loghost01 trainer[4711]: {line}"),
    "journald, short-iso": each(lambda at, line: f"{at:%Y-%m-%dT%H:%M:%S}+0000 loghost01 trainer[4711]: {line}"),
    "syslog, rfc 5424": each(lambda at, line: f"<134>1 {_nano(at)} loghost01 trainer 4711 - - {line}"),
    "journald, json": each(
        lambda at, line: json.dumps(
            {"__REALTIME_TIMESTAMP": str(int(at.timestamp() * 1e6)), "_HOSTNAME": "loghost01", "PRIORITY": "6", "MESSAGE": line}
        )
    ),
    "collector's time": each(lambda at, line: f"{_nano(at)} {line}"),
    "collector's time, spaced": each(lambda at, line: f"{at:%Y-%m-%d %H:%M:%S,%f}"[:23] + f" {line}"),
    "collector's time, bracketed": each(lambda at, line: f"[{at:%Y-%m-%d %H:%M:%S}] {line}"),
    "ts": each(lambda at, line: f"{at:%b %d %H:%M:%S} {line}"),
    "ts of seconds": each(lambda at, line: f"{at.timestamp():.6f} {line}"),
    "srun --label": each(lambda _, line: f"{int(found[1])}: {line}" if (found := _RANKED.match(line)) else line),
    "srun --label, behind a time": each(
        lambda at, line: f"{_nano(at)} {int(found[1])}: {line}" if (found := _RANKED.match(line)) else line
    ),
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "colour": each(_coloured),
    "trailing spaces": each(lambda _, line: line + "   "),
    "byte order mark": lambda text: "\ufeff" + text,
    "structlog": each(lambda at, line: _logger(at, event=line, level="info")),
    "python-json-logger": each(lambda at, line: _logger(at, message=line, levelname="INFO", name="train")),
    "fluent bit": each(lambda at, line: json.dumps({"date": at.timestamp(), "stream": "stderr", "log": line})),
    "fluentd, with kubernetes": each(
        lambda at, line: json.dumps(
            {"log": line, "kubernetes": {"pod_name": "llm-worker-1", "host": "ip-10-0-0-9"}, "@timestamp": _nano(at)}
        )
    ),
    "google cloud": each(lambda at, line: json.dumps({"textPayload": line, "severity": "ERROR", "timestamp": _nano(at)})),
    "loki, logcli jsonl": each(lambda at, line: json.dumps({"labels": {"pod": "llm-worker-1"}, "line": line, "timestamp": _nano(at)})),
    "loki, logcli": each(lambda at, line: f'{at:%Y-%m-%dT%H:%M:%S}Z {{pod="llm-worker-1"}} {line}'),
    "cloudwatch, tail": each(lambda at, line: f"{at:%Y-%m-%dT%H:%M:%S.%f}+00:00 train/trainer/1f2e {line}"),
    "cloudwatch, filter-log-events": _cloudwatch,
}


def _one_in_another(*names: str) -> Callable[[str], str]:
    def carry(text: str) -> str:
        for name in names:
            text = CARRIERS[name](text)
        return text

    return carry


CARRIERS |= {
    " in ".join(names): _one_in_another(*names)
    for names in (
        ("kubernetes cri", "docker json"),
        ("structlog", "docker json"),
        ("structlog", "kubernetes cri"),
        ("python-json-logger", "docker-compose"),
        ("collector's time", "crlf"),
        ("colour", "docker json"),
    )
}
