"""docs/http-api.md: the OpenAPI document that the server serves, as a page. Written by generate_docs.py."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from fastapi import FastAPI

from tightship_platform import __version__
from tightship_platform.api.app import add_routes
from tightship_platform.api.openapi import document
from tightship_platform.api.reference import Operation, Record, RecordName, Row, Words, read_reference

_HEAD = """# HTTP API

A server shows this page at `/docs`, and for programs at `/api/v1/openapi.json` (OpenAPI 3.1). A request carries a token
with the scope that the operation needs: `Authorization: Bearer TOKEN` ([which tokens there are](operations.md#tokens)).
A refusal has a status of 400 and above and is `{"error": "one line"}`. Times are integers of UTC nanoseconds, ratios
0..1, sizes bytes.
"""


def page(in_cli: Collection[str]) -> str:
    """The page.

    :param in_cli: names of the records that cli.md has; they are not repeated here.
    """
    reference = read_reference(api_document())
    parts = [_HEAD]
    for subject, operations in reference.subjects.items():
        parts += [f"## Routes: {subject}\n", *(_operation(one, in_cli) for one in operations)]
    parts.append("## Records\n\nThose that the command line prints, too, are [there](cli.md#records).\n")
    parts += [_record(one, in_cli) for one in reference.records if one.name not in in_cli]
    return "\n".join(parts)


def api_document() -> dict[str, Any]:
    """What every server serves, without one."""
    app = FastAPI(title="tightship", version=__version__, openapi_url=None)
    add_routes(app)
    return document(app)


def _operation(one: Operation, in_cli: Collection[str]) -> str:
    lines = [f"### {one.method} {one.path}\n", f"{one.text}\n"]
    if one.parameters:
        rows = (
            (f"`{row.name}`", _words(row.kind, in_cli), row.place, _default(row), row.text) for row in one.parameters
        )
        lines.append(_table(("parameter", "type", "in", "default", "meaning"), rows))
    if one.body:
        lines.append(f"Body: {_words(one.body, in_cli)}\n")
    if one.answer:
        lines.append(f"Answer: {_words(one.answer, in_cli)}\n")
    return "\n".join(lines)


def _default(row: Row) -> str:
    return "required" if row.default is None else f"`{row.default}`"


def _record(record: Record, in_cli: Collection[str]) -> str:
    rows = ((f"`{key.name}`", _words(key.kind, in_cli), key.text) for key in record.keys)
    return f"### {record.name}\n\n{record.text}\n\n{_table(('key', 'type', 'meaning'), rows)}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [_row(heads), "|---" * len(heads) + "|", *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells) + " |"


def _words(words: Words, in_cli: Collection[str]) -> str:
    return "".join(
        f"[{word.name}]({'cli.md' if word.name in in_cli else ''}#{word.name.lower()})"
        if isinstance(word, RecordName)
        else word
        for word in words
    )
