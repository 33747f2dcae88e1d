"""The YAML file as types: every key with its default and unit. Reading it lives at the bottom; judging by it does not live here.

Called by every process at its start. Keys are documented by their descriptions (`deploy/backstay.yaml` is the commented copy).
"""

import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from activities.records import Action, Domain, Mode, SymptomKind

SAID_IN_FULL = "said_in_full"
"""The type of the errors whose message follows the wrong value and holds the fix."""


def _wrong(said: str) -> PydanticCustomError:
    return PydanticCustomError(SAID_IN_FULL, "{said}", {"said": said})


def _duration(value: Any) -> Any:
    """`90s`, `15m`, `24h`, `7d` or an ISO 8601 duration. What no timedelta can hold is left as it is, for pydantic to refuse."""
    if isinstance(value, bool):
        raise _wrong("is no duration; write 90s, 15m, 24h or 7d")
    if _is_bare_number(value):
        if float(value) == 0:
            return timedelta(0)  # the same in any unit
        raise _wrong(f"has no unit; write {str(value)[:20]}s if seconds are meant, else such as 90s, 15m, 24h or 7d")
    try:
        return _in_seconds(value)
    except OverflowError:
        return value


def _is_bare_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float)


def _in_seconds(value: Any) -> Any:
    if isinstance(value, str) and value[:-1].strip().replace(".", "", 1).isdecimal() and value[-1] in "smhd":
        return timedelta(seconds=float(value[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[value[-1]])
    return value


LONGEST_DURATION = timedelta(days=3653)
"""Ten years: a moment so far off is still a date, so that no deadline computed from a setting can fail inside a workflow."""

Duration = Annotated[timedelta, BeforeValidator(_duration), Field(gt=timedelta(0), le=LONGEST_DURATION)]
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.]{2,45}\]")


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if "/" in value:
        raise _wrong("is no address; write host:port, such as 127.0.0.1:7233, without http://")
    if not colon or (":" in host and not host.startswith("[")):
        written = f"[{value}]" if ":" in value else value
        raise _wrong(f"has no port; write {written}:7233, or the port where the Temporal frontend listens")
    if not _HOST.fullmatch(host) or not (port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise _wrong("is no address; write host:port with a port from 1 to 65535, such as 127.0.0.1:7233")
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, an IPv6 address that does not end
        is_whole = False
    if not is_whole or not value.isprintable() or " " in value:
        example = f", such as http://{value}" if _LACKS_SCHEME.fullmatch(value) else ""
        raise _wrong(f"is no URL; write http://host:port or https://host{example}")
    return value


_LACKS_SCHEME = re.compile(r"[A-Za-z0-9_.-]{1,200}(?::\d{1,5})?(?:/[\w./-]{0,200})?", re.ASCII)

Address = Annotated[str, AfterValidator(_address)]
Url = Annotated[str, AfterValidator(_url)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A part of the file. An unknown key is an error: a typo must never switch a guard off."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SchedulerKind(StrEnum):
    COMMAND = "command"
    SIMULATED = "simulated"


class SchedulerSection(Section):
    kind: SchedulerKind = Field(SchedulerKind.COMMAND, description="command: squeue and scontrol on this machine")
    slurm_conf: Path | None = Field(None, description="SLURM_CONF for the commands; default: Slurm's own search")
    bin_directory: Path | None = Field(None, description="where squeue and scontrol are; default: PATH")
    timeout: Duration = Field(timedelta(seconds=30), description="longest wait for one command")


class ClusterSection(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="name in workflow IDs and the UI")
    scheduler: SchedulerSection = SchedulerSection()


class OptInBy(StrEnum):
    COMMENT = "comment"
    ALL = "all"


class WatchSection(Section):
    partitions: tuple[str, ...] = Field((), description="partitions looked at; empty: all")
    opt_in: OptInBy = Field(
        OptInBy.COMMENT, description="comment: jobs say so; all: every batch job of the listed partitions, accounts, users"
    )
    accounts: tuple[str, ...] = Field((), description="with opt_in all: only these accounts; empty: all")
    users: tuple[str, ...] = Field((), description="with opt_in all: only these users; empty: all")
    poll_interval: Duration = Field(timedelta(seconds=5), description="one squeue per this time, whatever the number of jobs")
    log_interval: Duration = Field(timedelta(seconds=1), description="how often followed logs are read")
    settle_quiet: Duration = Field(timedelta(seconds=3), description="after a fatal line: wait until the log is quiet this long ...")
    settle_longest: Duration = Field(timedelta(seconds=15), description="... but never longer than this")
    hang_floor: Duration = Field(timedelta(minutes=5), description="never call a hang under this time without an iteration")
    hang_steps: float = Field(10.0, gt=1, description="call a hang after this many of the attempt's own usual step times")
    startup_patience: Duration = Field(
        timedelta(minutes=30), description="longest time to the first iteration, of a job whose attempt before stepped"
    )
    checkpoint_patience: Duration = Field(timedelta(minutes=30), description="longest pause while a checkpoint is written")
    evaluation_patience: Duration = Field(timedelta(minutes=60), description="longest pause while evaluating")
    finishing_patience: Duration = Field(timedelta(minutes=10), description="longest time between the end of training and the job's end")
    second_look: Duration = Field(timedelta(seconds=10), description="a hang is confirmed by a second look after this time")
    checkpoint_overdue_factor: float = Field(4.0, gt=1, description="no new checkpoint for this many usual intervals is a symptom")
    slowdown_factor: float = Field(1.5, gt=1, description="step time over baseline that counts as slow")
    slowdown_for: Duration = Field(timedelta(minutes=10), description="how long it must stay slow")
    node_not_responding_for: Duration = Field(
        timedelta(seconds=60), description="no response this long is a fault; DOWN and FAIL are at once"
    )
    progress_pattern: str | None = Field(None, description="site-wide regular expression (RE2) with a group named iteration")


class LogsSection(Section):
    roots: tuple[Path, ...] = Field((), description="directories under which logs and checkpoints may be opened; nothing else is")


class EvidenceSection(Section):
    directory: Path = Field(
        Path("~/.local/state/backstay/evidence"),
        description="where what was captured is kept, redacted; excerpts stand in the history",
    )
    history_bytes: int = Field(65536, ge=1024, le=262144, description="most bytes of evidence in one workflow history")
    stored_bytes: int = Field(16 * 1024 * 1024, ge=0, description="most bytes kept in the directory for one incident")
    keep_for: Duration = Field(timedelta(days=30), description="how long evidence stays in the directory")
    keep_bytes: int = Field(5 * 1024**3, ge=1, description="most bytes kept in the directory in all; the oldest incidents leave first")


class Limits(Section):
    restarts: int = Field(8, ge=0, description="restarts of one job by Backstay, in all")
    restarts_without_checkpoint: int = Field(3, ge=1, description="restarts in a row that brought no newer checkpoint; then stop")
    same_cause: int = Field(2, ge=1, description="restarts for one cause with no progress between; then stop")
    excluded_fraction: Fraction = Field(0.05, description="largest share of a partition excluded at once (one node always may be)")
    suspect_confidence: Fraction = Field(0.6, description="a node is excluded only when it is suspected at least this much")
    exclusion_ttl: Duration = Field(timedelta(hours=24), description="how long a node stays excluded")
    spare_nodes: int = Field(0, ge=0, description="nodes that must remain beyond those the job needs after excluding")
    actions_per_window: int = Field(
        10, ge=1, description="actions on the cluster within `window`; beyond it, a user below an equal share still gets one"
    )
    window: Duration = Field(timedelta(hours=1), description="see actions_per_window")
    breaker_jobs: int = Field(
        5, ge=2, description="fewest different jobs that trip the breaker by failing within `breaker_window`, one user's for at most half"
    )
    breaker_fraction: Fraction = Field(
        0.05, description="... and this share of the watched jobs that ran of late, where that is more; one user's storm holds that user"
    )
    breaker_window: Duration = Field(timedelta(minutes=10), description="see breaker_jobs")


class When(Section):
    """All that is named must hold; a list holds when any of it does."""

    domain: tuple[Domain, ...] | Domain | None = None
    cause: tuple[str, ...] | str | None = None
    symptom: tuple[SymptomKind, ...] | SymptomKind | None = None
    confidence: str | None = Field(None, pattern=r"^(>=|>|<|<=)\s*[01](\.\d+)?$", description="such as '>=0.8'")
    has_suspects: bool | None = None
    suspect_confidence: str | None = Field(None, pattern=r"^(>=|>|<|<=)\s*[01](\.\d+)?$", description="of the likeliest suspect")
    earlier_same_cause: str | None = Field(
        None, pattern=r"^(>=|>|<|<=)\s*\d+$", description="earlier incidents of this job, same cause, no progress since"
    )
    partition: tuple[str, ...] | str | None = None
    user: tuple[str, ...] | str | None = None
    mode: tuple[Mode, ...] | Mode | None = Field(None, description="approve, auto; what is recorded in observe is what auto would do")

    @field_validator("mode")
    @classmethod
    def _previews(cls, mode: tuple[Mode, ...] | Mode | None) -> tuple[Mode, ...] | Mode | None:
        """A rule for `observe` alone would preview what no other mode does."""
        if mode is Mode.OBSERVE or (isinstance(mode, tuple) and Mode.OBSERVE in mode):
            raise ValueError("observe is no condition of a rule: it records what auto would do; name approve or auto, or leave mode out")
        return mode


class Rule(Section):
    name: str | None = Field(None, description="shown as the rule that decided; default: its number")
    when: When = When()
    do: Action
    needs_approval: bool = Field(False, description="ask a person even in mode auto")
    without_suspects: Literal["restart", "hold"] = Field("hold", description="what restart_excluding becomes when no node can be named")
    drain: bool = Field(False, description="also recommend draining the suspects")
    why: str = Field("", description="reason shown to people")


class PolicySection(Section):
    mode: Mode = Field(Mode.OBSERVE, description="observe | approve | auto, for jobs that do not say")
    highest_mode: Mode = Field(Mode.APPROVE, description="the most a job's own comment may ask for (never less than `mode`)")
    approvers: tuple[str, ...] = Field(
        (), description="who may approve, reject and move the guard rails; empty: anyone who can reach Temporal"
    )
    approval_expiry: Duration = Field(timedelta(hours=8), description="longest wait for a person")
    override_no_requeue: bool = Field(False, description="requeue jobs submitted with --no-requeue all the same")
    drain_nodes: bool = Field(False, description="allow draining (needs Slurm's Administrator level)")
    stop_cancels_running: bool = Field(False, description="`stop` cancels a job that still runs; otherwise it is held for a person")
    limits: Limits = Limits()
    rules: tuple[Rule, ...] = Field((), description="tried before the default rules; first match wins")


class VerifySection(Section):
    running_within: Duration = Field(timedelta(hours=24), description="longest queue wait of the new attempt; waiting is no failure")
    stepping_within: Duration = Field(timedelta(minutes=30), description="from running to the first iteration")
    checkpoint_within: Duration = Field(timedelta(hours=4), description="from the first iteration to a newer checkpoint")


class AttrsvcSection(Section):
    url: Url = Field(description="http://host:port of NVIDIA's attribution service")
    deadline: Duration = Field(timedelta(seconds=60), description="no answer by then is no opinion")


class OperatorServiceSection(Section):
    url: Url = Field(description="the operator's own diagnosis service (contract: deploy/opinion.openapi.yaml)")
    deadline: Duration = Field(timedelta(seconds=20), description="no answer by then is no opinion")
    token_file: Path | None = Field(None, description="file with a bearer token")


class AttributionSection(Section):
    signatures: tuple[Path, ...] = Field((), description="the operator's own signature files, beside the built-in table")
    attrsvc: AttrsvcSection | None = None
    operator_service: OperatorServiceSection | None = None


class TemporalSection(Section):
    address: Address = Field("127.0.0.1:7233", description="host:port of the Temporal frontend")
    namespace: str = Field("default", description="Temporal namespace")
    task_queue: str | None = Field(None, description="default: backstay-<cluster name>")
    tls: bool = Field(False, description="connect with TLS")
    tls_ca: Path | None = None
    tls_certificate: Path | None = Field(None, description="client certificate, PEM")
    tls_key: Path | None = Field(None, description="client key, PEM")
    api_key_file: Path | None = Field(None, description="file with an API key (Temporal Cloud)")
    ui_url: Url | None = Field(None, description="address of the Temporal UI shown to people")
    database: Path = Field(Path("~/.local/state/backstay/temporal.db"), description="database file of the embedded server (`up`, `demo`)")
    ui_port: int = Field(8233, ge=1, le=65535, description="port of the embedded server's UI, on loopback")


class WorkerSection(Section):
    heartbeat_timeout: Duration = Field(timedelta(seconds=30), description="a worker silent this long has lost its watches to another")
    watches: int = Field(2000, ge=1, description="jobs watched by one worker at once")
    deployment: str | None = Field(
        None,
        description="worker deployment name; set it to switch worker versioning on, and make each version current (deploy/backstay.yaml)",
    )
    build_id: str | None = Field(None, description="build ID with `deployment`; default: the version of Backstay")


class Configuration(Section):
    cluster: ClusterSection
    watch: WatchSection = WatchSection()
    logs: LogsSection = LogsSection()
    evidence: EvidenceSection = EvidenceSection()
    policy: PolicySection = PolicySection()
    verify: VerifySection = VerifySection()
    attribution: AttributionSection = AttributionSection()
    temporal: TemporalSection = TemporalSection()
    worker: WorkerSection = WorkerSection()

    @property
    def task_queue(self) -> str:
        return self.temporal.task_queue or f"backstay-{self.cluster.name}"
