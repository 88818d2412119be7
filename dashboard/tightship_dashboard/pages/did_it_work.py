"""Did it work? What was done about opportunities: what was predicted, and what later runs measured."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from tightship_dashboard.figures import calibration, chart, grid
from tightship_dashboard.figures.elements import (
    Node,
    attrs,
    empty,
    facts,
    link,
    notice,
    question,
    section,
    sentence,
    simulated_badge,
)
from tightship_dashboard.figures.palette import ACTION_COLOUR, UNKNOWN_STATE
from tightship_dashboard.pages.filters import choice, follow_address
from tightship_dashboard.pages.live import changed, digests
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import actions as words
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, action_href, actions_href, runs_href
from tightship_platform.database.engine import Database
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.queries.actions import list_actions, workflows_acted_on
from tightship_platform.results.action import Action
from tightship_platform.results.filters import Filters
from tightship_platform.units import NS_PER_MS
from tightship_platform.vocabulary import ActionState

PATH = "/did-it-work"
QUESTION = "Did it work?"
LIMIT = 500
"""Newest actions that the table holds."""
LOOK_MS = 15_000
"""How often the page looks again."""
PARTS = ("head", "calibration", "table")
_TABLE = "actions"


def title() -> str:
    """Title of the browser's tab."""
    return QUESTION


def answer(view: View) -> Answer:
    """The first line, for the first paint."""
    return _Read(view).answer


class _Query:
    """What the address asks for."""

    def __init__(self, view: View) -> None:
        self.workflow = view.query.get("workflow") or None
        self.team = view.query.get("team") or None
        states = {state.value for state in ActionState}
        self.state = state if (state := view.query.get("state")) in states else None
        self.opportunity = view.query.get("opportunity") or None

    @property
    def filters(self) -> dict[str, str | None]:
        """As the address has them."""
        return {
            "workflow": self.workflow,
            "team": self.team,
            "state": self.state,
            "opportunity": self.opportunity,
        }


