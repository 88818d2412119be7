"""Which runs are there, and what is their state?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from tightship_dashboard.figures import grid
from tightship_dashboard.figures.account import NO_TRACE
from tightship_dashboard.figures.activity import imported_badge
from tightship_dashboard.figures.elements import Node, attrs, empty, link, notice, question, sentence
from tightship_dashboard.figures.palette import run_colour
from tightship_dashboard.pages.filters import follow_address
from tightship_dashboard.pages.live import CALM_EVERY, LIVE_MS, changed, changed_rows, digests, row_digests
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.fleets import runs_of
from tightship_dashboard.sentences.links import Answer, run_href, runs_href
from tightship_platform.database.engine import Database
from tightship_platform.errors import Invalid
from tightship_platform.queries.runs import list_runs
from tightship_platform.queries.workflows import list_workflows
from tightship_platform.results.filters import Filters, FilterTexts, imported_fleet
from tightship_platform.results.run import Run
from tightship_platform.results.run_account import (
    BUCKET_LABEL,
    awaits_account,
    has_no_trace,
    largest_loss,
    listed_account,
)
from tightship_platform.units import NS_PER_MS
from tightship_platform.vocabulary import Bucket, RunState

PATH = "/runs"
QUESTION = "Which runs are there, and what is their state?"
LIMIT = 500
"""Newest runs that the table holds."""
_TABLE = "runs"


def title() -> str:
    """Title of the browser's tab."""
    return "Runs"


def answer(view: View) -> Answer:
    """The first line, for the first paint."""
    return _Read(view).answer


class _Query:
    """What the address asks for."""

    def __init__(self, view: View) -> None:
        self.fleet = imported_fleet(view.query.get("fleet"))
        self.workflow = view.query.get("workflow")
        self.state = _known(RunState, view.query.get("state"))
        self.by = _known(Bucket, view.query.get("by"))
        self.search = view.query.get("search") or None


