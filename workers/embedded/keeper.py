"""Keeps one daemon and everything it ever starts together, so that all of it can be ended at once.

Run as a program by `daemons.py`: `python keeper.py PROGRAM ARGUMENT...`. Slurm's step daemons leave their parent's
session; as a child subreaper this process inherits them, as a node's init would. When stdin closes (the owner asked, or
died) all descendants get SIGKILL, parents first: what a lost node looks like. SIGTERM is passed on to the daemon.
Standard library only, so that it starts in a few milliseconds.
"""

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    daemon = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)])
    signal.signal(signal.SIGTERM, lambda *_: os.kill(daemon, signal.SIGTERM))
    threading.Thread(target=_end_all_at_eof, daemon=True).start()
    ended_with = 0
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return ended_with
        if pid == daemon:
            ended_with = abs(os.waitstatus_to_exitcode(status))


def _end_all_at_eof() -> None:
    while os.read(0, 1024):
        pass
    while children := descendants(os.getpid()):
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)  # the main thread reaps; what was forked meanwhile is ours by now


def descendants(of: int) -> list[int]:
    """All live descendants, parents before their children."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(name))
    found = list(parents.get(of, []))
    for pid in found:
        found.extend(parents.get(pid, []))
    return found


if __name__ == "__main__":
    sys.exit(main())
