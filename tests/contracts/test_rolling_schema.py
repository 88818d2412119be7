"""Servers of two releases on one database: what migrations may do, and what an older release does about a newer one.

See schema.py, [Note: expand, then contract]. Each migration from 0009 on is judged by what it does to a database; the
release before is played by the tables as they were before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, Table, create_engine, event, inspect, make_url, select, text
from table_rows import row_of
from waiting import wait_for

from tightship_platform.database import engine as databases
from tightship_platform.database import schema
from tightship_platform.errors import Conflict, SchemaMismatch
from tightship_platform.settings import Settings

FIRST = "0009"
LARGE = {"sample", "host_sample", "run_sample", "step_stat", "rollup"}
"""Tables that ingest fills all the time: building an index would hold it up."""


def revisions() -> list[str]:
    return sorted(schema._revisions())


POSTGRES_ALONE = pytest.mark.parametrize(
    "database_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
"""SQLite has one process, and no locks of tables."""


CHECKED = [revision for revision in revisions() if revision >= FIRST]


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, database_url=database_url)


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = create_engine(make_url(settings.database_url))
    yield engine
    engine.dispose()


def test_the_names_of_the_files_are_the_revisions() -> None:
    from alembic.script import ScriptDirectory

    known = ScriptDirectory.from_config(schema._config()).walk_revisions()
    assert [script.revision for script in known] == list(schema._revisions())


def removed_by(revision: str) -> set[str]:
    """`table` or `table.column` that a contracting migration says it drops."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(schema._config()).get_revision(revision)
    assert script is not None
    return set(getattr(script.module, "REMOVES", ()))


def tables_of(engine: Engine) -> dict[str, Table]:
    metadata = MetaData()
    with engine.connect() as connection:
        partitions = schema.partitions_of(connection)
    metadata.reflect(engine)
    known = {name: table for name, table in metadata.tables.items() if name not in partitions}
    known.pop(schema.VERSION_TABLE, None)
    return known


def files_of(engine: Engine) -> dict[str, int]:
    """Table → the file that PostgreSQL keeps it in, which is another one once the table has been rewritten."""
    with engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT relname, relfilenode FROM pg_class"
                " WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
            )
        )
        return {row.relname: row.relfilenode for row in rows}


def test_each_migration_says_who_can_read_what_it_makes() -> None:
    """And its own former release can: whoever upgrades from release to release has no moment without a server."""
    known, last = revisions(), "0000"
    for revision in CHECKED:
        readable_from = schema.readable_from_of(revision)
        before = known[known.index(revision) - 1]
        assert readable_from is not None, f"{revision} has no READABLE_FROM"
        assert last <= readable_from <= before, f"{revision}: READABLE_FROM is {readable_from}"
        assert not removed_by(revision) or readable_from > last, f"{revision} drops something: raise READABLE_FROM"
        last = readable_from


@pytest.mark.parametrize("revision", CHECKED)
def test_the_release_before_goes_on_working(settings: Settings, engine: Engine, revision: str) -> None:
    """It reads and writes rows as it knows them: nothing that it uses has gone, and nothing new is demanded of it."""
    known = revisions()
    databases.upgrade(settings, known[known.index(revision) - 1])
    before = tables_of(engine)
    databases.upgrade(settings, revision)
    after, removed = tables_of(engine), removed_by(revision)
    assert set(before) - set(after) <= removed
    for name, table in before.items():
        if name in removed:
            continue
        columns = {column.name for column in table.columns}
        assert {f"{name}.{column}" for column in columns - {c.name for c in after[name].columns}} <= removed, name
    used = [t for t in in_order(before) if t.name not in removed]
    with engine.begin() as connection:
        for table in used:
            row = {key: value for key, value in row_of(table).items() if f"{table.name}.{key}" not in removed}
            connection.execute(table.insert(), row)
            kept = [column for column in table.columns if f"{table.name}.{column.name}" not in removed]
            assert connection.execute(select(*kept)).mappings().one() == row, table.name


def in_order(tables: dict[str, Table]) -> list[Table]:
    metadata = next(iter(tables.values())).metadata
    return [table for table in metadata.sorted_tables if table.name in tables]


