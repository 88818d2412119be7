"""The schema version of a database: read it, check it, move it. The revisions themselves are under migrations/.

[Note: expand, then contract]
During a rolling upgrade, servers of two releases use one database. So a migration first only *expands*: new tables, and
new columns that may be left out. Nothing that the release before reads or writes is dropped, renamed or narrowed, no
table is rewritten, no existing row is changed. A *contracting* migration may follow one release later, when no release
that may still run uses what it drops. Each says as READABLE_FROM the oldest revision whose release can work with the
schema that it makes; the database keeps that beside its version, so an older release knows by itself whether it may go
on. tests/contracts/test_rolling_schema.py holds every migration from 0009 on to this.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.exc import DatabaseError, OperationalError

from tightship_platform.errors import Conflict, DatabaseUnreachable, Invalid, SchemaMismatch

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "tightship_schema"
"""Our own name, so that another application's Alembic table is never taken for ours."""
_LOCK_KEY = 0x7469676874736870
"""PostgreSQL advisory lock that migrations hold: 'tightshp' as a number."""
LOCK_S = 2.0
"""How long a migration waits for a table that others use: whoever comes after it waits, too."""
TRIES = 30
PAUSE_S = 1.0
"""Between two tries, for those who waited."""
_IN_USE = {"55P03", "40P01"}
"""What PostgreSQL says of a table that others hold for longer: a lock not had in time, a deadlock with them."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """The schema of a database."""

    revision: str | None
    """None: it has none."""
    readable_from: str | None = None
    """The oldest revision whose release can work with it; None: it does not say, as before 0010."""

    @property
    def fits(self) -> bool:
        """Whether this release can work with it; see [Note: expand, then contract]."""
        if self.revision in _revisions():
            return self.revision == head()
        return self.revision is not None and self.readable_from in _revisions()

    @property
    def difference(self) -> str | None:
        """In what it is not this release's, and what to do; None: it is this release's."""
        if self.revision is None:
            return "the database has no schema; run `tightship db upgrade`"
        if self.revision in _revisions():
            older = f"its schema {self.revision} is older than this release's {head()}; run `tightship db upgrade`"
            return None if self.revision == head() else older
        newer = f"its schema {self.revision} is newer than this release's {head()}"
        if self.fits:
            return f"{newer}, which goes on with it; install the newer release here before the next one is installed"
        return f"{newer}, which cannot work with it; install the newer release here"


def read_version(engine: Engine) -> Version:
    """The schema that the database carries.

    :raises DatabaseUnreachable: the database does not answer.
    :raises SchemaMismatch: the file is no database at all.
    """
    return _look(engine)[0]


def head() -> str:
    """The revision that this release works with."""
    return _revisions()[0]


def check(engine: Engine) -> None:
    """Accept a database of this release's schema, or of a newer one that it can work with; only reads.

    :raises SchemaMismatch: one line that says what it is instead and what to do.
    """
    version, tables = _look(engine)
    where = f"The database {engine.url.render_as_string(hide_password=True)}"
    if version.revision is None and not tables:
        raise SchemaMismatch(f"{where} is empty; run `tightship db upgrade`")
    _refuse_foreign(where, version, tables)
    if not version.fits:
        raise SchemaMismatch(
            f"{where} has schema {version.revision}, older than this release's {head()}; run `tightship db upgrade`"
        )


def check_upgradable(engine: Engine) -> None:
    """Accept an empty database, one of an older (or this) release, or a newer one that fits; only reads.

    :raises SchemaMismatch: it belongs to something else, or to a newer release that this one cannot work with.
    """
    version, tables = _look(engine)
    _refuse_foreign(f"The database {engine.url.render_as_string(hide_password=True)}", version, tables)


def migrate(engine: Engine, revision: str, *, down: bool = False) -> str | None:
    """Move the schema in one transaction, while no other process can; returns the revision reached.

    A newer schema that this release can work with is left as it is. On PostgreSQL no table is waited for longer than
    LOCK_S at once, because everybody else would wait behind; the whole is tried TRIES times.

    :raises Conflict: a table stayed busy; nothing was changed.
    """
    for left in reversed(range(TRIES)):
        try:
            return _migrate(engine, revision, down)
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) not in _IN_USE:
                raise _unreachable(error, engine.url) from error
            if not left:
                raise Conflict(
                    f"The schema could not be changed: a table was in use at each of {TRIES} tries, {LOCK_S:g} s each; "
                    "end long transactions (pg_stat_activity shows them) and run `tightship db upgrade` again"
                ) from error
            log.info("A migration gives way to others who use its tables; it tries again")
            time.sleep(PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _migrate(engine: Engine, revision: str, down: bool) -> str | None:
    where = f"The database {engine.url.render_as_string(hide_password=True)}"
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            _use_wal(connection)
            # Batch migrations replace tables; with enforcement on, that would cascade into their children.
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            # Only now: whoever migrates already is waited for.
            connection.execute(text(f"SET LOCAL lock_timeout = '{int(LOCK_S * 1000)}ms'"))
        before, tables = _inspect(connection)
        _refuse_foreign(where, before, tables)
        if before.revision is not None and before.revision not in _revisions():
            return before.revision
        if before.revision == head() and revision == "head" and not down:
            return before.revision
        if before.revision not in (None, head()) and revision == "head" and not down:
            log.info(
                "The schema goes from %s to %s. The way back is a backup from before (docs/operations.md, Backup and "
                "restore)",
                before.revision,
                head(),
            )
        _run_migrations(connection, revision, down)
        reached = _inspect(connection)[0].revision
        _write_readable_from(connection, reached)
        connection.commit()
        return reached


def _run_migrations(connection: Connection, revision: str, down: bool) -> None:
    from alembic import command
    from alembic.script.revision import ResolutionError
    from alembic.util import CommandError

    config = _config()
    config.attributes["connection"] = connection
    try:
        if down:
            command.downgrade(config, revision)
        else:
            command.upgrade(config, revision)
    except (CommandError, ResolutionError) as error:
        raise Invalid("Schema revision", revision, f"one of base, {', '.join(reversed(_revisions()))}") from error


def _write_readable_from(connection: Connection, reached: str | None) -> None:
    readable_from = readable_from_of(reached) if reached is not None else None
    columns = {column["name"] for column in inspect(connection).get_columns(VERSION_TABLE)}
    if readable_from is not None and "readable_from" in columns:
        statement = f"UPDATE {VERSION_TABLE} SET readable_from = :readable_from"  # noqa: S608
        connection.execute(text(statement), {"readable_from": readable_from})


def readable_from_of(revision: str) -> str | None:
    """READABLE_FROM of a migration; None: it is from before there was such a thing."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(_config()).get_revision(revision)
    return None if script is None else getattr(script.module, "READABLE_FROM", None)


