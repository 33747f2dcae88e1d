"""What is captured and concluded of a fault: evidence, diagnosis, attribution, and other services' opinions beside ours."""

from collections.abc import Collection
from datetime import timedelta
from enum import StrEnum

from pydantic import AwareDatetime, Field

from activities.records.base import Confidence, Record
from activities.records.watching import FileCursor, Progress, SignalSource, SymptomKind


class Excerpt(Record):
    """A bounded piece of one source, redacted, with the hash of what was stored."""

    source: SignalSource
    title: str
    text: str
    sha256: str
    stored_at: str | None = Field(default=None, description="reference into the evidence store, where there is more")
    truncated_bytes: int = 0


class Evidence(Record):
    """Captured before anything is changed: a requeue truncates stdout by default. At most `evidence.history_bytes` in all."""

    captured_at: AwareDatetime
    excerpts: tuple[Excerpt, ...] = ()
    unreadable: tuple[str, ...] = Field(default=(), description="what could not be captured, and why")
    logs_end: tuple[FileCursor, ...] = Field(
        default=(), description="where each log ended then: the next attempt may go on in the same file"
    )


class Domain(StrEnum):
    """Who has to mend it."""

    HARDWARE = "hardware"
    NETWORK = "network"
    STORAGE = "storage"
    SYSTEM_SOFTWARE = "system_software"
    APPLICATION = "application"
    USER = "user"
    SCHEDULER = "scheduler"
    NONE = "none"
    UNKNOWN = "unknown"


class Side(StrEnum):
    """The coarser question outside services answer: is it the job's own doing, or what it runs on?"""

    WORKLOAD = "workload"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class PrimaryEvent(Record):
    """The first cause: the line it rests on and where it happened."""

    text: str
    line: int | None = Field(default=None, description="1-based line number in its source")
    source: SignalSource = SignalSource.LOG
    at: AwareDatetime | None = None
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None


class Diagnosis(Record):
    """Why it happened. `cause` is a slug of the closed vocabulary (activities/diagnosis/causes.yaml) or 'unknown'."""

    domain: Domain = Domain.UNKNOWN
    cause: str = "unknown"
    confidence: Confidence = 0.0
    summary: str = ""
    primary: PrimaryEvent | None = None
    cascades: int = Field(default=0, description="events explained away as consequences")
    benign: int = Field(default=0, description="alarming lines that mean nothing")
    lines: tuple[str, ...] = Field(default=(), description="the lines it rests on, each with its number")


class Suspect(Record):
    """A node, GPU or rank that may be at fault; `because`: the lines that implicate it."""

    node: str | None = None
    gpu: str | None = None
    rank: int | None = None
    confidence: Confidence
    because: tuple[str, ...] = ()
    seen_by: tuple[SignalSource, ...] = Field(
        default=(),
        description="who implicates it besides the job's own output and exit: node (Slurm's state), kernel and gpu (read on the node)",
    )


class Attribution(Record):
    """Which node, GPU or rank. `abstained` means: we looked and will not say."""

    suspects: tuple[Suspect, ...] = ()
    abstained: bool = True
    sources: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The suspects' nodes, where known, in the order of the suspects."""
        return self.nodes_suspected(at_least=0)

    def nodes_suspected(self, *, at_least: float) -> tuple[str, ...]:
        """Those of `nodes` whose suspect has this much confidence or more."""
        return tuple(suspect.node for suspect in self.suspects if suspect.node and suspect.confidence >= at_least)

    def only_on(self, nodes: Collection[str]) -> "Attribution":
        """The same without suspects on other nodes than these: a job can print any node's name, and suffers only of those it had."""
        kept = tuple(suspect for suspect in self.suspects if suspect.node is None or suspect.node in nodes)
        return self if kept == self.suspects else self.model_copy(update={"suspects": kept, "abstained": not kept})


class Verdict(StrEnum):
    """What an outside opinion says should happen, as a closed enum (never a substring of prose)."""

    STOP = "STOP"
    RESTART = "RESTART"
    UNKNOWN = "UNKNOWN"


class Opinion(Record):
    """One outside source's answer, kept beside ours. It is never the source of node blame for NVIDIA's attrsvc."""

    source: str
    verdict: Verdict = Verdict.UNKNOWN
    domain: Domain = Domain.UNKNOWN
    side: Side = Field(default=Side.UNKNOWN, description="where the source tells workload from infrastructure, and no more")
    cause: str | None = None
    suspects: tuple[Suspect, ...] = ()
    why: str = ""
    note: str = Field(default="", description="why there is no answer: timed out, unreachable, refused")
    took: timedelta = timedelta(0)


class Judgement(Record):
    """Everything the engine concludes from one set of signals."""

    symptom: SymptomKind
    diagnosis: Diagnosis
    attribution: Attribution
    progress: Progress = Progress()
    notes: tuple[str, ...] = Field(
        default=(), description="what could not be used, with its place and the mend; devices to look at besides"
    )
