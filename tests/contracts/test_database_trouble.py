"""Errors of a database that are no fault of the request, made by real ones."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from conftest import POSTGRES
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from tightship_platform.api.errors import database_trouble
from tightship_platform.database.engine import Database
from tightship_platform.database.trouble import is_away, is_disk_full


def test_a_full_disk_is_said_as_such(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 4")
        connection.exec_driver_sql("CREATE TABLE t (content BLOB)")
        with pytest.raises(DBAPIError) as caught:
            connection.exec_driver_sql("INSERT INTO t VALUES (zeroblob(1000000))")
    engine.dispose()
    assert is_disk_full(caught.value) and is_away(caught.value)
    answer = database_trouble(caught.value)
    assert answer.status_code == 503
    assert b"The disk of the database is full and nothing was stored" in bytes(answer.body)


def test_a_locked_database_is_away_and_a_wrong_statement_is_not(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}", connect_args={"timeout": 0})
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (content BLOB)")
        connection.commit()
        other = sqlite3.connect(tmp_path / "a.db")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DBAPIError) as locked:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        other.close()
        with pytest.raises(DBAPIError) as wrong:
            connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)")
    engine.dispose()
    assert is_away(locked.value) and not is_disk_full(locked.value)
    assert not is_away(wrong.value)


@pytest.mark.parametrize("database", [POSTGRES], indirect=True)
def test_a_connection_that_was_ended_is_away(database: Database) -> None:
    with pytest.raises(DBAPIError) as ended, database.session() as session:
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    assert is_away(ended.value)
    with pytest.raises(DBAPIError) as wrong, database.session() as session:
        session.execute(text("SELECT 1 / 0"))
    assert not is_away(wrong.value)
