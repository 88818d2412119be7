"""`tightship db`: the database's schema."""

from __future__ import annotations

import click

from tightship_platform.settings import load_settings


@click.group()
def db() -> None:
    """Create, upgrade and inspect the database's schema (TIGHTSHIP_DATABASE_URL)."""


@db.command()
def upgrade() -> None:
    """Create the schema or bring it up to this release. Safe to run any number of times, also at once."""
    settings = load_settings()
    from tightship_platform import database

    click.echo(f"The database has schema {database.upgrade(settings)}, this release's newest.")


@db.command()
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Do not ask first.")
def downgrade(revision: str, yes: bool) -> None:
    """Take the schema back to REVISION, or to nothing with `base`. What newer tables and columns hold is lost."""
    settings = load_settings()
    from tightship_platform import database

    shown = database.database_url(settings).render_as_string(hide_password=True)
    if not yes:
        click.confirm(f"Take {shown} back to {revision!r} and lose what newer tables and columns hold?", abort=True)
    reached = database.downgrade(settings, revision)
    click.echo(f"The database has schema {reached}." if reached else "The database holds no tightship tables any more.")


@db.command()
def status() -> None:
    """Show the schema that the database has and the one that this release needs. Changes nothing.

    Exit code 0: they are the same; 2: they are not, and the line says what to do.
    """
    settings = load_settings()
    from tightship_platform import database, schema

    with database.open_database(settings) as opened:
        click.echo(f"{opened.shown_url} has schema {schema.head()}, this release's newest.")