class _Read(_Query):
    """The runs that the filters in the address let through."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.refusal: str | None = None
        self.says_why = False
        """Whether the runs are those that failed or were lost, each with its reason."""
        texts = FilterTexts(fleet=self.fleet, workflow=self.workflow, state=self.state, search=self.search)
        with view.database.session() as session:
            try:
                filters = texts.read(zone=view.zone, now=view.now_ns)
                self.runs = list_runs(session, filters, limit=LIMIT)
                self.says_why = filters.state in (RunState.FAILED, RunState.LOST)
            except Invalid as error:
                self.runs, self.refusal = [], str(error)
            self.workflows = [w.workflow for w in list_workflows(session, Filters(fleet=self.fleet))]
        self.filtered = bool(self.fleet or self.workflow or self.state or self.search)
        self.answer: Answer = self._answer()

    def _answer(self) -> Answer:
        if self.search is not None:
            return answers.found_runs(self.runs, self.search, most=LIMIT)
        if self.fleet is not None:
            return runs_of(self.fleet, self.runs, most=LIMIT)
        return answers.runs(self.runs, workflow=self.workflow, state=self.state)


def _known(words: type[RunState] | type[Bucket], value: str | None) -> str | None:
    return value if value in [word.value for word in words] else None


def layout(view: View) -> Node:
    """The whole page."""
    read = _Read(view)
    rows = _rows(read.runs, view, read.by)
    parts = _parts(read)
    return html.Div(
        [
            dcc.Location(id="runs-url", refresh=False),
            dcc.Interval(id="runs-clock", interval=LIVE_MS),
            dcc.Store(id="runs-seen", data=digests(parts)),
            dcc.Store(id="runs-shown", data=row_digests(rows)),
            dcc.Store(id="runs-fresh"),
            dcc.Store(id="runs-address", data=_address(read)),
            html.Div(parts["head"], id="runs-head"),
            _filters(read),
            html.Div(_body(view, read, rows), id="runs-body"),
        ],
        className="page-runs",
    )


def register(app: Dash, database: Database) -> None:
    """Live rows, and filters that live in the address."""

    @app.callback(
        Output("runs-head", "children"),
        Output("runs-seen", "data"),
        Output("runs-fresh", "data"),
        Output("runs-shown", "data"),
        Output("runs-body", "children"),
        Input("runs-clock", "n_intervals"),
        State("runs-url", "pathname"),
        State("runs-url", "search"),
        State("runs-seen", "data"),
        State("runs-shown", "data"),
        prevent_initial_call=True,
    )
    def _tick(ticks: int | None, path: str | None, search: str | None, seen: Any, shown: Any) -> list[Any]:
        if path != PATH:
            raise PreventUpdate
        view = current_view(database, search)
        if "search" in view.query and (ticks or 0) % CALM_EVERY:  # it may look at every run
            raise PreventUpdate
        read = _Read(view)
        head, now_seen = changed(_parts(read), seen)
        rows = _rows(read.runs, view, read.by)
        fresh, now_shown = changed_rows(rows, shown)
        if rows and not shown:  # the first run has come: the table takes the place of the hint
            return [*head, now_seen, no_update, now_shown, _body(view, read, rows)]
        return [*head, now_seen, fresh, now_shown, no_update]

    # Rows reach the table in the browser, which knows whether somebody is reading it.
    in_browser: Any = app.clientside_callback
    in_browser(
        ClientsideFunction("tightship", "mergeRows"),
        Output("runs-new", "children"),
        Input("runs-fresh", "data"),
        prevent_initial_call=True,
    )
    in_browser(
        ClientsideFunction("tightship", "filterRuns"),
        Output("runs-url", "search"),
        Input("runs-workflow", "value"),
        Input("runs-by", "value"),
        Input("runs-search", "value"),
        State("runs-url", "search"),
        prevent_initial_call=True,
    )

    follow_address(app, database, "runs", path=PATH, address_of=lambda view: _address(_Query(view)), layout=layout)


def _body(view: View, read: _Read, rows: list[grid.Row]) -> Node:
    if read.refusal is not None:
        return [notice(f"{read.refusal}."), _how_to_search()]
    if read.search is not None and not rows:
        return _how_to_search()
    if rows or read.filtered:
        columns = _columns(read, fmt.offset_now(view.zone))
        return grid.table(_TABLE, columns, rows, label="Runs", fill=True)
    return empty(
        "Nothing has reported yet.",
        "Put `tightship run` before the command of any training job; nothing in the job changes.",
        "tightship run --workflow mine -- python train.py",
    )


def _how_to_search() -> Node:
    """What can be asked for, each as an example to change."""
    return html.Div(
        [
            empty(
                "No run matches. Each word is looked for in ids, names, commits, labels, workflows, teams, owners, "
                "users, hosts and job ids; all of them have to be found.",
                "Or say where to look, and leave out what does not matter:",
                "lr=3e-4 commit:5eed1e host:gpu17 job:4711 owner:ann team:vision rule:starved-input since:2d",
            ),
            html.P(["Or see ", link("all runs", PATH), "."]),
        ]
    )


def _address(wanted: _Query) -> str:
    return runs_href(
        fleet=wanted.fleet, workflow=wanted.workflow, state=wanted.state, by=wanted.by, search=wanted.search
    )


def _parts(read: _Read) -> dict[str, Node]:
    return {"head": [question(QUESTION, *([imported_badge(read.fleet)] if read.fleet else [])), sentence(read.answer)]}


def _states(read: _Read) -> list[RunState]:
    """Those that runs of the fleet may have."""
    of_imports = (RunState.CANCELLED, RunState.TIMEOUT, RunState.OUT_OF_MEMORY)
    unseen = (RunState.RUNNING,) if read.fleet else of_imports
    return [state for state in RunState if state not in unseen]


def _filters(read: _Read) -> Node:
    states = [
        dcc.Link(
            word,
            href=runs_href(fleet=read.fleet, workflow=read.workflow, state=state, by=read.by, search=read.search),
            className="here" if state == read.state else None,
        )
        for word, state in [("all", None), *[(s.value, s.value) for s in _states(read)]]
    ]
    names = sorted({*read.workflows, *([read.workflow] if read.workflow else [])})
    return html.Div(
        [
            html.Nav(states, className="choice", **attrs(aria_label="State")),
            dmc.TextInput(
                id="runs-search",
                value=read.search or "",
                placeholder="lr=3e-4 host:gpu17 …",
                debounce=True,
                size="xs",
                w=220,
                **attrs(aria_label="Search runs by label, commit, job id, host or owner"),
            ),
            dmc.Select(
                id="runs-workflow",
                data=[{"value": n, "label": fmt.name(n, limit=60)} for n in names],
                value=read.workflow,
                placeholder="every workflow",
                searchable=True,
                clearable=True,
                size="xs",
                w=190,
                **attrs(aria_label="Workflow"),
            ),
            dmc.Select(
                id="runs-by",
                data=[{"value": b.value, "label": BUCKET_LABEL[b]} for b in Bucket],
                value=read.by,
                placeholder="compare by …",
                clearable=True,
                size="xs",
                w=150,
                **attrs(aria_label="Compare by"),
            ),
            html.Button(id="runs-new", type="button", className="quiet-button act", **attrs(data_show_new=_TABLE)),
            grid.export_button(_TABLE, "runs.csv"),
        ],
        className="filters",
    )


def _columns(read: _Read, zone: str) -> list[grid.Column]:
    by = read.by
    named = [grid.column("name", "Name", minWidth=96, flex=1, wide=True)] if any(run.name for run in read.runs) else []
    started = grid.column("start", f"Started ({zone})", "number", unit="ISO 8601", width=150, wide=True, exported="why")
    columns = [
        grid.column("state", "State", "state", width=92, wide=by is not None),
        grid.column("workflow", "Workflow", "link", minWidth=132, flex=2),
        grid.column("run", "Run", "link", width=128, wide=True, cellClass="mono"),
        *named,
        grid.column("team", "Team", minWidth=78, flex=1, wide=True),
        grid.column("owner", "Owner", minWidth=64, flex=1, wide=True),
        started | {"filter": False},
        grid.column("lasted", "Lasted", "number", unit="hours", width=96, wide=True),
        grid.column("devices", "Devices", "amount", minWidth=216, flex=2, wide=True),
        grid.column("steps", "Steps", "number", width=80, wide=True),
        grid.column("device_h", "Device time", "number", unit="device-hours", width=94, wide=True),
        grid.column("productive", "Productive", "number", unit="0..1", width=88, wide=by is not None),
        grid.column("loss", "Largest loss", "amount", unit="0..1", minWidth=150, flex=1, wide=True),
    ]
    if read.says_why:
        reason = grid.column("reason", "Why", minWidth=216, flex=4)
        columns = [reason if column["field"] == "devices" else column for column in columns]
    if by is not None:
        label = BUCKET_LABEL[Bucket(by)]
        columns.pop()  # the bucket asked for takes the place of the largest one
        columns.insert(2, grid.column("by", label, "number", unit="device-hours", width=150, sort="desc"))
    return columns


def _rows(runs: Sequence[Run], view: View, by: str | None) -> list[grid.Row]:
    return [_row(run, view, by) for run in runs]


def _row(run: Run, view: View, by: str | None) -> grid.Row:
    account, total = listed_account(run), run.device_ns
    steps = None if awaits_account(run) else run.steps
    lasted = max(0, (run.end_ns or view.now_ns) - run.start_ns)
    lasted_text = fmt.clock(lasted)
    if run.end_ns is None:  # to the minute, so that the row changes once a minute and not with every look
        lasted = lasted // fmt.MINUTE * fmt.MINUTE
        lasted_text = fmt.clock(lasted) if lasted else "under 1 min"
    row: grid.Row = {
        "id": run.run,
        "state": run.state,
        "state_colour": run_colour(run.state),
        "run": run.run,
        "run_href": run_href(run.run),
        "workflow": fmt.name(run.workflow),
        "workflow_href": run_href(run.run),
        "name": fmt.name(run.name),
        "team": fmt.name(run.team),
        "owner": fmt.name(run.owner),
        "start": run.start_ns // NS_PER_MS,
        "start_text": fmt.minute(run.start_ns, view.zone),
        "start_why": fmt.iso(run.start_ns),
        "lasted": lasted / fmt.HOUR,
        "lasted_text": lasted_text,
        "devices": len(run.devices),
        "devices_text": fmt.devices(run.devices),
        "reason": fmt.name(run.reason, limit=500) if run.reason else None,
        "steps": steps,
        "steps_text": fmt.count(steps),
        "steps_why": "No step counter reported for this run." if run.steps is None else None,
    }
    if account is None:
        why = "Device time is accounted for about once a minute; this run's is not yet."
        if awaits_account(run):
            why = row["steps_why"] = "It has just ended, and not all of it is counted yet."
        return row | {f"{name}_why": why for name in ("device_h", "productive", "loss", "by")}
    bucket, loss = largest_loss(account)
    productive = account.get(Bucket.PRODUCTIVE, 0)
    row |= {
        "device_h": total / fmt.HOUR,
        "device_h_text": fmt.duration(total),
        "loss": loss / total,
        "loss_text": f"{BUCKET_LABEL[bucket]} {fmt.share(loss, total)}" if loss > 0 else "none",
    }
    if has_no_trace(account):
        row["productive_why"] = NO_TRACE
    else:
        row |= {"productive": productive / total, "productive_text": fmt.share(productive, total)}
    if by is not None:
        spent = account.get(by, 0)
        row |= {"by": spent / fmt.HOUR, "by_text": f"{fmt.duration(spent)}, {fmt.share(spent, total)}"}
    return row
