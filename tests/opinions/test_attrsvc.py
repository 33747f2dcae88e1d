"""NVIDIA's attribution service: every recorded answer of the real one, read as a closed verdict or as a note."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from activities.opinions.attrsvc import AttributionService
from activities.records import Opinion, Side, Verdict

RECORDED = {entry["label"]: entry for entry in json.loads(Path(__file__).with_name("attrsvc_recorded.json").read_text())}
LOG = Path("/shared/runs/job1_cycle0.log")

Handler = Callable[[httpx.Request], httpx.Response]


def recorded(label: str) -> httpx.Response:
    """An answer of the real service (facts: attrsvc_transcript.json)."""
    return httpx.Response(RECORDED[label]["status"], json=RECORDED[label]["body"])


def completed(**changes: Any) -> httpx.Response:
    """The recorded completed answer with top-level keys replaced."""
    return httpx.Response(200, json={**RECORDED["completed wait=true"]["body"], **changes})


class Service:
    """A stand-in for the service: answers in the order given (the last one for ever), and remembers what it was asked."""

    def __init__(self, *, posts: list[httpx.Response] | None = None, gets: list[httpx.Response] | None = None) -> None:
        self._answers = {"POST": posts or [recorded("terminal")], "GET": gets or [recorded("completed wait=true")]}
        self.asked: list[httpx.Request] = []
        self.paused: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answers = self._answers[request.method]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.asked]

    async def pause(self, seconds: float) -> None:
        self.paused.append(seconds)


async def ask(handler: Handler, *, deadline: float = 20, pause: Callable[[float], Any] | None = None) -> Opinion:
    async def at_once(seconds: float) -> None:
        await asyncio.sleep(0)

    pause = pause or (handler.pause if isinstance(handler, Service) else at_once)
    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
        service = AttributionService(client, "http://127.0.0.1:8000/", deadline=timedelta(seconds=deadline), pause=pause)
        return await service.ask(log_path=LOG, job_id="1001", cycle=0, user="alice")


async def test_it_submits_polls_and_reads_the_verdict() -> None:
    service = Service(gets=[recorded("pending"), recorded("in_flight"), recorded("completed wait=true")])
    opinion = await ask(service)
    assert (opinion.source, opinion.verdict, opinion.note) == ("attrsvc", Verdict.RESTART, "")
    assert opinion.cause == "observed_exception"
    assert opinion.why.startswith("general_retry_available: Line 15 matched")
    assert service.methods == ["POST", "GET", "GET", "GET"]
    assert json.loads(service.asked[0].content) == {
        "log_path": str(LOG),
        "user": "alice",
        "job_id": "1001",
        "cycle_id": 0,
        "analysis_intent": "terminal",
    }
    assert dict(service.asked[1].url.params) == {"log_path": str(LOG), "wait": "true"}


async def test_it_never_names_a_node_even_where_the_answer_does() -> None:
    body = json.loads(json.dumps(RECORDED["completed wait=true"]["body"]))
    body["result"]["primary_failure"]["node"] = "node-002"
    assert (await ask(Service(gets=[httpx.Response(200, json=body)]))).suspects == ()


async def test_an_unknown_that_hides_a_restart_is_unknown() -> None:
    opinion = await ask(Service(gets=[recorded("completed missing file")]))
    assert RECORDED["completed missing file"]["body"]["result"]["decision"] == "RESTART"
    assert (opinion.verdict, opinion.side, opinion.note) == (Verdict.UNKNOWN, Side.UNKNOWN, "")
    assert "log_unavailable" in opinion.why


@pytest.mark.parametrize(("action", "verdict"), [("STOP", Verdict.STOP), ("CONTINUE", Verdict.UNKNOWN), ("TIMEOUT", Verdict.UNKNOWN)])
async def test_actions_are_closed_words(action: str, verdict: Verdict) -> None:
    opinion = await ask(Service(gets=[completed(recommendation={"action": action, "reason": "STOP or RESTART", "source": ""})]))
    assert (opinion.verdict, opinion.note) == (verdict, "")


@pytest.mark.parametrize("action", ["stop", "STOPPED", "DO NOT RESTART", "", None, 7, ["STOP"]])
async def test_a_word_that_is_none_of_them_is_no_opinion(action: object) -> None:
    opinion = await ask(Service(gets=[completed(recommendation={"action": action})]))
    assert opinion.verdict is Verdict.UNKNOWN
    assert "none of its documented actions" in opinion.note


async def test_a_candidate_is_not_taken_for_the_verdict() -> None:
    early = {**RECORDED["in_flight"]["body"], "candidate_recommendation": {"action": "STOP", "reason": "", "source": "deterministic"}}
    opinion = await ask(Service(gets=[httpx.Response(200, json=early), recorded("completed wait=true")]))
    assert opinion.verdict is Verdict.RESTART


@pytest.mark.parametrize(
    ("told", "side"), [("workload", Side.WORKLOAD), ("infrastructure", Side.INFRASTRUCTURE), ("unknown", Side.UNKNOWN)]
)
async def test_the_failure_domain_tells_the_side(told: str, side: Side) -> None:
    result = {**RECORDED["completed wait=true"]["body"]["result"], "failure_domain": told}
    assert (await ask(Service(gets=[completed(result=result)]))).side is side


async def test_after_a_restart_of_the_service_the_log_is_submitted_again() -> None:
    service = Service(gets=[recorded("in_flight"), recorded("get not submitted"), recorded("completed wait=true")])
    assert (await ask(service)).verdict is Verdict.RESTART
    assert service.methods == ["POST", "GET", "GET", "POST", "GET"]


async def test_a_service_that_always_forgets_is_given_up() -> None:
    service = Service(gets=[recorded("get not submitted")])
    assert "forgot the log 5 times" in (await ask(service)).note
    assert service.methods.count("POST") == 5


async def test_a_rate_limit_is_waited_out_with_growing_pauses() -> None:
    limited = httpx.Response(429, json={"error": "Rate limit exceeded: 60 per 1 minute"})
    service = Service(posts=[limited, recorded("terminal")], gets=[limited, limited, limited, limited, recorded("completed wait=true")])
    assert (await ask(service)).verdict is Verdict.RESTART
    assert service.paused == [10, 10, 20, 40, 60]


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("outside root", "NVRX_ATTRSVC_ALLOWED_ROOT"),
        ("relative path", "absolute path"),
        ("conflict job id", "let each attempt write its own"),
        ("conflict path", "job_id and cycle_id already identify a different log path"),
        ("parent missing", "mount the log's directory"),
        ("bad intent", "HTTP 422"),
    ],
)
async def test_a_refusal_is_a_note_with_the_mend(label: str, said: str) -> None:
    opinion = await ask(Service(posts=[recorded(label)]))
    assert said in opinion.note
    assert opinion.verdict is Verdict.UNKNOWN


async def test_error_codes_are_read_with_and_without_their_prefix() -> None:
    bare = httpx.Response(403, json={"error_code": "outside_root", "message": "no", "details": None})
    assert "NVRX_ATTRSVC_ALLOWED_ROOT" in (await ask(Service(posts=[bare]))).note
    forgot = httpx.Response(404, json={"error_code": "NOT_FOUND", "message": "", "details": None})
    assert (await ask(Service(gets=[forgot, recorded("completed wait=true")]))).verdict is Verdict.RESTART


async def test_a_404_of_another_kind_is_not_taken_for_a_restart() -> None:
    service = Service(gets=[recorded("unknown route")])
    assert "HTTP 404" in (await ask(service)).note
    assert service.methods == ["POST", "GET"]


async def test_a_failed_analysis_is_no_opinion() -> None:
    failed = completed(status="failed", result={"error": "model timed out"})
    assert (await ask(Service(gets=[failed]))).note == "its analysis failed: model timed out"


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>proxy</html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"status": "done"}),
        httpx.Response(200, json=None),
        completed(recommendation=None),
        httpx.Response(200, content=b"[" * 100_000),
        httpx.Response(500, text="oops"),
        httpx.Response(200, content=b"x" * (2 << 20)),
    ],
)
async def test_an_answer_that_makes_no_sense_is_no_opinion(answer: httpx.Response) -> None:
    opinion = await ask(Service(gets=[answer]))
    assert opinion.verdict is Verdict.UNKNOWN
    assert opinion.note


async def test_no_answer_by_the_deadline_is_no_opinion() -> None:
    async def for_ever(seconds: float) -> None:
        await asyncio.Event().wait()

    opinion = await ask(Service(gets=[recorded("in_flight")]), deadline=0.05, pause=for_ever)
    assert opinion.note == "no answer within 0.05 s"
    assert opinion.took >= timedelta(seconds=0.05)


async def test_a_service_that_is_not_there_is_given_up_after_three_tries() -> None:
    tries = 0

    def refused(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        raise httpx.ConnectError("All connection attempts failed", request=request)

    opinion = await ask(refused)
    assert "All connection attempts failed; check its url" in opinion.note
    assert tries == 3


async def test_a_service_that_goes_away_while_it_is_asked_is_given_the_time_of_a_restart() -> None:
    trouble = 6

    def restarting(request: httpx.Request) -> httpx.Response:
        nonlocal trouble
        if request.method == "POST":
            return recorded("terminal")
        trouble -= 1
        if trouble:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
        return recorded("completed wait=true")

    assert (await ask(restarting)).verdict is Verdict.RESTART


async def test_a_verdict_that_takes_longer_than_one_read_waits_is_asked_for_again() -> None:
    reads = 0

    def slow(request: httpx.Request) -> httpx.Response:
        nonlocal reads
        if request.method == "POST":
            return recorded("terminal")
        reads += 1
        if reads < 6:
            raise httpx.ReadTimeout("", request=request)
        return recorded("completed wait=true")

    opinion = await ask(slow)
    assert (opinion.verdict, reads) == (Verdict.RESTART, 6)


async def test_what_it_says_is_bounded_and_without_secrets() -> None:
    wordy = completed(recommendation={"action": "STOP", "reason": "password=hunter22 " + "x" * 5000, "source": ""})
    opinion = await ask(Service(gets=[wordy]))
    assert "hunter22" not in opinion.why
    assert len(opinion.why) <= 400


async def test_cancelling_the_question_is_not_swallowed() -> None:
    asking = asyncio.Event()

    async def for_ever(seconds: float) -> None:
        asking.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(ask(Service(gets=[recorded("in_flight")]), pause=for_ever))
    await asking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
