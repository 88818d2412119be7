"""What is a secret, and what only looks like one: real shapes of both."""

# ruff: noqa: E501  # a case is a line
from __future__ import annotations

import io
import logging
import shlex
import time

import pytest

from tightship_platform import logs, validation
from tightship_platform.redaction import HIDDEN, hide_in_command, hide_in_values, hide_secrets

# Put together here, so that scanners for leaked secrets do not find them in this file.
HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"
OPENAI = "sk-" + "proj-Ab12_Cd34-Ef56Gh78Ij90Kl"
OLD_OPENAI = "sk-" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6"
GITHUB = "ghp" + "_0123456789abcdefghijABCDEFGHIJ012345"
FINE = "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
SLACK = "xoxb-" + "123456789012-abcdefABCDEF"
GITLAB = "glpat-" + "abcDEF123456_-abcDEF"
JWT = "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9"
OURS = "ts_" + "R7iF0aY1bZ2cX3dW4eV5fU6gT7hS8iR9jQ0kP1lO2m"
PW = "hun7er2!x"

COMMANDS = [
    # (command, what is reported of it); the first ones are those of the facts file
    ("t.py +wandb.api_key=abc", "t.py +wandb.api_key=***"),
    ("t.py trainer.hub.token=abc ++hub.clientSecret=s ~a.password=x", "t.py trainer.hub.token=*** ++hub.clientSecret=*** ~a.password=***"),
    ("t.py --wandb_key abc", "t.py --wandb_key ***"),
    ("t.py --auth 'Bearer abc'", "t.py --auth ***"),
    ("t.py --db postgresql://u:pw@h/db", "t.py --db postgresql://***@h/db"),
    ("t.py s3://KEY:SECRET@bucket/x", "t.py s3://***@bucket/x"),
    ("t.py 'https://a.blob.core.windows.net/c?sv=2022&sig=ab%2Fc%3D&se=1'", "t.py 'https://a.blob.core.windows.net/c?sv=2022&sig=***&se=1'"),
    ("t.py 'https://b.s3.amazonaws.com/k?X-Amz-Credential=A%2F1&X-Amz-Signature=0f&X-Amz-Date=2'", "t.py 'https://b.s3.amazonaws.com/k?X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-Date=2'"),
    ("t.py 'https://h/x?token=abc&n=1'", "t.py 'https://h/x?token=***&n=1'"),
    (f"t.py {HF} {OPENAI} {GITHUB} {FINE}", "t.py *** *** *** ***"),
    (f"t.py {AWS} {SLACK} {GITLAB} {JWT} {OURS} {OLD_OPENAI}", "t.py *** *** *** *** *** ***"),
    (f"git clone https://{GITHUB}@github.com/a/b", "git clone https://***@github.com/a/b"),
    ("pip install --index-url https://__token__:abc@pypi.corp/simple x", "pip install --index-url https://***@pypi.corp/simple x"),
    ("env HF_TOKEN=a WANDB_API_KEY=b AWS_SECRET_ACCESS_KEY=c MYSQL_PWD=d A=1 x", "env HF_TOKEN=*** WANDB_API_KEY=*** AWS_SECRET_ACCESS_KEY=*** MYSQL_PWD=*** A=1 x"),
    (f"bash -c 'export HF_TOKEN={PW}; python t.py --lr 1'", "bash -c 'export HF_TOKEN=***; python t.py --lr 1'"),
    (f"bash -c 'python t.py --wandb_key {PW} --lr 1'", "bash -c 'python t.py --wandb_key *** --lr 1'"),
    ("""t.py '{"password": "a b", "lr": 1}'""", """t.py '{"password": "***", "lr": 1}'"""),
    ("t.py '+hub={token:abc,user:x}'", "t.py '+hub={token:***,user:x}'"),
    (f"curl -u me:{PW} -H 'Authorization: Bearer {PW}' https://h", "curl -u *** -H 'Authorization: ***' https://h"),
    (f"curl -H 'X-Api-Key: {PW}' https://h", "curl -H 'X-Api-Key: ***' https://h"),
    ("t.py --token-file /run/secrets/t --credentials=/c.json", "t.py --token-file *** --credentials=***"),
]  # fmt: skip

