"""The scheduler by Slurm's own programs: squeue, sinfo, scontrol, scancel. One question or one mutation per method.

Called by the steps, and by the feed for its polls. Arguments are checked before they stand on a command line; answers go to
`parsing.py` and `settings.py`, refusals to `refusals.py`. Nothing here waits, retries or decides.
"""

import asyncio
import re
from collections.abc import Collection, Sequence

from activities.configuration import SchedulerSection
from activities.records import Job, Node
from activities.slurm import hostlist, parsing
from activities.slurm.refusals import error_for
from activities.slurm.scheduler import (
    JobUnknown,
    NodeNameInvalid,
    SchedulerRefused,
    SchedulerSettings,
    SchedulerUnreachable,
    SchedulerUnreadable,
)
from activities.slurm.settings import settings_from
from activities.slurm.transport import Completed, Transport, TransportError

_JOB_ID = re.compile(r"[1-9]\d{0,9}(?:_\d{1,7}|\+\d{1,3})?", re.ASCII)  # 12, array task 12_3, het component 12+1
_VERSION = re.compile(rb"(\d+)\.(\d+)")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]+")
_SCONTROL_HAS_JSON = (23, 2)  # 22.05: "unrecognized option '--json'"; from 23.11 on, sinfo --json no longer lists nodes


class CommandScheduler:
    """Slurm through its command line.

    Args:
        transport: where the commands run.
        section: time limit of each command (`cluster.scheduler` of the configuration).
    """

    def __init__(self, transport: Transport, section: SchedulerSection) -> None:
        self._transport = transport
        self._timeout = section.timeout
        self._version: tuple[int, int] | None = None
        self._listings = parsing.Listings()

    # ----------------------------------------------------------------------------------------------------- questions

    async def settings(self) -> SchedulerSettings:
        return settings_from((await self._ask("scontrol", "show", "config")).decode(errors="replace"))

    async def jobs(self) -> Sequence[Job]:
        # --states=all: from 24.05 on --json honours squeue's filters, whose default drops ended jobs
        listing = await self._ask("squeue", "--json", "--all", "--states=all")
        return await asyncio.to_thread(self._listings.jobs_from, listing)  # 2,000 jobs take a third of a second: heartbeats must not wait

    async def job(self, job_id: str) -> Job:
        leader = _checked(job_id).partition("+")[0]
        # 22.05 ignores --jobs with --json and lists all, which holds ours as well
        listed = parsing.jobs_from(await self._ask("squeue", "--json", "--all", "--states=all", f"--jobs={leader}"))
        for job in listed:
            if job.job_id == job_id:
                return job
        for job in listed:
            if parsing.holds_array_task(job, job_id):
                return job.model_copy(update={"job_id": job_id, "array_task_id": int(job_id.partition("_")[2])})
        if any(job.array_job_id == int(leader.partition("_")[0]) for job in listed) and "_" not in job_id:
            raise JobUnknown(f"job {job_id} is an array: name one of its tasks ({job_id}_N)")
        raise JobUnknown(f"job {job_id} is not known to Slurm: it never had it, or has forgotten it (MinJobAge)")

    async def nodes(self) -> Sequence[Node]:
        if await self._client_version() >= _SCONTROL_HAS_JSON:
            listing = await self._ask("scontrol", "show", "nodes", "--json")
        else:
            listing = await self._ask("sinfo", "--json", "--all")
        return await asyncio.to_thread(self._listings.nodes_from, listing)

    async def batch_script(self, job_id: str) -> str:
        question = ("scontrol", "write", "batch_script", _checked(job_id), "-")
        done = await self._run(question)
        if done.returncode != 0 or (not done.stdout and done.stderr):  # 22.05 exits 0 all the same
            raise error_for(" ".join(question), done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace").removesuffix("\x00")

    # ----------------------------------------------------------------------------------------------------- mutations

    async def requeue(self, job_id: str, *, hold: bool = False) -> None:
        await self._ask("scontrol", "requeuehold" if hold else "requeue", _checked(job_id))

    async def permit_requeue(self, job_id: str) -> None:
        await self._update_job(job_id, "Requeue=1")

    async def set_excluded_nodes(self, job_id: str, nodes: Collection[str]) -> None:
        for name in nodes:
            _checked_node(name)
        await self._update_job(job_id, f"ExcNodeList={hostlist.collect(nodes)}")

    async def start_now(self, job_id: str) -> None:
        # Callers wait until two seconds after the job became pending: slurmd refuses to launch a job in the second of its kill
        # ("already killed, do not launch batch job": slurm_cred_revoked() compares whole seconds), and the job is FAILED then.
        await self._update_job(job_id, "StartTime=now")

    async def hold(self, job_id: str) -> None:
        # uhold and not hold: its owner may release it too, should we be gone
        await self._ask("scontrol", "uhold", _checked(job_id))

    async def release(self, job_id: str) -> None:
        await self._ask("scontrol", "release", _checked(job_id))

    async def set_admin_comment(self, job_id: str, comment: str) -> None:
        await self._update_job(job_id, f"AdminComment={_one_line(comment)}")

    async def cancel(self, job_id: str) -> None:
        question = ("scancel", "--verbose", _checked(job_id))  # without --verbose an unknown job is no error
        done = await self._run(question)
        said = done.stderr.decode(errors="replace")
        if done.returncode != 0 or "error:" in said:
            raise error_for(" ".join(question), said.partition("error:")[2] or said)

    async def drain(self, node: str, reason: str) -> None:
        if not reason.strip():
            raise SchedulerRefused(f"draining {node} needs a reason")
        await self._ask("scontrol", "update", f"NodeName={_checked_node(node)}", "State=DRAIN", f"Reason={_one_line(reason)}")

    async def resume(self, node: str) -> None:
        # UNDRAIN and not RESUME, which would also call a DOWN node healthy (scontrol(1))
        await self._ask("scontrol", "update", f"NodeName={_checked_node(node)}", "State=UNDRAIN")

    # --------------------------------------------------------------------------------------------------- underneath

    async def _update_job(self, job_id: str, change: str) -> None:
        await self._ask("scontrol", "update", f"JobId={_checked(job_id)}", change)

    async def _client_version(self) -> tuple[int, int]:
        if self._version is None:
            said = await self._ask("sinfo", "--version")  # "slurm-wlm 22.05.8"; asks no controller
            found = _VERSION.search(said)
            if found is None:
                raise SchedulerUnreadable(f"sinfo --version printed no version: {said[:80]!r}")
            self._version = (int(found[1]), int(found[2]))
        return self._version

    async def _ask(self, *argv: str) -> bytes:
        done = await self._run(argv)
        if done.returncode != 0:
            raise error_for(" ".join(argv), done.stderr.decode(errors="replace"))
        return done.stdout

    async def _run(self, argv: Sequence[str]) -> Completed:
        try:
            return await self._transport.run(argv, timeout=self._timeout)
        except TransportError as error:
            raise SchedulerUnreachable(str(error)) from error


def _checked(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise JobUnknown(f"{job_id[:60]!r} is not a job ID (12, array task 12_3, het component 12+1)")
    return job_id


def _checked_node(name: str) -> str:
    if not hostlist.is_node_name(name):
        raise NodeNameInvalid(f"{name[:60]!r} is not a node name; nothing was changed")
    return name


def _one_line(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()
