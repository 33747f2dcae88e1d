"""The operator's own service: the documented contract, kept from both sides."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from activities.opinions.asking import a_client
from activities.opinions.http import OperatorService, OpinionQuestion
from activities.records import Domain, Opinion, SignalSource, SymptomKind, Verdict
from tests.builders import a_crash, a_diagnosis, a_job, a_suspect, an_attribution, an_excerpt
from tests.opinions.example_service import TOKEN, served

CONTRACT = YAML(typ="safe", pure=True).load((Path(__file__).parents[2] / "deploy" / "opinion.openapi.yaml").read_text())
SCHEMAS = CONTRACT["components"]["schemas"]
OPERATION = CONTRACT["paths"]["/v1/opinion"]["post"]

Answer = Callable[[httpx.Request], httpx.Response]


def a_question(**changes: Any) -> OpinionQuestion:
    defaults: dict[str, Any] = {
        "cluster": "alpha",
        "incident_id": "17-1",
        "job": a_job(),
        "symptom": a_crash(),
        "diagnosis": a_diagnosis(),
        "attribution": an_attribution(a_suspect()),
        "excerpts": (an_excerpt(),),
    }
    return OpinionQuestion(**{**defaults, **changes})


async def ask(answer: httpx.Response | Answer, *, question: OpinionQuestion | None = None, deadline: float = 20, **options: Any) -> Opinion:
    def handler(request: httpx.Request) -> httpx.Response:
        return answer(request) if callable(answer) else answer

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
        service = OperatorService(client, "http://diagnosis", deadline=timedelta(seconds=deadline), **options)
        return await service.ask(question or a_question())


async def test_the_contracts_own_example_is_an_opinion() -> None:
    example = OPERATION["responses"]["200"]["content"]["application/json"]["example"]
    opinion = await ask(httpx.Response(200, json=example))
    assert (opinion.verdict, opinion.domain, opinion.cause, opinion.note) == (Verdict.RESTART, Domain.HARDWARE, "ecc_uncorrectable", "")
    assert [suspect.node for suspect in opinion.suspects] == ["node-002"]
    assert opinion.source == "operator_service"


async def test_what_is_sent_is_what_the_contract_says() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(204)

    await ask(answer)
    question, schema = json.loads(sent[0].content), SCHEMAS["OpinionQuestion"]
    assert str(sent[0].url) == "http://diagnosis/v1/opinion"
    assert set(question) == set(schema["required"]) == set(schema["properties"])
    for name in ("job", "symptom", "diagnosis", "attribution"):
        assert set(schema["properties"][name]["properties"]) <= set(question[name]), name
    assert "Authorization" not in sent[0].headers


def test_the_contracts_closed_words_are_ours() -> None:
    assert SCHEMAS["Domain"]["enum"] == [domain.value for domain in Domain]
    assert SCHEMAS["OpinionAnswer"]["properties"]["verdict"]["enum"] == [verdict.value for verdict in Verdict]
    assert SCHEMAS["OpinionQuestion"]["properties"]["symptom"]["properties"]["kind"]["enum"] == [kind.value for kind in SymptomKind]
    sources = SCHEMAS["OpinionQuestion"]["properties"]["excerpts"]["items"]["properties"]["source"]["enum"]
    assert sources == [source.value for source in SignalSource]


async def test_a_real_service_on_loopback_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # whatever proxy this machine's environment names
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with served() as url:
        async with a_client() as client:
            service = OperatorService(client, url, deadline=timedelta(seconds=20), token_file=token)
            opinion = await service.ask(a_question())
            assert (opinion.verdict, opinion.domain) == (Verdict.RESTART, Domain.HARDWARE)
            assert opinion.suspects[0].because == ("second uncorrectable error this week",)
            nothing = await service.ask(a_question(job=a_job(nodes=("node-009",))))
            assert (nothing.verdict, nothing.note) == (Verdict.UNKNOWN, "")
            token.write_text("wrong")
            assert (await service.ask(a_question())).note == "refused with HTTP 401: token wanted"
    async with a_client() as client:
        gone = await OperatorService(client, url, deadline=timedelta(seconds=20)).ask(a_question())
    assert "cannot be asked" in gone.note


async def test_secrets_are_taken_out_before_anything_is_sent() -> None:
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(204)

    secret = "hf_" + "Q7" * 17
    question = a_question(job=a_job(comment=f"password={secret}"), excerpts=(an_excerpt(f"Set-Cookie: {secret}\nnext"),))
    await ask(answer, question=question)
    assert secret.encode() not in sent[0]
    assert json.loads(sent[0])["excerpts"][0]["text"] == "Set-Cookie: [redacted: Hugging Face token]\nnext"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"verdict": "stop"}, "verdict"),
        ({"verdict": "RESTART, do not STOP"}, "verdict"),
        ({}, "verdict"),
        ({"verdict": "STOP", "domain": "gpu"}, "domain"),
        ({"verdict": "STOP", "suspects": [{"node": "node-002", "confidence": 7}]}, "suspects.0.confidence"),
        ({"verdict": "STOP", "suspects": [{"node": "n" * 300, "confidence": 0.5}]}, "suspects.0.node"),
        ({"verdict": "STOP", "why": "x" * 20_000}, "why"),
        ([], "the answer"),
        (None, "the answer"),
    ],
)
async def test_an_answer_against_the_contract_is_no_opinion_and_says_where(body: object, place: str) -> None:
    opinion = await ask(httpx.Response(200, json=body))
    assert opinion.verdict is Verdict.UNKNOWN
    assert opinion.note.startswith(f"answered against the contract: {place}: ")
    assert opinion.suspects == ()


async def test_fields_the_contract_does_not_list_are_ignored() -> None:
    assert (await ask(httpx.Response(200, json={"verdict": "STOP", "new": 1}))).verdict is Verdict.STOP


async def test_nothing_to_say_is_noted() -> None:
    assert (await ask(httpx.Response(204))).note == "has nothing to say"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_service_is_asked_again_after_the_time_it_names(status: int) -> None:
    answers = [httpx.Response(status, headers={"Retry-After": "7"}), httpx.Response(status), httpx.Response(200, json={"verdict": "STOP"})]
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    assert (await ask(lambda _: answers.pop(0), pause=pause)).verdict is Verdict.STOP
    assert paused == [7, 1]


async def test_a_service_that_stays_busy_costs_its_deadline_only() -> None:
    async def pause(seconds: float) -> None:
        await asyncio.Event().wait()

    opinion = await ask(httpx.Response(503), deadline=0.05, pause=pause)
    assert opinion.note == "no answer within 0.05 s"


async def test_a_redirect_is_not_followed() -> None:
    opinion = await ask(httpx.Response(307, headers={"Location": "http://elsewhere/"}))
    assert opinion.note == "refused with HTTP 307"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", "Käse".encode()])
async def test_a_token_that_cannot_be_read_is_a_note(tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    assert "token_file" in (await ask(httpx.Response(204), token_file=token)).note


async def test_an_address_that_is_none_is_a_note() -> None:
    async with a_client() as client:
        for url in ("nonsense", "http://[", "ftp://x", "http://x:99999999"):
            assert "cannot be asked" in (await OperatorService(client, url, deadline=timedelta(seconds=5)).ask(a_question())).note
