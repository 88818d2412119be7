"""Opens the database. SQLite and PostgreSQL differ here, in `schema` and in `partitions`; nowhere else.

[Note: write locks] SQLite sessions stay in the driver's classic mode: reads run outside a transaction and the first
write begins one. A transaction therefore never starts as a reader and then fails as a writer ("database is locked"
without waiting); what has to be read and changed together takes its lock first (`locks`): that of
its rows on PostgreSQL, that of the database on SQLite.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session, sessionmaker

from tightship_platform.database import schema
from tightship_platform.database.partitions import make_partitions
from tightship_platform.database.teams import filter_by_team
from tightship_platform.database.time_limits import TimeLimits, connect, for_maintenance, for_probes, for_requests
from tightship_platform.errors import DatabaseUnreachable, Invalid
from tightship_platform.settings import Settings

BUSY_TIMEOUT_MS = 15_000
"""How long a writer waits for another one on SQLite."""
CONNECTIONS = 20
"""Connections to PostgreSQL of one process at once, half of which are kept open."""
_POSTGRES_NAMES = ("postgresql", "postgres", "postgresql+psycopg")


def database_url(settings: Settings) -> URL:
    """The database of these settings as a URL with its driver named.

    :raises Invalid: it is neither a SQLite file nor a PostgreSQL database.
    """
    expected = "sqlite:///<path> or postgresql+psycopg://<user>@<host>/<database>"
    try:
        url = make_url(settings.database_url)
    except (ArgumentError, ValueError) as error:
        raise Invalid("TIGHTSHIP_DATABASE_URL", settings.database_url, expected) from error
    if url.drivername in _POSTGRES_NAMES and url.database:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite") and url.database and not url.database.startswith((":", "file:")):
        return url
    raise Invalid("TIGHTSHIP_DATABASE_URL", url.render_as_string(hide_password=True), expected)


class Database:
    """An open database: one engine with its pool. Make one per process, after any fork."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sessions = sessionmaker(engine, expire_on_commit=False)
        filter_by_team(self._sessions)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    @property
    def shown_url(self) -> str:
        """The URL without its password, fit to be shown."""
        return self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session that commits at the end of the block and rolls back when it raises. It may commit in between."""
        with self._sessions() as session:
            yield session
            session.commit()

    def schema_version(self) -> str | None:
        """The revision that the database carries; None when it has none."""
        return schema.read_version(self.engine).revision

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_database(settings: Settings, limits: TimeLimits | None = None, *, connections: int = CONNECTIONS) -> Database:
    """Open the database for work, by default within the time limits of requests.

    A file or database of another schema is left exactly as it is.

    :raises SchemaMismatch: it is empty, older, too new, or no tightship database; the line says what to do.
    :raises DatabaseUnreachable: it cannot be opened at all.
    """
    url = database_url(settings)
    limits = limits or for_requests(settings)
    probe = _engine(url, limits, read_only=True)
    try:
        schema.check(probe)
    finally:
        probe.dispose()
    return Database(_engine(url, limits, connections=connections))


def open_probe(settings: Settings) -> Engine:
    """One connection with short time limits, to look whether the database is there. It is opened at its first use."""
    return _engine(database_url(settings), for_probes(settings), read_only=True, connections=1)


def upgrade(settings: Settings, revision: str = "head") -> str | None:
    """Create the schema or bring it up to this release; returns the revision reached.

    Safe to call from several processes at once: one does the work, the others wait and find it done.

    :raises SchemaMismatch: the database belongs to something else, or to a newer release that does not fit.
    :raises Conflict: a table stayed busy.
    :raises DatabaseUnreachable: it cannot be opened.
    """
    url = database_url(settings)
    if url.get_backend_name() == "sqlite" and url.database:
        path = Path(url.database)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseUnreachable(
                f"Cannot make the folder of {path} ({error.strerror}); set TIGHTSHIP_HOME"
            ) from error
        if path.exists():
            probe = _engine(url, for_maintenance(settings), read_only=True)
            try:
                schema.check_upgradable(probe)
            finally:
                probe.dispose()
        _keep_private(path)
    with Database(_engine(url, for_maintenance(settings))) as database:
        reached = schema.migrate(database.engine, revision)
        if schema.read_version(database.engine).fits:
            with database.session() as session:
                make_partitions(session)
    return reached


def _keep_private(path: Path) -> None:
    """Have the database's files be their owner's only, also where the home was there before, or an older release made
    them. SQLite gives what it makes beside a database the rights of that."""
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            if file.exists() and file.stat().st_uid == os.geteuid():
                file.chmod(0o600)


def downgrade(settings: Settings, revision: str) -> str | None:
    """Take the schema back to an older revision, or to nothing with `base`; returns the revision reached."""
    engine = _engine(database_url(settings), for_maintenance(settings))
    try:
        return schema.migrate(engine, revision, down=True)
    finally:
        engine.dispose()


def _engine(url: URL, limits: TimeLimits, *, read_only: bool = False, connections: int = CONNECTIONS) -> Engine:
    if url.get_backend_name() == "postgresql":
        return _postgres_engine(url, limits, connections)
    # `mode=ro` by our own creator, so that the engine's URL stays the one that people know.
    path = Path(str(url.database)).absolute()
    mode = "ro" if read_only else "rwc"
    engine = create_engine(
        url,
        creator=lambda: sqlite3.connect(
            f"{path.as_uri()}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT_MS / 1000, check_same_thread=False
        ),
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        # None of these is written to the file; WAL is, and is therefore set by the migration alone.
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    return engine


def _postgres_engine(url: URL, limits: TimeLimits, connections: int) -> Engine:
    kept = -(-connections // 2)
    options = url.query.get("options", "")
    engine = create_engine(
        url, pool_size=kept, max_overflow=connections - kept, pool_timeout=limits.pool_s, pool_pre_ping=True
    )
    ours = limits.as_arguments(options if isinstance(options, str) else " ".join(options))

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, _args: object, arguments: Any) -> Any:
        return connect(limits, ours | arguments | {"options": ours["options"]})

    return engine
