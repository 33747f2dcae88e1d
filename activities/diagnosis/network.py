"""Rules for causes of the network in their context: which end of a connection, at start or in the middle, with the port or without.

Each is a function from the context to another cause, with the reason; refine.py lists them by the causes they look at. Pure."""

import re
from dataclasses import replace

from activities.diagnosis.context import Context, Refined


def port(context: Context) -> Refined | None:
    if context.steps_after or (context.seen("ib_device_marked_failed") and not context.facts.ended_badly):
        return Refined("ib_port_down_degraded", 0.78, "the job went on stepping without the port")
    return None


_OTHER_ENDS = 3  # a ring gives each node two neighbours: both of a healthy node's may fail together


def port_ends(context: Context) -> Refined | None:
    broke = [item for item in context.observations if item.signature in ("ib_retry_exceeded", "nccl_remote_error")]
    if broke and not any(context.steps.went_on_after(item) for item in broke):
        return Refined("ib_port_error", 0.8, "connections broke with the port and no step followed", names_node=True)
    return None


def transport(context: Context) -> Refined | None:
    if end := _common_end(context):
        return Refined(
            "ib_transport_timeout",
            0.8,
            f"every connection that timed out ends at {end}",
            names_node=True,
            evidence=replace(context.primary, named_node=end),
        )
    known = [node for node in context.facts.nodes if context.facts.repeats(node, "ib_transport_timeout")]
    if len(known) == 1:
        because = f"other work failed with {known[0]} before and not elsewhere"
        return Refined("ib_transport_timeout", 0.75, because, names_node=True, evidence=replace(context.primary, named_node=known[0]))
    roce = context.seen("nccl_roce") or any(
        re.search(r"RoCE|[Gg]ids?\s*:?:?:?ffff:", item.text) for item in (context.primary, *context.same)
    )
    if roce and not context.stepped and not context.seen("nccl_tests_row"):
        # NCCL's authors: a time-out (error 12) right away means the NICs cannot talk over RoCE (NVIDIA/nccl#426).
        return Refined("roce_gid_misconfig", 0.7, "over RoCE, at the first connection: the adapters never talked")
    return None


def _common_end(context: Context) -> str | None:
    """The node at one end of every connection that timed out, with several nodes at the other ends."""
    pairs = {
        frozenset((printer, peer))
        for item in context.observations
        if item.signature == "ib_retry_exceeded"
        and (printer := context.whereabouts.canonical(item.node)) is not None
        and (peer := context.whereabouts.canonical(item.groups.get("peer"))) is not None
        and peer != printer
    }
    common = frozenset.intersection(*pairs) if len(pairs) >= _OTHER_ENDS else frozenset()
    return next(iter(common)) if len(common) == 1 and common <= context.whereabouts.nodes else None


def resolution(context: Context) -> Refined | None:
    """One node that cannot resolve what the others could: they are said to have joined."""
    count = context.facts.node_count or len(context.facts.nodes)
    joined = next((item.groups for item in context.observations if item.signature == "store_clients_missing"), None)
    if count < 3 or len(context.nodes) != 1 or joined is None:
        return None
    absent = int(joined["wanted"]) - int(joined["joined"])
    if absent * count != int(joined["wanted"]):
        return None
    node = next(iter(context.nodes))
    return Refined("dns_resolution_failure", 0.82, f"only {node} cannot resolve it, the others joined", names_node=True)


def remote_error(context: Context) -> Refined | None:
    if context.seen("gloo_loopback"):
        return Refined("wrong_network_interface", 0.75, "a rank had bound to the loopback address")
    return None


def barrier(context: Context) -> Refined | None:
    if "worker_count" in context.primary.text and re.search(
        r"(?i)start\w*.{0,40}\d\d:\d\d.*\n.*start\w*.{0,40}\d\d:\d\d|late|boot", context.facts.text
    ):
        return Refined("nodes_started_too_far_apart", 0.66, "not all nodes had started when the first gave up")
    around = context.primary.context[-4000:] + context.primary.text
    if "PjRT_Client_Connect" in context.primary.text and not re.search(r"localhost|127\.0\.0\.1", around + context.reading.last_text):
        return Refined("nodes_started_too_far_apart", 0.6, "processes on other hosts had not joined in time")
    return None


def joined(context: Context) -> Refined | None:
    if context.facts.only_node is not None and "imeout" in context.primary.text:
        return Refined("launch_world_size_mismatch", 0.75, "the job has one node, so no other could have come late")
    found = re.search(r"(\d+)/(\d+) clients joined", context.primary.text)
    tasks = context.facts.task_count
    if found and tasks is not None and tasks == int(found[1]) != int(found[2]):
        return Refined("launch_world_size_mismatch", 0.8, f"Slurm started {tasks} tasks, the program waits for {found[2]}")
    return None


_ANOTHER_JOB = re.compile(r"(?i)other[_ ]jobs?|another job|jobs?[_ ]on[_ ](?:\w+[_ ])?(?:node|host)|same node.{0,30}job|shared|co-?located")


def store_lost(context: Context) -> Refined | None:
    if context.stepped and _ANOTHER_JOB.search(context.facts.text):
        # Who joined another's store loses it when that job ends (wenet-e2e/wespeaker#171).
        return Refined("rdzv_port_conflict", 0.72, "the store was lost after steps, and another job runs on the same node")
    return None


def address(context: Context) -> Refined | None:
    if context.seen("rendezvous_clash"):
        return Refined("rdzv_port_conflict", 0.82, "the port was taken and the rendezvous found there was not this job's (pytorch#116974)")
    if _ANOTHER_JOB.search(context.facts.text):
        return Refined("rdzv_port_conflict", 0.75, "another job runs on the same node")
    return None


def closed(context: Context) -> Refined | None:
    """A rendezvous that had closed: another job's where a port was taken, this job's own where others gave up waiting."""
    taken = any(item.cause in ("address_in_use", "rdzv_port_conflict") and "Closed" not in item.text for item in context.observations)
    if "RendezvousClosedError" in context.primary.text and context.seen("rendezvous_timeout") and not taken:
        # last_call_timeout ends 30 s after the fewest nodes have joined; who comes later finds it closed (torch etcd_rendezvous.py).
        return Refined("nodes_started_too_far_apart", 0.78, "who came later found the rendezvous closed, the others had given up waiting")
    return None