class _Read(_Query):
    """The actions that the filters in the address let through."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.refusal: str | None = None
        self.actions: list[Action] = []
        asked = Filters(workflow=self.workflow, team=self.team, state=self.state)
        with view.database.session() as session:
            try:
                number = _number(self.opportunity)
                self.actions = list_actions(session, opportunity=number, filters=asked, limit=LIMIT)
            except (Invalid, NotFound) as error:
                self.refusal = f"{error}."
            self.acted_on = workflows_acted_on(session)
        self.answer: Answer = words.did_it_work(self.actions, most=LIMIT, **self.filters)


def _number(opportunity: str | None) -> int | None:
    """The number of an opportunity in an address.

    :raises Invalid: it is none.
    """
    if opportunity is None:
        return None
    if not (opportunity.isascii() and opportunity.isdigit() and len(opportunity) <= 18):
        raise Invalid("opportunity", fmt.name(opportunity, limit=40), "a number; see `tightship opportunities`")
    return int(opportunity)


def layout(view: View) -> Node:
    """The whole page."""
    read = _Read(view)
    parts = _parts(read, view)
    return html.Div(
        [
            dcc.Location(id="actions-url", refresh=False),
            dcc.Interval(id="actions-clock", interval=LOOK_MS),
            dcc.Store(id="actions-seen", data=digests(parts)),
            dcc.Store(id="actions-address", data=actions_href(**read.filters)),
            html.Div(parts["head"], id="actions-head"),
            _filters(read) if read.acted_on else None,
            html.Div(parts["calibration"], id="actions-calibration"),
            html.Div(parts["table"], id="actions-table"),
        ],
        className="page-actions",
    )


def register(app: Dash, database: Database) -> None:
    """Filters that live in the address; what changed is drawn again."""

    @app.callback(
        *[Output(f"actions-{name}", "children") for name in PARTS],
        Output("actions-seen", "data"),
        Input("actions-clock", "n_intervals"),
        State("actions-url", "pathname"),
        State("actions-url", "search"),
        State("actions-seen", "data"),
        prevent_initial_call=True,
    )
    def _tick(_n: int, path: str | None, search: str | None, seen: Any) -> list[Any]:
        if path != PATH:
            raise PreventUpdate
        view = current_view(database, search)
        sent, shown = changed(_parts(_Read(view), view), seen)
        return [*sent, shown]

    in_browser: Any = app.clientside_callback
    in_browser(
        ClientsideFunction("tightship", "filterActions"),
        Output("actions-url", "search"),
        Input("actions-workflow", "value"),
        Input("actions-team", "value"),
        prevent_initial_call=True,
    )

    def address(view: View) -> str:
        return actions_href(**_Query(view).filters)

    follow_address(app, database, "actions", path=PATH, address_of=address, layout=layout)


def _parts(read: _Read, view: View) -> dict[str, Node]:
    some = any(action.simulated for action in read.actions)
    return {
        "head": [question(QUESTION, *simulated_badge(some)), sentence(read.answer)],
        "calibration": _calibration(read),
        "table": _table(read, view),
    }


def _filters(read: _Read) -> Node:
    states = [
        dcc.Link(
            word,
            href=actions_href(**{**read.filters, "state": state}),
            className="here" if state == read.state else None,
        )
        for word, state in [("all", None), *[(s.value, s.value) for s in ActionState]]
    ]
    workflows = sorted({name for name, _ in read.acted_on} | ({read.workflow} if read.workflow else set()))
    teams = sorted({team for _, team in read.acted_on if team} | ({read.team} if read.team else set()))
    of_one = [link(f"opportunity {fmt.name(read.opportunity, limit=20)} ✕", _without_opportunity(read))]
    return html.Div(
        [
            html.Nav(states, className="choice", **attrs(aria_label="State")),
            choice("actions-workflow", workflows, read.workflow, "every workflow", "Workflow"),
            choice("actions-team", teams, read.team, "every team", "Team"),
            *(of_one if read.opportunity else []),
            grid.export_button(_TABLE, "actions.csv"),
        ],
        className="filters",
    )


def _without_opportunity(read: _Read) -> str:
    return actions_href(**{**read.filters, "opportunity": None})


def _calibration(read: _Read) -> Node:
    found = words.calibration(read.actions)
    if not found.pairs:
        return []
    drawing = chart.draw(
        calibration.figure(read.actions),
        graph_id="actions-chart",
        title="Measured over predicted savings, each with its interval",
    )
    rows: list[tuple[str, Node]] = [
        ("measured savings", fmt.count(len(found.pairs))),
        ("in the predicted interval", fmt.count(found.inside)),
        *[(name, fmt.count(found.agreeing(name))) for name in words.AGREEMENT],
    ]
    meaning = [
        "A point is a change that was applied and compared, and leads to it: what a step was predicted to save, and "
        "what it saved, in percent of the step before, each with its interval. On the dashed line the two are equal.",
        "As predicted: the two intervals overlap. Savings of several changes may be of the same time, so they are "
        "counted here and never added up.",
    ]
    left = html.Figure([calibration.key(read.actions), drawing])
    right = html.Div([facts(rows), *[html.P(text, className="quiet") for text in meaning]])
    return section("Predicted beside measured", [html.Div([left, right], className="columns")], anchor="calibration")


def _table(read: _Read, view: View) -> Node:
    if read.refusal is not None:
        return [notice(read.refusal), html.P(["See ", link("all that was done", PATH), "."])]
    if not read.acted_on:
        return empty(
            "Nothing was done about an opportunity yet.",
            "Choose an opportunity, make the change, and say so. The next run of its workflow is compared with the "
            "last one before, and this page shows what it saved beside what was predicted.",
            "tightship opportunities",
            "tightship apply 1",
        )
    columns = _columns(fmt.offset_now(view.zone))
    rows = [_row(action, view) for action in read.actions]
    return section(
        "What was done", [grid.table(_TABLE, columns, rows, label="What was done", wrap=True)], anchor="done"
    )


def _columns(zone: str) -> list[grid.Column]:
    saves = "Share of the step, low–high"
    return [
        grid.column("state", "State", "state", width=104),
        grid.column("what", "What was done", "link", minWidth=130, flex=4),
        grid.column("predicted", "Predicted", "number", unit="0..1", width=196, wide=True, why=saves),
        grid.column("measured", "Measured", "number", unit="0..1", width=148, why=saves),
        grid.column("waits", "Why", minWidth=150, flex=4, wide=True, why="What it waits for, or why it is so"),
        grid.column("workflow", "Workflow", "link", minWidth=110, flex=2, wide=True),
        grid.column("team", "Team", minWidth=78, flex=1, wide=True),
        grid.column("by", "By", minWidth=78, flex=1, wide=True),
        grid.column("time", f"When ({zone})", "number", unit="ISO 8601", width=124, wide=True, exported="why"),
    ]


def _row(action: Action, view: View) -> grid.Row:
    predicted, found, by_plan = action.predicted, action.verification, action.plan_outcome
    reason = action.waits_for or (by_plan.reason if by_plan else found.reason if found else action.reason)
    return {
        "id": str(action.action),
        "state": words.state_words(action),
        "state_colour": ACTION_COLOUR.get(action.state or "", UNKNOWN_STATE),
        "what": fmt.cell(words.what_was_done(action), limit=300),
        "what_href": action_href(action.action),
        "predicted": None if predicted is None else predicted.saving_frac,
        "predicted_text": words.predicted_of(action),
        "predicted_why": words.NOTHING_PREDICTED if predicted is None and by_plan is None else None,
        "measured": None if found is None else found.saving_frac,
        "measured_text": words.measured_of(action),
        "measured_why": fmt.cell(action.waits_for or "Nothing was applied.", limit=400)
        if found is None and by_plan is None
        else None,
        "waits": fmt.cell(reason, limit=400),
        "workflow": fmt.name(action.workflow),
        "workflow_href": runs_href(workflow=action.workflow),
        "team": fmt.name(action.team),
        "by": fmt.cell(action.by),
        "time": action.time_ns // NS_PER_MS,
        "time_text": fmt.minute(action.time_ns, view.zone),
        "time_why": fmt.iso(action.time_ns),
    }
