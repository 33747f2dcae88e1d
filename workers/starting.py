"""Starting workflows: one per watched job, one per cluster. Idempotent by ID; nothing else starts a workflow.

Called by the worker: at its start, and by its discovery.
"""

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities.cluster_desk import cluster_workflow_id
from activities.configuration import Configuration
from activities.discover import Newcomer
from activities.modes import mode_for
from activities.records import Attempt, Job, JobKey
from workflows.cluster import Cluster, ClusterStart
from workflows.state import Terms, TrainingJobState
from workflows.training_job import TrainingJob
from workflows.visibility import at_first, name_in_words, one_line


def terms_of(configuration: Configuration) -> Terms:
    """The times a job's workflow needs, out of the configuration."""
    services = configuration.attribution
    asked = {"ask_attrsvc": services.attrsvc, "ask_operator_service": services.operator_service}
    given = {name: section for name, section in asked.items() if section is not None}
    deadlines = [section.deadline for section in given.values()]
    return Terms(
        heartbeat_timeout=configuration.worker.heartbeat_timeout,
        opinions=tuple(given),
        opinion_deadline=max(deadlines, default=Terms().opinion_deadline),
        running_within=configuration.verify.running_within,
        stepping_within=configuration.verify.stepping_within,
        checkpoint_within=configuration.verify.checkpoint_within,
    )


def first_state(newcomer: Newcomer, configuration: Configuration) -> TrainingJobState:
    """What a job's workflow starts with. The job must have a submit time."""
    job = newcomer.job
    assert job.submitted_at is not None
    key = JobKey(cluster=configuration.cluster.name, job_id=job.job_id, submitted_at=job.submitted_at)
    mode, cut = mode_for(newcomer.opt_in, configuration.policy)
    unable = () if job.is_batch else ("not a batch job: watched, but Slurm cannot requeue it, so nothing will be done",)
    return TrainingJobState(
        key=key,
        mode=mode,
        opt_in=newcomer.opt_in,
        terms=terms_of(configuration),
        job=job,
        attempt=Attempt(key=key, restart_count=job.restart_count, nodes=job.nodes, started_at=job.started_at),
        warnings=(*newcomer.opt_in.warnings, *((cut,) if cut else ()), *unable),
    )


async def start_watching(client: Client, configuration: Configuration, newcomer: Newcomer) -> bool:
    """Starts the job's workflow unless it has one. True when it was started.

    A requeue resets SubmitTime, so a job with restarts may be known under an earlier one: then it is looked for first.
    Raises what Temporal's client raises when the server cannot be reached."""
    state, name = first_state(newcomer, configuration), name_in_words(newcomer.job)
    if newcomer.job.restart_count > 0 and await is_watched(client, state.key, newcomer.job):
        return False
    try:
        await client.start_workflow(
            TrainingJob.run,
            state,
            id=state.key.workflow_id,
            task_queue=configuration.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            search_attributes=at_first(state.key, state.attempt.nodes),
            memo={
                "job": f"{newcomer.job.job_id} {name}".rstrip(),
                "user": newcomer.job.user,
                "cluster": state.key.cluster,
            },
            static_summary=one_line(f"{newcomer.job.job_id} ({newcomer.job.user}) {name}"),
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def is_watched(client: Client, key: JobKey, job: Job) -> bool:
    """Whether a workflow watches this job, under whatever submit time it was first seen; of a job that has ended, also whether one
    did and is done with it (a restarted worker finds ended jobs again as long as Slurm remembers them)."""
    watched = "ExecutionStatus = 'Running'"
    if job.state.is_ended:
        watched = f"({watched} OR CloseTime >= '{key.submitted_at:%Y-%m-%dT%H:%M:%SZ}')"
    query = f"BackstayCluster = '{key.cluster}' AND BackstayJob = '{key.job_id}' AND {watched}"
    async for _ in client.list_workflows(query):
        return True
    return False


async def start_cluster(client: Client, configuration: Configuration) -> None:
    """Starts the cluster's workflow, or leaves the running one alone."""
    name = configuration.cluster.name
    await client.start_workflow(
        Cluster.run,
        ClusterStart(cluster=name, heartbeat_timeout=configuration.worker.heartbeat_timeout),
        id=cluster_workflow_id(name),
        task_queue=configuration.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary=f"Slurm cluster {name}",
    )
