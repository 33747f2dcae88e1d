"""The worker: builds every step from the configuration and runs them for one cluster until it is told to stop.

Started by `backstay worker`, `up` and `demo`. Any number may run; Temporal shares the jobs out among them.
"""

import asyncio
import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.attribute import Attribute
from activities.classify import Classify
from activities.cluster_desk import ClusterDesk
from activities.configuration import Configuration
from activities.detect import Detect
from activities.diagnosis.engine import Engine
from activities.discover import Discover, Newcomer
from activities.evidence.capture import EvidenceStore
from activities.guarding import Guarding
from activities.logs.paths import LogRoots
from activities.recommend import Recommend
from activities.redaction import prepare
from activities.reschedule import Reschedule
from activities.slurm.clock import WallClock
from activities.slurm.feed import Feed
from activities.slurm.scheduler import Scheduler
from activities.verify import Verify
from workers.client import SearchAttributesMissing, build_id_of
from workers.handover import Handover
from workers.reaching import scheduler_of
from workers.starting import start_cluster, start_watching
from workflows.cluster import Cluster
from workflows.training_job import TrainingJob
from workflows.visibility import SEARCH_ATTRIBUTES, type_in_words

log = structlog.get_logger()

GRACE = timedelta(seconds=5)
"""A stopping worker lets mutations finish this long; then watches are handed over."""

ATTRIBUTE_TYPES = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in SEARCH_ATTRIBUTES}
"""Our search attributes, as the server's interface names their types."""

CACHED_WORKFLOWS = 200
"""Kept in memory between two tasks, about 0.25 MB each. Healthy jobs' workflows have none for weeks; six events bring one back."""

OTHER_ACTIVITIES = 100
"""Slots beside the watches: a job that is being recovered must never wait for a healthy one."""


def steps_of(configuration: Configuration, client: Client, scheduler: Scheduler) -> Sequence[Callable[..., Any]]:
    """Every activity of a worker, over one feed, one engine and one scheduler."""
    clock = WallClock()
    roots = LogRoots(configuration.logs.roots)
    engine = Engine(configuration.attribution.signatures)
    feed = Feed(scheduler, configuration.watch.poll_interval)
    every = heartbeats_sent_every(configuration)
    detect = Detect(feed=feed, roots=roots, watch=configuration.watch, policy=configuration.policy, engine=engine, heartbeat_every=every)
    verify = Verify(detect)
    store = EvidenceStore(configuration.evidence, roots)
    classify = Classify(scheduler, engine, store, roots, clock=clock)
    attribute = Attribute(configuration.attribution, store)
    desk = ClusterDesk(client)
    recommend = Recommend(scheduler, configuration, clock=clock)
    reschedule = Reschedule(scheduler, clock=clock)
    policy = configuration.policy
    guarding = Guarding(scheduler, policy.limits, clock=clock, approvers=policy.approvers, watch=configuration.watch)

    async def start(newcomer: Newcomer) -> bool:
        return await start_watching(client, configuration, newcomer)

    discover = Discover(feed, configuration.watch, start)
    return [
        detect.watch_attempt, detect.watch_for_change, classify.capture_evidence, classify.diagnose, attribute.ask_attrsvc,
        attribute.ask_operator_service, desk.node_history, desk.report_incident, desk.permit_action, recommend.recommend,
        reschedule.requeue_job, reschedule.confirm_pending, reschedule.exclude_nodes, reschedule.expedite,
        reschedule.release_job, reschedule.cancel_job, reschedule.drain_nodes,
        verify.verify_running, verify.verify_stepping, verify.verify_checkpoint, guarding.note_incident,
        guarding.weigh_action, guarding.untrip, guarding.trip, guarding.clear_node, discover.discover_jobs,
    ]  # fmt: skip


def heartbeats_sent_every(configuration: Configuration) -> timedelta:
    """How often a watch's cursor is sent. The SDK keeps more frequent ones back, so that making them would be work for nothing."""
    return configuration.worker.heartbeat_timeout / 2  # each one is a write of Temporal's database; the SDK's own choice is 0.8


