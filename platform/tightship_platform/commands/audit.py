"""`tightship audit`: who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tightship_platform.commands.direct import database_session
from tightship_platform.commands.filter_options import MOST
from tightship_platform.commands.list_form import ListForm, in_forms
from tightship_platform.results.audit import AuditEntry
from tightship_platform.units import now_ns, parse_time_ns

if TYPE_CHECKING:
    from tightship_platform.commands.terminal import Listed


@click.command()
@click.option("--actor", metavar="NAME", help="Only what this token, `loopback`, `environment` or `retention` did.")
@click.option("--action", metavar="ACTION", help="Only this, such as trace.download, or all about a thing: trace.")
@click.option("--since", metavar="TIME", help="Only what was done since then: 7d (ago), yesterday, a day, or a time.")
@click.option("--limit", type=click.IntRange(1, MOST), default=200, show_default=True, help="Maximum number to list.")
@in_forms(AuditEntry)
def audit(actor: str | None, action: str | None, since: str | None, limit: int, form: ListForm) -> None:
    """List who did what, newest first, directly from the database (TIGHTSHIP_DATABASE_URL).

    Tokens made, rotated, revoked and refused, logins, captures asked for, traces downloaded, schedules and states
    changed, files and samples removed. Entries are kept for TIGHTSHIP_KEEP_AUDIT_DAYS.
    """
    from tightship_platform.queries.audit import list_audit

    def read() -> list[AuditEntry]:
        since_ns = None if since is None else parse_time_ns("since", since, now=now_ns(), zone=None)
        with database_session() as session:
            return list_audit(session, actor=actor, action=action, since_ns=since_ns, limit=limit)

    form.show(read, _table, lambda: "No such entry. See all of them with: tightship audit")


def _table(entries: list[AuditEntry]) -> Listed:
    from tightship_platform.commands.terminal import Column, Listed, clock

    columns = [
        Column("TIME", whole=True),
        Column("ACTOR"),
        Column("ACTION", whole=True),
        Column("TARGET"),
        Column("DETAIL", spare=1),
    ]
    rows = [
        (
            clock(entry.time_ns),
            entry.actor,
            entry.action,
            entry.target,
            "" if entry.detail == "{}" else entry.detail,
        )
        for entry in entries
    ]
    return Listed(columns, rows)
