"""The client against NVIDIA's real attribution service, where one runs: what it is told there and what the service says back.

Set BACKSTAY_ATTRSVC_URL to the address of an attrsvc that runs in deterministic mode
(NVRX_ATTRSVC_RESTART_AGENT_ENRICHMENT_ENABLED=false) on this machine, and BACKSTAY_ATTRSVC_ROOT to its NVRX_ATTRSVC_ALLOWED_ROOT if that
is not the directory of temporary files. A run takes about two minutes: the service lets a log be quiet before it judges it.
"""

import asyncio
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from activities.opinions.asking import a_client
from activities.opinions.attrsvc import AttributionService
from activities.records import Opinion, Verdict

URL = os.environ.get("BACKSTAY_ATTRSVC_URL", "")
ROOT = Path(os.environ.get("BACKSTAY_ATTRSVC_ROOT", tempfile.gettempdir()))
OUTSIDE = Path("/etc/hostname")

pytestmark = [
    pytest.mark.skipif(not URL, reason="BACKSTAY_ATTRSVC_URL names no running attribution service"),
    pytest.mark.timeout(300),
]

OUT_OF_MEMORY = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/data/train.py", line 402, in main\n'
    "[rank3]:     loss.backward()\n"
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB.\n"
)
FELL_OFF_THE_BUS = (
    "iteration 100/ 1000 | loss 2.1\n"
    "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"
    "[rank5]: RuntimeError: CUDA error: unspecified launch failure\n"
)
CLEAN_END = "".join(f"iteration {step}/ 100 | loss 2.1\n" for step in range(1, 101)) + "training finished\n"


class Forgetful(httpx.AsyncBaseTransport):
    """Keeps the first submission from the service, which is what its memory looks like after a restart; passes on all else."""

    def __init__(self) -> None:
        self._real = httpx.AsyncHTTPTransport()
        self.answers: list[tuple[str, int]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = httpx.Response(200, json={}) if not self.answers else await self._real.handle_async_request(request)
        self.answers.append((request.method, response.status_code))
        return response

    async def aclose(self) -> None:
        await self._real.aclose()


async def ask(client: httpx.AsyncClient, path: Path, *, job: str = "", cycle: int = 0) -> Opinion:
    service = AttributionService(client, URL, deadline=timedelta(seconds=120))
    return await service.ask(log_path=path, job_id=job or uuid.uuid4().hex, cycle=cycle, user="alice")


async def asked_all(directory: Path) -> tuple[Mapping[str, Opinion], list[tuple[str, int]]]:
    """Every question at once, for each waits 10 s and more: the opinions by name, and the answers of the forgetful service."""
    texts = {"memory": OUT_OF_MEMORY, "xid": FELL_OFF_THE_BUS, "clean": CLEAN_END, "empty": "", "forgotten": OUT_OF_MEMORY}
    paths = {name: directory / f"{name}.log" for name in texts}
    for name, path in paths.items():
        path.write_text(texts[name])
    missing, folder = directory / "missing.log", directory / "folder.log"
    folder.mkdir()
    forgetful = Forgetful()
    job = uuid.uuid4().hex
    async with a_client() as client, httpx.AsyncClient(transport=forgetful) as with_restart:
        names = ("memory", "xid", "clean", "empty", "missing", "folder", "no directory", "outside", "forgotten")
        opinions = await asyncio.gather(
            ask(client, paths["memory"], job=job),
            *(ask(client, path) for path in (paths["xid"], paths["clean"], paths["empty"], missing, folder)),
            ask(client, directory / "none" / "run.log"),
            ask(client, OUTSIDE),
            ask(with_restart, paths["forgotten"]),
        )
        again = await ask(client, paths["memory"], job=job)
        second = await ask(client, paths["memory"], job=job, cycle=1)
    return {**dict(zip(names, opinions, strict=True)), "again": again, "second attempt": second}, forgetful.answers


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[Mapping[str, Opinion], list[tuple[str, int]]]]:
    with tempfile.TemporaryDirectory(dir=ROOT, prefix="backstay-attrsvc-") as directory:
        yield asyncio.run(asked_all(Path(directory)))


Told = tuple[Mapping[str, Opinion], list[tuple[str, int]]]


@pytest.mark.parametrize("name", ["memory", "xid"])
def test_a_failure_gets_a_verdict_with_a_cause_and_no_suspect(told: Told, name: str) -> None:
    opinion = told[0][name]
    assert (opinion.note, opinion.suspects) == ("", ())
    assert opinion.verdict in (Verdict.STOP, Verdict.RESTART)
    assert opinion.cause
    assert opinion.why


def test_an_xid_is_told_as_a_hardware_fault(told: Told) -> None:
    assert told[0]["xid"].cause == "gpu_hardware_fault"


@pytest.mark.parametrize(
    ("name", "why"), [("clean", "no_primary_failure"), ("empty", "log path is empty"), ("missing", "log path is missing")]
)
def test_where_there_is_nothing_to_judge_it_says_unknown(told: Told, name: str, why: str) -> None:
    opinion = told[0][name]
    assert (opinion.verdict, opinion.note) == (Verdict.UNKNOWN, "")
    assert why in opinion.why


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("no directory", "mount the log's directory"),
        ("outside", "NVRX_ATTRSVC_ALLOWED_ROOT"),
        ("folder", "its analysis failed"),
        ("second attempt", "with %r in --output"),
    ],
)
def test_a_refusal_is_no_opinion_and_names_the_mend(told: Told, name: str, mend: str) -> None:
    opinion = told[0][name]
    assert opinion.verdict is Verdict.UNKNOWN
    assert mend in opinion.note


def test_the_same_attempt_asked_for_again_gets_the_same_verdict_at_once(told: Told) -> None:
    first, again = told[0]["memory"], told[0]["again"]
    assert (again.verdict, again.cause, again.why) == (first.verdict, first.cause, first.why)
    assert again.took < timedelta(seconds=5)


def test_a_service_that_forgot_the_log_is_told_it_again(told: Told) -> None:
    opinions, answers = told
    assert answers[:3] == [("POST", 200), ("GET", 404), ("POST", 200)]
    assert opinions["forgotten"].verdict in (Verdict.STOP, Verdict.RESTART)


async def test_many_failures_at_once_stay_within_its_rate_limit() -> None:
    statuses: list[int] = []

    async def noted(response: httpx.Response) -> None:
        statuses.append(response.status_code)

    with tempfile.TemporaryDirectory(dir=ROOT, prefix="backstay-attrsvc-") as directory:
        paths = [Path(directory) / f"{number}.log" for number in range(12)]
        for path in paths:
            path.write_text(OUT_OF_MEMORY)
        async with httpx.AsyncClient(event_hooks={"response": [noted]}) as client:
            opinions = await asyncio.gather(*(ask(client, path) for path in paths))
    assert {opinion.note for opinion in opinions} == {""}
    assert 429 not in statuses
