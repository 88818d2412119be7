"""Where do device-hours go? The fleet's account, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tightship_dashboard.figures import account, activity, chart, grid, over_time
from tightship_dashboard.figures.elements import Node, attrs, empty, question, section, sentence, simulated_badge
from tightship_dashboard.pages.filters import follow_address
from tightship_dashboard.pages.live import CALM_MS, changed, digests
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.answers import RANGE_WORDS
from tightship_dashboard.sentences.fleets import imported
from tightship_dashboard.sentences.links import Answer, actions_href, fleet_href, runs_href
from tightship_platform.database.engine import Database
from tightship_platform.queries.account_groups import account_groups
from tightship_platform.queries.captures import any_trace_analyzed
from tightship_platform.queries.fleet import NO_TEAM, fleet_account
from tightship_platform.queries.fleets import fleet_names, get_fleet
from tightship_platform.queries.opportunities import list_opportunities
from tightship_platform.queries.runs import list_runs
from tightship_platform.results.filters import Filters, imported_fleet
from tightship_platform.results.fleet import ImportedFleet
from tightship_platform.results.opportunity import Opportunity
from tightship_platform.units import NS_PER_S, plural
from tightship_platform.vocabulary import AccountBy, Bucket, OpportunityState

PATH = "/"
QUESTION = "Where do device-hours go?"
RANGES = {"24h": 24 * 3600 * NS_PER_S, "7d": 7 * 86400 * NS_PER_S, "30d": 30 * 86400 * NS_PER_S}
DEFAULT_RANGE = "7d"
PARTS = ("head", "account", "shape")
_TABLE = "opportunities"


def title() -> str:
    """Title of the browser's tab."""
    return QUESTION


def answer(view: View) -> Answer:
    """The first line, for the first paint."""
    return _Read(view).answer


class _Read:
    """The prepared results behind one look at this page."""

    def __init__(self, view: View) -> None:
        self.range_key = view.query.get("range", DEFAULT_RANGE)
        if self.range_key not in RANGES:
            self.range_key = DEFAULT_RANGE
        self.fleet = imported_fleet(view.query.get("fleet"))
        """The imported fleet that is asked for; None: the live one."""
        self.imported: ImportedFleet | None = None
        self.by_state: dict[str, dict[str, int]] = {}
        since_ns, until_ns = view.now_ns - RANGES[self.range_key], view.now_ns
        with view.database.session() as session:
            if self.fleet is not None:
                self.imported = get_fleet(session, self.fleet)
                since_ns = self.imported.since_ns or since_ns
                until_ns = max(self.imported.until_ns or until_ns, since_ns + 1)
                groups = account_groups(session, AccountBy.STATE, fleet=self.fleet)
                self.by_state = {group.key: group.buckets for group in groups}
            self.account = fleet_account(session, since_ns=since_ns, until_ns=until_ns, fleet=self.fleet)
            self.opportunities = list_opportunities(session, fleet=self.fleet)
            self.any_run = bool(list_runs(session, Filters(fleet=self.fleet), limit=1))
            self.any_trace = any_trace_analyzed(session)
            self.fleets = fleet_names(session)
        self.answer: Answer = (
            answers.fleet(self.account, self.opportunities, self.range_key)
            if self.imported is None
            else imported(self.imported)
        )


def layout(view: View) -> Node:
    """The whole page."""
    read = _Read(view)
    parts = _parts(view, read)
    todo = section(
        "What to do first",
        [
            grid.table(_TABLE, _columns(), _rows(read.opportunities), label="What to do first", wrap=True)
            if read.opportunities
            else _nothing_to_do(read),
        ],
        anchor="first",
        aside=grid.export_button(_TABLE, "opportunities.csv") if read.opportunities else None,
    )
    return html.Div(
        [
            dcc.Location(id="fleet-url", refresh=False),
            dcc.Interval(id="fleet-clock", interval=CALM_MS),
            dcc.Store(id="fleet-seen", data=digests(parts)),
            dcc.Store(id="fleet-address", data=_address(view)),
            *[html.Div(parts[name], id=f"fleet-{name}") for name in PARTS],
            todo,
        ]
    )


def register(app: Dash, database: Database) -> None:
    """The range in the address, and numbers that follow the fleet."""

    @app.callback(
        *[Output(f"fleet-{name}", "children") for name in PARTS],
        Output("fleet-seen", "data"),
        Input("fleet-url", "search"),
        Input("fleet-clock", "n_intervals"),
        State("fleet-url", "pathname"),
        State("fleet-seen", "data"),
        State("fleet-address", "data"),
        prevent_initial_call=True,
    )
    def _refresh(search: str | None, _ticks: int | None, path: str | None, seen: Any, address: Any) -> list[Any]:
        view = current_view(database, search)
        if path != PATH or _address(view) != address:  # another fleet is another page
            raise PreventUpdate
        sent, shown = changed(_parts(view, _Read(view)), seen)
        return [*sent, shown]

    follow_address(app, database, "fleet", path=PATH, address_of=_address, layout=layout)


def _address(view: View) -> str:
    """What stands for another page: the fleet, and not the range."""
    return fleet_href(view.query.get("fleet"))


def _parts(view: View, read: _Read) -> dict[str, Node]:
    return {
        "head": [
            question(QUESTION, *_beside(read)),
            sentence(read.answer),
        ],
        "account": [*_activity(read), _account(read)],
        "shape": _shape(view, read),
    }


def _beside(read: _Read) -> list[Node]:
    beside = [*simulated_badge(read.account.simulated), *activity.choice(read.fleets, read.fleet)]
    return [activity.imported_badge(read.fleet), *beside] if read.fleet else [*beside, _ranges(read.range_key)]


