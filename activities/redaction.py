"""Takes secrets out of text before it is stored or shown: tokens, keys, passwords, URLs with credentials, private key blocks.

Pure. Called by the evidence capture, before a log line or a comment enters a workflow history, and before anything is sent to an
outside service. A row of `_RULES` per kind of secret;
one pass finds the lines, Python replaces in those only. What merely *looks* guarded (`tokens: 5120`, `pad_token=0`) is evidence and stays.
"""

import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, TypeVar

from activities.records import Record
from activities.scanning.scan import MultiPattern

R = TypeVar("R", bound=Record)

MARK = b"[redacted: "
"""Begins every replacement; what begins so is never redacted again."""

_ASSIGNED = r"[\"']?\s*[=:]\s*[\"']?"

# kind -> pattern, valid for both `re` and hyperscan (no look-around).
# The group `keep` stays, the group `secret` goes; without groups all goes.
_RULES: Mapping[str, str] = {
    # By shape: each issuer's published prefix.
    "AWS access key": r"\b(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA)[0-9A-Z]{16}\b",
    "Hugging Face token": r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,})",
    "GitLab token": r"\bgl(?:pat|dt|rt|cbt|ptt|soat)-[A-Za-z0-9_-]{16,}",
    "API key": r"\bsk-[A-Za-z0-9_-]{16,}",  # OpenAI (sk-, sk-proj-) and Anthropic (sk-ant-)
    "NVIDIA API key": r"\bnvapi-[A-Za-z0-9_-]{16,}",
    "Slack token": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "Slack webhook": r"(?P<keep>hooks\.slack\.com/(?:services|workflows)/)(?P<secret>[A-Za-z0-9/_-]{8,})",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{30,}",
    "Google token": r"\bya29\.[0-9A-Za-z_-]{16,}",
    "PyPI token": r"\bpypi-[A-Za-z0-9_-]{40,}",
    "W&B key": r"\bwandb_v[0-9]+_[A-Za-z0-9_]{20,}",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.?[A-Za-z0-9_-]*",  # munge-free Slurm (SLURM_JWT), OIDC
    # By place.
    "URL credentials": r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{1,20}://)(?P<secret>[^\s/@:\"']{0,256}:[^\s/@\"']{1,256})@",
    "URL token": r"(?P<keep>\bhttps?://)(?P<secret>[^\s/@:\"']{12,512})@",
    "URL parameter": (
        r"(?P<keep>[?&](?i:x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|sig|signature|token|access_token|api_?key|key"
        r"|password|secret)=)(?P<secret>[^\s&#\"']{4,})"
    ),
    "authorization": (
        r"(?i)(?P<keep>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token|digest|negotiate)\s+)?)"
        r"(?P<secret>[^\s\"',]{6,})"
    ),
    "bearer token": r"(?i)(?P<keep>\bbearer\s+)(?P<secret>[A-Za-z0-9._~+/=-]{12,})",
    "W&B login": r"(?i)(?P<keep>\bwandb\s+login\s[^\n]{0,80}?)(?P<secret>\b[0-9a-f]{40}\b)",
    "netrc password": r"(?i)(?P<keep>\blogin\s+\S{1,200}\s+password\s+)(?P<secret>\S{1,512})",
    "storage account key": r"(?i)(?P<keep>\b(?:AccountKey|SharedAccessKey|SharedAccessSignature)=)(?P<secret>[^\s;\"']{8,})",
    "cookie": r"(?i)(?P<keep>\b(?:set-)?cookie[\"']?:\s*)(?P<secret>[^\n]{6,4000})",
    "option": (
        r"(?i)(?P<keep>\B--?(?:[a-z-]{0,30}(?:password|passwd|api[-_]?key|secret|auth[-_]?token|hf[-_]token)|token)[= ]\s*[\"']?)"
        r"(?P<secret>[^\s\"'-][^\s\"']{5,})"
    ),
    # By name. Environment names in capitals may end in TOKEN; in small letters a token is mostly a piece of text that was trained on.
    "token variable": r"(?P<keep>\bTOKEN=[\"']?)(?P<secret>[^\s\"',;]{4,})",
    "variable": (
        r"(?P<keep>\b[A-Z0-9_]{0,60}(?:_TOKEN|HFTOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET_?KEY|CREDENTIALS?"
        r"|_JWT|_PAT|_PASS)" + _ASSIGNED + r")(?P<secret>[^\s\"',;]{4,})"
    ),
    "password": (
        r"(?i)(?P<keep>\b[a-z0-9_.-]{0,60}(?:password|passwd|passphrase|client[_-]?secret|secret[_-]?key|api[_-]?key|access[_-]?key|private[_-]?key"
        r"|(?:auth|access|refresh|session|bearer|hub|hf|github|gitlab|use_auth|wandb|slack|bot)[_-]token|\bsecret)"
        + _ASSIGNED
        + r")(?P<secret>[^\s\"',;]{4,})"
    ),
}

