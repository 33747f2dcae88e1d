"""One recovery under random deaths: a training job breaks, and from then on processes are killed at moments that a seed draws.

What must hold at its end, however it came about: recovered, one requeue, one restart counted, off the broken node, nothing held.
Used by `test_random_deaths.py`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from activities.records import OutcomeState
from tests.e2e.site import Site, Training, is_over
from workflows.state import Stage

LONGEST_WAIT = 300.0
"""Seconds for one recovery. Each death of a worker costs its heartbeat timeout (6 s in these sites) and the start of another."""

MOMENTS = 12.0
"""Seconds after the fault within which a process dies: an undisturbed recovery of these sites takes about ten."""


class Victim(StrEnum):
    """Which process dies by SIGKILL."""

    WORKER = "worker"
    TEMPORAL = "temporal"
    CONTROLLER = "slurmctld"


@dataclass(frozen=True)
class Death:
    """One process, killed so many seconds after the fault was set, and so many seconds dead."""

    victim: Victim
    after_seconds: float
    dead_for_seconds: float


def deaths(draw: random.Random, victims: Mapping[Victim, int]) -> tuple[Death, ...]:
    """One or two deaths, in order of time. `victims`: how often each kind is drawn, in relation to the others."""
    kinds, weights = zip(*victims.items(), strict=True)
    drawn = [
        Death(kind, draw.uniform(0, MOMENTS), draw.choice((0.0, 0.0, draw.uniform(0, 8))))
        for kind in draw.choices(kinds, weights, k=draw.choice((1, 1, 2)))
    ]
    return tuple(sorted(drawn, key=lambda death: death.after_seconds))


class Life:
    """One job's fault and recovery."""

    def __init__(
        self, site: Site, lane: str, kill: Mapping[Victim, Callable[[float], Awaitable[None]]], *, undisturbed: asyncio.Lock
    ) -> None:
        """
        Args:
            site: where the job runs, with its newest worker.
            lane: the partition of its own.
            kill: ends a process by SIGKILL, and has it or its successor run again after so many seconds.
            undisturbed: held while a worker starts: one that finds no server ends at once, and who starts it again is systemd.
        """
        self._site = site
        self._undisturbed = undisturbed
        self._lane = lane
        self._kill = {Victim.WORKER: self._kill_worker, **kill}

    async def run(self, planned: tuple[Death, ...]) -> None:
        """Breaks a job, lets the planned deaths happen, and checks the end. Raises `AssertionError` that names the plan."""
        site = self._site
        run = await site.submit(nodes=1, tasks_per_node=1, directives=["--exclusive", f"--partition={self._lane}"])
        try:
            state = await site.training(run, within=LONGEST_WAIT)
            (node,) = state.attempt.nodes
            before = run.checkpoint()
            run.break_with({"kind": "crash", "node": node, "attempts": [0]})
            await self._die(planned)
            await self._recovered_once(run, node, before)
        except AssertionError as failure:
            raise AssertionError(f"after {planned}: {failure}") from failure
        finally:
            await site.slurm.run("scancel", run.job_id)

    async def _die(self, planned: tuple[Death, ...]) -> None:
        began = asyncio.get_running_loop().time()
        for death in planned:
            # A moment that nothing announces is what is tried here: there is no condition to await.
            await asyncio.sleep(max(0.0, began + death.after_seconds - asyncio.get_running_loop().time()))
            await self._kill[death.victim](death.dead_for_seconds)

    async def _kill_worker(self, dead_for_seconds: float) -> None:
        await self._site.workers[-1].kill()
        await asyncio.sleep(dead_for_seconds)
        async with self._undisturbed:
            await self._site.start_worker()

    async def _recovered_once(self, run: Training, node: str, before: int) -> None:
        incident = await self._site.incident(run, until=is_over, within=LONGEST_WAIT, what="the outcome")
        assert incident.outcome.state is OutcomeState.RECOVERED, incident.outcome
        job = await self._site.slurm_job(run.job_id)
        found = (job["JobState"], job["Restarts"], job["Priority"] == "0", node in job["NodeList"])
        assert found == ("RUNNING", "1", False, False), job
        assert run.checkpoint() > before
        state = await self._site.until(
            run, lambda state: state.stage is Stage.WATCHING, within=LONGEST_WAIT, what="the watch of the new attempt"
        )
        assert (len(state.incidents), state.history.restarts) == (1, 1), state
