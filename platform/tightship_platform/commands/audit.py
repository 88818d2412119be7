"""`tightship audit`: who did what."""

from __future__ import annotations

import click

from tightship_platform.commands.json_option import json_option, print_json
from tightship_platform.results.audit import AuditEntry
from tightship_platform.settings import load_settings
from tightship_platform.units import now_ns, parse_duration_ns


@click.command()
@click.option("--actor", metavar="NAME", help="Only what this token, `loopback`, `environment` or `retention` did.")
@click.option("--action", metavar="ACTION", help="Only this, such as trace.download, or all about a thing: trace.")
@click.option("--since", metavar="TIME", help="Only the last so much time, such as 7d.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Maximum number to list.")
@json_option(AuditEntry)
def audit(actor: str | None, action: str | None, since: str | None, limit: int, as_json: bool) -> None:
    """List who did what, newest first, directly from the database (TIGHTSHIP_DATABASE_URL).

    Tokens made, rotated, revoked and refused, logins, captures asked for, traces downloaded, schedules and states
    changed, files and samples removed. Entries are kept for TIGHTSHIP_KEEP_AUDIT_DAYS.
    """
    settings = load_settings()
    from tightship_platform.database import engine
    from tightship_platform.queries.audit import list_audit

    since_ns = None if since is None else now_ns() - parse_duration_ns(since)
    with engine.open_database(settings) as opened, opened.session() as session:
        entries = list_audit(session, actor=actor, action=action, since_ns=since_ns, limit=limit)
    if as_json:
        print_json(entries)
        return
    from tightship_platform.commands.terminal import Column, clock, print_table

    print_table(
        [Column("TIME", whole=True), Column("ACTOR"), Column("ACTION", whole=True), Column("TARGET"), Column("DETAIL")],
        [
            (
                clock(entry.time_ns),
                entry.actor,
                entry.action,
                entry.target,
                "" if entry.detail == "{}" else entry.detail,
            )
            for entry in entries
        ],
        empty="No such entry. See all of them with: tightship audit",
    )