@POSTGRES_ALONE
@pytest.mark.parametrize("revision", CHECKED)
def test_no_migration_rewrites_a_table_or_changes_rows(settings: Settings, engine: Engine, revision: str) -> None:
    known = revisions()
    databases.upgrade(settings, known[known.index(revision) - 1])
    before, files = tables_of(engine), files_of(engine)
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(" ".join(statement.split()))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        databases.upgrade(settings, revision)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    after = files_of(engine)
    assert {name: after.get(name, file) for name, file in files.items()} == files, "a table was rewritten"
    for statement in statements:
        words = statement.upper()
        if words.startswith(("UPDATE", "DELETE", "INSERT")):
            table = statement.split()[1 if words.startswith("UPDATE") else 2].strip('"')
            assert table == schema.VERSION_TABLE or table not in before, f"existing rows are changed: {statement}"
        if words.startswith(("CREATE INDEX", "CREATE UNIQUE INDEX")):
            table = statement.split(" ON ", 1)[1].split()[0].strip('"')
            assert table not in LARGE or table not in before, f"ingest would wait for this index: {statement}"


def as_newer(engine: Engine, readable_from: str | None) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999', readable_from = :oldest"),
            {"oldest": readable_from},
        )


def test_a_newer_schema_that_this_release_can_read_is_worked_with(settings: Settings, engine: Engine) -> None:
    databases.upgrade(settings)
    as_newer(engine, schema.head())
    assert databases.upgrade(settings) == "9999", "a server of this release may start again meanwhile"
    with databases.open_database(settings) as database, database.session() as session:
        assert session.execute(text("SELECT count(*) FROM run")).scalar() == 0
    with engine.connect() as connection:
        assert schema.read_version(engine).fits
        assert connection.execute(text(f"SELECT version_num FROM {schema.VERSION_TABLE}")).scalar() == "9999"


@pytest.mark.parametrize("readable_from", ["9998", None])
def test_a_newer_schema_that_has_been_contracted_is_refused(
    settings: Settings, engine: Engine, readable_from: str | None
) -> None:
    databases.upgrade(settings)
    as_newer(engine, readable_from)
    for action in (databases.open_database, databases.upgrade):
        with pytest.raises(SchemaMismatch, match="newer than this release's"):
            action(settings)
    assert not schema.read_version(engine).fits


def test_the_way_down_says_so_too(settings: Settings, engine: Engine) -> None:
    databases.upgrade(settings)
    assert schema.read_version(engine).readable_from == schema.readable_from_of(schema.head())
    databases.downgrade(settings, "0008")
    assert schema.read_version(engine) == schema.Version(revision="0008")
    databases.upgrade(settings)
    assert schema.read_version(engine).fits


@POSTGRES_ALONE
def test_a_migration_gives_way_to_a_long_transaction(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither waits for ever nor makes the others wait, and is done once the table is free."""
    monkeypatch.setattr(schema, "LOCK_S", 0.2)
    monkeypatch.setattr(schema, "PAUSE_S", 0.1)
    databases.upgrade(settings, "0007")  # the next one alters `token`
    with engine.connect() as reader:
        reader.execute(text("SELECT count(*) FROM token"))
        monkeypatch.setattr(schema, "TRIES", 2)
        with pytest.raises(Conflict, match=r"in use at each of 2 tries.*pg_stat_activity"):
            databases.upgrade(settings)
        assert "expires_ns" not in {column["name"] for column in inspect(engine).get_columns("token")}
        monkeypatch.setattr(schema, "TRIES", 10_000)
        upgrading = threading.Thread(target=databases.upgrade, args=(settings,))
        upgrading.start()
        with engine.connect() as other:
            other.execute(text("SELECT count(*) FROM token"))  # is not held up for long
        reader.rollback()
        upgrading.join()
    assert schema.read_version(engine).fits


@POSTGRES_ALONE
def test_a_migration_that_stands_in_a_circle_of_waits_tries_again(
    settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody reads `run` and then `token`, while a migration has altered `token` and comes to `run`."""
    monkeypatch.setattr(schema, "LOCK_S", 60.0)
    monkeypatch.setattr(schema, "PAUSE_S", 0.1)
    databases.upgrade(settings, "0007")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as admin:
        admin.execute(text(f"ALTER DATABASE \"{engine.url.database}\" SET deadlock_timeout = '2s'"))
    engine.dispose()
    upgrading = threading.Thread(target=databases.upgrade, args=(settings,))
    waiting = text("SELECT count(*) FROM pg_locks WHERE relation = 'run'::regclass AND NOT granted")
    with engine.connect() as reader, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
        reader.execute(text("SET deadlock_timeout = '60s'"))  # the other one finds the circle
        reader.execute(text("SELECT count(*) FROM run"))
        upgrading.start()
        wait_for(lambda: watcher.execute(waiting).scalar(), "the migration to come to `run`")
        reader.execute(text("SELECT count(*) FROM token"))
        reader.rollback()
    upgrading.join()
    assert schema.read_version(engine).revision == schema.head()
