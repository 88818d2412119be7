"""The schema version of a database: read it, check it, move it. The revisions themselves are under migrations/."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.exc import DatabaseError, OperationalError

from tightship_platform.errors import DatabaseUnreachable, Invalid, SchemaMismatch

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "tightship_schema"
"""Our own name, so that another application's Alembic table is never taken for ours."""
_LOCK_KEY = 0x7469676874736870
"""PostgreSQL advisory lock that migrations hold: 'tightshp' as a number."""


def read_version(engine: Engine) -> str | None:
    """The revision that the database carries; None when it has none.

    :raises DatabaseUnreachable: the database does not answer.
    :raises SchemaMismatch: the file is no database at all.
    """
    return _look(engine)[0]


def head() -> str:
    """The revision that this release works with."""
    return _revisions()[0]


def check(engine: Engine) -> None:
    """Accept a database of exactly this release's schema; only reads.

    :raises SchemaMismatch: one line that says what it is instead and what to do.
    """
    version, tables = _look(engine)
    where = f"The database {engine.url.render_as_string(hide_password=True)}"
    if version is None and not tables:
        raise SchemaMismatch(f"{where} is empty; run `tightship db upgrade`")
    _refuse_foreign(where, version, tables)
    if version != head():
        raise SchemaMismatch(
            f"{where} has schema {version}, older than this release's {head()}; run `tightship db upgrade`"
        )


def check_upgradable(engine: Engine) -> None:
    """Accept an empty database or one of an older (or this) release; only reads.

    :raises SchemaMismatch: it belongs to something else, or to a newer release.
    """
    version, tables = _look(engine)
    _refuse_foreign(f"The database {engine.url.render_as_string(hide_password=True)}", version, tables)


def migrate(engine: Engine, revision: str, *, down: bool = False) -> str | None:
    """Move the schema in one transaction, while no other process can; returns the revision reached."""
    from alembic import command
    from alembic.script.revision import ResolutionError
    from alembic.util import CommandError

    where = f"The database {engine.url.render_as_string(hide_password=True)}"
    config = _config()
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                _use_wal(connection)
                # Batch migrations replace tables; with enforcement on, that would cascade into their children.
                connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            _refuse_foreign(where, *_inspect(connection))
            config.attributes["connection"] = connection
            try:
                if down:
                    command.downgrade(config, revision)
                else:
                    command.upgrade(config, revision)
            except (CommandError, ResolutionError) as error:
                raise Invalid(
                    "Schema revision", revision, f"one of base, {', '.join(reversed(_revisions()))}"
                ) from error
            reached = _inspect(connection)[0]
            connection.commit()
            return reached
    except OperationalError as error:
        raise _unreachable(error, engine.url) from error


def partitions_of(connection: Connection) -> frozenset[str]:
    """Tables that are daily or default partitions: data of their parents, not part of the model."""
    if connection.dialect.name != "postgresql":
        return frozenset()
    rows = connection.execute(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"))
    return frozenset(rows.scalars())


def _refuse_foreign(where: str, version: str | None, tables: list[str]) -> None:
    if version is None and tables:
        shown = ", ".join(repr(name) for name in tables[:3])
        raise SchemaMismatch(
            f"{where} is not a tightship database (it holds {shown}); point TIGHTSHIP_DATABASE_URL to an empty one"
        )
    if version is not None and version not in _revisions():
        raise SchemaMismatch(
            f"{where} has schema {version!r}, newer than this release's {head()}; install the newer tightship"
        )


def _look(engine: Engine) -> tuple[str | None, list[str]]:
    url = engine.url
    if engine.dialect.name == "sqlite" and not _sqlite_path(url).is_file():
        return None, []
    try:
        with engine.connect() as connection:
            return _inspect(connection)
    except OperationalError as error:
        raise _unreachable(error, url) from error
    except DatabaseError as error:
        why = " ".join(str(error.orig).split())
        raise SchemaMismatch(
            f"{_sqlite_path(url)} is not a tightship database ({why}); set TIGHTSHIP_DATABASE_URL or TIGHTSHIP_HOME"
        ) from error


def _inspect(connection: Connection) -> tuple[str | None, list[str]]:
    tables = sorted(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        return None, tables
    version = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
    others = [name for name in tables if name != VERSION_TABLE]
    # A schema taken down to `base` leaves an empty version table behind: that is an empty database.
    return (str(version) if version is not None else None), others


def _sqlite_path(url: URL) -> Path:
    return Path(str(url.database))


def _use_wal(connection: Connection) -> None:
    """Readers beside one writer. Two processes that switch a new file at once may see "locked": try again."""
    deadline = time.monotonic() + 15
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _unreachable(error: OperationalError, url: URL) -> DatabaseUnreachable:
    why = " ".join(str(error.orig).split())
    return DatabaseUnreachable(f"Cannot open the database {url.render_as_string(hide_password=True)} ({why})")


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _revisions() -> tuple[str, ...]:
    """All revisions of this release, newest first."""
    from alembic.script import ScriptDirectory

    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())
