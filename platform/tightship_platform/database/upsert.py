"""INSERT … ON CONFLICT, which SQLite and PostgreSQL spell alike and SQLAlchemy keeps apart; COPY for many rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tightship_platform.database.models import Base

Row = dict[str, Any]
COPY_ROWS = 1000
"""From so many rows on, COPY is worth the staging table: `benchmarks/ingest_copy.py` measures it."""


def insert_into(session: Session, model: type[Base]) -> Any:
    """An INSERT of the session's dialect, with its `on_conflict_…` methods and `excluded`."""
    if session.get_bind().dialect.name == "postgresql":
        return postgresql.insert(table_of(model))
    return sqlite.insert(table_of(model))


def table_of(model: type[Base]) -> Table:
    """The table of an ORM class."""
    table = model.__table__
    if not isinstance(table, Table):
        raise TypeError(f"{model.__name__} has no table")
    return table


def add_missing(session: Session, model: type[Base], rows: Sequence[Mapping[str, object]]) -> None:
    """Insert the rows whose key is not there yet; the others stay as they are."""
    if rows:
        session.execute(insert_into(session, model).on_conflict_do_nothing(), list(rows))


def add_samples(session: Session, model: type[Base], rows: Sequence[Row]) -> None:
    """As `add_missing`, for many rows that all have the same columns: by COPY where the database has it."""
    if len(rows) < COPY_ROWS or session.get_bind().dialect.name != "postgresql":
        add_missing(session, model, rows)
        return
    table, columns = table_of(model).name, list(rows[0])
    names, staged = ", ".join(columns), f"staged_{table}"
    # COPY knows no ON CONFLICT. The staging table belongs to this transaction and ends with it.
    session.execute(text(f"CREATE TEMPORARY TABLE {staged} (LIKE {table}) ON COMMIT DROP"))
    driver: Any = session.connection().connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {staged} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row([row[column] for column in columns])
    insert = f"INSERT INTO {table} ({names}) SELECT {names} FROM {staged} ON CONFLICT DO NOTHING"  # noqa: S608
    session.execute(text(insert))
    session.execute(text(f"DROP TABLE {staged}"))


def put(session: Session, model: type[Base], rows: Sequence[Row], *, key: Sequence[str], update: Sequence[str]) -> None:
    """Insert rows; where the key is there already, overwrite the columns `update` with the newer row's."""
    if rows:
        statement = insert_into(session, model)
        new = {column: statement.excluded[column] for column in update}
        session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=new), list(rows))
