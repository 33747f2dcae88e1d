"""Finds the secrets of a text and takes them out: as it is written, as it is seen, over a line's end, and private key blocks. Pure."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from activities.redaction.keys import keys_in
from activities.redaction.plain import placed, plain
from activities.redaction.rules import WRAPPED, Rule, entropy, is_secret, looks_random, rules, token_lengths
from activities.redaction.span import MARK, Span, merged, rendered

_ROUNDS = 4
"""A secret may stand out only when another one beside it has gone; more rounds than this nothing honest needs."""

_ONE_ROUND_FROM = 10_000
"""Secrets from which one round has to do: a log made of nothing else."""


class Redacted(NamedTuple):
    """What is left, and how many secrets were taken out."""

    data: bytes
    secrets: int


def redact_bytes(data: bytes) -> Redacted:
    """`data` without its secrets. Redacting twice changes nothing more."""
    count = 0
    for _ in range(_ROUNDS):
        spans = secrets_in(data)
        if not spans:
            break
        data = rendered(data, spans)
        count += len(spans)
        if len(spans) >= _ONE_ROUND_FROM:
            break
    return Redacted(data, count)


def redact_part(data: bytes, start: int, end: int) -> Redacted:
    """`data[start:end]` without the secrets of all of `data`: one that a bound cuts in two goes as well."""
    inside = [
        span._replace(start=max(span.start, start) - start, end=min(span.end, end) - start)
        for span in secrets_in(data)
        if span.start < end and span.end > start
    ]
    again = redact_bytes(rendered(data[start:end], inside))
    return Redacted(again.data, again.secrets + len(inside))


def redact(text: str) -> str:
    """`text` without its secrets."""
    return redact_bytes(text.encode("utf-8", "surrogatepass")).data.decode("utf-8", "replace")


def is_redacted(text: str | None) -> bool:
    """Whether something was taken out of the text."""
    return text is not None and MARK.decode() in text


def prepare() -> None:
    """Makes the matchers now; else the first text to be redacted waits for them, a second or two where none were kept."""
    redact_bytes(b"password=prepared")


_LOOKED_BEHIND = 4096


def redact_start(text: str, most: int) -> str:
    """The first `most` characters of `text` without its secrets, also without the piece of one that goes on behind them."""
    return redact(text[: most + _LOOKED_BEHIND])[:most]


def secrets_in(data: bytes) -> list[Span]:
    """Where the secrets stand, in order, none touching another."""
    found = _by_sight(data)
    if (seen := plain(data)) is not None and (hidden := _by_sight(seen)):
        found += placed(hidden, data)
    return merged(found, data)


def _by_sight(data: bytes) -> list[Span]:
    found = [*keys_in(data), *_by_rules(data)]
    return [*found, *(continued for span in found for continued in _continued(data, span))]


# ----------------------------------------------------------------------------------------------------------- by rule


def _by_rules(data: bytes) -> Iterator[Span]:
    rows = rules().rows
    for start, end, ids in _runs(data):
        for number in sorted(int(one) for one in ids if one != WRAPPED):
            rule = rows[number]
            begin, until = (start, end) if rule.lines == 1 else _with_lines_beside(data, start, end)
            yield from _by_rule(rule, number, data, begin, until)
        if WRAPPED in ids:
            yield from _wrapped(data, start, end)


_LINE_BYTES = 4096


def _with_lines_beside(data: bytes, start: int, end: int) -> tuple[int, int]:
    """For what crosses a line's end: reported where it ends, or by a hint where it begins."""
    low, high = max(0, start - _LINE_BYTES), min(len(data), end + _LINE_BYTES)
    below = data.find(b"\n", end + 1, high)
    return data.rfind(b"\n", low, max(0, start - 1)) + 1 or low, high if below < 0 else below


def _by_rule(rule: Rule, number: int, data: bytes, start: int, end: int) -> Iterator[Span]:
    for match in rule.expression.finditer(data, start, end):
        group = next((group for group in rule.groups if match.start(group) >= 0), 0) if len(rule.groups) > 1 else sum(rule.groups)
        first, last = match.span(group)
        if first < last and is_secret(data[first:last], rule, is_bare=group == rule.bare):
            yield Span(first, last, rule.kind, number)


def _runs(data: bytes) -> Iterator[tuple[int, int, frozenset[str]]]:
    """The lines that hit, those beside each other together: a log of nothing but hits costs a call a rule, not one a line."""
    start = end = -1
    ids: set[str] = set()
    for hit in rules().lines.scan(data):
        if start >= 0 and hit.start <= end + 1:
            end = max(end, hit.end)
            ids.update(hit.ids)
            continue
        if start >= 0:
            yield start, end, frozenset(ids)
        start, end, ids = hit.start, hit.end, set(hit.ids)
    if start >= 0:
        yield start, end, frozenset(ids)


# ----------------------------------------------------------------------------------------- secrets over several lines

_LONGEST_TOKEN = 200


@cache
def _broken() -> re.Pattern[bytes]:
    prefixes = "|".join(re.escape(prefix) for prefix in sorted(token_lengths(), key=len, reverse=True)).encode()
    return re.compile(
        rb"(?P<prefix>" + prefixes + rb")(?P<first>[A-Za-z0-9_-]{1,110})[ \t]{0,8}\\?\r?\n[ \t]{0,40}"
        rb"(?P<second>[A-Za-z0-9_-]{1,110})(?![A-Za-z0-9_-])"
    )


def _wrapped(data: bytes, start: int, end: int) -> Iterator[Span]:
    """Tokens broken in two by a terminal's or a mail's width, where both pieces make up the length that such a token has."""
    for broken in _broken().finditer(data, start, min(len(data), end + _LONGEST_TOKEN)):
        length = token_lengths()[broken["prefix"].decode()]
        if len(broken["prefix"]) + len(broken["first"]) + len(broken["second"]) == length:
            yield Span(broken.start("prefix"), broken.end("first"), "broken token")
            yield Span(*broken.span("second"), "broken token")


_NEXT_LINE = re.compile(rb"[ \t\"'\\]*\r?\n[ \t]*(?P<more>[A-Za-z0-9+/=_.-]{4,})[\"']?[ \t]*(?=\r?\n|\Z)")
_LONG_BYTES = 20
_RANDOM_BITS = 3.0


def _continued(data: bytes, span: Span) -> Iterator[Span]:
    """Of a long secret that goes to the end of its line: the lines below that hold nothing but more of it."""
    end, longest = span.end, 0
    while span.end - span.start >= _LONG_BYTES and (below := _NEXT_LINE.match(data, end)):
        more = below["more"]
        is_block = len(more) >= _LONG_BYTES and _is_mixed(more)
        is_rest = longest > len(more) and (looks_random(more) or more.endswith(b"="))
        if not (is_block or is_rest):
            return
        yield Span(*below.span("more"), span.kind, span.order)
        end, longest = below.end("more"), max(longest, len(more)) if is_block else 0


def _is_mixed(text: bytes) -> bool:
    """Capitals, small letters and digits, as base64 has them: no hash, no path, no word."""
    has_digit = any(48 <= byte <= 57 for byte in text)
    return has_digit and text != text.lower() and text != text.upper() and entropy(text[:200]) >= _RANDOM_BITS
