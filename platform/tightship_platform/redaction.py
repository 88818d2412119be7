"""Secrets in what is reported of jobs and written to logs: `***` takes their place before anything is sent or stored.

A secret is known by its form (the prefixes that its issuer gives it), by its place (the login of a URL, the signature
of a query, a private key), or by its name (`password=`, `--wandb_key`, `Authorization:`). One with none of these, such
as a bare word on a command line, looks like any other word. What only looks alike stays readable: `--num_tokens 5`,
`tokenizer=gpt2`, `--key_dim 64`, `pad_token=<pad>`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
_SCAN_MAX = 262_144
"""Characters of one text that are looked at; more is nobody's message, and is cut."""

_KNOWN = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9_-])(?:"
    r"hf_[A-Za-z0-9]{16,}"  # Hugging Face; `hf_transfer` and the like are names
    r"|sk-(?:proj|svcacct|admin|ant|or|lf)-[\w-]{12,}|sk-[A-Za-z0-9]{20,}|[rs]k_(?:live|test)_\w{10,}"
    r"|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|gl(?:pat|dt|rt|cbt|ptt|soat)-[\w-]{16,}"
    r"|(?:AKIA|ASIA|AROA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|dapi[0-9a-f]{32}|nvapi-[\w-]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}"
    r"|wandb_v1_\w{16,}|ts_[\w-]{40,}"
    r"|eyJ[\w-]{10,}(?:\.[\w-]+){1,4}"  # a JSON web token
    r")"
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]{8,}",
    re.DOTALL,
)
_LOGIN = re.compile(
    r"://(?:[^\s/?#@:'\"\[]{0,200}:(?!\d{1,5}(?:[/?#]|$))(?:[^\s/,'\"]{0,500}@|[^\s'\"]{0,500}?@)(?=[\w\[*.-])"
    r"|(?<=https://)[^\s/?#@:'\"]{8,500}@|(?<=http://)[^\s/?#@:'\"]{8,500}@)"
)
_QUERY = re.compile(
    r"(?i)([?&;](?:[\w.-]{0,40}[-_.])?(?:sig|signature|credential|(?:\w{0,20})token|key|\w{0,10}secret|password|auth"
    r"|awsaccesskeyid|googleaccessid)=)[^&\s\"'<>#]+"
)

_KEY_OF = (
    "api|access|secret|auth|private|account|storage|service|client|session|master|signing|encryption|deploy|license"
    "|subscription|ssh|sas|app|hub|hf|huggingface|wandb|openai|anthropic|aws|azure|gcp|google|github|neptune|comet"
    "|mlflow|clearml|swanlab"
)
_WORDS = (
    rf"(?:{_KEY_OF})[-_. ]?key(?:[-_]?base)?|token(?:[-_]?(?:value|file))?|tokens[-_]file"
    r"|secret(?:[-_]?(?:value|file))?|password|passwd|passphrase|pwd|pass|credentials?|authorization|auth|dsn"
)
_NAME = re.compile(
    # The name's last words, from a border on: `HF_TOKEN`, `+hub.token`, `--wandb_key`, `clientSecret`, `"password"`.
    rf"(?:(?<![A-Za-z0-9])|(?<=[a-z])(?=[A-Z]))(?P<word>(?i:{_WORDS}))(?![A-Za-z0-9])"
    r"(?P<sep>['\"]?\s{0,8}(?:=>|:=|==|[=:])\s{0,8}|['\"]\s{0,8},\s{0,8}|(?i: (?:provided|given): ))"
)
_OPTION = re.compile(
    rf"(?P<head>(?<![\w-])--?[\w.-]{{0,60}}?)(?<![A-Za-z0-9])(?P<word>(?i:{_WORDS}))(?P<sep>['\"]?\s{{0,8}},\s{{0,8}}|\s{{1,8}})"
)
_VALUE = re.compile(
    r"(?i:(?:bearer|basic|token|digest)\s{1,4})?"
    r"(?:\"(?:[^\"\\]|\\.){1,4000}\"?|'(?:[^'\\]|\\.){1,4000}'?|[^\s\"'&,;)\]}]{1,4000})",
    re.DOTALL,
)
_PLAIN_VALUE = re.compile(
    r"(?i:true|false|none|null|yes|no|on|off|str|int|bytes|optional\[\w+\])|\*{3}\W?|\$\w+|\$\{.*|<[^>]*>|\[[A-Z]+\]|[({\[].*|\d{1,4}"
)
"""What a secret is not: a switch, a type, a reference to a variable, a special token, a small number."""
_NOT_SECRET = re.compile(
    r"(?i:(?:^|[^A-Za-z0-9])(?:pad|eos|bos|unk|mask|cls|sep|image|video|audio|vision|max|min|num|n|start|stop|end|special"
    r"|per|next|prompt|new|first|last|class|register|unexpected|expected|invalid|unknown|missing|illegal|this|the|forward"
    r"|backward|train|second|each)[-_. ])$"
)
"""Before `token`, `pass` and the like: what makes them a word of machine learning or of a parser."""
_BARE = re.compile(
    rf"(?:-{{0,2}}|[+~]{{0,2}})(?:[\w.-]{{0,200}}?(?<![A-Za-z0-9])|[A-Za-z]{{0,60}}?(?<=[a-z])(?=[A-Z]))(?i:{_WORDS})"
)


