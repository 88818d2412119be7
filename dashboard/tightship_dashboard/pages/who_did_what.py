"""Who did what? For administrators."""

from __future__ import annotations

import json
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html

from tightship_dashboard.figures import grid
from tightship_dashboard.figures.elements import Node, empty, question, sentence
from tightship_dashboard.pages.filters import choice, follow_address
from tightship_dashboard.pages.view import View
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, Link, audit_href
from tightship_platform.api.auth import require
from tightship_platform.database.engine import Database
from tightship_platform.queries.audit import list_audit
from tightship_platform.results.audit import AuditEntry
from tightship_platform.units import NS_PER_MS, plural
from tightship_platform.vocabulary import Scope

PATH = "/audit"
QUESTION = "Who did what?"
LIMIT = 1000
"""Newest entries that the table holds."""
_TABLE = "audit"


def title() -> str:
    """Title of the browser's tab."""
    return QUESTION


def answer(view: View) -> Answer:
    """The first line, for the first paint.

    :raises Forbidden: the viewer is no administrator.
    """
    return _Read(view).answer


class _Read:
    """The entries that the filters in the address let through.

    :raises Forbidden: the viewer is no administrator.
    """

    def __init__(self, view: View) -> None:
        require(Scope.ADMIN)
        self.action, self.actor = view.query.get("action") or None, view.query.get("actor") or None
        with view.database.session() as session:
            newest = list_audit(session, limit=LIMIT)
            self.entries = (
                list_audit(session, action=self.action, actor=self.actor, limit=LIMIT)
                if self.action or self.actor
                else newest
            )
        things = {entry.action.partition(".")[0] for entry in newest}
        self.actions = sorted({entry.action for entry in newest} | things | ({self.action} if self.action else set()))
        self.actors = sorted({entry.actor for entry in newest} | ({self.actor} if self.actor else set()))
        self.answer: Answer = _answer(self.entries, self.action, self.actor, view)


def _answer(entries: list[AuditEntry], action: str | None, actor: str | None, view: View) -> Answer:
    about = f" about {fmt.name(action, limit=60)}" if action else ""
    of = f" of {fmt.name(actor, limit=60)}" if actor else ""
    if not entries:
        return [f"0 entries{about}{of}."]
    last = entries[0]
    shown = f"The newest {LIMIT}" if len(entries) == LIMIT else plural(len(entries), "entry", "entries")
    return [
        f"{shown}{about}{of}; the last: ",
        Link(fmt.name(last.actor, limit=60), audit_href(actor=last.actor)),
        f", `{fmt.name(last.action)}`, {fmt.moment(last.time_ns, view.zone)}.",
    ]


def layout(view: View) -> Node:
    """The whole page.

    :raises Forbidden: the viewer is no administrator.
    """
    read = _Read(view)
    return html.Div(
        [
            dcc.Location(id="audit-url", refresh=False),
            dcc.Store(id="audit-address", data=_address(view)),
            question(QUESTION),
            sentence(read.answer),
            html.Div(
                [
                    choice("audit-action", read.actions, read.action, "every action", "Action"),
                    choice("audit-actor", read.actors, read.actor, "everybody", "Person"),
                    grid.export_button(_TABLE, "audit.csv"),
                ],
                className="filters",
            ),
            _body(read, view),
        ],
        className="page-audit",
    )


def register(app: Dash, database: Database) -> None:
    """Filters that live in the address."""
    in_browser: Any = app.clientside_callback
    in_browser(
        ClientsideFunction("tightship", "filterAudit"),
        Output("audit-url", "search"),
        Input("audit-action", "value"),
        Input("audit-actor", "value"),
        prevent_initial_call=True,
    )

    follow_address(app, database, "audit", path=PATH, address_of=_address, layout=layout)


def _address(view: View) -> str:
    return audit_href(action=view.query.get("action"), actor=view.query.get("actor"))


def _body(read: _Read, view: View) -> Node:
    if not read.entries and not (read.action or read.actor):
        return empty("Nobody has done anything yet.", "The same list on a command line:", "tightship audit")
    columns = [
        grid.column(
            "time", f"When ({fmt.offset_now(view.zone)})", "number", unit="ISO 8601", width=124, exported="why"
        ),
        grid.column("actor", "Who", "link", minWidth=110, flex=2),
        grid.column("action", "What", minWidth=120, flex=1),
        grid.column("target", "To what", minWidth=120, flex=2, wide=True),
        grid.column("detail", "More", minWidth=160, flex=4, wide=True),
    ]
    return grid.table(_TABLE, columns, [_row(i, entry, view) for i, entry in enumerate(read.entries)], label="Audit")


def _plain(value: object) -> str:
    """What was asked for of a capture, say, without what was left open."""
    if isinstance(value, dict):
        return " ".join(f"{name}={_plain(part)}" for name, part in value.items() if part is not None)
    return value if isinstance(value, str) else json.dumps(value)


def _row(number: int, entry: AuditEntry, view: View) -> grid.Row:
    more = json.loads(entry.detail)
    detail = ", ".join(f"{name}: {_plain(value)}" for name, value in more.items() if value is not None)
    return {
        "id": str(number),
        "time": entry.time_ns // NS_PER_MS,
        "time_text": fmt.minute(entry.time_ns, view.zone),
        "time_why": fmt.iso(entry.time_ns),
        "actor": fmt.cell(entry.actor),
        "actor_href": audit_href(actor=entry.actor),
        "action": fmt.cell(entry.action),
        "target": fmt.cell(entry.target, limit=200),
        "detail": fmt.cell(detail, limit=300),
    }
