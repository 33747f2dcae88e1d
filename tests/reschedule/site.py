"""A site for mutations: four simulated nodes, one job, and the mutations tried as Temporal tries them."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.mutation import (
    MutationRequest,
    MutationResult,
)
from activities.records import Job
from activities.reschedule import Reschedule
from activities.slurm.clock import ManualClock
from activities.slurm.simulated import REQUEUE_DELAY, SimulatedCluster
from activities.slurm.simulated_programs import Program, runs_for
from activities.slurm.simulated_state import Request, SimulatedJob

SHORT_DELAY = timedelta(seconds=5)
"""A site with `AuthInfo=cred_expire=4`: a requeued job would start before its exclusions are written."""


class Witness(SimulatedCluster):
    """A simulated cluster that writes down what it was told to change."""

    acts: list[tuple[str, ...]]

    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        self.acts.append(("requeue", "hold") if hold else ("requeue",))
        await super().requeue(job_id, hold=hold)

    async def permit_requeue(self, job_id: str) -> None:
        self.acts.append(("permit_requeue",))
        await super().permit_requeue(job_id)

    async def set_excluded_nodes(self, job_id: str, nodes: Collection[str]) -> None:
        self.acts.append(("exclude", *nodes))
        await super().set_excluded_nodes(job_id, nodes)

    async def start_now(self, job_id: str) -> None:
        self.acts.append(("start_now",))
        await super().start_now(job_id)

    async def release(self, job_id: str) -> None:
        self.acts.append(("release",))
        await super().release(job_id)

    async def set_admin_comment(self, job_id: str, comment: str) -> None:
        self.acts.append(("mark", comment))
        await super().set_admin_comment(job_id, comment)

    async def cancel(self, job_id: str) -> None:
        self.acts.append(("cancel",))
        await super().cancel(job_id)

    async def drain(self, node: str, reason: str) -> None:
        self.acts.append(("drain", node))
        await super().drain(node, reason)


class Site:
    """Four nodes, one job on node-001 and node-002, and the mutations, tried as Temporal tries them."""

    def __init__(self, cluster: type[Witness] = Witness, *, requeue_delay: timedelta = REQUEUE_DELAY) -> None:
        self.clock = ManualClock()
        self.cluster = cluster(4, clock=self.clock, requeue_delay=requeue_delay)
        self.cluster.acts = []
        self.reschedule = Reschedule(self.cluster, clock=self.clock, pause=self._pause, tell=self._tell)
        self.heartbeats: list[str] = []
        self.told: list[str] = []
        self.job_id = ""

    async def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def _tell(self, words: str) -> None:
        self.told.append(words)

    def submit(self, program: Program | None = None, *, batch: bool = True, **changes: Any) -> "Site":
        request = Request(node_count=2, batch=batch, comment="backstay")
        self.job_id = self.cluster.submit(program or runs_for(None), request=request, **changes)
        return self

    def fail(self) -> "Site":
        self.cluster.fail_job(self.job_id)
        self.clock.advance(3)
        return self

    async def job(self) -> Job:
        return await self.cluster.job(self.job_id)

    async def run(self, step: str, *, attempt: int = 1, **changes: Any) -> MutationResult:
        """One try of one mutation; `attempt` 2 is the try after a worker died in the first, and finds what that one told."""
        environment = ActivityEnvironment()
        details = self.told[-1:] if attempt > 1 else []
        environment.info = replace(environment.info, attempt=attempt, heartbeat_details=details)
        environment.on_heartbeat = lambda *details: self.heartbeats.append(str(details[0]))
        request = MutationRequest(**{"job_id": self.job_id, "incident_id": "i-1", "restart_count": 0, **changes})
        result: MutationResult = await environment.run(getattr(self.reschedule, step), request)
        told = [bool(result.done), result.superseded is not None, result.refused is not None, result.lost is not None]
        assert told.count(True) == 1, "exactly one of done, superseded, refused and lost tells the story"
        return result

    async def requeued(self) -> "Site":
        """Requeued by us and really pending."""
        assert (await self.run("requeue_job")).done
        assert (await self.run("confirm_pending")).done
        self.cluster.acts.clear()
        return self

    def killed_before_it_saved(self, saved: SimulatedJob) -> None:
        """slurmctld is killed and is back, with the state of the job as it was saved before, and its nodes registered."""
        self.cluster.come_back_with(saved)
        self.clock.advance(4)

    def did(self, act: str) -> int:
        return sum(1 for done in self.cluster.acts if done[0] == act)
