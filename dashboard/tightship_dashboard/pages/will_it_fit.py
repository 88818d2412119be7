"""Will it fit, and how fast? A workflow's own trace or a pasted profile, planned for a GPU and a host.

The page creates the row of a planning request, or finds it, and follows it; a worker makes the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate
from sqlalchemy.orm import Session

from tightship_analyzers.offload_planner.request import MOST_PROFILE_BYTES, Request
from tightship_analyzers.offload_planner.requests import Progress, answer_of, progress_of, request_plan
from tightship_analyzers.offload_planner.sources import command_for
from tightship_dashboard.figures import fit
from tightship_dashboard.figures.elements import Node, attrs, empty, notice, prose, question, sentence
from tightship_dashboard.figures.palette import RUN_COLOUR
from tightship_dashboard.pages import fit_form
from tightship_dashboard.pages.filters import follow_address
from tightship_dashboard.pages.fit_request import FIELDS, FormState, checked
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import fit_answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer
from tightship_platform.database.engine import Database
from tightship_platform.errors import NotFound, TightshipError
from tightship_platform.queries.runs import get_run
from tightship_platform.results.run import RunDetail
from tightship_platform.settings import Settings
from tightship_platform.units import NS_PER_S, format_bytes
from tightship_platform.vocabulary import PlanState, RunState

PATH = "/will-it-fit"
QUESTION = "Will it fit, and how fast?"
LOOK_MS = 700
"""How often the page looks how far its request is."""
SLOW_NS = 30 * NS_PER_S
"""A request that waits for longer shows why that may be."""


def title() -> str:
    """Title of the browser's tab."""
    return QUESTION


def answer(view: View) -> Answer:
    """The first line, for the first paint; the plan itself comes later."""
    return FormState(view).answer


def layout(view: View) -> Node:
    """The whole page."""
    state = FormState(view)
    return html.Div(
        [
            dcc.Location(id="fit-url", refresh=False),
            dcc.Interval(id="fit-clock", interval=LOOK_MS, disabled=True),
            dcc.Store(id="fit-address", data=state.address),
            dcc.Store(id="fit-request"),
            dcc.Store(id="fit-seen"),
            html.Div(_head(state.answer), id="fit-head", **attrs(aria_live="polite")),
            fit_form.form(state),
            fit_form.paste(),
            html.Div(id="fit-note"),
            html.Div(_beside(state), id="fit-result"),
            fit_form.workflows(state),
        ],
        className="page-fit",
    )


