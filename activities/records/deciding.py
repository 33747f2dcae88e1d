"""What is recommended, decided and done about a fault; the incident as a whole; and what policy remembers of earlier ones."""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum

from pydantic import AwareDatetime, Field

from activities.records.base import Record
from activities.records.judging import Attribution, Diagnosis, Domain, Evidence, Opinion
from activities.records.watching import Progress, Symptom


class Action(StrEnum):
    """What is done about a fault."""

    NONE = "none"  # nothing is wrong
    RESTART = "restart"  # requeue, and give Slurm's requeue delay back
    RESTART_EXCLUDING = "restart_excluding"  # the same, off the nodes named
    STOP = "stop"  # no restart: it would end in the same way
    HOLD = "hold"  # a person decides what to do; never `scontrol hold`, so people are not told it by this name

    @property
    def in_words(self) -> str:
        """As people are told it: `restart excluding`, `leave to a person`."""
        return _ACTION_WORDS[self]


_ACTION_WORDS: Mapping[Action, str] = {
    Action.NONE: "nothing to do",
    Action.RESTART: "restart",
    Action.RESTART_EXCLUDING: "restart excluding",
    Action.STOP: "do not restart",
    Action.HOLD: "leave to a person",
}


class Recommendation(Record):
    """What policy would do about one incident. Sealed: an approval names the digest of exactly this."""

    action: Action
    exclude_nodes: tuple[str, ...] = ()
    user_excluded: tuple[str, ...] = Field(default=(), description="those of `exclude_nodes` that the user's own list (-x) names")
    drain_nodes: tuple[str, ...] = ()
    why: str = Field(description="one sentence a person on call can act on")
    rule: str = Field(description="the policy rule that decided")
    expires_at: AwareDatetime | None = None
    expiry_reason: str = ""
    needs_approval: bool = Field(default=False, description="a guard or a disagreement asks for a person, whatever the mode")
    short_of_nodes: bool = Field(
        default=False, description="left to a person because too few nodes would remain as they stood then; they may come back"
    )
    digest: str = ""

    @property
    def in_short(self) -> str:
        """The action and what Backstay excludes, in words: `restart excluding node-002`; the user's own list is told apart."""
        users = f" (beside the user's own {', '.join(self.user_excluded)})" if self.user_excluded else ""
        return f"{self.action.in_words} {', '.join(self.backstay_excludes)}".rstrip() + users

    @property
    def backstay_excludes(self) -> tuple[str, ...]:
        """Those of `exclude_nodes` that Backstay excludes: this fault's suspects and the ledger's nodes."""
        return tuple(node for node in self.exclude_nodes if node not in self.user_excluded)

    def sealed(self, *, incident_id: str, restart_count: int) -> "Recommendation":
        """The same recommendation with its digest: 12 hex digits over what would be done to which attempt, and why.

        An approval names the digest; anything that changes what would be done changes it."""
        content = json.dumps(
            [incident_id, restart_count, self.action, sorted(self.exclude_nodes), sorted(self.drain_nodes), self.rule, self.why],
            separators=(",", ":"),
        )
        return self.model_copy(update={"digest": hashlib.sha256(content.encode()).hexdigest()[:12]})


class DecisionKind(StrEnum):
    """How it was decided."""

    APPROVED = "approved"  # by a person
    REJECTED = "rejected"  # by a person
    AUTO = "auto"  # by policy, or nothing was to be decided
    OBSERVED = "observed"  # mode observe: recorded, nothing done
    EXPIRED = "expired"  # nobody decided in time, which is no denial
    SUPERSEDED = "superseded"  # another hand acted, or the job went on by itself


class Decision(Record):
    """Who decided what about which recommendation."""

    kind: DecisionKind
    actor: str
    at: AwareDatetime
    reason: str = ""
    digest: str = ""


class DecisionRequest(Record):
    """What a person sends: by the signals `approve` / `reject` or the Update `decide`."""

    approve: bool
    actor: str
    digest: str
    reason: str = ""


class OutcomeState(StrEnum):
    """What became of an incident."""

    RECOVERED = "recovered"  # a checkpoint newer than the one before the fault was written, or the job has completed
    IN_PROGRESS = "in_progress"
    NO_PROGRESS = "no_progress"  # restarted, and no newer checkpoint came of it
    STOPPED = "stopped"  # not restarted, by policy
    HELD = "held"  # left to a person
    NOT_ACTED = "not_acted"  # nothing was done: by somebody's will, or because another hand acted
    FAILED = "failed"  # what was to be done could not be done


class Step(Record):
    """One thing done or observed: a fact in the past tense, with its time."""

    name: str
    at: AwareDatetime
    detail: str = ""


class Milestone(StrEnum):
    """A moment of a recovery, in their order; each is a field of `Milestones`."""

    DETECTED = "detected"
    RECOMMENDED = "recommended"
    DECIDED = "decided"
    ACTED = "acted"
    RUNNING = "running"
    STEPPING = "stepping"
    RECOVERED = "recovered"


class Milestones(Record):
    """When each moment was reached; None: not yet, or never."""

    detected: AwareDatetime | None = None
    recommended: AwareDatetime | None = None
    decided: AwareDatetime | None = None
    acted: AwareDatetime | None = None
    running: AwareDatetime | None = None
    stepping: AwareDatetime | None = None
    recovered: AwareDatetime | None = None


class Outcome(Record):
    """What was done about an incident, step by step, and what came of it."""

    state: OutcomeState = OutcomeState.IN_PROGRESS
    summary: str = ""
    steps: tuple[Step, ...] = ()
    milestones: Milestones = Milestones()


class Incident(Record):
    """One fault of one attempt, from symptom to outcome."""

    id: str
    restart_count: int = 0
    nodes: tuple[str, ...] = ()
    symptom: Symptom
    progress: Progress = Progress()
    evidence: Evidence | None = None
    diagnosis: Diagnosis = Diagnosis()
    attribution: Attribution = Attribution()
    opinions: tuple[Opinion, ...] = ()
    recommendation: Recommendation | None = None
    decision: Decision | None = None
    outcome: Outcome = Outcome()


class PastIncident(Record):
    """What policy needs to know of an earlier incident of the same job."""

    cause: str
    domain: Domain
    action: Action
    acted: bool
    at: AwareDatetime
    checkpoint_iteration: int | None = None
    suspects: tuple[str, ...] = ()
    excluded: tuple[str, ...] = Field(default=(), description="what Backstay wrote into the job's list of excluded nodes then")


class JobHistory(Record):
    """What policy remembers of a job, over all its attempts."""

    incidents: tuple[PastIncident, ...] = ()
    restarts: int = Field(default=0, description="restarts Backstay made")
    restarts_without_checkpoint: int = Field(default=0, description="in a row, with no newer checkpoint seen since")
