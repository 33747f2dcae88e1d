"""What `doctor` asks the controller beyond the scheduler's protocol: who we are there, and what time it is.

Commands run through the transport, as everywhere. Tests answer with an implementation of their own.
"""

import getpass
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Protocol

from pydantic import Field

from activities.records import Record
from activities.slurm.scheduler import SchedulerSettings
from activities.slurm.transport import Transport, TransportError

# `scontrol show config` begins with the controller's own time: slurmctld answers `last_update = time(NULL)`
# (slurmctld/proc_req.c, _fill_ctld_conf). The transport sets TZ=UTC, so it reads as UTC.
_CONTROLLER_TIME = re.compile(r"^Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", re.MULTILINE)

OPERATORS = ("Operator", "Administrator")  # AdminLevels that may requeue and change other users' jobs (sacctmgr(1))


class Credential(Record):
    """What this process may do to other people's jobs."""

    user: str
    may_requeue: bool | None = Field(default=None, description="None: cannot be told")
    because: str = ""


class Controller(Protocol):
    """Two questions; both have 'cannot be told' among their answers and never raise."""

    async def credential(self, settings: SchedulerSettings) -> Credential:
        """Who we are to Slurm."""

    async def time(self) -> datetime | None:
        """slurmctld's clock, to the second."""


class CommandController:
    """Asks `sacctmgr` and `scontrol`."""

    def __init__(self, transport: Transport, timeout: timedelta) -> None:
        self._transport = transport
        self._timeout = timeout

    async def credential(self, settings: SchedulerSettings) -> Credential:
        user = getpass.getuser()
        if os.geteuid() == 0:
            return Credential(user=user, may_requeue=True, because="root may change every job")
        if user == settings.slurm_user:
            return Credential(user=user, may_requeue=True, because="SlurmUser may change every job")
        if settings.accounting is False:
            return Credential(user=user, may_requeue=False, because="without accounting only root and SlurmUser may change others' jobs")
        level = await self._ask("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel")
        if level is None:
            return Credential(user=user, because="sacctmgr gave no answer")
        level = level.strip() or "None"
        return Credential(user=user, may_requeue=level in OPERATORS, because=f"AdminLevel is {level}")

    async def time(self) -> datetime | None:
        answer = await self._ask("scontrol", "show", "config")
        found = _CONTROLLER_TIME.search(answer or "")
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC) if found else None

    async def _ask(self, *command: str) -> str | None:
        try:
            completed = await self._transport.run(command, timeout=self._timeout)
        except TransportError:
            return None
        return completed.stdout.decode(errors="replace") if completed.returncode == 0 else None