def register(app: Dash, database: Database, settings: Settings) -> None:
    """The form in the address, the request, and the answer when it has come."""

    def requested(make: Callable[[], Request]) -> tuple[Any, Node]:
        try:
            request = make()
            return {"key": request_plan(database, settings, request), "workflow": request.workflow}, []
        except TightshipError as error:
            return None, notice(f"Nothing was planned: {error}.")

    follow_address(app, database, "fit", path=PATH, address_of=lambda view: FormState(view).address, layout=layout)

    @app.callback(Output("fit-request", "data"), Output("fit-note", "children"), Input("fit-address", "data"))
    def _request(address: str | None) -> tuple[Any, Node]:
        state = FormState(current_view(database, (address or "").partition("?")[2]))
        if not state.sources:
            raise PreventUpdate
        return requested(state.request)

    @app.callback(
        Output("fit-request", "data", allow_duplicate=True),
        Output("fit-note", "children", allow_duplicate=True),
        Input("fit-plan-profile", "n_clicks"),
        State("fit-profile", "value"),
        *[State(f"fit-{name}", "value") for name in FIELDS[1:]],
        prevent_initial_call=True,
    )
    def _request_of_profile(clicks: int | None, profile: str | None, *fields: str | None) -> tuple[Any, Node]:
        if not clicks:
            raise PreventUpdate
        text = profile or ""
        if not text.strip():
            return no_update, notice("There is no profile to plan: paste what `tightship offload measure -o` wrote.")
        if len(text.encode("utf-8", "surrogatepass")) > MOST_PROFILE_BYTES:
            most = format_bytes(MOST_PROFILE_BYTES)
            return no_update, notice(f"The profile is too large; at most {most} are read here. Nothing was planned.")
        given = dict(zip(FIELDS[1:], (str(value or "").strip()[:200] for value in fields), strict=True))
        return requested(lambda: Request(profile=text, **vars(checked(given))))

    @app.callback(
        Output("fit-head", "children"),
        Output("fit-result", "children"),
        Output("fit-clock", "disabled"),
        Output("fit-seen", "data"),
        Input("fit-request", "data"),
        Input("fit-clock", "n_intervals"),
        State("fit-seen", "data"),
        prevent_initial_call=True,
    )
    def _follow_request(request: Any, _ticks: int | None, seen: Any) -> tuple[Any, Any, bool, Any]:
        if not isinstance(request, dict):
            raise PreventUpdate
        key = str(request.get("key"))
        with database.session() as session:
            progress = progress_of(session, key)
        if progress is None:
            return no_update, _no_longer_kept(), True, None
        is_over, slow = progress.state.is_final, progress.waited_ns > SLOW_NS
        now = [key, progress.state, progress.stage, slow]
        if now == seen:
            return no_update, no_update, is_over, no_update
        head, result = _progress(current_view(database, None), key, progress, request.get("workflow"))
        return head, result, is_over, now

    in_browser: Any = app.clientside_callback
    in_browser(
        ClientsideFunction("tightship", "planFor"),
        Output("fit-url", "id"),
        *[Input(f"fit-{name}", "value") for name in FIELDS],
        prevent_initial_call=True,
    )


def _progress(view: View, key: str, progress: Progress, workflow: str | None) -> tuple[Node, Node]:
    """The first line and what is below it."""
    if progress.state is PlanState.REFUSED:
        return _refused(progress.refusal or "no reason was given", workflow)
    if progress.state is not PlanState.PLANNED:
        stage = f"Planning: {progress.stage} …"
        if progress.state is PlanState.REQUESTED and progress.waited_ns > SLOW_NS:
            stage += " Other plans may come first; if nothing happens, see that `tightship worker` runs."
        dot = html.Span(className="dot live", style={"background": RUN_COLOUR[RunState.RUNNING]})
        steps = html.P([dot, html.Span(prose(stage))], className="quiet")
        return no_update, html.Div(steps, role="status")
    run = None
    with view.database.session() as session:
        try:
            found = answer_of(session, key)
        except TightshipError as error:
            return no_update, empty(f"{error}.", "Load the page again: it is planned again then.")
        if found.source is not None:
            run = _run(session, found.source.run)
    return _head(fit_answers.whether_it_fits(found), fit.simulated()), fit.result(found, run, view.zone)


def _run(session: Session, key: str) -> RunDetail | None:
    """The run that was planned from; None: it was deleted since, and the plan is as good without it."""
    try:
        return get_run(session, key)
    except NotFound:
        return None


def _refused(why: str, workflow: str | None) -> tuple[Node, Node]:
    what = fmt.name(workflow, limit=60) if workflow else "This profile"
    head = _head([f"{what} cannot be planned: {why.rstrip('. ')}."])
    return head, _what_to_do(workflow) if workflow else []


def _head(words: Answer, *beside: Node) -> list[Node]:
    return [question(QUESTION, *beside), sentence(words)]


def _no_longer_kept() -> Node:
    return empty("This plan is no longer kept.", "Nothing is lost: load the page again, and it is planned again.")


def _beside(state: FormState) -> Node:
    why = state.lacking.get(state.workflow)
    return _what_to_do(state.workflow) if why else []


def _what_to_do(workflow: str) -> Node:
    """Where a workflow cannot be planned: the command that gets a trace to plan from."""
    return empty(
        "A plan needs a trace of training steps, with stacks and shapes.",
        "Request one while the workflow runs; the job continues. If none runs, start it first with `tightship run`.",
        command_for(fmt.code(workflow)),
    )
