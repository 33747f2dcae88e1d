"""Redaction: what is taken out, what stays, and that nothing slips through between two blocks."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.redaction import redact, redact_bytes, redact_part

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

HEX = "0123456789abcdef"
W_AND_B = HEX * 2 + "01234567"
MIXED = "Ab3dEf6hIj9lMn2pQr5tUv8xYz1B"

BY_PLACE = {
    "environment in Python": (W_AND_B, "os.environ['WANDB_API_KEY'] = '{}'"),
    "environment in Python, double quotes": (W_AND_B, 'os.environ["WANDB_API_KEY"]="{}"'),
    "setdefault": (W_AND_B, 'os.environ.setdefault("WANDB_API_KEY", "{}")'),
    "putenv": ("opaque-1-value", "os.putenv('MY_TOKEN', '{}')"),
    "csh": ("opaque-1-value", "setenv HF_TOKEN {}"),
    "fish": ("opaque-1-value", "set -gx HF_TOKEN {}"),
    "Dockerfile": ("opaque-1-value", "ENV HF_TOKEN {}"),
    "aws configure": ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws configure set aws_secret_access_key {}"),
    "sbatch --export": ("opaque-1-value", "#SBATCH --export=ALL,MY_API_KEY={},LEVEL=2"),
    "a comma in a shell's word": ("one,two;three", "export DB_PASSWORD='{}'"),
    "a quoted value with spaces": ("correct horse, battery staple", 'password = "{}"'),
    "wandb.login": (W_AND_B, 'wandb.login(key="{}")'),
    "wandb.login with more": ("local-" + MIXED, "wandb.login(relogin=True, key='{}', timeout=60)"),
    "login with a token": ("opaque-1-value-of-a-site", "huggingface_hub.login(token='{}')"),
    "--wandb-key": ("local-abcdef", "python train.py --wandb-key {} --lr 1e-4"),
    "--wandb-key=": ("local-abcdef", "python train.py --wandb-key={}"),
    "--wandb-key in a list": ("local-abcdef", "CalledProcessError: Command '['python', 'train.py', '--wandb-key', '{}']' returned"),
    "--wandb-key on the next line": ("local-abcdef", "python train.py --wandb-key \\\n    {} \\\n    --lr 1"),
    "SessionToken": ("FwoGZXIvYXdzEBYaD+/x==", '{{"SessionToken": "{}", "Version": 1}}'),
    "SecretAccessKey": ("wJalrXUtnFEMI/K7MDENG", '{{"SecretAccessKey":"{}"}}'),
    "accessToken": ("opaque-1-value", '{{"accessToken": "{}"}}'),
    "accessToken in JSON in JSON": ("opaque-1-value", '{{"log": "{{\\"accessToken\\": \\"{}\\"}}"}}'),
    "docker auth": ("dXNlcjpwYXNzd29yZA==", '{{"auths": {{"nvcr.io": {{"auth": "{}"}}}}}}'),
    "docker auth over lines": ("dXNlcjpwYXNzd29yZA==", '    "nvcr.io": {{\n      "auth": "{}"\n    }}'),
    "npmrc": ("opaque-1-value", "//registry.example/:_authToken={}"),
    "docker login": ("hunter22", "docker login -u bob -p {} nvcr.io"),
    "docker login, joined": ("hunter22", "sudo docker login nvcr.io -u '$oauthtoken' -p'{}'"),
    "docker login from a pipe": ("hunter22", "echo {} | docker login -u bob --password-stdin"),
    "podman login": ("hunter22", "podman login --password {} -u bob"),
    "curl -u": ("hunter22", "curl -sf -u bob:{} https://example.org"),
    "curl -u, joined": ("hunter22", "curl -ubob:{} https://example.org"),
    "curl --user": ("hunter 22", "curl --user 'bob:{}' https://example.org"),
    "curl, next line": ("hunter22", "curl https://example.org \\\n  --user bob:{}"),
    "curl header": ("opaque-1-value", "curl -H 'X-Api-Key: {}' https://example.org"),
    "GitLab header": ("opaque-1-value", 'curl --header "PRIVATE-TOKEN: {}" https://example.org'),
    "token in YAML": ("abcdef.0123456789abcdef", "  token: {}"),
    "token in quoted YAML": ("opaque-1-value", 'users:\n- user:\n    token: "{}"'),
    "token in JSON": ("opaque-1-value", '{{"token": "{}"}}'),
    "block scalar": ("opaque-1-value", "db_password: |\n    {}\nname: x"),
    "Kubernetes environment": ("opaque-1-value", "- name: HF_TOKEN\n  value: {}\n"),
    "Discord": (MIXED * 2, "https://discord.com/api/webhooks/123456789012345678/{}"),
    "Telegram": ("123456789:AA" + MIXED + "abcde", "https://api.telegram.org/bot{}/sendMessage"),
    "Telegram alone": ("123456789:AA" + MIXED + "abcde", "bot token {}"),
    "Teams": (MIXED + "@" + MIXED, "https://site.webhook.office.com/webhookb2/{}"),
    "Feishu": ("0a1b2c3d-0a1b-2c3d-4e5f-0a1b2c3d4e5f", "https://open.feishu.cn/open-apis/bot/v2/hook/{}"),
    "URL whose password holds an @": ("bob:p@ss@w0rd", "postgres://{}@db.example:5432/x"),
    "URL whose password holds a slash": ("bob:p/ss/w0rd", "postgres://{}@db.example:5432/x"),
    "proxy": ("bob:hunter22", "http_proxy={}@proxy:3128"),
    "sshpass": ("hunter22", "sshpass -p {} ssh bob@node-001"),
    "sshpass, joined": ("hunter22", "sshpass -p'{}' ssh bob@node-001"),
    "SSHPASS": ("hunter22", "SSHPASS={} sshpass -e ssh bob@node-001"),
    "mysql": ("hunter22", "mysql -h db -u bob -p{} runs"),
    "ipmitool": ("hunter22", "ipmitool -I lanplus -H node-001-bmc -U admin -P {} power cycle"),
    "client-key-data": ("LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpNSUlF", "    client-key-data: {}"),
    "base64 of a key": ("LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCk1IY0NBUUVF", "data {}"),
    "Databricks": ("dapi" + HEX * 2, "token is {}, expires"),
    "npm": ("npm_" + MIXED + "AbCdEfGh", "{}"),
    "Vault": ("hvs.CAESI" + MIXED * 3, "vault said {}"),
    "Vault in a variable": ("hvs.CAESI" + MIXED, "VAULT_TOKEN={}"),
    "Docker Hub": ("dckr_pat_" + MIXED, "{}"),
    "Stripe": ("sk_" + "live_" + MIXED, "{}"),
    "Grafana": ("glsa_" + HEX * 2 + "_0a1b2c3d", "{}"),
    "DigitalOcean": ("dop_v1_" + HEX * 4, "{}"),
    "age": ("AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" + "QPZRY9X8GF2TVDW0S3JN54KHCE", "{}"),
    "after a line break in JSON": ("hf_" + TOKEN, '{{"message": "cannot\\n{}"}}'),
    "XML": ("opaque-1-value", "<SessionToken>{}</SessionToken>"),
}

SPLIT = {
    "colours": "\x1b[1;31m",
    "a reset": "\x1b[0m",
    "a title": "\x1b]0;x\x07",
    "escaped by JSON": "\\u001b[0m",
    "a character of no width": "\u200b",
    "a soft hyphen": "\u00ad",
    "a byte order mark": "\ufeff",
    "a NUL": "\0",
    "a backspace": "\b",
    "C1": "\u009b",
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
    "revision=0123456789abcdef0123456789abcdef01234567 sha256:" + "0123456789abcdef" * 4,
    "job 4b1d2c3e-0a1b-4c5d-8e9f-0123456789ab on gpu GPU-4b1d2c3e-0a1b-4c5d-8e9f-0123456789ab",
    "docker run -u 1000:1000 --gpus all nvcr.io/nvidia/pytorch:24.01-py3@sha256:" + "0123456789abcdef" * 4,
    "docker://$oauthtoken@nvcr.io#nvidia/pytorch:24.01-py3",
    "tcp://node-001:29500/?rank=0 and env:// and store://10.0.0.1:29500",
    "GOOGLE_APPLICATION_CREDENTIALS=/home/bob/key.json SSH_PRIVATE_KEY=~/.ssh/id_rsa",
    '    client = Client(api_key=self._api_key, password=config["password"], token=get_token())',
    "def login(user: str, password: str, token: Optional[str] = None):",
    "os.environ['WANDB_API_KEY'] = os.environ['KEY'] or getpass.getpass()",
    "export HF_TOKEN=$(cat ~/.cache/huggingface/token) WANDB_API_KEY=${WANDB_API_KEY:-none}",
    "token: Internationalization",
    "--image-token <image> --pad-token 0 --eos-token '</s>' --max-tokens 4096",
    "srun -p train -u python train.py --data-key input_ids",
    "FATAL: password authentication failed for user bob",
    "slurmstepd: error: *** STEP 12.0 ON node-001 CANCELLED AT 2026-01-05T12:00:00 DUE TO NODE FAILURE ***",
    "NCCL WARN Call to ibv_modify_qp failed with error Connection timed out, dev mlx5_0:1, guid 0x98039b03009a2b3a",
    "expected a line -----BEGIN PRIVATE KEY----- in the file",
    "s.forward_prefetch_all_layers_x",
]


@pytest.mark.parametrize("kind", BY_PLACE)
def test_secrets_are_known_by_the_place_and_the_name_they_have(kind: str) -> None:
    secret, line = BY_PLACE[kind]
    said = redact(f"before\n{line.format(secret)}\nafter\n")
    for piece in re.split(r"[@/,; ]", secret):
        assert len(piece) < 4 or piece not in said.removeprefix("before\n")
    assert said.startswith("before\n")
    assert said.endswith("\nafter\n")
    assert redact(said) == said


@pytest.mark.parametrize("hidden", SPLIT)
@pytest.mark.parametrize("line", ["token {} refused", "export HF_TOKEN={}", "\x1b[33mkey: {}\x1b[0m done"])
def test_what_a_reader_does_not_see_hides_no_token(hidden: str, line: str) -> None:
    token = f"hf_abcdefgh{SPLIT[hidden]}IJKLMNOP{SPLIT[hidden]}qrstuvwxyzABCDEFGH"
    said = redact(f"before\n{line.format(token)}\nafter\n")
    assert not any(piece in said for piece in ("abcdefgh", "IJKLMNOP", "qrstuv", "ABCDEFGH"))
    assert said.startswith("before\n")
    assert said.endswith("\nafter\n")
    assert redact(said) == said


def test_colours_around_a_token_stay() -> None:
    assert redact(f"\x1b[31mhf_{TOKEN}\x1b[0m failed") == "\x1b[31m[redacted: Hugging Face token]\x1b[0m failed"


@pytest.mark.parametrize("prefix", ["hf_", "ghp_", "npm_", "dapi", "AKIA"])
@pytest.mark.parametrize("pause", ["\n", "\r\n", "\\\n    "])
def test_a_token_that_a_terminal_broke_in_two_goes_whole_and_the_next_word_stays(prefix: str, pause: str) -> None:
    token = {"dapi": "dapi" + HEX * 2, "AKIA": "AKIA" + "ABCD1234" * 2, "hf_": "hf_" + "aBcDeFgHi" * 3 + "JkLmNoP"}.get(
        prefix, prefix + "aBcDeF" * 6
    )
    for at in range(len(prefix) + 1, len(token)):
        said = redact(f"key {token[:at]}{pause}{token[at:]} Traceback\n")
        assert token[:at] not in said
        assert f"{token[at:]} " not in said
        assert said.endswith(" Traceback\n")
    assert redact(f"prefix {prefix}\nTraceback (most recent call last):") == f"prefix {prefix}\nTraceback (most recent call last):"


def test_of_a_long_token_the_lines_below_that_hold_nothing_else_go() -> None:
    block = "MIIEowIBAAKCAQEAr3x0Z9vT1kQ2mN8pLs7YwE4uJ6hG5fD3sA1qW2eR4tY6uI8o"
    said = redact(f"auth: {block}\n{block}\n{block}\nx9QzT==\nTraceback (most recent call last):\n{HEX}{HEX}01234567\n")
    assert said == "auth: " + "[redacted: docker auth]\n" * 4 + f"Traceback (most recent call last):\n{HEX}{HEX}01234567\n"


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
def test_a_private_key_cut_in_two_goes_whole(position: int) -> None:
    text = f"a\n{KEY}b\n".encode()
    cut = text.find(b"\n", position) + 1 or len(text)
    said = redact_part(text, 0, cut).data + redact_part(text, cut, len(text)).data
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


FRAGMENTS = [
    *(line.format(secret) for secret, line in (*SECRETS.values(), *BY_PLACE.values())),
    *SPLIT.values(), "password=", "hf_", "://", "@", '"', "'", "\\", "\n", " ", "=", ": ", "[redacted: x]", "[redacted: ",
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "QUJDREVGR0hJSktMTU5PUA==", "\r\n", "Ab3dEf6hIj9lMn2pQr5t",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_pieces_of_secrets_in_any_order_are_answered_and_a_second_time_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text(alphabet="ab=:@/ \"'-\n", max_size=300), st.sampled_from(sorted(SECRETS)))
def test_secrets_go_whatever_lines_stand_around_them(noise: str, kind: str) -> None:
    secret, line = SECRETS[kind]
    assert secret not in redact(f"{noise}\n{line.format(secret)}\n{noise}")


HOSTILE = {
    "one line of passwords": b"password=hunter22 ",
    "lines of passwords": b"password=hunter22\n",
    "nothing": b"x",
    "names": b"password",
    "beginnings of tokens": b"hf_",
    "beginnings of web tokens": b"eyJ",
    "escapes": b"\x1b[31mA",
    "at signs": b"a@",
    "beginnings of URLs": b"https://a:",
    "quotes": b"password='",
    "backslashes": b"\\",
    "beginnings of keys": b"-----BEGIN PRIVATE KEY-----",
    "lines of beginnings of keys": b"-----BEGIN PRIVATE KEY-----\n",
    "ends of keys": b"-----END PRIVATE KEY-----\n",
    "base64": b"QUJDREVGR0hJSktMTU5PUA==\n",
    "logins": b"docker login -p ",
    "our own marks": b"[redacted: x] password=",
    "curls": b"curl -u ",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_work_grows_with_the_text_and_no_faster(kind: str) -> None:
    """Processor time of this thread alone: eight times the text costs about eight times as much, where squared growth would be 64."""

    def cost(size: int) -> float:
        data = b"https://a:" + HOSTILE[kind] * (size // len(HOSTILE[kind]))
        started = time.thread_time()
        redact_bytes(data)
        return time.thread_time() - started

    cost(1000)
    small, large = 1 << 17, 1 << 20
    assert cost(large) < 30 * max(min(cost(small) for _ in range(2)), 0.01)
