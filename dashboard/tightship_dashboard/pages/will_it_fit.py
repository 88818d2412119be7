"""Will it fit, and how fast? A workflow's own trace or a pasted profile, planned for a GPU and a host.

The page only asks: a desk answers in a process of its own, and the page comes back for what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from tightship_analyzers.offload_planner.request import MOST_PROFILE_BYTES, Question
from tightship_analyzers.offload_planner.requests import Desk, Standing
from tightship_analyzers.offload_planner.sources import command_for
from tightship_dashboard.figures import fit
from tightship_dashboard.figures.elements import Node, attrs, empty, notice, question, sentence
from tightship_dashboard.pages import fit_form
from tightship_dashboard.pages.fit_request import FIELDS, Asked, checked
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import fit_answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer
from tightship_platform.database.engine import Database
from tightship_platform.errors import TightshipError
from tightship_platform.queries.runs import get_run
from tightship_platform.settings import Settings
from tightship_platform.units import format_bytes

PATH = "/will-it-fit"
QUESTION = "Will it fit, and how fast?"
LOOK_MS = 700
"""How often the page looks whether its answer has come."""


def title() -> str:
    """Title of the browser's tab."""
    return QUESTION


def answer(view: View) -> Answer:
    """The first line, for the first paint; the plan itself comes later."""
    return Asked(view).answer


def layout(view: View) -> Node:
    """The whole page."""
    read = Asked(view)
    return html.Div(
        [
            dcc.Location(id="fit-url", refresh=False),
            dcc.Interval(id="fit-clock", interval=LOOK_MS, disabled=True),
            dcc.Store(id="fit-address", data=read.address),
            dcc.Store(id="fit-asked"),
            dcc.Store(id="fit-seen"),
            html.Div(_head(read.answer), id="fit-head", **attrs(aria_live="polite")),
            fit_form.form(read),
            fit_form.paste(),
            html.Div(id="fit-note"),
            html.Div(_beside(read), id="fit-result"),
            fit_form.workflows(read),
        ],
        className="page-fit",
    )


def register(app: Dash, database: Database, settings: Settings) -> None:
    """The form in the address, the question, and the answer when it has come."""
    desk = Desk()

    @app.callback(
        Output("page", "children", allow_duplicate=True),
        Input("fit-url", "search"),
        State("fit-url", "pathname"),
        State("fit-address", "data"),
        prevent_initial_call=True,
    )
    def _follow(search: str | None, path: str | None, shown: str | None) -> Node:
        view = current_view(database, search)
        if path != PATH or Asked(view).address == shown:
            raise PreventUpdate
        return layout(view)

    @app.callback(Output("fit-asked", "data"), Output("fit-note", "children"), Input("fit-address", "data"))
    def _ask(address: str | None) -> tuple[Any, Node]:
        read = Asked(current_view(database, (address or "").partition("?")[2]))
        if not read.sources:
            raise PreventUpdate
        return _asked_at(desk, lambda: read.question(settings), read.workflow)

    @app.callback(
        Output("fit-asked", "data", allow_duplicate=True),
        Output("fit-note", "children", allow_duplicate=True),
        Input("fit-plan-profile", "n_clicks"),
        State("fit-profile", "value"),
        *[State(f"fit-{name}", "value") for name in FIELDS[1:]],
        prevent_initial_call=True,
    )
    def _ask_of_profile(clicks: int | None, profile: str | None, *fields: str | None) -> tuple[Any, Node]:
        if not clicks:
            raise PreventUpdate
        text = profile or ""
        if not text.strip():
            return no_update, notice("There is no profile to plan: paste what `tightship offload measure -o` wrote.")
        if len(text.encode("utf-8", "surrogatepass")) > MOST_PROFILE_BYTES:
            most = format_bytes(MOST_PROFILE_BYTES)
            return no_update, notice(f"The profile is too large; at most {most} are read here. Nothing was planned.")
        given = dict(zip(FIELDS[1:], (str(value or "").strip()[:200] for value in fields), strict=True))
        return _asked_at(desk, lambda: Question(profile=text, **checked(given)), None)

    @app.callback(
        Output("fit-head", "children"),
        Output("fit-result", "children"),
        Output("fit-clock", "disabled"),
        Output("fit-seen", "data"),
        Input("fit-asked", "data"),
        Input("fit-clock", "n_intervals"),
        State("fit-seen", "data"),
        prevent_initial_call=True,
    )
    def _look(asked: Any, _ticks: int | None, seen: Any) -> tuple[Any, Any, bool, Any]:
        if not isinstance(asked, dict):
            raise PreventUpdate
        standing = desk.look(str(asked.get("key")))
        if standing is None:
            return no_update, _forgotten(), True, None
        now = [asked.get("key"), standing.stage]
        if now == seen:
            return no_update, no_update, standing.is_over, no_update
        head, result = _standing(current_view(database, None), standing, asked.get("workflow"))
        return head, result, standing.is_over, now

    in_browser: Any = app.clientside_callback
    in_browser(
        ClientsideFunction("tightship", "planFor"),
        Output("fit-url", "id"),
        *[Input(f"fit-{name}", "value") for name in FIELDS],
        prevent_initial_call=True,
    )


def _asked_at(desk: Desk, make: Callable[[], Question], workflow: str | None) -> tuple[Any, Node]:
    try:
        return {"key": desk.ask(make()), "workflow": workflow}, []
    except TightshipError as error:
        return None, notice(f"Nothing was planned: {error}.")


def _standing(view: View, standing: Standing, workflow: str | None) -> tuple[Node, Node]:
    """The first line and what is below it."""
    if standing.refused is not None:
        what = fmt.name(workflow, limit=60) if workflow else "This profile"
        head = _head([f"{what} cannot be planned: {standing.refused.rstrip('. ')}."])
        return head, _what_to_do(workflow) if workflow else []
    if standing.answer is None:
        steps = html.P([html.Span(className="dot running live"), f"Planning: {standing.stage} …"], className="quiet")
        return no_update, html.Div(steps, role="status")
    run = None
    source = standing.answer["source"]
    if source is not None:
        with view.database.session() as session:
            run = get_run(session, source["run"])
    words = fit_answers.whether_it_fits(standing.answer)
    return _head(words, fit.simulated()), fit.result(standing.answer, run, view.zone)


def _head(words: Answer, *beside: Node) -> list[Node]:
    return [question(QUESTION, *beside), sentence(words)]


def _forgotten() -> Node:
    return empty("The server was started anew and has forgotten this plan.", "Nothing is lost: load the page again.")


def _beside(read: Asked) -> Node:
    why = read.lacking.get(read.workflow)
    return _what_to_do(read.workflow) if why else []


def _what_to_do(workflow: str) -> Node:
    """Where a workflow cannot be planned: the command that gets a trace to plan from."""
    return empty(
        "A plan needs a trace of training steps, with stacks and shapes.",
        "Ask for one while the workflow runs; the job goes on. If none runs, start it first with `tightship run`.",
        command_for(fmt.code(workflow)),
    )
