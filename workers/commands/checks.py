"""The checks of `doctor`: each asks one question and answers with one line and the mend. No check changes anything but for files and a
workflow of its own, which are removed and ended at once.
"""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeWorkerDeploymentRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.configuration import Configuration, OptInBy, TemporalSection
from activities.optin import read_comment
from activities.records import Mode
from activities.reschedule import SHORTEST_USEFUL_DELAY
from activities.slurm.scheduler import Scheduler, SchedulerError, SchedulerSettings
from workers.client import TemporalUnreachable, build_id_of, connect, may_be_embedded
from workers.commands.checking import Check, Status, failed, ok, warning
from workers.commands.controller import Controller
from workers.commands.service_checks import disk_checks, service_checks
from workers.disk import why_not_writable
from workers.embedded.temporal import find_program

__all__ = ["Check", "Status", "all_checks", "failed"]

ALLOWED_SKEW = timedelta(seconds=5)  # the onset of a fault and Slurm's times are compared; a poll lies 5 s apart
ANSWER_WITHIN = timedelta(seconds=10)  # of a question to Temporal; it answers in milliseconds
SHORT_MEMORY = timedelta(seconds=300)  # Slurm's own default of MinJobAge


async def all_checks(configuration: Configuration, scheduler: Scheduler, controller: Controller) -> Sequence[Check]:
    """Every check, in the order people read them."""
    checks = [*await temporal_checks(configuration), temporal_program(configuration.temporal)]
    try:
        settings = await scheduler.settings()
    except SchedulerError as error:
        checks.append(failed("slurm", str(error), "set cluster.scheduler.slurm_conf and bin_directory, and see `scontrol ping`"))
    else:
        checks += [
            ok("slurm", f"version {settings.version or 'not told'}, cluster {settings.cluster_name or 'not told'}"),
            await may_requeue(configuration, settings, controller),
            requeue_delay(settings),
            requeue_permitted(settings),
            min_job_age(settings),
            await partitions(configuration, scheduler),
            await comments(configuration, scheduler),
            await clock_skew(controller),
        ]
    checks += await asyncio.to_thread(log_roots, configuration.logs.roots)
    checks.append(await asyncio.to_thread(evidence_directory, configuration.evidence.directory))
    return [*checks, *await disk_checks(configuration, embedded=may_be_embedded(configuration.temporal))]


# ------------------------------------------------------------------------------------------------------------- Temporal


async def temporal_checks(configuration: Configuration) -> Sequence[Check]:
    """Whether Temporal answers, and, where it does, whether the service that lives there works."""
    try:
        client = await connect(configuration)
        reachable = await temporal_reachable(client, configuration)
        if reachable.status is not Status.OK:
            return [reachable]
        checks = [reachable, *await service_checks(client, configuration)]
        if configuration.worker.deployment is not None:
            checks.append(await worker_version(configuration, configuration.worker.deployment))
    except TemporalUnreachable as error:
        return [failed("temporal", error.found, error.mend)]
    except RPCError as error:
        return [failed("temporal", f"no answer from {configuration.temporal.address}: {error.message}", "look at the server's own log")]
    return checks


async def temporal_reachable(client: Client, configuration: Configuration) -> Check:
    """A frontend answers and knows the namespace. Raises `RPCError` where it falls silent."""
    section, address = configuration.temporal, client.service_client.config.target_host
    if not await client.service_client.check_health(timeout=ANSWER_WITHIN):
        return failed("temporal", f"{address} answers but is not healthy", "look at the Temporal server's own log")
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=section.namespace), timeout=ANSWER_WITHIN)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            create = f"temporal operator namespace create -n {section.namespace} --address {address}"
            mend = f"mend temporal.namespace, or create it: `{create}`"
            return failed("temporal", f"{address} answers, but has no namespace {section.namespace}", mend)
        if error.status is not RPCStatusCode.PERMISSION_DENIED:  # an API key need not be allowed to look at its namespace
            return failed("temporal", f"{address} answers, but not for its namespace: {error.message}", "look at the server's own log")
    return ok("temporal", f"{address} answers, namespace {section.namespace}")


