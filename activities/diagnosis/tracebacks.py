"""Python tracebacks: exception type, message and the deepest frame of the job's own code. Pure; read backwards from the exception.

Ranks print over each other, so only lines with the same prefix are taken for one traceback."""

import re
from dataclasses import dataclass
from enum import StrEnum

from activities.logs.prefixes import Prefixed, parse_prefix
from activities.redaction import redact_start

_FRAME = re.compile(r'^\s*File "([^"]{1,400})", line (\d{1,7})(?:, in (.{1,120}))?')
_EXCEPTION = re.compile(
    r"(?:^|[\s\]:|])((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Fault|Interrupt|Violation|Exit)|(?<=\.)(?:Error|Exception)))"
    r"(?::\s*(.*)|$)"
)
# The last line of a traceback, whatever the class is called: a dotted name, or one that begins with a capital and has a message.
_ANY_CLASS = re.compile(r"((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*(?=: |$)|[A-Z]\w*(?=: ))(?:: (.*))?$")
_LONGEST_TRACEBACK = 400  # lines, of all ranks that print over each other
# Where CPython's own printing begins: a script or module run as the program, a process started by multiprocessing. A thread is not
# here: the program outlives it. `<string>` and `<stdin>` are pieces of code somebody executes, spawn's own command line apart.
_OUTERMOST = re.compile(
    r'^\s*File "(?!<(?:string|stdin|ipython))[^"]{1,400}", line \d{1,7}, in (?:<module>|_run_module_as_main|_run_code)(?!\w)'
    r'|^\s*File "[^"]{0,400}multiprocessing/(?:process|spawn)\.py", line \d{1,7}, in '
)
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
    found = _EXCEPTION.search(end.text) or _ANY_CLASS.match(end.text)
    if found is None:
        return None
    own: tuple[str, int, str | None] | None = None
    frames = 0
    for raw in reversed(before.splitlines()):
        prefixed = parse_prefix(raw)
        if (prefixed.rank, prefixed.node, prefixed.carrier) != (end.rank, end.node, end.carrier):
            continue
        if "Traceback (most recent call last)" in prefixed.text:
            break
        if frame := _FRAME.match(prefixed.text):
            frames += 1
            if own is None and not _NOT_OWN.search(frame[1]):
                own = (frame[1], int(frame[2]), frame[3])
    return Traceback(
        type=found[1].rsplit(".", 1)[-1],
        message=redact_start((found[2] or "").strip(), 300),
        own_file=own[0] if own else None,
        own_line=own[1] if own else None,
        own_function=own[2] if own else None,
        frames=frames,
    )


def unusual_end(header: Prefixed, after: str) -> tuple[int, str] | None:
    """Where the last line of a traceback begins in `after`, in bytes, and the line itself, where its class has none of the usual names
    (`queue.Empty`, `subprocess.TimeoutExpired`, a class of the program's own); None for all others, and where it is not to be seen.

    Args:
        header: the line that begins the traceback.
        after: what the log holds behind that line.
    """
    offset = 0
    for raw in after.splitlines(keepends=True)[:_LONGEST_TRACEBACK]:
        prefixed = parse_prefix(raw)
        text = prefixed.text
        if (prefixed.rank, prefixed.node) == (header.rank, header.node) and text and not text[0].isspace():
            is_unusual = not _EXCEPTION.search(text) and _ANY_CLASS.match(text) and not text.startswith("SystemExit")
            return (offset, raw) if is_unusual else None
        offset += len(raw.encode())
    return None


class Printed(StrEnum):
    """Who printed a traceback, as far as its first frames tell."""

    BY_THE_END = "by_the_end"  # from the outermost frame: CPython prints an exception that ends a process so
    BY_THE_PROGRAM = "by_the_program"  # from a frame inside: `print_exc` and loggers print from the frame that caught
    BY_A_LIBRARY = "by_a_library"  # not one frame of the job's own code: a logger's thread, a client that retries
    UNKNOWN = "unknown"


def printed_by(before: str) -> Printed:
    """Who printed the traceback at the end of `before`; what is not to be seen is not guessed.

    Args:
        before: what one rank printed before the exception's line, without prefixes.
    """
    lines = before.splitlines()
    # "Original Traceback" stands inside the message of another exception (torch's ExceptionWrapper), whose own traceback is above it.
    headers = [number for number, line in enumerate(lines) if line.lstrip().startswith("Traceback (most recent call last)")]
    frames = [found for line in lines[headers[-1] + 1 :] if (found := _FRAME.match(line))] if headers else []
    if not frames or frames[0][3] is None:
        return Printed.UNKNOWN
    if any(_OUTERMOST.match(frame[0]) for frame in frames[:2]):
        return Printed.BY_THE_END
    return Printed.BY_A_LIBRARY if all(_NOT_OWN.search(frame[1]) for frame in frames) else Printed.BY_THE_PROGRAM
