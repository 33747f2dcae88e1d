"""The desk where a recommendation waits for a person: who may decide what, until when. Pure state, no Temporal.

Signals and the Update `decide` both come here, so that they can never disagree about what is refused.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from activities.records import Decision, DecisionKind, DecisionRequest, Recommendation

LONGEST_ACTOR = 100
LONGEST_REASON = 2000
"""Characters. Both stay in the job's state, and a state over 2 MB is one that Temporal does not pass on."""


def unfit(actor: str) -> str | None:
    """Why this cannot stand in a history as the person who decided, with the mend; None when it can."""
    if not actor.strip():
        return "a decision needs an actor; name one with --actor"
    if len(actor) > LONGEST_ACTOR or not actor.isprintable():
        return f"the actor must be a printable name of at most {LONGEST_ACTOR} characters; name one with --actor"
    return None


@dataclass
class DecisionDesk:
    """At most one recommendation lies open; a decision names its digest."""

    recommendation: Recommendation | None = None
    approvers: tuple[str, ...] = ()
    decision: Decision | None = None
    refused: list[str] = field(default_factory=list)

    def open(self, recommendation: Recommendation, approvers: tuple[str, ...]) -> None:
        """Lays a recommendation out for decision."""
        self.recommendation, self.approvers, self.decision = recommendation, approvers, None

    def close(self) -> None:
        """Takes it away; whoever decides after this is told that nothing is pending."""
        self.recommendation = None

    def refusal(self, request: DecisionRequest, now: datetime) -> str | None:
        """Why this request cannot be taken, in one sentence with the mend; None when it can."""
        if self.recommendation is None:
            return "no recommendation is waiting for a decision; see `backstay show`"
        if self.decision is not None:
            return f"already {self.decision.kind} by {self.decision.actor}"
        if request.digest != self.recommendation.digest:
            pending = self.recommendation.digest
            return f"digest {request.digest or '(none)'} is not the pending {pending}; read `backstay show` and decide on that"
        if problem := unfit(request.actor):
            return problem
        if self.approvers and request.actor not in self.approvers:
            return f"{request.actor} is not among policy.approvers"
        if self.recommendation.expires_at is not None and now >= self.recommendation.expires_at:
            return (
                f"the recommendation expired at {self.recommendation.expires_at:%Y-%m-%dT%H:%M:%SZ} ({self.recommendation.expiry_reason})"
            )
        return None

    def take(self, request: DecisionRequest, now: datetime) -> Decision | None:
        """Takes the decision, or notes why not (a signal has no answer, so its refusal is kept as a warning)."""
        if problem := self.refusal(request, now):
            word = "approval" if request.approve else "rejection"
            self.refused.append(f"{word} by {request.actor[:LONGEST_ACTOR] or 'nobody'} refused: {problem}"[:300])
            return None
        self.decision = Decision(
            kind=DecisionKind.APPROVED if request.approve else DecisionKind.REJECTED,
            actor=request.actor,
            at=now,
            reason=request.reason[:LONGEST_REASON],
            digest=request.digest,
        )
        return self.decision

    def take_signal(self, payload: tuple[Any, ...], now: datetime, *, approve: bool) -> Decision | None:
        """The same for what a signal carries, which nobody has checked: anything but one `DecisionRequest` is refused."""
        said = {**payload[0], "approve": approve} if len(payload) == 1 and isinstance(payload[0], dict) else None
        try:
            request = DecisionRequest.model_validate(said)
        except ValidationError:
            word = "approval" if approve else "rejection"
            self.refused.append(f"{word} refused: the signal must carry one object with actor, digest and perhaps reason")
            return None
        return self.take(request, now)
