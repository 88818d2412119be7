"""A row for any table, with a value in every column."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Float, Integer, LargeBinary, Table


def row_of(table: Table) -> dict[str, Any]:
    """A row with a value in every column; all ids are 1."""
    row: dict[str, Any] = {}
    for column in table.columns:
        kind: Any = column.type
        if column.foreign_keys or column.name == "id":
            row[column.name] = 1
        elif isinstance(kind, JSON):
            row[column.name] = {"text": "ä <b> \" ' \\"}
        elif isinstance(kind, Boolean):
            row[column.name] = True
        elif isinstance(kind, LargeBinary):
            row[column.name] = b"\x00\xff"
        elif isinstance(kind, BigInteger):
            row[column.name] = 1_790_000_000_123_456_789
        elif isinstance(kind, Integer):
            row[column.name] = 7
        elif isinstance(kind, LargeBinary):
            row[column.name] = b"\x00\xff"
        elif isinstance(kind, Float):
            row[column.name] = 0.25
        else:
            row[column.name] = "ä <b>"
    return row
