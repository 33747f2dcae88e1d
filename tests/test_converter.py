"""The gate to Temporal: what passes it into a history holds no secret, and what holds none passes as it is."""

import base64
import json
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from tests.builders import a_job
from tests.workflows.conftest import packaged_test_server
from workers.converter import data_converter, redacted_payload

TOKEN = "hf_" + "Zx9" * 12
HISTORIES = Path(__file__).parent / "histories"


def a_payload(value: object) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


async def test_records_become_payloads_without_their_secrets() -> None:
    [payload] = await data_converter.encode([a_job(name=f"train-{TOKEN}", comment=f"HF_TOKEN={TOKEN}")])
    assert TOKEN.encode() not in payload.data
    assert json.loads(payload.data)["name"] == "train-[redacted: Hugging Face token]"


@pytest.mark.parametrize("value", [{"a": "é\u001b[0m plain"}, [1, None, "x"], "tokens: 5120", 7])
def test_a_payload_without_secrets_stays_byte_for_byte(value: object) -> None:
    payload = a_payload(value)
    assert redacted_payload(payload) is payload


def test_a_token_behind_what_json_escapes_is_seen() -> None:
    payload = redacted_payload(a_payload({"text": f"first\n{TOKEN}\x1b[0m"}))
    assert TOKEN.encode() not in payload.data


@pytest.mark.parametrize(
    "payload", [Payload(metadata={"encoding": b"binary/plain"}, data=b"\xff"), Payload(metadata={"encoding": b"json/plain"}, data=b"{")]
)
def test_what_is_no_json_passes(payload: Payload) -> None:
    assert redacted_payload(payload) is payload


def test_nothing_in_the_recorded_histories_is_taken_for_a_secret() -> None:
    """Digests, hashes, workflow and run IDs, node names, policies: 600 payloads of every step."""

    def payloads(value: object) -> list[Payload]:
        match value:
            case {"metadata": {"encoding": _}, "data": str(data)}:
                return [Payload(metadata={"encoding": b"json/plain"}, data=base64.b64decode(data))]
            case dict():
                return [found for item in value.values() for found in payloads(item)]
            case list():
                return [found for item in value for found in payloads(item)]
            case _:
                return []

    found = [payload for path in sorted(HISTORIES.glob("*.json")) for payload in payloads(json.loads(path.read_text()))]
    assert len(found) > 100
    assert all(redacted_payload(payload) is payload for payload in found)


async def test_an_errors_words_stack_and_causes_hold_no_secret() -> None:
    failure = Failure()
    try:
        try:
            raise ValueError(f"cannot pull with {TOKEN}")
        except ValueError as cause:
            raise ApplicationError("failed: password=hunter22", {"token": TOKEN}) from cause
    except ApplicationError as error:
        await data_converter.encode_failure(error, failure)
    text = failure.SerializeToString()
    assert TOKEN.encode() not in text
    assert b"hunter22" not in text
    assert failure.message == "failed: password=[redacted: password]"
    assert failure.cause.message == "cannot pull with [redacted: Hugging Face token]"


@activity.defn(name="told")
async def told(text: str) -> str:
    activity.heartbeat(f"beats {text}")
    return f"told {text}"


@activity.defn(name="fails")
async def fails(text: str) -> None:
    raise ApplicationError(f"fails {text}", non_retryable=True)


@workflow.defn(name="Tells", sandboxed=False)
class Tells:
    """Passes a text through every way into a history."""

    @workflow.run
    async def run(self, text: str) -> str:
        soon = timedelta(seconds=10)
        workflow.set_current_details(f"details {text}")
        workflow.upsert_memo({"note": f"memo {text}"})
        await workflow.sleep(1, summary=f"timer {text}")
        await workflow.execute_activity("told", text, start_to_close_timeout=soon, summary=f"activity {text}")
        await workflow.execute_activity("fails", text, start_to_close_timeout=soon)
        return text


async def test_no_way_into_a_history_lets_a_secret_through() -> None:
    async with (
        await WorkflowEnvironment.start_time_skipping(
            data_converter=data_converter, test_server_existing_path=packaged_test_server()
        ) as environment,
        Worker(environment.client, task_queue="q", workflows=[Tells], activities=[told, fails]),
    ):
        handle = await environment.client.start_workflow(
            "Tells", TOKEN, id="tells", task_queue="q", memo={"job": f"7 {TOKEN}"}, static_summary=f"7 {TOKEN}"
        )
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        history = await handle.fetch_history()
        described = await handle.describe()
    raw = b"".join(event.SerializeToString() for event in history.events) + described.raw_description.SerializeToString()
    assert raw.count(b"[redacted: Hugging Face token]") >= 8
    assert TOKEN.encode() not in raw
