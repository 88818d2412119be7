"""Is the collection healthy? What hosts deliver, and what waits or failed behind it."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tightship_dashboard.figures import grid
from tightship_dashboard.figures.elements import Node, empty, prose, question, section, sentence
from tightship_dashboard.figures.palette import CHECK_COLOUR
from tightship_dashboard.pages.live import changed, digests
from tightship_dashboard.pages.view import View, current_figures, current_view
from tightship_dashboard.sentences import collection as words
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer
from tightship_platform import __version__
from tightship_platform.database.engine import Database
from tightship_platform.queries.collection import SKEW_NS, read_collection
from tightship_platform.results.collection import HostDelivery
from tightship_platform.units import NS_PER_S, format_bytes

PATH = "/collection"
QUESTION = "Is the collection healthy?"
LOOK_MS = 15_000
"""How often the page looks again."""
_TABLE = "deliveries"


def title() -> str:
    """Title of the browser's tab."""
    return QUESTION


def answer(view: View) -> Answer:
    """The first line, for the first paint."""
    return _Read(view).answer


class _Read:
    """What the page shows."""

    def __init__(self, view: View) -> None:
        with view.database.session() as session:
            self.collection = read_collection(session, now=view.now_ns)
        queues = {f.labels[0]: int(f.value) for f in current_figures() if f.name == "tightship_queue_length"}
        self.checks = words.checks(self.collection, queues, view.now_ns)
        self.answer: Answer = words.answer(self.collection, self.checks)


def layout(view: View) -> Node:
    """The whole page."""
    parts = _parts(_Read(view), view)
    return html.Div(
        [
            dcc.Location(id="collection-url", refresh=False),
            dcc.Interval(id="collection-clock", interval=LOOK_MS),
            dcc.Store(id="collection-seen", data=digests(parts)),
            *[html.Div(part, id=f"collection-{name}") for name, part in parts.items()],
        ],
        className="page-collection",
    )


def register(app: Dash, database: Database) -> None:
    """What changed is drawn again."""

    @app.callback(
        Output("collection-head", "children"),
        Output("collection-checks", "children"),
        Output("collection-hosts", "children"),
        Output("collection-seen", "data"),
        Input("collection-clock", "n_intervals"),
        State("collection-url", "pathname"),
        State("collection-seen", "data"),
        prevent_initial_call=True,
    )
    def _tick(_n: int, path: str | None, seen: Any) -> list[Any]:
        if path != PATH:
            raise PreventUpdate
        view = current_view(database, "")
        parts, now_seen = changed(_parts(_Read(view), view), seen)
        return [*parts, now_seen]


def _parts(read: _Read, view: View) -> dict[str, Node]:
    return {
        "head": [question(QUESTION), sentence(read.answer)],
        "checks": html.Ul([_check(check) for check in read.checks], className="checks"),
        "hosts": _hosts(read, view),
    }


def _check(check: words.Check) -> Node:
    return html.Li(
        [
            html.Span(className="dot", style={"background": CHECK_COLOUR[check.state]}),
            html.Span([html.B(check.what), " ", html.Span(check.state, className="quiet"), ": ", prose(check.detail)]),
            html.Span(prose(check.advice), className="quiet") if check.advice else None,
        ]
    )


def _hosts(read: _Read, view: View) -> Node:
    collection = read.collection
    if not collection.hosts:
        return empty(
            "No host has reported yet.",
            "Start an agent on every host that has devices; `tightship doctor` there says what is missing.",
            "tightship agent",
        )
    rows = [_row(delivery, view) for delivery in collection.deliveries]
    table = grid.table(_TABLE, _columns(fmt.offset_now(view.zone)), rows, label="Hosts")
    more = collection.hosts - len(rows)
    rest = f"{fmt.count(more)} more hosts are heard of and have nothing in their spool." if more else ""
    note = [html.P(rest, className="quiet")] if more else []
    return section("Hosts", [table, *note], anchor="hosts", aside=grid.export_button(_TABLE, "hosts.csv"))


def _columns(zone: str) -> list[grid.Column]:
    return [
        grid.column("state", "State", "state", width=126),
        grid.column("host", "Host", minWidth=110, flex=2),
        grid.column("heard", f"Heard ({zone})", "number", unit="ISO 8601", width=130, exported="why"),
        grid.column("lag", "Newest sample", "number", unit="seconds of age", width=116, wide=True),
        grid.column("gap", "Longest gap", "number", unit="seconds, of the last 10 min", width=104, wide=True),
        grid.column("clock", "Clock", "number", unit="seconds ahead of the server", width=146, wide=True),
        grid.column("spool", "In its spool", "number", unit="records", width=124, wide=True),
        grid.column("dropped", "Dropped", "number", unit="records", width=86, wide=True),
        grid.column("not_stored", "Not stored", "number", unit="rows", width=92, wide=True),
        grid.column("version", "Release", width=90, wide=True),
        grid.column("faults", "Sources that fail", minWidth=120, flex=2, wide=True),
    ]


def _row(delivery: HostDelivery, view: View) -> grid.Row:
    state, word = words.state_of(delivery)
    uncounted = "The agent does not say."
    row: grid.Row = {
        "id": delivery.host,
        "state": word,
        "state_colour": CHECK_COLOUR[state],
        "host": fmt.cell(delivery.host),
        "heard": delivery.last_seen_ns // 1_000_000,
        "heard_text": fmt.minute(delivery.last_seen_ns, view.zone),
        "heard_why": fmt.iso(delivery.last_seen_ns),
        "lag_why": "No sample of the last day.",
        "gap_why": "No two samples within the last 10 minutes.",
        "clock_why": "The host is silent, takes no samples, or keeps them in its spool.",
        "spool": delivery.spool_entries,
        "dropped": delivery.dropped,
        "not_stored": delivery.not_stored,
        "version": delivery.agent_version,
        "version_why": None if delivery.agent_version == __version__ else f"The server has {__version__}.",
        "faults": fmt.cell("; ".join(delivery.faults), limit=200),
    }
    for name in ("spool", "dropped", "not_stored"):
        row[f"{name}_why"] = uncounted if row[name] is None else None
    if delivery.spool_entries:
        row["spool_text"] = f"{fmt.count(delivery.spool_entries)}, {format_bytes(delivery.spool_bytes or 0)}"
    if delivery.newest_ns is not None:
        lag_ns = max(0, view.now_ns - delivery.newest_ns)
        row |= {"lag": round(lag_ns / NS_PER_S), "lag_text": words.age(lag_ns), "lag_why": fmt.iso(delivery.newest_ns)}
    if delivery.gap_ns is not None:
        row |= {"gap": round(delivery.gap_ns / NS_PER_S, 1), "gap_text": fmt.clock(delivery.gap_ns), "gap_why": None}
    if delivery.ahead_ns is not None:
        right = abs(delivery.ahead_ns) <= SKEW_NS
        side = "ahead" if delivery.ahead_ns > 0 else "behind"
        text = "right" if right else f"{words.age(abs(delivery.ahead_ns))} {side}"
        row |= {"clock": round(delivery.ahead_ns / NS_PER_S), "clock_text": text, "clock_why": None}
    return row
