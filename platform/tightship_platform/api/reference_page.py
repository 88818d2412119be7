"""The page `/docs`: the API's reference as one document of HTML, without scripts, with nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from tightship_platform.api.headers import content_policy, inline_source
from tightship_platform.api.reference import Operation, Record, RecordName, Reference, Row, Words
from tightship_platform.client import API

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
nav ul { columns: 20rem; padding: 0; list-style: none; }
nav li, code { overflow-wrap: anywhere; }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; }
h3, h4 { scroll-margin-top: 1rem; font-family: ui-monospace, monospace; font-size: 1rem; overflow-wrap: anywhere; }
h3:target, h4:target { outline: 2px solid; outline-offset: .3rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; }
"""
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": content_policy(style_src=inline_source(_STYLE), img_src="data:"),
}
"""The page's own."""


def draw(reference: Reference, version: str) -> str:
    """The page."""
    operations = [one for ones in reference.subjects.values() for one in ones]
    contents = "".join(f'<li><a href="#{one.anchor}">{escape(_named(one))}</a></li>' for one in operations)
    subjects = "".join(
        f"<section><h2>{escape(subject)}</h2>{''.join(map(_operation, ones))}</section>"
        for subject, ones in reference.subjects.items()
    )
    records = "".join(map(_record, reference.records))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>HTTP API · tightship</title>\n'
        '<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body><header><a href='/'>tightship</a> {escape(version)}</header>\n"
        "<h1>HTTP API</h1>\n<p>A request carries a token: <code>Authorization: Bearer TOKEN</code>. A refusal is "
        '<code>{"error": "one line"}</code>. Times are integers of UTC nanoseconds, ratios 0..1, sizes bytes. '
        f'For programs: <a href="{API}/openapi.json">{API}/openapi.json</a> (OpenAPI 3.1).</p>\n'
        f'<nav aria-label="Operations"><ul>{contents}</ul></nav>\n{subjects}\n'
        f"<section><h2>Records</h2>{records}</section></body></html>"
    )


def _named(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def _operation(one: Operation) -> str:
    parts = [f'<h3 id="{one.anchor}">{escape(_named(one))}</h3>', *_prose(one.text)]
    if one.parameters:
        rows = ((row.name, row.kind, f"{row.place}; {_when(row)}. {row.text}") for row in one.parameters)
        parts.append(_table(("parameter", "type", "meaning"), rows))
    if one.body:
        parts.append(f"<p>Body: {_words(one.body)}</p>")
    if one.answer:
        parts.append(f"<p>Answer: {_words(one.answer)}</p>")
    return "\n".join(parts)


def _when(row: Row) -> str:
    return "required" if row.default is None else f"default `{row.default}`"


def _record(record: Record) -> str:
    rows = ((key.name, key.kind, key.text) for key in record.keys)
    table = _table(("key", "type", "meaning"), rows)
    return f'<h4 id="{escape(record.name)}">{escape(record.name)}</h4>\n{"".join(_prose(record.text))}{table}'


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, Words, str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_words(kind)}</td><td>{_code(text)}</td></tr>"
        for name, kind, text in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _words(words: Words) -> str:
    return "".join(
        f'<a href="#{escape(word.name)}">{escape(word.name)}</a>' if isinstance(word, RecordName) else _code(word)
        for word in words
    )


def _prose(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield f"<p>{_code(paragraph)}</p>"


def _code(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
