"""What the policy refuses, whatever a rule says: each guard is one small function with its reason in its docstring.

A guard takes the draft of a recommendation and gives it back, changed or not. `policy.py` calls them in order; nobody else does.
"""

from collections.abc import Callable
from datetime import timedelta

from pydantic import AwareDatetime

from activities.configuration import PolicySection
from activities.detectors.endings import NVRX_DO_NOT_REQUEUE
from activities.guard_rails import most_excluded
from activities.placement import candidates_after_excluding, nodes_of_partition, out_of_service
from activities.records import (
    Action,
    Attribution,
    Diagnosis,
    Domain,
    Job,
    JobHistory,
    LedgerEntry,
    Mode,
    Node,
    Opinion,
    PastIncident,
    Progress,
    Record,
    Symptom,
)

FORGET_MARGIN = timedelta(seconds=10)
"""Left for the requeue itself before slurmctld forgets the job."""

_ACTS = (Action.RESTART, Action.RESTART_EXCLUDING)


class Situation(Record):
    """Everything one recommendation rests on."""

    symptom: Symptom
    diagnosis: Diagnosis = Diagnosis()
    attribution: Attribution = Attribution()
    opinions: tuple[Opinion, ...] = ()
    job: Job
    restart_count: int = 0
    history: JobHistory = JobHistory()
    ledger: tuple[LedgerEntry, ...] = ()
    """Nodes that Backstay keeps this job off now."""
    corroborated: tuple[str, ...] = ()
    """Those of this fault's suspects that a second source implicates, too: enough to act on them for other jobs."""
    nodes: tuple[Node, ...] = ()
    """The cluster's nodes now; empty: not known."""
    progress: Progress = Progress()
    mode: Mode | None = None
    """None: no watched job stands behind it, as where logs are diagnosed afterwards. Whether it is the first time is not known then, and
    rules that name a mode do not hold."""
    now: AwareDatetime
    min_job_age: timedelta | None = None
    incident_id: str = ""
    is_offline: bool = False
    """Nobody acts on it, and no cluster could have been looked at: what was not looked at is not told."""

    @property
    def earlier_same_cause(self) -> tuple[PastIncident, ...]:
        """Earlier incidents of this cause since which no newer checkpoint was seen."""
        return tuple(past for past in self.history.incidents if past.cause == self.diagnosis.cause and not self._got_further_than(past))

    @property
    def users_own_exclusions(self) -> tuple[str, ...]:
        """What the user's own list (-x) names: the job's list without what Backstay wrote there at earlier faults. It survives requeues."""
        ours = {node for past in self.history.incidents for node in past.excluded or _excluded_in_old_days(past)}
        ours |= {entry.node for entry in self.ledger if entry.job_id == self.job.job_id}
        return tuple(name for name in self.job.excluded_nodes if name not in ours)

    def _got_further_than(self, past: PastIncident) -> bool:
        newest = self.progress.checkpoint_iteration
        return newest is not None and (past.checkpoint_iteration is None or newest > past.checkpoint_iteration)


def _excluded_in_old_days(past: PastIncident) -> tuple[str, ...]:
    """What an incident that an older version remembered had excluded: it kept the suspects only."""
    return past.suspects if past.acted and past.action is Action.RESTART_EXCLUDING else ()


class Draft(Record):
    """A recommendation in the making."""

    action: Action
    rule: str
    why: str
    needs_approval: bool = False
    exclude_nodes: tuple[str, ...] = ()
    short_of_nodes: bool = False

    def turned_into(self, action: Action, rule: str, why: str) -> "Draft":
        """The draft as a guard leaves it; the rule that was overruled is named."""
        return Draft(action=action, rule=f"{rule} (over {self.rule})", why=why)


def suspect_nodes(situation: Situation, policy: PolicySection) -> tuple[str, ...]:
    """Nodes this incident is traced to with enough confidence to keep a job off them; names the cluster does not have are dropped
    (one unknown name fails the whole update in Slurm, and a host named in a message need not be a node)."""
    known = {node.name for node in situation.nodes}
    names = situation.attribution.nodes_suspected(at_least=policy.limits.suspect_confidence)
    return tuple(dict.fromkeys(name for name in names if not known or name in known))


def apply_guards(draft: Draft, situation: Situation, policy: PolicySection, *, without_suspects: Action) -> Draft:
    """The draft after every guard. `without_suspects`: what restart_excluding becomes when no node can be named."""
    draft = _with_exclusions(draft, situation, policy, without_suspects)
    for guard in _GUARDS:
        draft = guard(draft, situation, policy)
    return draft if draft.action is Action.RESTART_EXCLUDING else draft.model_copy(update={"exclude_nodes": ()})


