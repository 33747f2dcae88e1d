"""Redaction: what is taken out, what stays, and that nothing slips through between two blocks."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.records import Attribution, Diagnosis, Domain, Judgement, PrimaryEvent, SignalSource, Suspect, SymptomKind
from activities.redaction import Redactor, redact, redact_bytes, redact_record
from tests.builders import NOON

TOKEN = "Zx9" * 12

SECRETS = {
    "AWS access key": ("AKIA" + "ABCD1234" * 2, "key {}"),
    "AWS secret": ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY={}"),
    "Hugging Face": ("hf_" + TOKEN, "Login with {} failed"),
    "GitHub": ("ghp_" + TOKEN, "clone https://{}@github.com/x/y"),
    "GitHub fine": ("github_pat_" + TOKEN, "{}"),
    "GitLab": ("glpat-" + TOKEN, "{}"),
    "OpenAI": ("sk-proj-" + TOKEN, "openai key {}."),
    "NVIDIA": ("nvapi-" + TOKEN, "{}"),
    "Slack": ("xoxb-1234-" + TOKEN, "{}"),
    "Slack webhook": ("T000/B000/" + TOKEN, "https://hooks.slack.com/services/{}"),
    "Google": ("AIza" + TOKEN, "{}"),
    "W&B": ("0123456789abcdef" * 2 + "01234567", "wandb login {}"),
    "W&B variable": ("0123456789abcdef" * 2 + "01234567", "export WANDB_API_KEY='{}'"),
    "JWT": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyb290In0.c2ln", "slurm {}"),
    "Slurm's JWT": ("opaque-value-1", "SLURM_JWT={}"),
    "URL": ("alice:hunter2", "postgres://{}@db:5432/x"),
    "URL in quotes": ("hunter2pass", "index_url = 'https://bob:{}@pypi.example.org/simple'"),
    "signed URL": ("0a1b2c3d4e5f", "GET https://b.s3.amazonaws.com/k?X-Amz-Signature={}&X-Amz-Date=1"),
    "bearer header": ("abcdefghijklmnop", "Authorization: Bearer {}"),
    "basic header": ("dXNlcjpwYXNz", "curl -H 'authorization: Basic {}' https://x"),
    "header in a dictionary": ("abcdefghijkl", "{{'Authorization': 'token {}'}}"),
    "password": ("hunter22", "password={}"),
    "password in YAML": ("hunter22", "  db_password: {}"),
    "password in JSON": ("hunter22", '{{"password": "{}"}}'),
    "option": ("abcd1234efgh", "srun train --api-key {} --lr 1e-4"),
    "option at the start": ("abcd1234efgh", "--hf-token={}"),
    "netrc": ("hunter2", "machine api.wandb.ai login user password {}"),
    "Azure": ("abcDEF123+/==", "AccountName=x;AccountKey={};Endpoint=y"),
    "cookie": ("session=abcdef123456", "Set-Cookie: {}"),
    "variable": ("abcd1234", "export MY_SERVICE_TOKEN={}"),
}

STAY = [
    "iteration 5/ 10 | consumed tokens: 146248925184 | tokens per second: 5120",
    "pad_token=0 eos_token: 50256 bos_token_id=1 special_tokens_map.json",
    "--tokenizer-type GPT2BPETokenizer --max-tokens 4096",
    "password: None",
    "token=$HF_TOKEN api_key=${API_KEY}",
    "api_key=<your key>",
    "KeyError: 'password'",
    "NVRM: Xid (PCI:0000:4f:00): 79, pid=1234, GPU has fallen off the bus.",
    "http://127.0.0.1:8000/logs?log_path=/x&wait=true",
    '[rank3]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1501, in _call_impl',
    "ssh://node-001:22/ and file:///shared/run:1@2",
    "task-scheduler-with-a-rather-long-name",
    "commit 0123456789abcdef0123456789abcdef01234567",
]


@pytest.mark.parametrize("kind", SECRETS)
def test_secrets_go_and_their_surroundings_stay(kind: str) -> None:
    secret, line = SECRETS[kind]
    said = redact(f"before\n{line.format(secret)}\nafter\n")
    assert secret not in said
    assert "[redacted: " in said
    assert said.startswith("before\n")
    assert said.endswith("\nafter\n")
    assert redact(said) == said


@pytest.mark.parametrize("line", STAY)
def test_evidence_that_looks_like_a_secret_stays(line: str) -> None:
    assert redact(line) == line


def test_several_secrets_of_one_line_all_go_and_are_counted() -> None:
    redacted = redact_bytes(f"a=hf_{TOKEN} b=ghp_{TOKEN} c=hf_{TOKEN} password=hunter22".encode())
    assert redacted.secrets == 4
    assert TOKEN.encode() not in redacted.data


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + "QUJDREVGR0hJSktMTU5PUA==\n" * 40 + "-----END OPENSSH PRIVATE KEY-----\n"


def test_a_private_key_goes_whole() -> None:
    assert redact(f"a\n{KEY}b\n{KEY}c\n") == "a\n[redacted: private key]\nb\n[redacted: private key]\nc\n"


@given(st.integers(0, len(KEY) + 4))
def test_a_private_key_cut_between_two_blocks_goes_whole(position: int) -> None:
    text = f"a\n{KEY}b\n".encode()
    cut = text.find(b"\n", position) + 1 or len(text)
    redactor = Redactor()
    said = redactor.feed(text[:cut]).data + redactor.feed(text[cut:]).data
    assert b"QUJDREVG" not in said
    assert said.endswith(b"b\n")


@given(st.integers(1, 38))
def test_a_private_key_whose_beginning_was_cut_off_still_goes(line: int) -> None:
    assert "QUJDREVG" not in redact("\n".join(KEY.split("\n")[line:]))


def test_a_key_without_an_end_takes_the_rest_with_it() -> None:
    assert redact("a\n-----BEGIN RSA PRIVATE KEY-----\nQUJD\n") == "a\n[redacted: private key]"


@given(st.binary(max_size=2000))
def test_any_bytes_are_answered_and_a_second_time_changes_nothing(data: bytes) -> None:
    once = redact_bytes(data).data
    assert redact_bytes(once).data == once


@given(st.text(alphabet="ab=:@/ \"'-\n", max_size=300), st.sampled_from(sorted(SECRETS)))
def test_secrets_go_whatever_lines_stand_around_them(noise: str, kind: str) -> None:
    secret, line = SECRETS[kind]
    assert secret not in redact(f"{noise}\n{line.format(secret)}\n{noise}")


def test_a_log_of_nothing_but_hits_and_one_of_none_take_bounded_time() -> None:
    started = time.monotonic()
    redact_bytes(b"password=hunter22 " * 40_000)
    redact_bytes(b"password=hunter22\n" * 40_000)
    redact_bytes(b"x" * 4_000_000)
    redact_bytes(b"=" * 400_000 + b"password" * 40_000)
    assert time.monotonic() - started < 20


def test_a_record_loses_the_secrets_of_all_its_texts_and_nothing_else() -> None:
    """What a step returns stands in the workflow history for as long as the server keeps it."""
    secret = "https://alice:hunter22@registry.example/v2"
    primary = PrimaryEvent(source=SignalSource.LOG, text=f"cannot pull from {secret}", line=7, node="node-001", at=NOON)
    diagnosis = Diagnosis(
        domain=Domain.SYSTEM_SOFTWARE, cause="x", confidence=0.5, primary=primary, lines=(secret,), summary=f"failed: {secret}"
    )
    suspect = Suspect(node="node-001", confidence=0.5, because=(secret,))
    judgement = Judgement(symptom=SymptomKind.CRASH, diagnosis=diagnosis, attribution=Attribution(suspects=(suspect,)))
    left = redact_record(judgement)
    assert "hunter22" not in left.model_dump_json()
    assert left.model_dump_json().count("[redacted: URL credentials]") == 4
    assert left.diagnosis.primary is not None
    assert (left.diagnosis.domain, left.diagnosis.primary.at, left.symptom) == (Domain.SYSTEM_SOFTWARE, NOON, SymptomKind.CRASH)