async def worker_version(configuration: Configuration, deployment: str) -> Check:
    """With versioning on, only workers of the deployment's current version get work (docs.temporal.io, Worker Versioning)."""
    name, build, namespace = "worker version", build_id_of(configuration.worker), configuration.temporal.namespace
    client = await connect(configuration)
    mend = (
        f"once its workers run: temporal worker deployment set-current-version --deployment-name {deployment} --build-id {build} --yes "
        f"--address {configuration.temporal.address} --namespace {namespace}"
    )
    try:
        request = DescribeWorkerDeploymentRequest(namespace=namespace, deployment_name=deployment)
        described = await client.workflow_service.describe_worker_deployment(request, timeout=ANSWER_WITHIN)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return warning(name, f"no worker of deployment {deployment} has run yet", mend)
        return failed(name, f"deployment {deployment} cannot be read: {error.message}", "switch worker.deployment off where there is none")
    current = described.worker_deployment_info.routing_config.current_deployment_version.build_id
    if current != build:
        return failed(name, f"{current or 'none'} is current in deployment {deployment}: workers of {build} get no work", mend)
    return ok(name, f"{build} is current in deployment {deployment}")


def temporal_program(section: TemporalSection) -> Check:
    """Which `temporal` the embedded server would run; only `up` and `demo` need one."""
    program = find_program()
    if program is not None:
        return ok("temporal program", f"{program}; used by `up` and `demo`")
    return warning(
        "temporal program", "none on this machine", f"only `up` and `demo` need one; {section.address} must be a server that runs elsewhere"
    )


# ---------------------------------------------------------------------------------------------------------------- Slurm


async def may_requeue(configuration: Configuration, settings: SchedulerSettings, controller: Controller) -> Check:
    """Requeue and job updates need the owner, a coordinator or AdminLevel=Operator (sacctmgr(1))."""
    credential = await controller.credential(settings)
    found = f"as {credential.user}: {credential.because or 'cannot be told'}"
    mend = f"run as root or SlurmUser, or `sacctmgr modify user {credential.user} set AdminLevel=Operator`"
    if credential.may_requeue:
        return ok("may requeue", found)
    highest = configuration.policy.highest_mode if configuration.policy.mode is Mode.OBSERVE else configuration.policy.mode
    if credential.may_requeue is None or highest is Mode.OBSERVE:
        return warning("may requeue", found, f"to observe it does not matter; to act, {mend}")
    return failed("may requeue", found, mend)


def requeue_delay(settings: SchedulerSettings) -> Check:
    """The delay in which exclusions are written (docs/slurm.md, Requeue)."""
    delay = settings.requeue_delay
    if delay is None:
        return warning("requeue delay", "not told", "Backstay requeues jobs held and releases them; `backstay failopen` releases by hand")
    seconds = f"{delay.total_seconds():.0f} s"
    if delay < SHORTEST_USEFUL_DELAY:
        return ok("requeue delay", f"{seconds}: too short to write exclusions in, so jobs are requeued held and then released")
    return ok("requeue delay", f"{seconds}, given back by StartTime=now once the exclusions are written")


def requeue_permitted(settings: SchedulerSettings) -> Check:
    """JobRequeue=0 makes every job `--no-requeue` by default (slurm.conf(5))."""
    if settings.job_requeue is False:
        return warning(
            "requeue permitted",
            "JobRequeue=0: jobs may not be requeued unless they say --requeue",
            "submit with --requeue, or set JobRequeue=1 in slurm.conf or policy.override_no_requeue",
        )
    return ok("requeue permitted", "JobRequeue is not told" if settings.job_requeue is None else "JobRequeue=1")


def min_job_age(settings: SchedulerSettings) -> Check:
    """After MinJobAge slurmctld forgets an ended job; no approval can come later than that."""
    age = settings.min_job_age
    if age is None:
        return warning("memory of ended jobs", "MinJobAge is not told", "approve soon after a job ends")
    found = f"MinJobAge is {age.total_seconds():.0f} s: an ended job can be approved for restart that long"
    if age < SHORT_MEMORY:
        return warning("memory of ended jobs", found, "raise MinJobAge in slurm.conf, or use mode auto")
    return ok("memory of ended jobs", found)


