"""The OpenAPI document as subjects, operations and records, which docs/http-api.md and the page `/docs` show.

What a type is, is said in words with the names of records in them, which each of the two links in its own way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_METHODS = ("get", "post", "put", "patch", "delete")
_SCHEMAS = "#/components/schemas/"


@dataclass(frozen=True)
class RecordName:
    """A record, named within words."""

    name: str


Words = tuple[str | RecordName, ...]
"""Text with names of records in it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A parameter of an operation, or a key of a record."""

    name: str
    kind: Words
    text: str
    """What it means; empty where nothing is said."""
    place: str = ""
    """Of a parameter: `path`, `query` or `header`."""
    default: str | None = None
    """Of a parameter that may be left out, as JSON; None: it has to be given."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A method of a path."""

    method: str
    path: str
    text: str
    parameters: tuple[Row, ...]
    body: Words
    """Empty: none, or no JSON."""
    answer: Words

    @property
    def anchor(self) -> str:
        """As a heading `GET /api/v1/runs/{key}` gets it: letters, digits and hyphens."""
        kept = (c for c in f"{self.method} {self.path}".lower() if c.isalnum() or c in " -_")
        return "".join(kept).replace(" ", "-")


@dataclass(frozen=True, kw_only=True)
class Record:
    """An object of JSON."""

    name: str
    text: str
    keys: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """All of it."""

    subjects: dict[str, list[Operation]]
    records: tuple[Record, ...]
    """By name."""


def read_reference(document: Any) -> Reference:
    """What an OpenAPI document says, as `openapi.document` makes it."""
    schemas = document["components"]["schemas"]
    subjects: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                subjects.setdefault(operation["tags"][0], []).append(_operation(method, path, operation, schemas))
    records = [
        Record(name=name, text=schema.get("description", ""), keys=tuple(_keys(schema, schemas)))
        for name, schema in sorted(schemas.items())
        if "properties" in schema
    ]
    return Reference(subjects=subjects, records=tuple(records))


def _operation(method: str, path: str, operation: Any, schemas: Any) -> Operation:
    text = operation["description"]
    return Operation(
        method=method.upper(),
        path=path,
        text=text if operation.get("security") else f"{text}\n\nNeeds no token.",
        parameters=tuple(_parameter(one, schemas) for one in operation.get("parameters", [])),
        body=_content(operation.get("requestBody", {}), schemas),
        answer=_content(operation["responses"].get("200", {}), schemas),
    )


def _parameter(parameter: Any, schemas: Any) -> Row:
    schema = parameter["schema"]
    return Row(
        name=parameter["name"],
        kind=_type(schema, schemas),
        text=parameter.get("description", ""),
        place=parameter["in"],
        default=None if parameter.get("required") else json.dumps(schema.get("default")),
    )


def _content(holder: Any, schemas: Any) -> Words:
    for media, content in holder.get("content", {}).items():
        return _type(content["schema"], schemas) if media == "application/json" else (f"a file ({media})",)
    return ()


def _keys(schema: Any, schemas: Any) -> Iterator[Row]:
    for name, one in schema["properties"].items():
        yield Row(name=name, kind=_type(one, schemas), text=one.get("description", ""))


def _type(schema: Any, schemas: Any) -> Words:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMAS)
        return (RecordName(name),) if "properties" in schemas[name] else _type(schemas[name], schemas)
    if "const" in schema or "enum" in schema:
        values = schema.get("enum") or [schema["const"]]
        return (" or ".join(f"`{json.dumps(value, ensure_ascii=False)}`" for value in values),)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _joined(_type(one, schemas) for one in choices)
    kind = schema.get("type", "anything")
    if kind == "array":
        return "array of ", *_type(schema.get("items", {}), schemas)
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return "object of ", *_type(values, schemas)
    return (kind,)


def _joined(choices: Iterable[Words]) -> Words:
    found: list[str | RecordName] = []
    for choice in choices:
        found += [" or ", *choice] if found else choice
    return tuple(found)
