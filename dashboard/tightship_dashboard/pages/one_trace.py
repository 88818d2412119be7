"""What do the traces of this capture say? The whole analysis, with the figures of one rank at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from tightship_analyzers.report.sentences import device_of, devices_differ, least_productive, uncovered_words
from tightship_dashboard.figures.captures import trace_href, under_way
from tightship_dashboard.figures.elements import (
    Node,
    attrs,
    empty,
    facts,
    link,
    notice,
    question,
    sentence,
    simulated_badge,
    time_of,
)
from tightship_dashboard.pages.live import LIVE_MS
from tightship_dashboard.pages.trace_sections import Found, sections
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, one_trace_href, run_href, runs_href
from tightship_platform.api.analyze_again import analyze_again
from tightship_platform.database.engine import Database
from tightship_platform.errors import NotFound, TightshipError
from tightship_platform.queries.analysis import get_analysis, is_by_other_rules
from tightship_platform.queries.captures import get_capture
from tightship_platform.queries.findings import list_findings
from tightship_platform.queries.runs import get_run
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.run import RunAnalysis
from tightship_platform.results.capture import Capture, CapturedRank
from tightship_platform.results.packed import Unpackable
from tightship_platform.settings import Settings
from tightship_platform.units import format_bytes, unbroken
from tightship_platform.vocabulary import CaptureState

PATH = re.compile(r"/traces/([^/]{1,40})")
UNDER_WAY: Mapping[str, str] = {
    CaptureState.REQUESTED: "The capture is requested; no agent has taken it yet.",
    CaptureState.LEASED: "An agent has taken the capture; the job has not armed its profiler yet.",
    CaptureState.ARMED: "The job's profiler is armed and about to record.",
    CaptureState.RECORDING: "The job is recording.",
    CaptureState.WRITTEN: "The recording is written; its traces are on their way to the server.",
    CaptureState.UPLOADED: "The analysis is under way.",
}
"""What an unfinished capture is at."""


def title(key: str) -> str:
    """Title of the browser's tab."""
    return f"Trace {fmt.name(key, limit=40)}"


def answer(view: View, key: str) -> Answer:
    """The first line, for the first paint.

    :raises NotFound: no such capture.
    """
    read = _Read(view, key)
    return answers.one_trace(read.capture, read.analysis, view.zone)


class _Read:
    """The prepared results behind one look at this page."""

    def __init__(self, view: View, key: str) -> None:
        self.analysis: RunAnalysis | None = None
        self.by_other_rules = False
        self.why: str | None = None
        """Why there is no analysis."""
        with view.database.session() as session:
            self.capture = get_capture(session, key)
            key = self.capture.capture
            self.run = get_run(session, self.capture.run)
            try:
                self.analysis = get_analysis(session, key)
                self.by_other_rules = is_by_other_rules(session, key)
            except (NotFound, Unpackable) as error:
                self.why = str(error)
            mine = {rank.trace for rank in self.capture.ranks}
            listed = list_findings(session, run=self.capture.run)
        self.found: Found = {(row.rule, row.where): row.finding for row in listed if row.trace in mine}

    def rank(self, requested: str | None) -> RankAnalysis | None:
        """The rank that the address names, else the least productive one."""
        if self.analysis is None or not self.analysis.ranks:
            return None
        by_rank = {str(one.rank): one for one in self.analysis.ranks}
        return by_rank.get(requested or "") or least_productive(self.analysis)

    def file(self, rank: int) -> CapturedRank | None:
        """The stored file of a rank."""
        return next((one for one in self.capture.ranks if one.rank == rank), None)


def layout(view: View, key: str) -> Node:
    """The whole page.

    :raises NotFound: no such capture.
    """
    read = _Read(view, key)
    return html.Div(
        [
            dcc.Location(id="trace-url", refresh=False),
            dcc.Store(id="trace-key", data=key),
            dcc.Store(id="trace-state", data=_state(view, read.capture)),
            dcc.Interval(id="trace-clock", interval=LIVE_MS, disabled=not under_way([read.capture])),
            html.Div(id="trace-note"),
            html.Div(_body(view, read), id="trace-body"),
        ],
        className="page-trace",
    )


def register(app: Dash, database: Database, settings: Settings) -> None:
    """The page follows a capture that is under way; its button has one analyzed again."""

    @app.callback(
        Output("trace-body", "children"),
        Output("trace-state", "data"),
        Output("trace-clock", "disabled"),
        Input("trace-clock", "n_intervals"),
        Input("trace-note", "children"),
        Input("trace-url", "search"),
        State("trace-key", "data"),
        State("trace-state", "data"),
        prevent_initial_call=True,
    )
    def _tick(_ticks: int | None, _note: Any, search: str | None, key: str, shown: Any) -> tuple[Any, Any, bool]:
        view = current_view(database, search)
        with database.session() as session:
            capture = get_capture(session, key)
        settled = not under_way([capture])
        if shown == _state(view, capture):
            return no_update, no_update, settled
        read = _Read(view, key)
        return _body(view, read), _state(view, read.capture), settled

    @app.callback(
        Output("trace-note", "children"),
        Input("trace-again", "n_clicks"),
        State("trace-key", "data"),
        prevent_initial_call=True,
    )
    def _again(clicks: int | None, key: str) -> Node:
        if not clicks:
            raise PreventUpdate
        try:
            analyze_again(database, settings, key)
        except TightshipError as error:
            return notice(f"It was not analyzed again: {error}")
        return []


