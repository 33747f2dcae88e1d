"""A training job of a test: its files, its faults, its checkpoints; and how a test awaits what is to come. Used by `site.py`."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from workers.demo.train import TRACKER

Seen = TypeVar("Seen")

LOOK_EVERY = 0.2  # seconds between two looks at what is awaited
PATIENCE = 100.0  # seconds; generous, for two cores with other work, and still shorter than Slurm's own delay of a requeued job


@dataclass
class Training:
    """One submitted training job and its files."""

    job_id: str
    directory: Path
    comment: str
    name: str = "train"

    @property
    def log(self) -> Path:
        return self.directory / "train.log"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def fault_file(self) -> Path:
        return self.directory / "faults.json"

    def checkpoint(self) -> int:
        """The iteration of the newest whole checkpoint on disk; 0 before the first."""
        tracker = self.checkpoints / TRACKER
        return int(tracker.read_text()) if tracker.exists() else 0

    async def checkpoint_after(self, iteration: int, *, within: float = PATIENCE) -> int:
        """The first checkpoint seen on disk that is newer than `iteration`."""

        async def look() -> int | None:
            return found if (found := self.checkpoint()) > iteration else None

        try:
            return await eventually(look, within=within, what=f"a checkpoint of {self.name} after iteration {iteration}")
        except AssertionError as failure:
            raise AssertionError(f"{failure}; its log ends:\n{tail(self.log_text())}") from None

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def break_with(self, *faults: Mapping[str, Any]) -> None:
        """What breaks from the next step on (keys: workers/demo/train.py); nothing at all heals. Written in one move."""
        draft = self.fault_file.with_suffix(".new")
        draft.write_text(json.dumps(list(faults)))
        draft.replace(self.fault_file)


async def eventually(look: Callable[[], Awaitable[Seen | None]], *, within: float = PATIENCE, what: str) -> Seen:
    """Looks until there is something to see; fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        seen = await look()
        if seen is not None:
            return seen
        assert time.monotonic() < deadline, f"waited {within:g} s in vain for {what}"
        await asyncio.sleep(LOOK_EVERY)


def tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.splitlines()[-lines:])