def partitions_of(connection: Connection) -> frozenset[str]:
    """Tables that are daily or default partitions: data of their parents, not part of the model."""
    if connection.dialect.name != "postgresql":
        return frozenset()
    rows = connection.execute(text("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'"))
    return frozenset(rows.scalars())


def _refuse_foreign(where: str, version: Version, tables: list[str]) -> None:
    if version.revision is None and tables:
        shown = ", ".join(repr(name) for name in tables[:3])
        raise SchemaMismatch(
            f"{where} is not a tightship database (it holds {shown}); point TIGHTSHIP_DATABASE_URL to an empty one"
        )
    if version.revision is not None and version.revision not in _revisions() and not version.fits:
        raise SchemaMismatch(
            f"{where} has schema {version.revision!r}, newer than this release's {head()}; install the newer tightship"
        )


def _look(engine: Engine) -> tuple[Version, list[str]]:
    url = engine.url
    if engine.dialect.name == "sqlite" and not _sqlite_path(url).is_file():
        return Version(revision=None), []
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


def _inspect(connection: Connection) -> tuple[Version, list[str]]:
    tables = sorted(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        return Version(revision=None), tables
    # All columns, as a schema of before 0010 has no `readable_from`.
    row = connection.execute(text(f"SELECT * FROM {VERSION_TABLE}")).mappings().first()  # noqa: S608
    others = [name for name in tables if name != VERSION_TABLE]
    # A schema taken down to `base` leaves an empty version table behind: that is an empty database.
    if row is None:
        return Version(revision=None), others
    return Version(revision=str(row["version_num"]), readable_from=row.get("readable_from")), others


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
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _revisions() -> tuple[str, ...]:
    """All revisions of this release, newest first.

    A revision is the number that its file's name begins with: whoever only looks needs no Alembic, a tenth of a start.
    """
    files = (MIGRATIONS / "versions").glob("[0-9]*_*.py")
    return tuple(sorted((file.name.partition("_")[0] for file in files), reverse=True))
