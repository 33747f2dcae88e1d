"""Workers, the Temporal server and slurmctld die at random moments; each fault is still acted on once, and none is lost or held.

The short form is part of every run. The long one: `./deploy/test -m chaos`, with `BACKSTAY_CHAOS_FAULTS` (200 by default) and
`BACKSTAY_CHAOS_SEED`, which the test prints, to repeat a run's draws.
"""

import asyncio
import os
import random
from collections.abc import Sequence

import pytest

from tests.chaos.lives import Death, Life, Victim, deaths
from tests.e2e.conftest import MakeSite
from tests.e2e.server import Server
from workers.embedded.private_slurm import PrivateSlurm

LANES = 3  # recoveries side by side: one waits while another computes
LIMITS = {"restarts": 1000, "actions_per_window": 1000, "breaker_jobs": 1000, "excluded_fraction": 1.0, "exclusion_ttl": "1s"}
"""The guard rails would hold what fails this often; they are tried elsewhere."""


@pytest.mark.timeout(900)
async def test_each_fault_is_acted_on_once_though_processes_die_at_random_moments(
    make_site: MakeSite, idle_slurm: PrivateSlurm, temporal_server: Server
) -> None:
    draw = random.Random(20261201)
    plans = [deaths(draw, {Victim.WORKER: 3, Victim.TEMPORAL: 1, Victim.CONTROLLER: 0}) for _ in range(9)]
    await _faults(plans, _SharedProcesses(temporal_server, idle_slurm), make_site)


@pytest.mark.chaos
@pytest.mark.timeout(4 * 3600)
async def test_hundreds_of_faults_are_acted_on_once_each_though_every_process_dies_at_random_moments(
    make_site: MakeSite, idle_slurm: PrivateSlurm, temporal_server: Server
) -> None:
    seed = int(os.environ.get("BACKSTAY_CHAOS_SEED", random.SystemRandom().randrange(10**9)))
    count = int(os.environ.get("BACKSTAY_CHAOS_FAULTS", "200"))
    print(f"BACKSTAY_CHAOS_SEED={seed}, {count} faults")
    draw = random.Random(seed)
    plans = [deaths(draw, {Victim.WORKER: 3, Victim.TEMPORAL: 1, Victim.CONTROLLER: 1}) for _ in range(count)]
    await _faults(plans, _SharedProcesses(temporal_server, idle_slurm), make_site)


async def _faults(plans: Sequence[tuple[Death, ...]], shared: "_SharedProcesses", make_site: MakeSite) -> None:
    lanes = [f"chaos-{number}" for number in range(1, LANES + 1)]
    slurm = shared.slurm
    for lane in lanes:
        await slurm.run("scontrol", "create", f"PartitionName={lane}", "Nodes=ALL")
    try:
        async with asyncio.TaskGroup() as group:
            for number, lane in enumerate(lanes):
                group.create_task(_lives(make_site, lane, shared, plans[number::LANES]), name=lane)
    finally:
        await slurm.clear()
        for lane in lanes:
            await slurm.run("scontrol", "delete", f"PartitionName={lane}")


async def _lives(make_site: MakeSite, lane: str, shared: "_SharedProcesses", plans: Sequence[tuple[Death, ...]]) -> None:
    site = make_site({"watch": {"partitions": [lane]}, "policy": {"mode": "observe", "highest_mode": "auto", "limits": LIMITS}})
    async with shared.one_at_a_time:  # the server lives meanwhile: both need it to begin with
        await site.start_worker()
        await site.client()
    kill = {Victim.TEMPORAL: shared.kill_temporal, Victim.CONTROLLER: shared.kill_controller}
    life = Life(site, lane, kill, undisturbed=shared.one_at_a_time)
    for plan in plans:
        await life.run(plan)


class _SharedProcesses:
    """What all lanes use: killed by one of them at a time."""

    def __init__(self, server: Server, slurm: PrivateSlurm) -> None:
        self._server = server
        self.slurm = slurm
        self.one_at_a_time = asyncio.Lock()

    async def kill_temporal(self, dead_for_seconds: float) -> None:
        async with self.one_at_a_time:
            await self._server.kill()
            await asyncio.sleep(dead_for_seconds)
            await self._server.start()

    async def kill_controller(self, dead_for_seconds: float) -> None:
        async with self.one_at_a_time:
            await self.slurm.kill_controller()
            await asyncio.sleep(dead_for_seconds)
            await self.slurm.start_controller()
