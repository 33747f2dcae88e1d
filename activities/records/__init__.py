"""The vocabulary: frozen records that every other file speaks in, and the closed enums of its verdicts.

It imports nothing of ours and touches nothing. Times are timezone-aware UTC, durations are `timedelta`
(ISO 8601 durations in workflow histories), sizes say `_bytes`. Renaming a field breaks replays and open
heartbeats: add fields with defaults instead. Every other file takes the names from here, never from a room inside.
"""

from activities.records.base import Confidence, Record, as_json, utc
from activities.records.cluster import (
    ActionRequest,
    ActionTaken,
    Breaker,
    BreakerReset,
    BreakerTrip,
    ClusterState,
    ClusterView,
    FaultsElsewhere,
    Implication,
    LedgerEntry,
    LedgerScope,
    NodeClearance,
    NodeFault,
    NodeHistory,
    Permission,
    RecentIncident,
    StoppedUser,
)
from activities.records.deciding import (
    Action,
    Decision,
    DecisionKind,
    DecisionRequest,
    Incident,
    JobHistory,
    Milestone,
    Milestones,
    Outcome,
    OutcomeState,
    PastIncident,
    Recommendation,
    Step,
)
from activities.records.judging import (
    Attribution,
    Diagnosis,
    Domain,
    Evidence,
    Excerpt,
    Judgement,
    Opinion,
    PrimaryEvent,
    Side,
    Suspect,
    Verdict,
)
from activities.records.scheduler import Attempt, Job, JobFlag, JobKey, JobState, Node, NodeFlag, NodeState
from activities.records.watching import (
    Change,
    ChangeKind,
    ChangeRequest,
    Cursor,
    FatalLine,
    FileCursor,
    LostNode,
    Mode,
    OptIn,
    Phase,
    Placement,
    Progress,
    Signal,
    SignalSource,
    Symptom,
    SymptomKind,
    WatchEnd,
    WatchRequest,
    WatchResult,
    WatchUntil,
    WrittenBeside,
)