def hide_secrets(text: str) -> str:
    """The text with `***` for each secret in it."""
    text = text if len(text) <= _SCAN_MAX else text[:_SCAN_MAX] + "…"
    text = _KNOWN.sub(HIDDEN, text)
    if "://" in text:
        text = _LOGIN.sub(f"://{HIDDEN}@", text)
    if "=" in text:
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", text)
    return _hide_named(_hide_named(text, _NAME), _OPTION)


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is a secret: `--hf_token`, `+wandb.api_key`, `WANDB_API_KEY`, `clientSecret`."""
    found = _BARE.fullmatch(name)
    if found is None:
        return False
    word = re.search(rf"(?i:{_WORDS})$", name)
    return word is None or not _NOT_SECRET.search(name[: word.start()])


def hide_in_command(command: Sequence[str]) -> list[str]:
    """The arguments of a command with `***` for each secret, also where one stands behind its option."""
    shown: list[str] = []
    before = ""
    for text in command:
        shown.append(_hide_argument(before, text))
        before = text
    return shown


def hide_in_values(values: dict[str, str]) -> dict[str, str]:
    """The values, such as labels, with `***` for those that are or hold secrets."""
    return {
        name: HIDDEN if is_secret_name(name) and not _PLAIN_VALUE.fullmatch(value) and value else hide_secrets(value)
        for name, value in values.items()
    }


def _hide_argument(before: str, text: str) -> str:
    name, found, value = text.partition("=")
    if found and is_secret_name(name):
        return text if not value or _PLAIN_VALUE.fullmatch(value) else f"{name}={HIDDEN}"
    behind = before.startswith("-") and not text.startswith("-")
    if behind and is_secret_name(before) and not _PLAIN_VALUE.fullmatch(text):
        return HIDDEN
    if behind and before in ("-u", "--user", "--proxy-user") and re.fullmatch(r"[^\s:/\d][^\s:/]*:[^\s/]+", text):
        return HIDDEN  # curl's `user:password`
    return hide_secrets(text)


def _hide_named(text: str, pattern: re.Pattern[str]) -> str:
    """`***` for each value behind a name that `pattern` knows."""
    pieces: list[str] = []
    done = at = 0
    while (name := pattern.search(text, at)) is not None:
        at = name.end()
        value = _VALUE.match(text, at)
        start = name.start("word")
        if value is None or _NOT_SECRET.search(text, max(0, start - 24), start) or value[0].startswith("-"):
            continue
        bare = value[0].strip("\"'")
        if not bare or _PLAIN_VALUE.fullmatch(bare):
            continue
        quote = value[0][0] if value[0][0] in "\"'" else ""
        closing = quote if quote and value[0].endswith(quote) else ""
        pieces += [text[done : name.end()], quote, HIDDEN, closing]
        done = at = value.end()
    return "".join([*pieces, text[done:]]) if pieces else text
