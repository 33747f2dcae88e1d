"""The daemons of a private cluster: each runs under `keeper.py`, so that all it ever started can be ended at once.

Owned by `private_slurm.py`. The processes are not asyncio's: their owner may use several event loops.
"""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.embedded.slurm_programs import PrivateSlurmError, why_not

_KEEPER = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True, slots=True)
class _Kept:
    keeper: subprocess.Popen[bytes]
    log: Path


class Daemons:
    """Daemons by name, from their start until they are ended here."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._kept)

    def is_running(self, name: str) -> bool:
        return name in self._kept and self._kept[name].keeper.poll() is None

    def keep(self, name: str, program: str, *arguments: str, log: Path, environment: Mapping[str, str]) -> None:
        """Starts `program` under a keeper. What it prints goes beside `log`, which it writes itself. Raises `PrivateSlurmError`."""
        path = shutil.which(program, path=environment["PATH"])
        if path is None:
            raise PrivateSlurmError(why_not() or f"{program} is not installed")
        with log.with_suffix(".out").open("ab") as output:
            keeper = subprocess.Popen(
                (sys.executable, "-I", "-S", str(_KEEPER), path, *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**environment, "LC_ALL": "C"},
                start_new_session=True,
            )
        self._kept[name] = _Kept(keeper, log)

    async def end(self, name: str) -> None:
        """Ends it and all it ever started, at once; nothing where it is not kept."""
        if (kept := self._kept.pop(name, None)) is None:
            return
        if kept.keeper.stdin is not None:
            kept.keeper.stdin.close()
        if not await _ended(kept.keeper, within=10):
            kept.keeper.kill()  # what it kept is in uninterruptible sleep; nothing else can be done from here
            await _ended(kept.keeper, within=10)

    async def end_in_good_order(self, name: str) -> None:
        """Asks it to end and gives it 20 s, so that it can save its state."""
        if (kept := self._kept.get(name)) is None:
            return
        kept.keeper.terminate()
        await _ended(kept.keeper, within=20)
        await self.end(name)  # does nothing more to one that went by itself

    def check_alive(self, name: str) -> None:
        """Raises `PrivateSlurmError` with the end of its log when it has ended by itself."""
        kept = self._kept[name]
        if kept.keeper.poll() is not None:
            raise PrivateSlurmError(f"{name} ended with {kept.keeper.poll()}:\n{end_of(kept.log)}")

    async def until_exists(self, path: Path, name: str) -> None:
        """Waits up to a minute for a file that the daemon `name` makes."""
        async with asyncio.timeout(60):
            while True:
                if await asyncio.to_thread(path.exists):
                    return
                self.check_alive(name)
                await asyncio.sleep(0.02)


def end_of(log: Path) -> str:
    """The last lines of a daemon's log and of what it printed."""
    texts = (path.read_text(errors="replace") for path in (log, log.with_suffix(".out")) if path.exists())
    return "\n".join(line for text in texts for line in text.splitlines()[-15:])


async def _ended(process: subprocess.Popen[bytes], *, within: float) -> bool:
    """Waits up to `within` seconds for the process to end; whether it did. Polls, because no event loop owns the process."""
    deadline = time.monotonic() + within
    while process.poll() is None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
