"""The step `attribute`: outside services are asked with what they need, and the absence of an answer is an answer."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.testing import ActivityEnvironment

from activities.attribute import Attribute, OpinionRequest
from activities.configuration import AttributionSection, AttrsvcSection, EvidenceSection, OperatorServiceSection
from activities.evidence.capture import EvidenceStore, Material
from activities.logs.paths import LogRoots
from activities.records import Opinion, Verdict
from tests.builders import ECC_LINE, a_crash, a_diagnosis, a_job, a_key, a_suspect, after, an_attempt, an_attribution, an_opt_in

Answer = Callable[[httpx.Request], httpx.Response]
BOTH = AttributionSection(
    attrsvc=AttrsvcSection(url="http://attrsvc", deadline=timedelta(seconds=0.3)),
    operator_service=OperatorServiceSection(url="http://ours", deadline=timedelta(seconds=1)),
)


class Bench:
    """A captured incident, and services that answer as the test says."""

    def __init__(self, directory: Path) -> None:
        self.runs = directory / "runs"
        self.runs.mkdir()
        self.store = EvidenceStore(EvidenceSection.model_validate({"directory": directory / "evidence"}), LogRoots([self.runs]))
        self.sent: list[httpx.Request] = []
        self.heartbeats: list[str] = []

    def capture(self) -> None:
        log = self.runs / "slurm-17.out"
        log.write_text(f"{ECC_LINE}\n")
        self.store.capture(Material(job=a_job(), logs=(log,)), key=a_key(), incident_id="i-1", captured_at=after(64))

    async def ask(self, step: str, answer: Answer, *, services: AttributionSection = BOTH, **request: Any) -> Opinion:
        def handler(asked: httpx.Request) -> httpx.Response:
            self.sent.append(asked)
            return answer(asked)

        question = OpinionRequest(
            **{
                "incident_id": "i-1",
                "attempt": an_attempt(restart_count=2),
                "job": a_job(stdout_path=str(self.runs / "slurm-17.out")),
                "opt_in": an_opt_in(),
                "symptom": a_crash(),
                "diagnosis": a_diagnosis(),
                "attribution": an_attribution(a_suspect()),
                **request,
            }
        )
        environment = ActivityEnvironment()
        environment.on_heartbeat = lambda *details: self.heartbeats.append(details[0])
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            attribute = Attribute(services, self.store, client)
            opinion: Opinion = await environment.run(getattr(attribute, step), question)
        return opinion


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


async def test_the_operators_service_is_told_the_captured_excerpts_and_the_attempt(bench: Bench) -> None:
    bench.capture()
    opinion = await bench.ask(
        "ask_operator_service", lambda request: httpx.Response(200, json={"verdict": "RESTART", "domain": "hardware"})
    )
    assert (opinion.source, opinion.verdict) == ("operator_service", Verdict.RESTART)
    body = bench.sent[0].content.decode()
    assert "uncorrectable ECC error" in body
    assert '"restart_count":2' in body.replace(" ", "")
    assert bench.heartbeats, "a worker that dies while it asks is noticed"


async def test_without_captured_evidence_the_operators_service_is_asked_all_the_same(bench: Bench) -> None:
    await bench.ask("ask_operator_service", lambda request: httpx.Response(204))
    assert '"excerpts":[]' in bench.sent[0].content.decode().replace(" ", "")


@pytest.mark.parametrize("step", ["ask_attrsvc", "ask_operator_service"])
async def test_a_service_that_cannot_be_reached_is_an_opinion_with_a_note(bench: Bench, step: str) -> None:
    opinion = await bench.ask(step, broken)
    assert opinion.verdict is Verdict.UNKNOWN
    assert opinion.note


@pytest.mark.parametrize(
    ("step", "key"), [("ask_attrsvc", "attribution.attrsvc.url"), ("ask_operator_service", "attribution.operator_service.url")]
)
async def test_a_service_this_worker_does_not_know_is_named_with_the_key_to_set(bench: Bench, step: str, key: str) -> None:
    opinion = await bench.ask(step, broken, services=AttributionSection())
    assert key in opinion.note
    assert bench.sent == []


async def test_attrsvc_is_not_asked_about_a_log_nobody_knows(bench: Bench) -> None:
    opinion = await bench.ask("ask_attrsvc", broken, job=a_job(stdout_path=None))
    assert "log path is not known" in opinion.note
    assert bench.sent == []


async def test_attrsvc_is_asked_about_the_log_the_job_itself_names(bench: Bench) -> None:
    await bench.ask("ask_attrsvc", lambda request: httpx.Response(500), opt_in=an_opt_in(log="/runs/rank0.log"))
    assert "/runs/rank0.log" in bench.sent[0].content.decode()


async def test_a_node_that_the_attempt_never_had_is_left_out_of_an_opinion_and_said_so(bench: Bench) -> None:
    suspects = [{"node": "node-009", "confidence": 0.9}, {"node": "node-002", "confidence": 0.9}, {"rank": 3, "confidence": 0.5}]
    answer = {"verdict": "RESTART", "suspects": suspects, "why": "the log says so"}
    opinion = await bench.ask("ask_operator_service", lambda request: httpx.Response(200, json=answer))
    assert [(suspect.node, suspect.rank) for suspect in opinion.suspects] == [("node-002", None), (None, 3)]
    assert opinion.why == "the log says so; it suspects node-009, where this attempt did not run: left out"