def _with_exclusions(draft: Draft, situation: Situation, policy: PolicySection, without_suspects: Action) -> Draft:
    """Which nodes the next attempt is kept off: this incident's suspects, what the ledger excludes in the job's partition, and the user's
    own ExcNodeList (the update *replaces* the list, so theirs has to be repeated)."""
    suspects = suspect_nodes(situation, policy)
    if draft.action is Action.RESTART_EXCLUDING and not suspects:
        said = f"{draft.why}, but no node can be named with confidence"
        if without_suspects is Action.HOLD:
            return draft.model_copy(update={"action": Action.HOLD, "why": f"{said}, so a person decides"})
        draft = draft.model_copy(update={"action": Action.RESTART, "why": said})
    if draft.action not in _ACTS:
        return draft
    in_partition = _partition_names(situation)
    held = tuple(entry.node for entry in situation.ledger if entry.node in in_partition)
    excluding = suspects if draft.action is Action.RESTART_EXCLUDING else ()
    ours = tuple(dict.fromkeys((*excluding, *held)))
    if not ours:
        return draft
    known = {node.name for node in situation.nodes}
    own = tuple(name for name in situation.job.excluded_nodes if not known or name in known)
    names = tuple(sorted({*ours, *own}))
    why = draft.why if excluding else f"{draft.why}; kept off {', '.join(held)}, excluded for earlier faults"
    return draft.model_copy(update={"action": Action.RESTART_EXCLUDING, "exclude_nodes": names, "why": why})


def _partition_names(situation: Situation) -> set[str]:
    return set(nodes_of_partition(situation.job, situation.nodes))


# ------------------------------------------------------------------------------------------------ guards, in order


