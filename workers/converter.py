"""How records and errors become payloads of a history: as readable JSON, and without secrets. `client.py` connects with it.

The one gate that everything passes on its way to Temporal (inputs, results, heartbeats, summaries, memos, answers to queries, errors), so
that no room has to remember it. What comes back is read as it stands.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import orjson
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadCodec, PayloadConverter

from activities.redaction import redact, redact_value

_JSON = b"json/"


class _WithoutSecrets(PayloadCodec):
    """Redacts every text in JSON payloads; leaves a payload without secrets as it is, byte for byte."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [redacted_payload(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


class _ErrorsWithoutSecrets(DefaultFailureConverter):
    """An error's message and stack are no payload, so that no codec sees them."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        super().to_failure(exception, payload_converter, failure)
        each = failure
        while True:
            each.message = redact(each.message)
            each.stack_trace = redact(each.stack_trace)
            if not each.HasField("cause"):
                return
            each = each.cause


def redacted_payload(payload: Payload) -> Payload:
    """The payload without secrets; itself where it holds none or is no JSON."""
    if not payload.metadata.get("encoding", b"").startswith(_JSON):
        return payload
    try:
        value = orjson.loads(payload.data)
    except orjson.JSONDecodeError:
        return payload
    left = redact_value(value)
    if left == value:
        return payload
    redacted = copy.copy(payload)
    redacted.data = orjson.dumps(left)
    return redacted


data_converter = replace(pydantic_data_converter, payload_codec=_WithoutSecrets(), failure_converter_class=_ErrorsWithoutSecrets)
"""The pydantic data converter, behind the gate."""
