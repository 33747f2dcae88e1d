"""Ending a job for good, and draining nodes: each once, and silent about nothing."""

import pytest

from activities.mutation import (
    DRAIN_PREFIX,
    CancelNotSeen,
)
from activities.records import JobState, Node, NodeFlag, NodeState
from activities.slurm.simulated import SimulatedCluster
from tests.reschedule.site import Site, Witness

# ------------------------------------------------------------------------------------------------ cancel_job


async def test_cancelling_ends_a_running_job_once(site: Site) -> None:
    assert (await site.run("cancel_job")).done
    assert (await site.run("cancel_job", attempt=2)).done
    assert (await site.job()).state is JobState.CANCELLED
    assert site.did("cancel") == 1


async def test_a_job_that_was_requeued_meanwhile_is_not_cancelled(site: Site) -> None:
    await SimulatedCluster.requeue(site.cluster, site.job_id)
    assert (await site.run("cancel_job")).superseded
    assert site.did("cancel") == 0


class DoesNotCancel(Witness):
    async def cancel(self, job_id: str) -> None:
        self.acts.append(("cancel",))


async def test_a_cancel_that_cannot_be_read_back_is_tried_again() -> None:
    with pytest.raises(CancelNotSeen, match="still RUNNING after scancel"):
        await Site(DoesNotCancel).submit().run("cancel_job")


# ------------------------------------------------------------------------------------------------ drain_nodes


async def node(site: Site, name: str) -> Node:
    return next(node for node in await site.cluster.nodes() if node.name == name)


async def test_draining_gives_a_reason_that_carries_our_prefix(site: Site) -> None:
    await site.run("drain_nodes", nodes=("node-002",), reason="ECC")
    drained = await node(site, "node-002")
    assert NodeFlag.DRAIN in drained.flags
    assert drained.reason == f"{DRAIN_PREFIX}i-1 ECC"


async def test_a_node_that_someone_else_drained_keeps_its_reason(site: Site) -> None:
    await SimulatedCluster.drain(site.cluster, "node-002", "fan swap, ask Kim")
    result = await site.run("drain_nodes", nodes=("node-002",))
    assert "already (fan swap, ask Kim)" in result.detail
    assert (await node(site, "node-002")).reason == "fan swap, ask Kim"


async def test_draining_twice_drains_once(site: Site) -> None:
    await site.run("drain_nodes", nodes=("node-002",))
    await site.run("drain_nodes", attempt=2, nodes=("node-002",))
    assert site.did("drain") == 1


async def test_a_credential_that_may_not_drain_is_told_and_holds_up_nothing(site: Site) -> None:
    site.cluster.may_administer = False
    result = await site.run("drain_nodes", nodes=("node-002", "gpu-host-9"))
    assert result.done
    assert "node-002 not drained: Access/permission denied" in result.detail
    assert "gpu-host-9 unknown" in result.detail
    assert (await node(site, "node-002")).state is NodeState.ALLOCATED
