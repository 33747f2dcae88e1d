"""What no single job can know: nodes held responsible, faults and actions of late, the breaker, and what jobs ask before they act."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from activities.records.base import Record
from activities.records.judging import Domain
from activities.records.watching import SignalSource


class LedgerScope(StrEnum):
    """Which jobs an entry of the ledger keeps off its node."""

    JOB = "job"  # the job that implicated it, and no other: only what that job printed says so, and anyone can print it
    CLUSTER = "cluster"  # every job: a second source agrees


class Implication(Record):
    """One source's word against one node."""

    node: str
    at: AwareDatetime
    source: SignalSource = Field(
        default=SignalSource.LOG,
        description="log: a job's own output and exit; node: Slurm's own state of the node; kernel, gpu: read on the node itself",
    )
    job_id: str = Field(default="", description="the job whose fault it was; empty: Slurm's word, whatever the job")
    user: str = Field(default="", description="whose job that is; empty: not known")
    said: str = ""


class LedgerEntry(Record):
    """One node held responsible, for a time."""

    node: str
    implicated_at: AwareDatetime
    job_id: str
    cause: str
    because: tuple[str, ...] = ()
    excluded_until: AwareDatetime | None = None
    booted_at: AwareDatetime | None = None
    partition: str = Field(default="", description="partition of the job that implicated it; empty counts for every partition")
    user: str = Field(default="", description="whose job implicated it; empty: not known")
    # An entry that an older version wrote has no scope, and was meant for every job.
    scope: LedgerScope = LedgerScope.CLUSTER
    sources: tuple[Implication, ...] = Field(default=(), description="who implicated it; empty in what an older version wrote")

    def keeps_off(self, job_id: str) -> bool:
        """Whether this job is kept off the node."""
        return self.scope is LedgerScope.CLUSTER or self.job_id == job_id


class RecentIncident(Record):
    """One fault on the cluster, as storm detection sees it."""

    at: AwareDatetime
    job_id: str
    cause: str
    domain: Domain
    suspects: tuple[str, ...] = Field(default=(), description="nodes it was traced to")
    user: str = Field(default="", description="whose job it is; empty: not known")


class NodeFault(Record):
    """One fault as the memory of nodes keeps it: a job's own account, so a user's word."""

    at: AwareDatetime
    job_id: str
    user: str = Field(default="", description="whose job it was; empty: not known")
    cause: str
    restart_count: int | None = Field(default=None, description="which attempt of the job failed; None: not told")
    rank: int | None = Field(default=None, description="the rank that failed first; None: not known")
    nodes: tuple[str, ...] = Field(description="where it was seen; where nobody saw where, all nodes of the attempt")
    was_seen: bool = Field(default=False, description="False: each of `nodes` may have been the reason, or none")
    node_count: int = Field(default=0, description="how many nodes the attempt had")
    placement: str = Field(default="", description="hash of the attempt's nodes: whether two attempts had the same ones")


class FaultsElsewhere(Record):
    """How often jobs of one user failed of one cause on none of the nodes asked about."""

    user: str
    cause: str
    times: int


class NodeHistory(Record):
    """What is remembered of the nodes of one attempt when it fails: earlier faults there, and how many were elsewhere."""

    nodes: tuple[str, ...] = Field(default=(), description="the attempt's nodes, which were asked about")
    job_id: str = ""
    user: str = ""
    restart_count: int = 0
    placement: str = Field(default="", description="hash of `nodes`, as in `NodeFault`")
    faults: tuple[NodeFault, ...] = Field(default=(), description="that may have come from one of `nodes`; their nodes among these only")
    elsewhere: tuple[FaultsElsewhere, ...] = ()
    unknown: str = Field(default="", description="why the memory could not be asked; empty: it was")


class ActionTaken(Record):
    """One action the guard rails granted."""

    at: AwareDatetime
    job_id: str
    incident_id: str
    user: str = Field(default="", description="whose job it is; empty: not known")


class StoppedUser(Record):
    """One user for whose jobs alone the breaker is tripped."""

    user: str
    at: AwareDatetime
    reason: str


class Breaker(Record):
    """Tripped for every job while `tripped_at` is set, for the jobs of `users` while they stand there; only a person's reset clears it."""

    tripped_at: AwareDatetime | None = None
    tripped_by: str = Field(default="", description="the person who tripped it; empty: a storm did")
    reason: str = ""
    reset_at: AwareDatetime | None = None
    reset_by: str = ""
    users: tuple[StoppedUser, ...] = Field(default=(), description="whose jobs alone are held: each had a storm of their own")

    @property
    def holds_somebody(self) -> bool:
        """Whether there is anything that a reset would clear."""
        return self.tripped_at is not None or bool(self.users)

    def stopped(self, user: str) -> StoppedUser | None:
        """The stop of this user's jobs alone, where there is one."""
        return next((stop for stop in self.users if stop.user == user), None)


class ClusterState(Record):
    """What no single job can know. `recent_incidents` and `actions` hold only what the windows still need."""

    entries: tuple[LedgerEntry, ...] = ()
    implications: tuple[Implication, ...] = Field(
        default=(), description="who implicated which node within `exclusion_ttl`, whether or not it led to an entry"
    )
    recent_incidents: tuple[RecentIncident, ...] = ()
    actions: tuple[ActionTaken, ...] = ()
    breaker: Breaker = Breaker()
    node_faults: tuple[NodeFault, ...] = Field(
        default=(), description="faults of the last seven days by node, oldest first, bounded (activities/node_history.py)"
    )


class ClusterView(Record):
    """What a job's workflow is told of its cluster when it reports a fault."""

    excluded: tuple[LedgerEntry, ...] = Field(default=(), description="exclusions in force for that job")
    breaker: Breaker = Breaker()
    corroborated: tuple[str, ...] = Field(default=(), description="those of the fault's suspects that a second source implicates, too")


class BreakerReset(Record):
    """A person's word that the cluster may act again."""

    actor: str
    reason: str = ""


class BreakerTrip(Record):
    """A person's word that nothing may be acted on until a reset: maintenance of what all jobs share, say."""

    actor: str
    reason: str


class NodeClearance(Record):
    """A person's word that a node is sound again, before its exclusion would have ended by itself."""

    node: str
    actor: str
    reason: str = ""


class ActionRequest(Record):
    """What a job's workflow asks before it acts."""

    job_id: str
    incident_id: str
    partition: str = ""
    exclude_nodes: tuple[str, ...] = Field(default=(), description="all nodes the next attempt would be kept off")
    suspects: tuple[str, ...] = Field(default=(), description="those of them this incident implicates: they enter the ledger")
    user_excluded: tuple[str, ...] = Field(default=(), description="those of them that the user's own list names: not Backstay's doing")
    user: str = Field(default="", description="whose job it is; empty: not known")
    ran_on: tuple[str, ...] | None = Field(
        default=None, description="nodes of the attempt that failed; None: asked by a version that did not tell"
    )
    cause: str = "unknown"
    because: tuple[str, ...] = ()
    partition_nodes: int = Field(default=0, ge=0, description="nodes of the partition; 0: not known")


class Permission(Record):
    """The guard rails' answer."""

    granted: bool
    why: str
