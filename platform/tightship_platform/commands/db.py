"""`tightship db`: the database's schema, and the artifact store that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from tightship_platform.errors import TightshipError
from tightship_platform.settings import load_settings


@click.group()
def db() -> None:
    """Manage the database and its artifact store (TIGHTSHIP_DATABASE_URL)."""


@db.command()
def upgrade() -> None:
    """Create the schema or bring it up to this release. Safe to run any number of times, also at once.

    Back up the database first: the way back to an older release is that backup. Servers of the release before go on
    working with the new schema, so that they can be replaced one after another.
    """
    settings = load_settings()
    from tightship_platform.database import engine

    reached = engine.upgrade(settings)
    click.echo(_state("The database", reached))


def _state(what: str, revision: str | None) -> str:
    from tightship_platform.database import schema

    if revision == schema.head():
        return f"{what} has schema {revision}, this release's newest."
    return f"{what} has schema {revision} of a newer release, which works with this one's ({schema.head()})."


@db.command()
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Do not ask first.")
def downgrade(revision: str, yes: bool) -> None:
    """Downgrade the schema to REVISION, or remove it with `base`. Data in newer tables and columns are lost."""
    settings = load_settings()
    from tightship_platform.database import engine

    shown = engine.database_url(settings).render_as_string(hide_password=True)
    if not yes:
        click.confirm(f"Take {shown} back to {revision!r} and lose what newer tables and columns hold?", abort=True)
    reached = engine.downgrade(settings, revision)
    click.echo(f"The database has schema {reached}." if reached else "The database holds no tightship tables any more.")


@db.command()
def status() -> None:
    """Show the database's schema revision and the one that this release needs. Changes nothing.

    Exit code 0: they match, or a newer one works with this release; 2: they differ, and the line says what to do.
    """
    settings = load_settings()
    from tightship_platform.database import engine

    with engine.open_database(settings) as opened:
        click.echo(_state(opened.shown_url, opened.schema_version()))


@db.command("adopt-store")
@click.option("--yes", is_flag=True, help="Do not ask first.")
def adopt_store(yes: bool) -> None:
    """Adopt the store at TIGHTSHIP_ARTIFACTS_URL as this installation's own.

    Old trace files are removed only from an installation's own store. Use this for a store that was moved or restored,
    or filled by an older release. Any other installation that uses the store, a copy of this database included, removes
    nothing from it afterwards.
    """
    settings = load_settings()
    from tightship_platform.captures import artifact_store, store_owner
    from tightship_platform.database import engine
    from tightship_platform.database.audit import audit

    store = artifact_store.open_artifacts(settings)
    with engine.open_database(settings) as opened, _store_in_one_line():
        if not yes:
            with opened.session() as session:
                fault = store_owner.find_fault(session, store)
            click.echo(fault or f"The artifact store {store.shown_url} is this installation's or empty.")
            click.confirm(f"Make it the store of {opened.shown_url}?", abort=True)
        adopted = store_owner.adopt(opened, store)
        with opened.session() as session:
            audit(session, "cli", "store.adopt", store.shown_url, installation=adopted)
    click.echo(f"{store.shown_url} belongs to this installation now ({adopted}).")


@db.command("sweep-traces")
@click.option("--yes", is_flag=True, help="Do not ask first.")
def sweep_traces(yes: bool) -> None:
    """Remove old and orphaned trace files, without a limit.

    Those older than TIGHTSHIP_KEEP_TRACE_DAYS, and those of interrupted or refused uploads, which no trace names.
    The worker removes old ones every hour, unless more than half of the files would go; orphaned ones only when they
    are as old. Files younger than an hour, and those of captures that the database does not know, stay.
    """
    settings = load_settings()
    from tightship_platform.captures import artifact_store, files
    from tightship_platform.database import engine
    from tightship_platform.database.audit import audit
    from tightship_platform.units import format_bytes, plural

    store, days = artifact_store.open_artifacts(settings), settings.keep_trace_days
    with engine.open_database(settings) as opened, _store_in_one_line():
        found = files.find_removable(opened, store, keep_days=days)
        total, partial = len(found.files) + found.kept, plural(len(found.partials), "half-written file")
        click.echo(
            f"{store.shown_url}: {len(found.files)} of {plural(total, 'trace file')} and {partial} can go; "
            f"{found.unknown} of captures that the database does not know stay."
        )
        if not yes and (found.files or found.partials):
            click.confirm("Remove them?", abort=True)
        removed = files.remove(opened, store, found, keep_days=days)
        with opened.session() as session:
            audit(session, "cli", "traces.remove", plural(removed.files, "file"), traces=removed.traces)
    click.echo(f"Removed {plural(removed.files, 'file')} ({format_bytes(removed.size_bytes)}).")


@contextmanager
def _store_in_one_line() -> Iterator[None]:
    """Say in one line why the artifact store cannot be used."""
    try:
        yield
    except OSError as error:
        why = " ".join(str(error).split())
        raise TightshipError(f"The artifact store cannot be used ({why}); check TIGHTSHIP_ARTIFACTS_URL") from error
