"""The operator's own diagnosis service as one opinion: `POST /v1/opinion`, by the contract in deploy/opinion.openapi.yaml.

Called by the step `attribute`. What is sent has its secrets taken out; what comes back must keep to the contract, or it is no opinion.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import httpx
from pydantic import Field, ValidationError

from activities.opinions.asking import NoOpinion, Pause, exchange, within_deadline, words
from activities.outside_text import whole_number
from activities.records import Attribution, Confidence, Diagnosis, Domain, Excerpt, Job, Opinion, Record, Suspect, Symptom, Verdict, as_json
from activities.redaction import redact_value

SOURCE = "operator_service"

PATH = "/v1/opinion"

RETRY_SECONDS = 1.0
"""Waited before a busy or failing service is asked once more, where it does not say how long."""

_PASSING = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)

ShortText = Annotated[str, Field(max_length=256)]


class OpinionQuestion(Record):
    """What the service is told of one fault: `OpinionQuestion` in the contract."""

    cluster: str
    incident_id: str
    restart_count: int = 0
    job: Job
    symptom: Symptom
    diagnosis: Diagnosis
    attribution: Attribution
    excerpts: tuple[Excerpt, ...] = ()


class _SuspectAnswer(Record):
    node: ShortText | None = None
    gpu: ShortText | None = None
    rank: int | None = Field(default=None, ge=0)
    confidence: Confidence
    because: tuple[Annotated[str, Field(max_length=2000)], ...] = Field(default=(), max_length=20)


class _Answer(Record):
    """`OpinionAnswer` in the contract. Verdict and domain are closed: a word that is none of them is no opinion, not a guess."""

    verdict: Verdict
    domain: Domain = Domain.UNKNOWN
    cause: ShortText | None = None
    suspects: tuple[_SuspectAnswer, ...] = Field(default=(), max_length=1000)
    why: Annotated[str, Field(max_length=10_000)] = ""


class OperatorService:
    """Asks one service. The client is the caller's and may be shared."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, *, deadline: timedelta, token_file: Path | None = None, pause: Pause = asyncio.sleep
    ) -> None:
        """
        Args:
            client: sends the requests.
            url: `http(s)://host:port` of the service, with a path before `/v1/opinion` where it has one.
            deadline: no answer by then is no opinion.
            token_file: a file with a bearer token; read at each question, so that it can be renewed.
            pause: waits so many seconds before asking again; tests pass one that does not.
        """
        self._client = client
        self._url = url.rstrip("/") + PATH
        self._deadline = deadline
        self._token_file = token_file
        self._pause = pause

    async def ask(self, question: OpinionQuestion) -> Opinion:
        """Its opinion on one fault; with `note` set where there is none."""
        return await within_deadline(SOURCE, self._deadline, lambda: self._answer(question))

    async def _answer(self, question: OpinionQuestion) -> Opinion:
        request = {"json": redact_value(as_json(question)), "headers": await asyncio.to_thread(self._headers)}
        response, body = await exchange(self._client, "POST", self._url, **request)
        while response.status_code in _PASSING:
            await self._pause(_retry_after(response))
            response, body = await exchange(self._client, "POST", self._url, **request)
        if response.status_code == httpx.codes.NO_CONTENT:
            raise NoOpinion("has nothing to say")  # its right, by the contract
        if response.status_code != httpx.codes.OK:
            said = words(body.get("detail") or body.get("error") if isinstance(body, dict) else "")
            raise NoOpinion(f"refused with HTTP {response.status_code}{': ' if said else ''}{said}")
        try:
            answer = _Answer.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the answer"
            raise NoOpinion(f"answered against the contract: {place}: {words(first['msg'])}; see deploy/opinion.openapi.yaml") from None
        return Opinion(
            source=SOURCE,
            verdict=answer.verdict,
            domain=answer.domain,
            cause=words(answer.cause) or None,
            suspects=tuple(
                Suspect(**{**suspect.model_dump(), "because": tuple(map(words, suspect.because))}) for suspect in answer.suspects
            ),
            why=words(answer.why),
        )

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token_file.read_text(encoding='ascii').strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not plain ASCII text"
            raise NoOpinion(f"attribution.operator_service.token_file {self._token_file} cannot be read: {reason}") from None


def _retry_after(response: httpx.Response) -> float:
    told = whole_number(str(response.headers.get("Retry-After", "")))
    return RETRY_SECONDS if told is None else float(told)
