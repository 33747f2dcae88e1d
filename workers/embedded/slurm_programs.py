"""Slurm's programs on this machine: whether a private cluster can run here, and how its packages are installed.

Asked before a private Slurm is started, by the tests and by `backstay demo`.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "sinfo", "scancel")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # daemons live in sbin, which not every PATH has


class PrivateSlurmError(Exception):
    """The private cluster could not do what was asked; the message holds the end of the log that tells why."""


def search_path() -> str:
    """PATH, and the places where daemons live."""
    return f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".strip(":")


def why_not() -> str | None:
    """Why a private Slurm cannot run here, with the mend; None when it can."""
    if sys.platform != "linux":
        return "a private Slurm needs Linux: run it in a container"
    if os.geteuid() != 0:
        return "a private Slurm must be started by root (slurmd starts tasks as their users): use root or a container"
    if missing := [program for program in _PROGRAMS if shutil.which(program, path=search_path()) is None]:
        return f"missing {', '.join(missing)}: apt-get install slurm-wlm munge (or `backstay demo --install`)"
    return None


def slurm_version() -> tuple[int, int]:
    """Major and minor of the slurmctld installed here: `(22, 5)`. Raises `PrivateSlurmError`."""
    said = subprocess.run(("slurmctld", "-V"), capture_output=True, text=True, check=True, env={"PATH": search_path()}).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None:
        raise PrivateSlurmError(f"slurmctld -V printed no version: {said!r}")
    return int(found[1]), int(found[2])


async def install_packages() -> None:
    """Installs Debian's or Ubuntu's slurm-wlm and munge; takes a minute. Raises `PrivateSlurmError`."""
    if shutil.which("apt-get") is None:
        raise PrivateSlurmError("no apt-get here: install Slurm (slurmctld, slurmd, client commands) and munge by hand")
    for argv in (("update", "-q"), ("install", "-q", "-y", "--no-install-recommends", "slurm-wlm", "munge")):
        process = await asyncio.create_subprocess_exec(
            *("apt-get", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise PrivateSlurmError(f"apt-get {argv[0]} failed:\n{output.decode(errors='replace')[-1500:]}")
