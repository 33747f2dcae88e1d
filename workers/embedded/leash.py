"""Starts a program that ends with its parent: `python leash.py PARENT PROGRAM ARGUMENT...` becomes PROGRAM, under the same process ID.

Used by `temporal.py`, so that a `backstay up` killed by SIGKILL leaves no server behind on its ports. Linux's parent death
signal survives exec (prctl(2)); elsewhere the program simply starts. Standard library only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        # SIGKILL: the ports must be free at once for whoever starts again, and SQLite's journal is made for a sudden end.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before the line above
            sys.exit(1)
    os.execv(program, [program, *arguments])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