TEXTS = [
    (f"401 Client Error: Unauthorized for url: https://me:{PW}@host/x", "401 Client Error: Unauthorized for url: https://***@host/x"),
    ("403 for url: https://b.s3.amazonaws.com/k?AWSAccessKeyId=A&Signature=b%3D&Expires=1", "403 for url: https://b.s3.amazonaws.com/k?AWSAccessKeyId=***&Signature=***&Expires=1"),
    (f"Incorrect API key provided: {OPENAI}. You can find", "Incorrect API key provided: ***. You can find"),
    (f"CalledProcessError: Command '['x', '--token', '{PW}', '--lr', '1']' returned 1", "CalledProcessError: Command '['x', '--token', '***', '--lr', '1']' returned 1"),
    ("OperationalError: connection to postgresql://u:p@ss@db:5432/x failed", "OperationalError: connection to postgresql://***@db:5432/x failed"),
    (f"ValueError: password: {PW}", "ValueError: password: ***"),
    (f"KeyError: {{'api_key': '{PW}', 'lr': 1}}", "KeyError: {'api_key': '***', 'lr': 1}"),
    (f"connect failed: host=db user=u password={PW} dbname=x", "connect failed: host=db user=u password=*** dbname=x"),
    (f"login(token='{PW}') failed", "login(token='***') failed"),
    (f"Config(secret_key={PW}, lr=1)", "Config(secret_key=***, lr=1)"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
    (f"redis://:{PW}@cache:6379/0 refused", "redis://***@cache:6379/0 refused"),
    ("sent Authorization: Basic dXNlcjpwYXNzd29yZA== and", "sent Authorization: *** and"),
    (f"AccountName=a;AccountKey={PW}==;EndpointSuffix=core.windows.net", "AccountName=a;AccountKey=***;EndpointSuffix=core.windows.net"),
]  # fmt: skip

HARMLESS_COMMANDS = [
    "t.py --num_tokens 5 tokenizer=gpt2 --key_dim 64",
    "t.py --max-tokens 512 --tokenizer gpt2 --token-ids=5 --keys=3 --monkey=4 --max_token 100",
    "t.py --pad_token '<pad>' --eos-token '</s>' model.pad_token_id=0 --mask_token '[MASK]' --image_token img",
    "t.py --use_auth_token True --token_type bpe --sort-key length --label_key text --cache_key run7 --input_key=image",
    "t.py --passes 2 --pass 1 data.per_token=yes --password --lr 1",
    "t.py --hidden_size 64 --attention-key query TOKENIZERS_PARALLELISM=false HF_HUB_ENABLE_HF_TRANSFER=1",
    "env HF_HOME=/data/hf HF_DATASETS_CACHE=/data/hf_datasets_cache_folder x",
    "t.py --token '$HF_TOKEN' hub.token='${oc.env:HF_TOKEN}'",
    "git clone ssh://git@github.com/a/b git@github.com:a/b.git",
    "t.py s3://bucket/path@v2/x http://host:8050/a@b tcp://10.0.0.1:29500 https://example.com/a?page=2&sort=key",
    "docker run --user 1000:1000 -u 10:10 img",
    "python -u train.py",
    "t.py sk-learn-classification-with-a-long-name sk-image hf_transfer hf_hub_download_large_files",
    "t.py --out runs/2024-05-01T10:00:00/author=me --authors a",
    "t.py --signature int --sig 5 --compass north --bypass 1 --tokenize wordpiece --secretary x",
    "t.py --rdzv_endpoint=host:29500 --rdzv_id 123456789012",
    "t.py 0123456789abcdef0123456789abcdef01234567",
]

HARMLESS_TEXTS = [
    "json.decoder.JSONDecodeError: Unexpected token: identifier at 5",
    "KeyError: 'token'",
    "SyntaxError: invalid token: foo",
    "RuntimeError: The size of tensor a (5) must match the size of tensor b (4); num_tokens=1024, key=4",
    "TypeError: forward() got an unexpected keyword argument 'token_type_ids'",
    "Token indices sequence length is longer than 512 (token: 600)",
    "ValueError: pad_token: <pad> is not in the vocabulary, eos_token='</s>'",
    "IndexError: expected key.shape=(2, 3), got key: (4, 5)",
    "FileNotFoundError: /home/me/secrets/x and /data/passwords.txt",
    "the backward pass: grad is nan",
    "author: me, authority=local, password=None, token: null, secret=",
    "TIGHTSHIP_TOKEN is not set; make a token with `tightship token create NAME`",
    "http://127.0.0.1:8050/api/v1/traces/1/file?pass=2",
    "Connection to https://huggingface.co:443/api/models@main timed out",
    "CUDA error at 0x7f00: device-side assert; see https://pytorch.org/docs#key-concepts",
]


@pytest.mark.parametrize(("command", "reported"), COMMANDS)
def test_secrets_of_commands_are_hidden(command: str, reported: str) -> None:
    assert hide_in_command(shlex.split(command)) == shlex.split(reported)


@pytest.mark.parametrize(("text", "shown"), TEXTS)
def test_secrets_of_texts_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown
    assert hide_secrets(shown) == shown, "what is hidden once stays as it is"


@pytest.mark.parametrize("command", HARMLESS_COMMANDS)
def test_what_only_looks_like_a_secret_of_a_command_stays(command: str) -> None:
    assert hide_in_command(shlex.split(command)) == shlex.split(command)


@pytest.mark.parametrize("text", HARMLESS_TEXTS)
def test_what_only_looks_like_a_secret_of_a_text_stays(text: str) -> None:
    assert hide_secrets(text) == text


def test_labels() -> None:
    labels = {
        "wandb_key": "abc",
        "seed": "1",
        "note": f"uses {HF}",
        "token": "",
        "num_tokens": "5",
        "db": f"redis://:{PW}@h",
    }
    shown = {
        "wandb_key": HIDDEN,
        "seed": "1",
        "note": "uses ***",
        "token": "",
        "num_tokens": "5",
        "db": "redis://***@h",
    }
    assert hide_in_values(labels) == shown


def test_a_line_of_text_from_outside_holds_no_secret() -> None:
    assert validation.line(f"no access:\n token='{PW}'", 200) == "no access: token='***'"
    # Also where the line is cut: first hidden, then cut.
    assert PW[:3] not in validation.line("x" * 90 + f" password={PW}", 104)


@pytest.mark.parametrize(
    "text", ["a:" * 40_000, "://a:" * 20_000, "token" * 20_000, "--token-" * 15_000, "eyJ" * 30_000, "token='" * 15_000,
             "?a_" * 30_000, "key " * 20_000, "hf_" * 30_000, "\\" * 90_000, "https://" * 12_000]
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    """In processor time, with room for a slow machine: what backtracks takes minutes."""
    began = time.process_time()
    hide_secrets(text)
    assert time.process_time() - began < 10


def test_no_log_line_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    try:
        logs.configure_logging()
        log = logging.getLogger("tightship_platform.test")
        log.warning("Cannot reach %s", f"https://me:{PW}@host/x")
        try:
            raise RuntimeError(f"401 for token={PW}")
        except RuntimeError:
            log.exception("failed")
    finally:
        root.handlers[:], root.level = handlers, level
    assert PW not in stream.getvalue()
    assert "https://***@host/x" in stream.getvalue() and "token=***" in stream.getvalue()