def _state(view: View, capture: Capture) -> str:
    """All that the page depends on and that can change."""
    return f"{capture.state} {view.query.get('rank')}"


def _body(view: View, read: _Read) -> Node:
    one = read.rank(view.query.get("rank"))
    head: list[Node] = [
        question("What do the traces of this capture say?", *simulated_badge(read.run.simulated), *_choice(read, one)),
        *_limits(read),
        sentence(answers.one_trace(read.capture, read.analysis, view.zone)),
    ]
    if read.analysis is None or one is None:
        return [*head, _no_analysis(view, read), _header(view, read, None)]
    return [
        *head,
        _header(view, read, one),
        _file(view, read, one),
        *sections(read.capture.capture, read.analysis, one, read.found),
    ]


def _choice(read: _Read, one: RankAnalysis | None) -> list[Node]:
    if read.analysis is None or one is None or len(read.analysis.ranks) < 2:
        return []
    links = [
        link(
            f"rank {row.rank}",
            one_trace_href(read.capture.capture, row.rank),
            className="here" if row.rank == one.rank else "",
        )
        for row in read.analysis.ranks
    ]
    return [html.Nav(links, className="choice", **attrs(aria_label="Rank"))]


def _limits(read: _Read) -> list[Node]:
    """What limits the whole verdict, above it."""
    if read.analysis is None:
        return []
    lines = [*uncovered_words(read.analysis), *([words] if (words := devices_differ(read.analysis)) else [])]
    shown: list[Node] = [notice(fmt.name(line, limit=400)) for line in lines]
    if under_way([read.capture]):
        text = "It is being analyzed again. Until that is done, this is what the earlier analysis says."
        shown.append(notice(text, kind="status"))
    elif read.by_other_rules:
        text = "Newer analyses apply other rules than this one did; “Analyze again” applies them here, too."
        shown.append(notice(text, kind="status"))
    return shown


def _header(view: View, read: _Read, one: RankAnalysis | None) -> Node:
    capture = read.capture
    rows: list[tuple[str, Node]] = [
        ("run", link(fmt.name(capture.run), run_href(capture.run))),
        ("workflow", link(fmt.name(capture.workflow), runs_href(workflow=capture.workflow))),
        ("requested", time_of(capture.requested_ns, view.zone)),
    ]
    if one is not None:
        rows += [("rank", str(one.rank)), ("device", fmt.name(device_of(one.summary)))]
        rows += [("events in the file", fmt.count(one.summary.events))]
    rows.append(("capture", html.Code(fmt.name(capture.capture))))
    return facts(rows)


def _file(view: View, read: _Read, one: RankAnalysis) -> Node:
    file = read.file(one.rank)
    if file is None or file.url is None:
        return html.P("The trace file is not stored any more; only its analysis is.", className="quiet")
    href = trace_href(file.url)
    text = unbroken(f"Download the trace of rank {one.rank} ({format_bytes(file.bytes)})")
    name = f"{fmt.name(read.capture.workflow)}, rank {one.rank}"
    perfetto = html.Button(
        "Open in Perfetto", type="button", className="quiet-button", **attrs(data_perfetto=href, data_title=name)
    )
    disabled, why = _may_again(view, read)
    again = html.Button(
        "Analyze again", id="trace-again", type="button", className="quiet-button", disabled=disabled, title=why
    )
    words = (
        "Perfetto opens in a new tab, at ui.perfetto.dev, and reads the file inside your browser; nothing is uploaded. "
        "If you cannot reach that site, download the file and open it in your own copy of Perfetto or in "
        "chrome://tracing."
    )
    return html.Div(
        [
            html.P([html.A(text, href=href, download=""), " ", perfetto, " ", again], className="trace-file"),
            html.P(words, className="quiet"),
        ]
    )


def _may_again(view: View, read: _Read) -> tuple[bool, str]:
    """Whether the button is disabled, and what it does or why not."""
    if not view.may_capture:
        return True, "Your token lacks the scope 'capture'."
    if under_way([read.capture]):
        return True, "It is being analyzed."
    if not any(rank.url for rank in read.capture.ranks):
        return True, "None of its trace files is stored any more."
    return False, "Have its traces analyzed once more, as after an upgrade of tightship"


def _no_analysis(view: View, read: _Read) -> Node:
    capture = read.capture
    if under_way([capture]):
        stage = UNDER_WAY.get(capture.state, "The capture is under way.")
        return empty(stage, "This page shows the analysis when it is there; if nothing comes:", "tightship doctor")
    if not any(rank.url for rank in capture.ranks):
        return empty(
            "There is nothing to analyze.",
            "No trace file of this capture is stored. Capture a live run of the workflow:",
            f"tightship profile {capture.workflow} --wait",
        )
    disabled, why = _may_again(view, read)
    button = html.Button("Analyze again", id="trace-again", type="button", className="act", disabled=disabled)
    return html.Div(
        [
            html.P(fmt.name(f"{read.why}.", limit=400)),
            html.P([button, " ", html.Span(why, className="quiet")]),
        ],
        className="empty",
    )
