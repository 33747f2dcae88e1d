"""What no single job can know: nodes held responsible, faults and actions of late, the breaker, and what jobs ask before they act."""

from pydantic import AwareDatetime, Field

from activities.records.base import Record
from activities.records.judging import Domain


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


class RecentIncident(Record):
    """One fault on the cluster, as storm detection sees it."""

    at: AwareDatetime
    job_id: str
    cause: str
    domain: Domain
    suspects: tuple[str, ...] = Field(default=(), description="nodes it was traced to")


class ActionTaken(Record):
    """One action the guard rails granted."""

    at: AwareDatetime
    job_id: str
    incident_id: str


class Breaker(Record):
    """Tripped while `tripped_at` is set; only a person's reset clears it."""

    tripped_at: AwareDatetime | None = None
    tripped_by: str = Field(default="", description="the person who tripped it; empty: a storm did")
    reason: str = ""
    reset_at: AwareDatetime | None = None
    reset_by: str = ""


class ClusterState(Record):
    """What no single job can know. `recent_incidents` and `actions` hold only what the windows still need."""

    entries: tuple[LedgerEntry, ...] = ()
    recent_incidents: tuple[RecentIncident, ...] = ()
    actions: tuple[ActionTaken, ...] = ()
    breaker: Breaker = Breaker()


class ClusterView(Record):
    """What a job's workflow is told of its cluster when it reports a fault."""

    excluded: tuple[LedgerEntry, ...] = Field(default=(), description="exclusions in force")
    breaker: Breaker = Breaker()


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
    cause: str = "unknown"
    because: tuple[str, ...] = ()
    partition_nodes: int = Field(default=0, ge=0, description="nodes of the partition; 0: not known")


class Permission(Record):
    """The guard rails' answer."""

    granted: bool
    why: str