def _activity(read: _Read) -> list[Node]:
    """What the samples of an imported fleet measured, with the first of its assumptions."""
    fleet = read.imported
    if fleet is None or fleet.busy_ns is None:
        return []
    aside = ", ".join(fleet.assumptions[:1])
    return [section("How much of it was busy", [activity.measured(fleet)], anchor="activity", aside=aside)]


def _assumptions(read: _Read) -> list[Node]:
    """What the figures of an imported fleet take for granted."""
    if read.imported is None or not read.imported.runs:
        return []
    return [section("What these figures take for granted", [activity.assumptions(read.imported)], anchor="assumptions")]


def _ranges(chosen: str) -> Node:
    links = [
        dcc.Link(
            _spaced(key), href=f"/?range={key}", title=f"The last {words}", className="here" if key == chosen else None
        )
        for key, words in RANGE_WORDS.items()
    ]
    return html.Nav(links, className="choice", **attrs(aria_label="Time range"))


def _spaced(range_key: str) -> str:
    return f"{range_key[:-1]} {range_key[-1]}"


def _account(read: _Read) -> Node:
    total = read.account.device_ns
    if not _is_held(read):
        return [] if read.imported is not None else _no_device_time(read)
    of_runs = set(Bucket) - {Bucket.UNALLOCATED}
    hrefs = {bucket: runs_href(by=bucket, fleet=read.fleet) for bucket in of_runs}
    return section(
        "Where it went",
        [account.waterfall(read.account.buckets, total, hrefs=hrefs)],
        anchor="account",
        aside=f"{plural(read.account.runs, 'run')}, every bar to the same scale",
    )


def _is_held(read: _Read) -> bool:
    """A run held a device in the time range."""
    return read.account.device_ns > read.account.buckets.get(Bucket.UNALLOCATED, 0)


def _shape(view: View, read: _Read) -> Node:
    if not _is_held(read):
        return _assumptions(read)
    left = section(
        "Over time",
        [
            account.key(read.account.buckets),
            chart.draw(
                over_time.figure(read.account, view.zone),
                graph_id="fleet-over-time",
                title="Device time over time, by bucket",
            ),
        ],
        anchor="time",
    )
    right = [section("By team", [account.by_group(read.account.by_team, kind="team")], anchor="teams")]
    if read.by_state:
        states = section("By state", [account.by_group(read.by_state, kind="state")], anchor="states")
        right = [states, *(right if set(read.account.by_team) != {NO_TEAM} else [])]
    return [html.Div([left, html.Div(right)], className="columns"), *_assumptions(read)]


def _no_device_time(read: _Read) -> Node:
    if read.any_run:
        return empty(
            f"No run held a device in the last {RANGE_WORDS[read.range_key]}.",
            "Choose 30 d above, or launch a run:",
            "tightship run --workflow mine -- python train.py",
        )
    return empty(
        "Nothing has reported yet.",
        "Put `tightship run` before the command of any training job; nothing in the job changes. To see all of this on "
        "four small jobs first, run the demo.",
        "tightship run --workflow mine -- python train.py",
        "tightship demo",
    )


def _nothing_to_do(read: _Read) -> Node:
    if read.fleet is not None:
        return html.P("Opportunities follow from runs of the last days; this history is older.", className="quiet")
    if not read.any_run:
        return html.P("Opportunities appear here after a run has been captured and analyzed.", className="quiet")
    if read.any_trace:
        return html.P("Traces were analyzed; no rule found anything to change.", className="quiet")
    return empty(
        "No trace has been analyzed.",
        "Findings come from traces: request one of a live run (it takes a few seconds and the job continues).",
        "tightship profile mine --wait",
    )


def _columns() -> list[grid.Column]:
    return [
        grid.column("position", "#", "number", width=46, filter=False, wide=True),
        grid.column("fix", "What to do", "link", minWidth=150, flex=5),
        grid.column("title", "Because", minWidth=150, flex=4, wide=True),
        grid.column(
            "saving",
            "Gives back",
            "number",
            unit="device-hours",
            minWidth=120,
            flex=3,
            why="Device time of its recent runs that this would save, low–high, and how it was obtained",
        ),
        grid.column(
            "of", "Of", "number", unit="device-hours", width=92, wide=True, why="Device time that its recent runs held"
        ),
        grid.column("workflow", "Workflow", "link", minWidth=110, flex=2, wide=True),
        grid.column("team", "Team", width=110, wide=True),
        grid.column("state", "State", "link", width=90, wide=True, why="Where it leads: what was done about it"),
    ]


def _rows(opportunities: Sequence[Opportunity]) -> list[grid.Row]:
    return [
        {
            "id": str(o.opportunity),
            "position": o.position,
            "position_text": str(o.position),
            "fix": fmt.cell(o.fix, limit=300),
            "fix_href": answers.opportunity_href(o),
            "title": fmt.cell(o.title, limit=300),
            "saving": None if o.recoverable_device_ns is None else o.recoverable_device_ns / fmt.HOUR,
            "saving_text": answers.saving_words(o),
            "of": o.device_ns / fmt.HOUR,
            "of_text": fmt.duration(o.device_ns),
            "workflow": fmt.name(o.workflow),
            "workflow_href": runs_href(workflow=o.workflow),
            "team": fmt.name(o.team),
            "state": fmt.name(o.state),
            "state_href": None if o.state == OpportunityState.OPEN else actions_href(opportunity=str(o.opportunity)),
        }
        for o in opportunities
    ]
