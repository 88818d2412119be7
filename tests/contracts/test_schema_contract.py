"""The schema on both databases: up and down with data in every table, no difference from the models, clear refusals."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from processes import at_once
from sqlalchemy import create_engine, inspect, make_url, select, text
from table_rows import row_of

from tightship_platform.database import engine as databases
from tightship_platform.database import schema
from tightship_platform.database.models import Base
from tightship_platform.errors import DatabaseUnreachable, Invalid, SchemaMismatch
from tightship_platform.settings import Settings


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, database_url=database_url)


def test_every_table_takes_a_row_and_goes_down_and_up_again(settings: Settings) -> None:
    assert databases.upgrade(settings) == schema.head()
    with databases.open_database(settings) as database:
        with database.session() as session:
            for table in Base.metadata.sorted_tables:
                session.execute(table.insert(), row_of(table))
        with database.session() as session:
            for table in Base.metadata.sorted_tables:
                assert session.execute(select(table)).mappings().one() == row_of(table), table.name
        engine = database.engine
        assert databases.downgrade(settings, "base") is None
        assert [name for name in inspect(engine).get_table_names() if name != schema.VERSION_TABLE] == []
        assert databases.upgrade(settings) == schema.head()
        with database.session() as session:
            assert all(session.execute(select(table)).first() is None for table in Base.metadata.sorted_tables)


def test_data_survives_every_revision_up_and_down(settings: Settings) -> None:
    """What the first schema holds is there after each later one, and after the way back."""
    databases.upgrade(settings, "0001")
    engine = create_engine(make_url(settings.database_url))
    with engine.begin() as connection:
        present = set(inspect(connection).get_table_names())
        tables = [table for table in Base.metadata.sorted_tables if table.name in present]
        rows = {}
        for table in tables:
            names = {column["name"] for column in inspect(connection).get_columns(table.name)}
            rows[table.name] = {name: value for name, value in row_of(table).items() if name in names}
            connection.execute(table.insert(), rows[table.name])

    def check() -> None:
        with engine.connect() as connection:
            for table in tables:
                kept = select(*(table.c[name] for name in rows[table.name]))
                assert connection.execute(kept).mappings().one() == rows[table.name], table.name

    check()
    assert databases.upgrade(settings) == schema.head() != "0001"
    check()
    assert databases.downgrade(settings, "0001") == "0001"
    check()
    engine.dispose()


def test_runs_of_before_count_as_judged(settings: Settings) -> None:
    """Their samples may be gone: what was found in them stays."""
    databases.upgrade(settings, "0002")
    _execute(settings, "INSERT INTO workflow (id, name, labels) VALUES (1, 'w', '{}')")
    _execute(
        settings,
        "INSERT INTO run (id, key, workflow_id, source, simulated, command, labels, state, start_ns, last_seen_ns,"
        " ranks, accounted_ns) VALUES (1, 'a1', 1, 'launch', FALSE, '[]', '{}', 'failed', 1, 1, '[]', 77)",
    )
    databases.upgrade(settings)
    with databases.open_database(settings) as database, database.session() as session:
        run = session.execute(text("SELECT accounted_ns, judged_ns, error, oom_kills FROM run")).one()
        assert tuple(run) == (77, 77, None, None)


def test_the_migrated_schema_is_that_of_the_models(settings: Settings) -> None:
    databases.upgrade(settings)
    with databases.open_database(settings) as database, database.engine.connect() as connection:
        from tightship_platform.database.schema import partitions_of

        partitions = partitions_of(connection)
        dialect = connection.dialect.name
        options = {
            "include_name": lambda name, kind, _: kind != "table" or name not in {schema.VERSION_TABLE, *partitions},
            "include_object": lambda thing, *_: thing.info.get("dialect", dialect) == dialect,
            "compare_type": True,
            "compare_server_default": True,
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata) == []


def test_foreign_keys_are_enforced_and_cascade(settings: Settings) -> None:
    databases.upgrade(settings)
    with databases.open_database(settings) as database:
        tables = Base.metadata.tables
        with database.session() as session:
            for table in Base.metadata.sorted_tables:
                session.execute(table.insert(), row_of(table))
            session.execute(tables["verification"].delete())
        with database.session() as session:
            session.execute(tables["run"].delete())
            for name in ("allocation", "capture", "trace", "finding", "run_sample", "step_stat", "rollup"):
                assert session.execute(select(tables[name])).first() is None, name
            assert session.execute(select(tables["action"].c.run_id)).scalar_one() is None


def test_upgrade_again_changes_nothing(settings: Settings) -> None:
    databases.upgrade(settings)
    assert databases.upgrade(settings) == schema.head()


def test_processes_that_upgrade_at_once_all_succeed(settings: Settings) -> None:
    done = at_once(
        "from pathlib import Path; from tightship_platform.database import engine; "
        "from tightship_platform.settings import Settings",
        # One write each: they end at the same moment.
        "made = engine.upgrade(Settings(home=Path(sys.argv[1]), database_url=sys.argv[2])); "
        "os.write(1, f'{made}\\n'.encode())",
        str(settings.home),
        settings.database_url,
    )
    assert (done.returncode, done.stdout.split()) == (0, [schema.head()] * 4), done.stderr


def test_an_empty_database_is_asked_to_upgrade(settings: Settings) -> None:
    with pytest.raises(SchemaMismatch, match=r"is empty; run `tightship db upgrade`$"):
        databases.open_database(settings)


def test_an_older_schema_is_asked_to_upgrade(settings: Settings) -> None:
    databases.upgrade(settings, "0001")
    expected = rf"schema 0001, older than this release's {schema.head()}; run `tightship db upgrade`"
    with pytest.raises(SchemaMismatch, match=expected):
        databases.open_database(settings)


def test_a_newer_schema_is_left_alone(settings: Settings) -> None:
    databases.upgrade(settings)
    _execute(settings, f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999', readable_from = '9998'")
    before = _fingerprint(settings)
    for action in (databases.open_database, databases.upgrade):
        with pytest.raises(
            SchemaMismatch, match=r"schema '9999', newer than this release's .*; install the newer tightship"
        ):
            action(settings)
    assert _fingerprint(settings) == before


def test_a_database_of_something_else_is_left_alone(settings: Settings) -> None:
    _execute(settings, "CREATE TABLE customers (id INTEGER)")
    before = _fingerprint(settings)
    for action in (databases.open_database, databases.upgrade):
        with pytest.raises(SchemaMismatch, match=r"is not a tightship database \(it holds 'customers'\)"):
            action(settings)
    assert _fingerprint(settings) == before


def test_an_unknown_revision_is_one_clear_line(settings: Settings) -> None:
    databases.upgrade(settings)
    with pytest.raises(Invalid, match="Schema revision is 'x7'; expected one of base, 0001"):
        databases.upgrade(settings, "x7")
    with databases.open_database(settings) as database:
        assert database.schema_version() == schema.head()


def test_a_failed_migration_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    real = op.create_index

    def fail_late(name: str, *args: Any, **kwargs: Any) -> None:
        if name == "ix_verification_action_id":
            raise RuntimeError("power cut")
        real(name, *args, **kwargs)

    monkeypatch.setattr(op, "create_index", fail_late)
    with pytest.raises(RuntimeError, match="power cut"):
        databases.upgrade(settings)
    monkeypatch.undo()
    with pytest.raises(SchemaMismatch, match="is empty"):
        databases.open_database(settings)
    assert databases.upgrade(settings) == schema.head()


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    url = "postgresql+psycopg://someone:hunter2@127.0.0.1:1/tightship"
    with pytest.raises(DatabaseUnreachable) as caught:
        databases.open_database(Settings(home=tmp_path, database_url=url))
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:", "postgresql://h", "nonsense", "a b://"]
)
def test_other_databases_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(Invalid, match="TIGHTSHIP_DATABASE_URL"):
        databases.open_database(Settings(home=tmp_path, database_url=url))


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tightship.db"
    path.write_bytes(b"dear diary, " * 1000)
    settings = Settings(home=tmp_path)
    for action in (databases.open_database, databases.upgrade):
        with pytest.raises(SchemaMismatch, match="is not a tightship database"):
            action(settings)
    assert path.read_bytes() == b"dear diary, " * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_a_home_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnreachable, match="set TIGHTSHIP_HOME"):
        databases.upgrade(Settings(home=tmp_path / "file" / "home"))


def test_writers_wait_for_each_other(database: databases.Database) -> None:
    """Two sessions that read and then write: the second waits, neither fails."""
    table = Base.metadata.tables["workflow"]
    with database.session() as first, database.session() as second:
        assert first.execute(select(table)).all() == second.execute(select(table)).all() == []
        first.execute(table.insert(), {"name": "one", "labels": {}})
        first.commit()
        second.execute(table.insert(), {"name": "two", "labels": {}})
    with database.session() as session:
        assert set(session.execute(select(table.c.name)).scalars()) == {"one", "two"}


def _execute(settings: Settings, statement: str) -> None:
    engine = create_engine(settings.database_url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def _fingerprint(settings: Settings) -> object:
    url = make_url(settings.database_url)
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        pending = path.with_name(path.name + "-wal")
        return hashlib.sha256(path.read_bytes()).hexdigest(), pending.read_bytes() if pending.exists() else b""
    engine = create_engine(url)
    with engine.connect() as connection:
        tables = sorted(inspect(connection).get_table_names())
        version = None
        if schema.VERSION_TABLE in tables:
            version = connection.execute(text(f"SELECT version_num FROM {schema.VERSION_TABLE}")).scalar()
    engine.dispose()
    return tables, version