async def partitions(configuration: Configuration, scheduler: Scheduler) -> Check:
    """Whether Slurm has the partitions that are watched: a name it does not have watches nothing, and nothing else would say so."""
    name, watched = "partitions", configuration.watch.partitions
    if not watched:
        return ok(name, "all are looked at")
    try:
        known = sorted({partition for node in await scheduler.nodes() for partition in node.partitions})
    except SchedulerError as error:
        return failed(name, str(error), "see `sinfo`")
    if unknown := [partition for partition in watched if partition not in known]:
        return failed(
            name, f"no node of Slurm's is in {', '.join(unknown)}", f"mend watch.partitions; Slurm has {', '.join(known) or 'none'}"
        )
    return ok(name, f"looked at: {', '.join(watched)}")


async def comments(configuration: Configuration, scheduler: Scheduler) -> Check:
    """Whether comments reach us as they were written; sbatch eats double quotes in `#SBATCH --comment={...}`."""
    if configuration.watch.opt_in is OptInBy.ALL:
        return ok("comments", "not needed: watch.opt_in is `all`")
    try:
        said = {job.job_id: job.comment for job in await scheduler.jobs() if job.comment}
    except SchedulerError as error:
        return failed("comments", str(error), "see `squeue --json`")
    readings = {job_id: read_comment(comment) for job_id, comment in said.items()}
    opted_in = sum(reading.opted_in for reading in readings.values())
    garbled = {job_id: reading.warnings[0] for job_id, reading in readings.items() if reading.warnings}
    if garbled:
        job_id, problem = next(iter(garbled.items()))
        return warning(
            "comments", f"{len(garbled)} cannot be read, such as job {job_id}'s: {problem}", "write it as --comment=backstay:mode=approve"
        )
    if not said:
        return warning("comments", "no job carries one now, so it cannot be told", "submit one with --comment=backstay and ask again")
    return ok("comments", f"stored: {len(said)} jobs carry one, {opted_in} of them opt in")


async def clock_skew(controller: Controller) -> Check:
    """slurmctld's clock beside ours: onset, detection and Slurm's own times are compared."""
    before = datetime.now(UTC)
    theirs = await controller.time()
    after = datetime.now(UTC)
    if theirs is None:
        return warning("clock skew", "slurmctld's time is not told", "make sure that both machines use NTP")
    # Slurm tells whole seconds, and the answer was made somewhere between asking and hearing.
    skew = max(before - theirs - timedelta(seconds=1), theirs - after, timedelta(0))
    found = f"slurmctld and this machine differ by {'less than 1' if skew < timedelta(seconds=1) else f'{skew.total_seconds():.0f}'} s"
    if skew > ALLOWED_SKEW:
        return failed("clock skew", found, "set both clocks by NTP")
    return ok("clock skew", found)


# ---------------------------------------------------------------------------------------------------------------- files


def log_roots(roots: Sequence[Path]) -> list[Check]:
    """Nothing is opened outside the roots; without one, Backstay sees the scheduler only."""
    if not roots:
        return [failed("log roots", "none configured, so no log can be read", "list the directories jobs log to in logs.roots")]
    return [_readable(root) for root in roots]


def _readable(root: Path) -> Check:
    name = "log root"
    if not root.is_dir():
        return failed(name, f"{root} is no directory here", "mount it on this machine, or mend logs.roots")
    if not os.access(root, os.R_OK | os.X_OK):
        return failed(name, f"{root} cannot be read by this user", "give this user read permission, or run as one that has it")
    return ok(name, f"{root} is readable")


def evidence_directory(directory: Path) -> Check:
    """What was captured is kept there before anything is changed."""
    name, place = "evidence", directory
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=place, buffering=0) as probe:
            probe.write(b"backstay doctor")
    except OSError as error:
        return failed(name, why_not_writable(place, error), "mend evidence.directory, its permissions or its disk")
    return ok(name, f"{place} is writable")
