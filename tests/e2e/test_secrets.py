"""No secret of a job's reaches what outlives it: a recovery on real Slurm, secrets planted everywhere, every trace of it read."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from activities.cluster_desk import cluster_workflow_id
from tests.e2e.site import Site, has_recovered

MIXED = "Ab3dEf6hIj9lMn2pQr5tUv8xYz1B"
HEX = "0123456789abcdef"

# What is planted, and the part of it that nobody must find again.
IN_NAME = f"hf_{MIXED}nameXY"
IN_COMMENT = "comment-7-secret"
IN_SCRIPT = {
    "export WANDB_API_KEY={}": HEX * 2 + "01234567",
    "export HF_TOKEN='{}'": f"hf_{MIXED}script",
    "# docker login -u bob -p {} nvcr.io": "docker-3-login",
    "# curl -u bob:{} https://example.org": "curl-4-password",
    "# sshpass -p {} ssh node-001": "sshpass-5-pass",
    "# python train.py --wandb-key {}": "local-6-wandb-key",
}
IN_LOG = {
    "os.environ['WANDB_API_KEY'] = '{}'": "0a1b2c3d" * 5,
    'wandb.login(key="{}")': "1b2c3d4e" * 5,
    '{{"SessionToken": "{}"}}': "FwoGZXIvYXdzEBYaD1log",
    '{{"accessToken": "{}"}}': "opaque-8-access",
    '{{"auth": "{}"}}': "dXNlcjpsb2ctc2VjcmV0MQ==",
    "token: {}": "abcdef.0123456789abcdef",
    "client-key-data: {}": "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlF",
    "https://discord.com/api/webhooks/123456789012345678/{}": f"discord{MIXED}",
    "https://api.telegram.org/bot{}/sendMessage": f"123456789:AA{MIXED}abcde",
    "postgres://bob:{}@db.example/runs": "p@ss-9-word",
    "using {} now": f"dapi{HEX * 2}",
    "npm: {}": f"npm_{MIXED}AbCdEfGh",
    "vault: {}": f"hvs.CAESI{MIXED}{MIXED}",
    "\x1b[31mcolour {}\x1b[0m": "hf_aBcDeFgH\x1b[1mIjKlMnOp\x1b[0mQrStUvWxYzAbCdEfGh",
}
FATAL = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered while reading https://bob:{}@store.example/shard"
IN_FATAL = "fat@l-10-line"

PLANTED = (IN_NAME, IN_COMMENT, *IN_SCRIPT.values(), *IN_LOG.values(), "IjKlMnOp", "aBcDeFgH", IN_FATAL)


def _lines() -> str:
    return "".join(f"{line.format(secret)}\n" for line, secret in IN_LOG.items())


async def test_no_secret_reaches_history_evidence_worker_log_or_any_answer(site: Site, tmp_path: Path) -> None:
    worker = await site.start_worker()
    said_at_the_start = tmp_path / "said.txt"
    said_at_the_start.write_text(_lines())
    script = "\n".join(line.format(secret) for line, secret in IN_SCRIPT.items())
    run = await site.submit(
        comment=f"backstay:mode=auto,checkpoints={{directory}}/checkpoints MY_API_KEY={IN_COMMENT}",
        directives=[f"--job-name=train-{IN_NAME}\n{script}\ncat {said_at_the_start}"],
    )
    before = await site.training(run)
    with run.log.open("a") as log:
        log.write(f"{_lines()}{FATAL.format(IN_FATAL)}\n")
    run.break_with({"kind": "crash", "node": before.attempt.nodes[-1]})
    incident = await site.ended_incident(run)
    assert has_recovered(incident), incident.outcome

    said = [await site.command(command, run.job_id, "--json") for command in ("show", "audit")]
    said += [await site.command("jobs", "--json"), await site.command("show", run.job_id), await site.command("jobs")]
    traces = {
        **{f"history of {name}": text for name, text in await _histories(site, run.job_id)},
        **{f"answer {number}": f"{answer.out}\n{answer.err}" for number, answer in enumerate(said)},
        **{str(path): path.read_text(errors="replace") for path in _files(site.directory / "evidence")},
        "worker's log": worker.log.read_text(errors="replace"),
        "description": await _description(site, run.job_id),
    }
    found = [(place, secret) for place, text in traces.items() for secret in PLANTED if secret in text]
    assert found == []
    # And the planted lines are there, without what was secret in them.
    kept = "".join(text for place, text in traces.items() if place.endswith(".txt"))
    assert kept.count("wandb.login(key=") >= 1
    assert "uncorrectable ECC error encountered while reading https://[redacted: URL credentials]@store.example/shard" in kept
    assert "docker login -u bob -p [redacted: " in "".join(traces.values())
    assert "train-[redacted: Hugging Face token]" in traces["description"]


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


async def _histories(site: Site, job_id: str) -> list[tuple[str, str]]:
    client = await site.client()
    cluster = await client.get_workflow_handle(cluster_workflow_id(site.cluster)).fetch_history()
    named = [(f"run {number}", history) for number, history in enumerate(await site.histories(job_id))]
    return [(name, "\n".join(_texts(json.loads(history.to_json())))) for name, history in (*named, ("the cluster", cluster))]


def _texts(value: Any) -> Iterator[str]:
    """Every text of an exported history; payloads are base64 in it."""
    match value:
        case {"metadata": {"encoding": _}, "data": str(data)}:
            yield base64.b64decode(data).decode(errors="replace")
        case dict():
            for key, item in value.items():
                yield key
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)
        case _:
            yield str(value)


async def _description(site: Site, job_id: str) -> str:
    described = await (await site.handle(job_id)).describe()
    return f"{described.raw_description}\n{await described.memo()}\n{await described.static_summary()}"