_HARMLESS = re.compile(rb"(?i)(?:none|null|true|false|\*{3,}|<[a-z]|\$\{?[a-z_][a-z0-9_]*\}?|\[redacted|os\.environ|getenv)")
"""A value that is no secret: a placeholder, a reference to a variable, or what we wrote ourselves."""

_KEY_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(rb"(?:^[ \t>|]*[A-Za-z0-9+/=]{16,}[ \t]*\r?\n)+(?=[^\n]{0,40}-----END )", re.MULTILINE)


class Redacted(NamedTuple):
    """What is left, and how many secrets were taken out."""

    data: bytes
    secrets: int


class Redactor:
    """Redacts one stream, block after block: a private key that begins in one block and ends in another is still found."""

    def __init__(self) -> None:
        self._inside_key = False
        self._begun = False

    def feed(self, data: bytes) -> Redacted:
        """One block, which should end with a line: a token cut in two may not be known for one."""
        data, keys = self._without_keys(data)
        pieces: list[bytes] = []
        position = count = 0
        for hit in _matcher().scan(data):
            if hit.end <= position:
                continue
            start = max(hit.start, position)
            line, found = _redact_line(data[start : hit.end], hit.ids)
            pieces += (data[position:start], line)
            position = hit.end
            count += found
        pieces.append(data[position:])
        return Redacted(b"".join(pieces), count + keys)

    def _without_keys(self, data: bytes) -> Redacted:
        count = 0
        pieces: list[bytes] = []
        if not self._begun and not self._inside_key and b"PRIVATE KEY" in data:
            # The block may begin in the middle of a key: then its body stands before an END that has no BEGIN.
            end, begin = _KEY_END.search(data), _KEY_BEGIN.search(data)
            if end is not None and (begin is None or end.start() < begin.start()):
                data = _KEY_BODY.sub(MARK + b"private key]\n", data, count=1)
                count += 1
        self._begun = True
        while True:
            if self._inside_key:
                end = _KEY_END.search(data)
                if end is None:
                    return Redacted(b"".join(pieces), count)
                data = data[end.end() :]
                self._inside_key = False
            begin = _KEY_BEGIN.search(data) if b"PRIVATE KEY" in data else None
            if begin is None:
                return Redacted(b"".join((*pieces, data)), count)
            pieces += (data[: begin.start()], MARK + b"private key]")
            data = data[begin.end() :]
            self._inside_key = True
            count += 1


def redact_bytes(data: bytes) -> Redacted:
    """`data` without its secrets. Redacting twice changes nothing more."""
    return Redactor().feed(data)


def redact(text: str) -> str:
    """`text` without its secrets."""
    return redact_bytes(text.encode("utf-8", "surrogatepass")).data.decode("utf-8", "replace")


def redact_record(record: R) -> R:
    """The record with every text in it redacted: what a step returns stands in the workflow history for good."""
    return type(record).model_validate(_redacted_texts(record.model_dump()))


def _redacted_texts(value: Any) -> Any:
    match value:
        case StrEnum():
            return value
        case str():
            return redact(value)
        case dict():
            return {key: _redacted_texts(item) for key, item in value.items()}
        case tuple() | list():
            return type(value)(_redacted_texts(item) for item in value)
        case _:
            return value


def _redact_line(line: bytes, kinds: tuple[str, ...]) -> tuple[bytes, int]:
    count = 0
    for kind in _RULES:  # in the table's order: by shape first, so that the mark names the issuer
        if kind not in kinds:
            continue
        mark = MARK + kind.encode() + b"]"

        def replaced(match: re.Match[bytes], mark: bytes = mark) -> bytes:
            nonlocal count
            groups = match.groupdict()
            secret = groups.get("secret", match[0])
            if _HARMLESS.match(secret) or MARK in match[0]:
                return match[0]
            count += 1
            return (
                match[0].replace(secret, mark)
                if "secret" not in groups
                else groups["keep"] + mark + match[0][match.end("secret") - match.start() :]
            )

        line = _compiled()[kind].sub(replaced, line)
    return line, count


@cache
def _compiled() -> Mapping[str, re.Pattern[bytes]]:
    return {kind: re.compile(pattern.encode()) for kind, pattern in _RULES.items()}


@cache
def _matcher() -> MultiPattern:
    """Finds the lines. Counted repeats are loosened, for they take the matcher seconds to compile; a line too many costs little."""
    loose = {kind: _COUNTED.sub(lambda counted: "*" if counted[1] == "0" else "+", _NAMED.sub("?:", rule)) for kind, rule in _RULES.items()}
    return MultiPattern(loose, dense_hits=sys.maxsize)  # never the sparse mode for logs full of hits: every secret has to be seen


_COUNTED = re.compile(r"\{(\d+)(?:,\d*)?\}\??")
_NAMED = re.compile(r"\?P<\w+>")
