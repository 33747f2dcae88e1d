"""NVIDIA's attribution service (NVRx attrsvc, `POST /logs` and `GET /logs`) as one opinion on stop or restart.

Called by the step `attribute`, in whose activity it polls. The service forgets everything when it restarts, has no authentication and
knows neither nodes nor Xid codes: its verdict is kept beside ours, and no node is ever blamed on its word.
"""

import asyncio
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx

from activities.opinions.asking import NoOpinion, Pause, exchange, within_deadline, words
from activities.records import Opinion, Side, Verdict

SOURCE = "attrsvc"

LONGEST_WAIT_SECONDS = 45.0
"""One read waits this long for the verdict: all callers at one address share 60 reads a minute, and a terminal analysis takes 15 s
at least (four run at once), so that polling spends the budget of a few jobs that fail together within seconds."""

POLL_SECONDS = 5.0
"""Between two reads where it answers at once that it is not done."""

RETRY_SECONDS = 2.0

TRIES_TO_REACH = 3
"""A service that is not there must not cost its whole deadline."""

TRIES_ONCE_REACHED = 10
"""It was there a moment ago, so it restarts, which takes it some seconds."""

LONGEST_BACK_OFF_SECONDS = 60.0
"""A 429 comes without Retry-After; NVRx's own client waits 10 to 60 s."""

MOST_SUBMISSIONS = 5
"""A 404 on reading means that it restarted and forgot; one that forgets this often is not asked again."""


class _Status(StrEnum):
    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    COMPLETED = "completed"
    FAILED = "failed"


# `recommendation.action`, closed. CONTINUE and TIMEOUT come from its older back end and say nothing on stop or restart.
_VERDICTS = {
    "STOP": Verdict.STOP,
    "RESTART": Verdict.RESTART,
    "CONTINUE": Verdict.UNKNOWN,
    "UNKNOWN": Verdict.UNKNOWN,
    "TIMEOUT": Verdict.UNKNOWN,
}

_SIDES = {"workload": Side.WORKLOAD, "infrastructure": Side.INFRASTRUCTURE}

# error code (without the prefix it really sends, `errorcode.`) -> the mend
_MENDS = {
    "outside_root": "start it with an NVRX_ATTRSVC_ALLOWED_ROOT that holds the logs",
    "not_readable": "let its user read the log",
    "logs_dir_not_readable": "let its user read the log's directory",
    "invalid_path": "it wants the absolute path of a file",
    "not_found": "mount the log's directory where it runs",
    "empty_file": "the log is empty",
    "not_regular": "the log is no regular file",
    "invalid_parameter": "it keeps one verdict per log file: let each attempt write its own, with %r in --output",
    "job_limit_reached": "it has no room for more jobs",
}