def _only_batch_jobs(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """srun and salloc allocations belong to someone's terminal and cannot be requeued (`ESLURM_BATCH_ONLY`): watched, never acted on."""
    if situation.job.is_batch is not False or draft.action is Action.NONE:
        return draft
    return draft.turned_into(Action.HOLD, "batch-jobs-only", f"{draft.why}; but this is no batch job, so Backstay only watches it")


def _exactly_one_job(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """Requeueing a bare array ID hits every task of the array, and a het component moves only with its leader."""
    job = situation.job
    if draft.action not in _ACTS:
        return draft
    if job.array_job_id is not None and job.array_task_id is None and "_" not in job.job_id:
        why = f"{job.job_id} names a whole array; act on one task, such as {job.array_job_id}_1"
        return draft.turned_into(Action.HOLD, "one-array-task", why)
    if job.het_offset:
        why = f"{job.job_id} is a component of heterogeneous job {job.het_job_id}; act on that, its leader"
        return draft.turned_into(Action.HOLD, "het-leader-only", why)
    return draft


def _frameworks_own_verdict(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """Exit code 93 is NVRx's word for 'do not requeue': it restarted in place as often as made sense. A person may still overrule it."""
    if draft.action not in _ACTS or situation.job.exit_code != NVRX_DO_NOT_REQUEUE:
        return draft
    why = f"the job exited {NVRX_DO_NOT_REQUEUE}, by which NVIDIA's launcher says that another restart will not help"
    return draft.turned_into(Action.HOLD, "exit-code-93", why)


def _users_no_requeue(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """`--no-requeue` is the user's 'never': work that must not run twice looks just like this. Only the operator may overrule it, and only
    while the job lives: of an ended one Slurm takes no update ("Job has already finished"), so that neither way is left then."""
    job = situation.job
    if draft.action not in _ACTS or job.may_requeue is not False or (policy.override_no_requeue and not job.state.is_ended):
        return draft
    mend = (
        f"it has ended, so Slurm can no longer be told otherwise: {_resubmit(situation)}"
        if job.state.is_ended
        else f"`scontrol update JobId={job.job_id} Requeue=1` or policy.override_no_requeue permits it"
    )
    return draft.turned_into(Action.HOLD, "no-requeue", f"{draft.why}; but the job was submitted with --no-requeue. {mend}")


def _restart_limit(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """A job that needed this many restarts needs a person, whatever the causes were."""
    done, most = situation.history.restarts, policy.limits.restarts
    if draft.action not in _ACTS or done < most:
        return draft
    return draft.turned_into(Action.STOP, "limits.restarts", f"Backstay restarted this job {done} times, the limit is {most}")


def _restarts_without_checkpoint(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """Restarts that bring no newer checkpoint burn the allocation and change nothing."""
    done, most = situation.history.restarts_without_checkpoint, policy.limits.restarts_without_checkpoint
    if draft.action not in _ACTS or done < most:
        return draft
    return draft.turned_into(Action.STOP, "limits.restarts_without_checkpoint", f"no checkpoint in {done} restarts")


def _same_cause_again(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """What the program or its settings cause comes back until they are changed. Faults of the machine do not count here: the next attempt
    runs elsewhere."""
    if draft.action not in _ACTS or situation.diagnosis.domain not in (Domain.APPLICATION, Domain.USER):
        return draft
    restarted = [past for past in situation.earlier_same_cause if past.acted and past.action in _ACTS]
    if len(restarted) < policy.limits.same_cause:
        return draft
    why = f"{situation.diagnosis.cause} came back after {len(restarted)} restarts without a newer checkpoint"
    return draft.turned_into(Action.STOP, "limits.same_cause", why)


def _share_excluded(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """Many bad nodes at once are rarely bad nodes: it is more likely what they share. What the user excludes is the user's affair, and a
    node that is down or drained already is taken from nobody."""
    in_partition = _partition_names(situation)
    ours = set(draft.exclude_nodes) - set(situation.job.excluded_nodes) | {entry.node for entry in situation.ledger}
    excluded = (ours & in_partition) - out_of_service(situation.nodes)
    allowed = most_excluded(policy.limits, len(in_partition))
    if draft.action is not Action.RESTART_EXCLUDING or not in_partition or len(excluded) <= allowed:
        return draft
    why = (
        f"{draft.why}; but then Backstay would exclude {len(excluded)} of {len(in_partition)} nodes ({', '.join(sorted(excluded))}), "
        f"and policy allows {allowed} at once"
    )
    return draft.turned_into(Action.HOLD, "limits.excluded_fraction", why)


def _enough_nodes_left(draft: Draft, situation: Situation, policy: PolicySection) -> Draft:
    """Slurm does not warn that an exclusion makes a job unschedulable: it would wait in the queue for ever."""
    if draft.action is not Action.RESTART_EXCLUDING:
        return draft
    if not situation.nodes and situation.is_offline:
        return draft
    if not situation.nodes:
        why = f"{draft.why}; the cluster's nodes are not known, so nobody has counted what remains"
        return draft.model_copy(update={"needs_approval": True, "why": why})
    left = candidates_after_excluding(situation.job, situation.nodes, excluding=draft.exclude_nodes, spare_nodes=policy.limits.spare_nodes)
    if left.enough:
        return draft
    why = f"{draft.why}; but without {', '.join(draft.exclude_nodes)} it could not run: {left.in_words}"
    # It counts nodes that work, so the count can be taken too early: the step looks again.
    return draft.turned_into(Action.HOLD, "enough-nodes-left", why).model_copy(update={"short_of_nodes": True})


_GUARDS: tuple[Callable[[Draft, Situation, PolicySection], Draft], ...] = (
    _only_batch_jobs,
    _exactly_one_job,
    _frameworks_own_verdict,
    _users_no_requeue,
    _restart_limit,
    _restarts_without_checkpoint,
    _same_cause_again,
    _share_excluded,
    _enough_nodes_left,
)


# ------------------------------------------------------------------------------------------------ expiry


def expiry_of(action: Action, situation: Situation, policy: PolicySection) -> tuple[AwareDatetime | None, str]:
    """Until when the recommendation can be carried out, and why no longer.

    slurmctld forgets an ended job `MinJobAge` after its end; a requeue is impossible from then on, so an approval must not outlive it.
    """
    if action not in (*_ACTS, Action.STOP):
        return None, ""
    latest = situation.now + policy.approval_expiry
    ended_at = situation.job.ended_at if situation.job.state.is_ended else None
    if action is Action.STOP or ended_at is None or situation.min_job_age is None:
        return latest, "policy.approval_expiry"
    forgotten = ended_at + situation.min_job_age - FORGET_MARGIN
    if forgotten >= latest:
        return latest, "policy.approval_expiry"
    seconds = int(situation.min_job_age.total_seconds())
    return forgotten, f"Slurm forgets an ended job after MinJobAge ({seconds} s); from then on {_resubmit(situation)}"


def _resubmit(situation: Situation) -> str:
    """What is left where Slurm can no longer requeue."""
    return f"resubmit it: `sbatch` the batch script captured with the evidence of incident {situation.incident_id or '(none)'}"
