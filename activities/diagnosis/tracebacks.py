"""Python tracebacks: exception type, message and the deepest frame of the job's own code. Pure; read backwards from the exception.

Ranks print over each other, so only lines with the same prefix are taken for one traceback."""

import re
from dataclasses import dataclass

from activities.logs.prefixes import parse_prefix

_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,7})(?:, in (.{1,120}))?')
_EXCEPTION = re.compile(r"(?:^|[\s\]:|])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Fault|Interrupt|Violation|Exit))(?::\s*(.*)|$)")
_NOT_OWN = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|<frozen|<string>|/opt/pytorch/|importlib|/runpy\.py")


@dataclass(frozen=True, slots=True)
class Traceback:
    """One exception as Python printed it. None: not to be seen."""

    type: str
    message: str
    own_file: str | None = None
    own_line: int | None = None
    own_function: str | None = None
    frames: int = 0

    @property
    def place(self) -> str | None:
        """`train.py:33 (main)`, the deepest frame outside of installed packages."""
        if self.own_file is None:
            return None
        function = f" ({self.own_function})" if self.own_function and self.own_function != "<module>" else ""
        return f"{self.own_file.rsplit('/', 1)[-1]}:{self.own_line}{function}"


def read_traceback(exception_line: str, before: str) -> Traceback | None:
    """The traceback that ends with `exception_line`.

    Args:
        exception_line: the line with the exception, with its prefix.
        before: what the log holds before it; a few KiB are enough.
    """
    end = parse_prefix(exception_line)
    found = _EXCEPTION.search(end.text)
    if found is None:
        return None
    own: tuple[str, int, str | None] | None = None
    frames = 0
    for raw in reversed(before.splitlines()):
        prefixed = parse_prefix(raw)
        if prefixed.rank != end.rank or prefixed.node != end.node:
            continue
        if "Traceback (most recent call last)" in prefixed.text:
            break
        if frame := _FRAME.match(prefixed.text):
            frames += 1
            if own is None and not _NOT_OWN.search(frame[1]):
                own = (frame[1], int(frame[2]), frame[3])
    return Traceback(
        type=found[1].rsplit(".", 1)[-1],
        message=(found[2] or "").strip()[:300],
        own_file=own[0] if own else None,
        own_line=own[1] if own else None,
        own_function=own[2] if own else None,
        frames=frames,
    )
