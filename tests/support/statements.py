"""Statements that a piece of work sends to the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from tightship_platform.database.engine import Database


@contextmanager
def statements_of(database: Database) -> Iterator[list[str]]:
    """Those of the block, in order."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(" ".join(statement.split()))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