async def run_worker(configuration: Configuration, client: Client, *, stop: asyncio.Event, scheduler: Scheduler | None = None) -> None:
    """Serves one cluster until `stop` is set; then lets mutations finish and hands its watches over.

    Args:
        configuration: of the cluster.
        client: connected by `workers.client.connect`.
        stop: set it to stop gracefully.
        scheduler: given by the demo and by tests; default: what the configuration names.
    """
    await register_search_attributes(client)
    await asyncio.to_thread(prepare)  # a workflow that fails redacts its error on its own thread, where two seconds are the limit
    worker = Worker(
        client,
        task_queue=configuration.task_queue,
        workflows=[TrainingJob, Cluster],
        activities=steps_of(configuration, client, scheduler or scheduler_of(configuration)),
        interceptors=[Handover()],
        workflow_runner=workflow_runner(),
        max_concurrent_activities=configuration.worker.watches + OTHER_ACTIVITIES,
        max_heartbeat_throttle_interval=heartbeats_sent_every(configuration),
        default_heartbeat_throttle_interval=heartbeats_sent_every(configuration),
        max_cached_workflows=CACHED_WORKFLOWS,
        graceful_shutdown_timeout=GRACE,
        deployment_config=_deployment(configuration),
    )
    with garbage_collected_rarely():
        async with worker:
            await start_cluster(client, configuration)
            log.info("worker_started", cluster=configuration.cluster.name, task_queue=configuration.task_queue)
            if configuration.worker.deployment is not None:
                mend = "it gets work once that is the deployment's current version; `backstay doctor` tells"
                log.info("worker_is_versioned", build_id=build_id_of(configuration.worker), mend=mend)
            await stop.wait()
    log.info("worker_stopped", cluster=configuration.cluster.name)


@contextmanager
def garbage_collected_rarely() -> Iterator[None]:
    """Looks for garbage in cycles after 200,000 new objects, not 700, and not among what was there at the start.

    One listing of 1,000 jobs makes 100,000 objects, which go by themselves a moment later. Python went through all of a
    worker's objects at each: a tenth of the worker's time, and half a second in which no heartbeat was made.
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


async def register_search_attributes(client: Client) -> None:
    """Makes the server know our search attributes: a workflow that writes an unknown one would stand still.

    Raises:
        SearchAttributesMissing: the server does not know them all and does not let us add them (Temporal Cloud), or knows one by
            another type.
    """
    known = await _known_search_attributes(client)
    others = [name for name, kind in ATTRIBUTE_TYPES.items() if known.get(name, kind) != kind]
    if others:
        raise SearchAttributesMissing(
            f"namespace {client.namespace} has search attributes of these names by another type; Backstay needs {_in_words(others)}: "
            "use a namespace of its own"
        )
    missing = {name: kind for name, kind in ATTRIBUTE_TYPES.items() if name not in known}
    if not missing:
        return
    try:
        # Those that are missing, and no others: some servers refuse the whole request for one that exists.
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:  # another worker starts beside us, or they cannot be listed here
            return
        raise SearchAttributesMissing(
            f"namespace {client.namespace} lacks the search attributes {_in_words(missing)}; "
            "have them added by whoever administers Temporal"
        ) from error


def _in_words(names: Collection[str]) -> str:
    return ", ".join(f"{key.name}={type_in_words(key)}" for key in sorted(SEARCH_ATTRIBUTES, key=lambda key: key.name) if key.name in names)


async def _known_search_attributes(client: Client) -> dict[str, IndexedValueType.ValueType]:
    """Those of the namespace with their types; none where they cannot be listed (the time-skipping test server)."""
    try:
        listed = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    except RPCError as error:
        if error.status in (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.PERMISSION_DENIED):
            return {}
        raise
    return dict(listed.custom_attributes)


def workflow_runner() -> SandboxedWorkflowRunner:
    """How workflows run here and in replay tests. Our own packages are deterministic where workflows use them, and are shared with the
    sandbox: failure types must be the same. So are the workflows' own modules, which it would otherwise read from disk for each workflow:
    in a checkout that was brought up to date under a running worker, that is new code on top of old. The workflows' tests run in the
    sandbox as it comes, which forbids more."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules("activities", "workflows", "pydantic", "pydantic_core")
    return SandboxedWorkflowRunner(restrictions=restrictions)


def _deployment(configuration: Configuration) -> WorkerDeploymentConfig | None:
    name = configuration.worker.deployment
    if name is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=build_id_of(configuration.worker)),
        use_worker_versioning=True,
        # Watches live for weeks: they move to the new version at their next workflow task; replay tests guard that.
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
    )
