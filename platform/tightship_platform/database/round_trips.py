"""Transactions of few round trips to PostgreSQL: what is written is sent without waiting for an answer to each.

[Note: a wait is dear]
A process that waits for an answer sleeps, and is woken: for a short statement that costs more than the statement. So
what nobody reads is sent behind each other, the commit with it, and awaited once (libpq's pipeline mode). Where one of
them fails, so does the transaction, and this says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tightship_platform.database.engine import Database


@contextmanager
def pipelined(database: Database) -> Iterator[Session]:
    """As `Database.session`. On PostgreSQL its statements give no results; `read` gives rows.

    :raises DBAPIError: a statement or the commit failed; nothing was stored.
    """
    if database.dialect != "postgresql":
        with database.session() as session:
            yield session
        return
    import psycopg

    with database.session() as session:
        driver: Any = session.connection().connection.driver_connection
        try:
            with driver.pipeline():
                yield session
                driver.commit()
        except psycopg.Error as error:
            raise DBAPIError.instance(
                None, None, error, psycopg.Error, connection_invalidated=driver.closed, dialect=database.engine.dialect
            ) from error


def read(session: Session, statement: str, values: Sequence[Any]) -> list[Any]:
    """Rows of a statement of PostgreSQL, also within `pipelined`."""
    driver: Any = session.connection().connection.driver_connection
    with driver.cursor() as cursor:
        return list(cursor.execute(statement, values).fetchall())