class AttributionService:
    """Asks one attrsvc. The client is the caller's and may be shared."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, deadline: timedelta, pause: Pause = asyncio.sleep) -> None:
        """
        Args:
            client: sends the requests.
            url: `http://host:port` of the service.
            deadline: no answer by then is no opinion.
            pause: waits so many seconds between two looks; tests pass one that does not.
        """
        self._client = client
        self._logs = f"{url.rstrip('/')}/logs"
        self._deadline = deadline
        self._pause = pause

    async def ask(self, *, log_path: Path, job_id: str, cycle: int, user: str = "unknown") -> Opinion:
        """Its verdict on one ended attempt.

        Args:
            log_path: the attempt's log, as the service sees it.
            job_id: Slurm's ID of the job.
            cycle: the attempt's restart count.
            user: whose job it is.

        Returns:
            STOP, RESTART or UNKNOWN; with `note` set where there is no opinion. Never any suspects.
        """
        submission = {"log_path": str(log_path), "user": user, "job_id": job_id, "cycle_id": cycle, "analysis_intent": "terminal"}
        return await within_deadline(SOURCE, self._deadline, lambda: self._verdict(submission))

    async def _verdict(self, submission: dict[str, Any]) -> Opinion:
        for _ in range(MOST_SUBMISSIONS):
            await self._submit(submission)
            while True:
                try:
                    answer = await self._read(str(submission["log_path"]))
                except httpx.ReadTimeout:
                    continue  # still at work; our own deadline ends this
                if answer is None:
                    break
                match _status(answer):
                    case _Status.PENDING | _Status.IN_FLIGHT:
                        # A candidate may stand there already; NVRx's own client ignores it until completed, and so do we.
                        await self._pause(POLL_SECONDS)
                    case _Status.COMPLETED:
                        return _opinion(answer)
                    case _Status.FAILED:
                        raise NoOpinion(f"its analysis failed: {words(_mapping(answer, 'result').get('error')) or 'no reason given'}")
            # 404: it restarted and forgot; asking twice for the same attempt is harmless.
            await self._pause(RETRY_SECONDS)
        raise NoOpinion(f"forgot the log {MOST_SUBMISSIONS} times; it restarts again and again, look at its own log")

    async def _submit(self, submission: dict[str, Any]) -> None:
        response, body = await self._send("POST", self._logs, tries=TRIES_TO_REACH, json=submission)
        if response.status_code != httpx.codes.OK:
            raise NoOpinion(_refusal(response, body))

    async def _read(self, log_path: str) -> Any | None:
        """Its answer, as soon as there is a verdict; None when it does not know the log (any more)."""
        waiting = httpx.Timeout(30.0, connect=5.0, read=LONGEST_WAIT_SECONDS)
        params = {"log_path": log_path, "wait": "true"}
        response, body = await self._send("GET", self._logs, tries=TRIES_ONCE_REACHED, params=params, timeout=waiting)
        if response.status_code == httpx.codes.NOT_FOUND and _code(body) == "not_found":
            return None
        if response.status_code != httpx.codes.OK:
            raise NoOpinion(_refusal(response, body))
        return body

    async def _send(self, method: str, url: str, *, tries: int, **request: Any) -> tuple[httpx.Response, Any]:
        """One exchange; waits out rate limits, and a service that cannot be reached until so many tries failed."""
        back_off = 10.0
        while True:
            try:
                response, body = await exchange(self._client, method, url, **request)
            except httpx.ReadTimeout:
                raise  # it is there and slow, which another try would not mend
            except httpx.TransportError:
                tries -= 1
                if tries <= 0:
                    raise
                await self._pause(RETRY_SECONDS)
                continue
            if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return response, body
            await self._pause(back_off)
            back_off = min(back_off * 2, LONGEST_BACK_OFF_SECONDS)


def _mapping(value: Any, key: str) -> dict[str, Any]:
    below = value.get(key) if isinstance(value, dict) else None
    return below if isinstance(below, dict) else {}


def _status(answer: Any) -> _Status:
    told = answer.get("status") if isinstance(answer, dict) else None
    try:
        return _Status(str(told))
    except ValueError:
        raise NoOpinion(f"answered with status {told!r}, which is none of its documented ones; is this attrsvc?") from None


def _opinion(answer: Any) -> Opinion:
    """A completed answer. Only `recommendation` counts: where the analysis was unusable, `result.decision` still says RESTART."""
    recommendation, result = _mapping(answer, "recommendation"), _mapping(answer, "result")
    action = recommendation.get("action")
    if not isinstance(action, str) or action not in _VERDICTS:
        raise NoOpinion(f"recommended {action!r}, which is none of its documented actions")
    verdict = _VERDICTS[action]
    side = _SIDES.get(str(result.get("failure_domain")), Side.UNKNOWN) if verdict is not Verdict.UNKNOWN else Side.UNKNOWN
    cause = _mapping(result, "primary_failure").get("failure_class")
    basis, reason = result.get("decision_basis"), recommendation.get("reason") or result.get("justification")
    return Opinion(
        source=SOURCE,
        verdict=verdict,
        side=side,
        cause=words(cause) if cause else None,
        why=words(": ".join(str(part) for part in (basis, reason) if part)),
    )


def _code(body: Any) -> str:
    """The error code: `errorcode.not_found` as it is really sent, or `not_found` as its README has it."""
    code = body.get("error_code") if isinstance(body, dict) else None
    return str(code or "").rpartition(".")[2].lower()


def _refusal(response: httpx.Response, body: Any) -> str:
    code = _code(body)
    said = body.get("message") or body.get("detail") or body.get("error") if isinstance(body, dict) else ""
    mend = _MENDS.get(code, "")
    return "; ".join(part for part in (f"refused with HTTP {response.status_code} {code}".rstrip(), words(said), mend) if part)
