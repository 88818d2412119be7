"""INSERT … ON CONFLICT, which SQLite and PostgreSQL spell alike and SQLAlchemy keeps apart; arrays for many rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import json
from sqlalchemy import BigInteger, Float, Integer, Table, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tightship_platform.database.models import Base

Row = dict[str, Any]
Columns = Mapping[str, Sequence[int | float | None]]
"""Rows by column; all are of one length."""
ROWS_AT_ONCE = 10_000
"""Rows of one table in one statement: a bound on its memory."""
_ARRAYS: dict[type, str] = {BigInteger: "int8[]", Integer: "int4[]", Float: "float8[]"}


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


def add_samples(session: Session, tables: Mapping[type[Base], Sequence[Row]]) -> None:
    """As `add_missing`, for many rows of tables none of which refers to another; those of one have the same columns."""
    for first in range(0, max(map(len, tables.values()), default=0), ROWS_AT_ONCE):
        parts = {model: rows[first : first + ROWS_AT_ONCE] for model, rows in tables.items()}
        add_together(session, {model: as_columns(rows) for model, rows in parts.items() if rows})


def fill_samples(session: Session, model: type[Base], rows: Sequence[Row]) -> None:
    """Insert rows, which all have the same columns; one that is there gets what it lacks, and keeps what it has."""
    table = table_of(model)
    keys = [column.name for column in table.primary_key]
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first : first + ROWS_AT_ONCE]
        names = [name for name in part[0] if name not in keys]
        if session.get_bind().dialect.name == "postgresql":
            filled = {name: f"coalesce({table.name}.{name}, excluded.{name})" for name in names}
            put_columns(session, model, as_columns(part), merge=filled)
        else:
            statement = insert_into(session, model)
            new = {name: func.coalesce(table.c[name], statement.excluded[name]) for name in names}
            session.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), list(part))


def as_columns(rows: Sequence[Row]) -> Columns:
    """Rows, which all have the columns of the first, by column."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def add_together(session: Session, tables: Mapping[type[Base], Columns]) -> None:
    """As `add_missing`, of rows of several tables, none of which refers to another, given by column.

    On PostgreSQL in one statement, which is the same for any number of rows.
    """
    given = {model: columns for model, columns in tables.items() if next(iter(columns.values()), None)}
    if not given:
        return
    if session.get_bind().dialect.name != "postgresql":
        for model, columns in given.items():
            names = list(columns)
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            add_missing(session, model, rows)
        return
    *others, last = [_insert(model, columns, "DO NOTHING") for model, columns in given.items()]
    before = ", ".join(f"part_{number} AS ({statement})" for number, (statement, _) in enumerate(others))
    whole = f"WITH {before} {last[0]}" if others else last[0]
    values = tuple(value for _, some in (*others, last) for value in some)
    session.connection().exec_driver_sql(whole, values)


def put_columns(session: Session, model: type[Base], columns: Columns, *, merge: Mapping[str, str]) -> None:
    """Insert rows given by column, of which no two have the same key, on PostgreSQL.

    :param merge: what becomes of each column of a row that is there already, as SQL; the new one is `excluded`.
    """
    keys = ", ".join(column.name for column in table_of(model).primary_key)
    merged = ", ".join(f"{name} = {value}" for name, value in merge.items())
    statement, values = _insert(model, columns, f"({keys}) DO UPDATE SET {merged}")
    session.connection().exec_driver_sql(statement, values)


def _insert(model: type[Base], columns: Columns, on_conflict: str) -> tuple[str, tuple[str, ...]]:
    """The statement and its values, one array for each column."""
    table = table_of(model)
    names = ", ".join(columns)
    arrays = ", ".join(f"%s::{_ARRAYS[type(table.c[name].type)]}" for name in columns)
    statement = f"INSERT INTO {table.name} ({names}) SELECT * FROM unnest({arrays}) ON CONFLICT {on_conflict}"  # noqa: S608
    # PostgreSQL writes an array as JSON does, except for its brackets; `null` is the same.
    return statement, tuple("{" + json.encode(values)[1:-1].decode() + "}" for values in columns.values())


def put(session: Session, model: type[Base], rows: Sequence[Row], *, key: Sequence[str], update: Sequence[str]) -> None:
    """Insert rows; where the key is there already, overwrite the columns `update` with the newer row's."""
    if rows:
        statement = insert_into(session, model)
        new = {column: statement.excluded[column] for column in update}
        session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=new), list(rows))
