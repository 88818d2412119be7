"""Locks on rows, which leave nothing behind: see [Note: write locks] in `engine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import Select, text
from sqlalchemy.orm import Session

T = TypeVar("T")


def begin_writing(session: Session) -> None:
    """On SQLite, where rows have no locks, take the database's: a write that changes nothing does."""
    if session.get_bind().dialect.name == "sqlite":
        session.execute(text("UPDATE installation SET id = id WHERE 0"))


def locked(session: Session, rows: Select[T], *, skip_locked: bool = False) -> Sequence[T]:
    """The rows as they are now, locked until the transaction ends, one after another in the order of the statement.

    Others may refer to them meanwhile, and read them; nobody else changes or locks them.

    :param skip_locked: wait for nobody: without those that somebody else holds.
    """
    begin_writing(session)
    # An UPDATE that sets a column to itself would lock them too, and leave a dead row version of each for vacuum.
    wanted = rows.with_for_update(key_share=True, skip_locked=skip_locked)
    wanted = wanted.execution_options(populate_existing=True)
    return session.scalars(wanted).all()
