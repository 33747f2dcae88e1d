"""Everything beside the log as observations: the scheduler's words and states, kernel findings, GPU readings. Pure; case.py asks."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from activities.diagnosis.reading import Observation, Reading
from activities.diagnosis.scheduler_facts import SchedulerFacts
from activities.diagnosis.signals import Signals
from activities.diagnosis.signatures import Role, Signature, Where, compiled_extracts
from activities.gpu.findings import Clock, GpuFinding, KernelFinding
from activities.gpu.findings import Role as GpuRole
from activities.gpu.kernel import judge_bursts, read_kernel_log
from activities.records import SignalSource
from activities.redaction import redact_start
from activities.scanning.scan import MultiPattern

_SCHEDULER_STATES: Mapping[str, tuple[str, float]] = {
    # Slurm's own verdicts (slurm.h enum job_states); a log line that explains one goes before it
    "OUT_OF_MEMORY": ("host_oom_cgroup", 0.9),
    "NODE_FAIL": ("node_failure", 0.94),
    "BOOT_FAIL": ("node_failure", 0.8),
    "TIMEOUT": ("time_limit", 0.93),
    "DEADLINE": ("time_limit", 0.9),
    "PREEMPTED": ("preempted", 0.94),
}
_EXIT_CODES: Mapping[int, tuple[str, float]] = {
    # 128 + signal, as shells and srun tell it
    132: ("sigill_config_regression", 0.55),
    135: ("dataloader_bus_error_shm", 0.5),
    139: ("segfault_rank", 0.5),
    129: ("sighup_session_closed", 0.6),
}


_NODES_NAMED = 4
# Slurm's cgroups carry the job's number, and a shared node kills for each job's own limit (Linux mm/oom_kill.c dump_oom_summary).
_KILLED_IN_JOB = re.compile(r"oom-kill:\S*task_memcg=\S*/job_(\d{1,10})/\S*?pid=(\d{1,10})")
_KILLED = re.compile(r"(?:Killed process |oom-kill:.*pid=)(\d{1,10})")
_ZONES = timedelta(days=1)  # the kernel's stamps and the scheduler's may name no zone

_EXIT_SIGNALS: Mapping[int, int] = {4: 132, 7: 135, 11: 139, 1: 129}
_NODE_REASON = re.compile(r"^(?:node_)?(?:reasons?|states?)(?:\.(?P<node>[A-Za-z][\w-]*)=|[.=](?P<node2>[A-Za-z][\w.-]*)[:=] )")


class SchedulerWords:
    """Signatures looked for in what the scheduler said; compiled once."""

    def __init__(self, rows: Sequence[Signature]) -> None:
        self._rows = {row.id: row for row in rows if row.where is not Where.LOG and row.role in (Role.PRIMARY, Role.CASCADE, Role.HINT)}
        self._extracts = {row.id: compiled_extracts(row.extracts) for row in self._rows.values() if row.extracts}
        self._matcher = MultiPattern({row.id: row.pattern for row in self._rows.values()})

    def observations(self, facts: SchedulerFacts) -> list[Observation]:
        """Hits in the account of this attempt, with the node a reason is about."""
        found: list[Observation] = []
        data = facts.text.encode()
        for hit in self._matcher.scan(data):
            text = data[hit.start : hit.end].decode(errors="replace")
            about = _NODE_REASON.match(text)
            for row in (self._rows[name] for name in hit.ids):
                groups = match.groupdict() if (pattern := self._extracts.get(row.id)) and (match := pattern.search(text)) else {}
                named = next((value for name, value in groups.items() if name.startswith("node") and value), None)
                found.append(
                    Observation(
                        signature=row.id,
                        role=row.role,
                        weight=row.weight,
                        text=redact_start(text, 600),
                        cause=row.cause,
                        source=SignalSource.SCHEDULER,
                        named_node=named or (about["node"] or about["node2"] if about else None),
                    )
                )
        return found


def kernel_findings(signals: Signals, reading: Reading, facts: SchedulerFacts) -> tuple[KernelFinding, ...]:
    """Kernel lines of the job's nodes, and those that landed in its log; one finding a burst. What a device did before this attempt
    counts only where it left it unusable: collected kernel logs reach back to the node's boot, and hold a rack's."""
    findings: list[KernelFinding] = []
    for node, text in signals.kernel_logs.items():
        findings += read_kernel_log(text, node or None)
    if reading.kernel_lines and not findings:
        told = read_kernel_log("\n".join(reading.kernel_lines))
        findings += (finding.model_copy(update={"in_job_log": True}) for finding in told)
    strangers = _killed_in_other_jobs(signals, facts)
    findings = [finding for finding in findings if not ((found := _KILLED.search(finding.text)) and found[1] in strangers)]
    since = facts.started_at - _ZONES if facts.started_at else None
    return judge_bursts((finding for finding in findings if not facts.is_stranger(finding.node)), since)


def _killed_in_other_jobs(signals: Signals, facts: SchedulerFacts) -> set[str]:
    """Process ids that the kernel killed for the memory of a job that is not this one."""
    if facts.job_id is None:
        return set()
    return {pid for text in signals.kernel_logs.values() for job, pid in _KILLED_IN_JOB.findall(text) if int(job) != facts.job_id}


def of_kernel(finding: KernelFinding) -> Observation:
    """A kernel finding as an observation."""
    return Observation(
        signature=finding.event,
        role=Role.PRIMARY if finding.role is GpuRole.PRIMARY else Role.HINT,
        weight=finding.confidence,
        text=finding.text,
        cause=finding.cause,
        source=SignalSource.KERNEL,
        line=finding.line,
        at=finding.at,
        stamp=_stamp(finding),
        node=finding.node,
        gpu=finding.gpu,
        isolate=finding.isolate,
        beyond_the_job=not finding.in_job_log,
    )


def _stamp(finding: KernelFinding) -> str:
    if finding.clock is not Clock.YEARLESS or finding.clock_seconds is None:
        return ""
    return f"{datetime.fromtimestamp(finding.clock_seconds, UTC):%b %d %H:%M:%S}"


def of_gpu(finding: GpuFinding, facts: SchedulerFacts) -> Observation:
    """A reading as an observation."""
    # A node may be called gpu-02; only the job's own list tells it from a device.
    is_node = finding.node is None and finding.gpu in facts.nodes
    return Observation(
        signature=finding.reading,
        role=Role.PRIMARY if finding.role is GpuRole.PRIMARY else Role.HINT,
        weight=finding.confidence,
        text=f"{finding.reading} = {finding.value}",
        cause=finding.cause,
        source=SignalSource.GPU,
        node=finding.gpu if is_node else finding.node,
        gpu=None if is_node else finding.gpu,
        isolate=finding.isolate,
        beyond_the_job=True,
    )


def of_state(facts: SchedulerFacts) -> list[Observation]:
    """Slurm's state, lost nodes and exit codes as observations."""
    found: list[Observation] = []
    if facts.state in _SCHEDULER_STATES:
        cause, weight = _SCHEDULER_STATES[facts.state]
        found.append(Observation("slurm_state", Role.PRIMARY, weight, f"Slurm says {facts.state}", cause, SignalSource.SCHEDULER))
    if facts.lost_nodes and facts.state not in ("COMPLETED",):
        text = f"Slurm lost {', '.join(facts.lost_nodes[:_NODES_NAMED])}"
        # More at once than this share a switch, a rack or a mistake of the scheduler's; each by itself is healthy.
        named = facts.lost_nodes if len(facts.lost_nodes) <= _NODES_NAMED else (None,)
        found += [
            Observation("slurm_node_lost", Role.PRIMARY, 0.93, text, "node_failure", SignalSource.NODE, node=node, beyond_the_job=True)
            for node in named
        ]
    code = facts.exit_code or _EXIT_SIGNALS.get(facts.exit_signal or 0)
    if code is not None and code in _EXIT_CODES:
        cause, weight = _EXIT_CODES[code]
        found.append(Observation("exit_code", Role.CASCADE, weight, f"exit code {code}", cause, SignalSource.SCHEDULER))
    return found
