"""How does this run do? Its state, its life over time, its account, its findings and its captures."""

from __future__ import annotations

import re
import shlex
from typing import Any
from zoneinfo import ZoneInfo

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from tightship_dashboard.figures import account, chart, grid, metrics, phases
from tightship_dashboard.figures import captures as capture_table
from tightship_dashboard.figures.activity import imported_badge
from tightship_dashboard.figures.elements import (
    Node,
    command,
    empty,
    facts,
    link,
    missing,
    notice,
    question,
    section,
    seen_badge,
    sentence,
    simulated_badge,
    state_word,
    time_of,
)
from tightship_dashboard.pages.live import CALM_EVERY, LIVE_MS, changed, changed_rows, digests, row_digests
from tightship_dashboard.pages.stacks import where_it_was
from tightship_dashboard.pages.view import View, current_view
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, finding_href, fleet_href, runs_href, search_href
from tightship_platform import captures
from tightship_platform.api.auth import LOOPBACK, require
from tightship_platform.database.audit import audit
from tightship_platform.database.engine import Database
from tightship_platform.errors import TightshipError
from tightship_platform.queries.captures import list_captures
from tightship_platform.queries.findings import list_findings
from tightship_platform.queries.runs import get_run
from tightship_platform.queries.stacks import last_stacks
from tightship_platform.queries.timeline import run_timeline
from tightship_platform.results.finding import FindingSaving
from tightship_platform.results.run import RunDetail, RunOffload
from tightship_platform.results.run_account import counted_until_ns, has_no_trace
from tightship_platform.results.timeline import Timeline
from tightship_platform.vocabulary import LIVE, RunState, SavingUnit, Scope
from tightship_platform.wire import CaptureRequest

PATH = re.compile(r"/runs/([^/]{1,80})")
PARTS = ("head", "phases", "timeline", "account", "captures")
_TABLE = "run-findings"
POINTS = 400
"""Points of each line over time."""
SILENT_NS = 2 * fmt.MINUTE
SILENT_STEPS = 10
"""A live run without a step for as long as both say stands still."""
SHORT_COMMIT = 12
"""Digits of a commit that are shown; the pointer shows all."""
YOUNG_NS = 5 * fmt.MINUTE
"""For so long after its start every look at a run shows everything again."""


def title(key: str) -> str:
    """Title of the browser's tab."""
    return f"Run {fmt.name(key, limit=40)}"


def answer(view: View, key: str) -> Answer:
    """The first line, for the first paint.

    :raises NotFound: no run has this id.
    """
    with view.database.session() as session:
        run = get_run(session, key)
        return answers.one_run(run, list_findings(session, run=key), view.now_ns)


class _Read:
    """The prepared results behind one look at this page."""

    def __init__(self, view: View, key: str, *, with_timeline: bool = True) -> None:
        with view.database.session() as session:
            self.run = get_run(session, key)
            self.findings = list_findings(session, run=key)
            self.captures = list_captures(session, run=key)
            self.stacks = last_stacks(session, key)
            self.timeline = run_timeline(session, key, points=POINTS) if with_timeline else None

    @property
    def is_live(self) -> bool:
        """Whether the run can still change by itself."""
        return self.run.state == RunState.RUNNING


def layout(view: View, key: str) -> Node:
    """The whole page.

    :raises NotFound: no run has this id.
    """
    read = _Read(view, key)
    parts = _parts(view, read)
    rows = _finding_rows(read)
    disabled, why = _capture_button(view, read)
    return html.Div(
        [
            dcc.Store(id="run-key", data=key),
            dcc.Store(id="run-started", data=read.run.start_ns),
            dcc.Interval(id="run-clock", interval=LIVE_MS, disabled=_is_settled(read)),
            dcc.Store(id="run-seen", data=digests(parts)),
            dcc.Store(id="run-findings-shown", data=row_digests(rows)),
            html.Div(parts["head"], id="run-head"),
            html.Div(parts["phases"], id="run-phases"),
            html.Div(parts["timeline"], id="run-timeline"),
            html.Div(parts["account"], id="run-account"),
            section(
                "What is wrong with it", [html.Div(_findings(rows, read), id="run-findings-body")], anchor="findings"
            ),
            section(
                "Captures",
                [
                    html.Div(id="run-capture-note"),
                    html.Div(parts["captures"], id="run-captures"),
                ],
                anchor="captures",
                aside=[
                    html.Span(why, id="run-capture-why", className="quiet"),
                    html.Button(
                        "Capture a trace now", id="run-capture", type="button", className="act", disabled=disabled
                    ),
                ],
            ),
        ]
    )


def register(app: Dash, database: Database) -> None:
    """Everything on the page that moves, and the one thing that can be done."""

    @app.callback(
        *[Output(f"run-{name}", "children") for name in PARTS],
        Output("run-seen", "data"),
        Output("run-findings-body", "children"),
        Output("run-findings-shown", "data"),
        Output("run-capture", "disabled"),
        Output("run-capture-why", "children"),
        Output("run-clock", "disabled"),
        Input("run-clock", "n_intervals"),
        Input("run-capture-note", "children"),
        State("run-key", "data"),
        State("run-started", "data"),
        State("run-seen", "data"),
        State("run-findings-shown", "data"),
        prevent_initial_call=True,
    )
    def _tick(ticks: int | None, _note: Any, key: str, started_ns: int, seen: Any, shown: Any) -> list[Any]:
        view = current_view(database, None)
        is_young = view.now_ns - started_ns < YOUNG_NS
        read = _Read(view, key, with_timeline=is_young or (ticks or 0) % CALM_EVERY == 0)
        sent, now_seen = changed(_parts(view, read), seen)
        rows = _finding_rows(read)
        fresh, now_shown = changed_rows(rows, shown)
        body = no_update if fresh is no_update else _findings(rows, read)
        disabled, why = _capture_button(view, read)
        return [*sent, now_seen, body, now_shown, disabled, why, _is_settled(read)]

    @app.callback(
        Output("run-capture-note", "children"),
        Input("run-capture", "n_clicks"),
        State("run-key", "data"),
        prevent_initial_call=True,
    )
    def _capture(clicks: int | None, key: str) -> Node:
        if not clicks:
            raise PreventUpdate
        try:
            caller = require(Scope.CAPTURE)
            asked = CaptureRequest(target=key, requested_by="dashboard" if caller is LOOPBACK else caller.name)
            with database.session() as session:
                capture = captures.request(session, asked)
                audit(session, caller.name, "capture.request", capture.key, run=key, params=capture.params)
        except TightshipError as error:
            return notice(f"No capture was requested: {error}")
        return []


def _is_settled(read: _Read) -> bool:
    return not read.is_live and not capture_table.under_way(read.captures)


def _capture_button(view: View, read: _Read) -> tuple[bool, str]:
    """Whether the button is disabled, and why."""
    if not view.may_capture:
        return True, "Your token lacks the scope 'capture'."
    if not read.is_live:
        return True, f"The run is {fmt.name(read.run.state)}; only a live run can be captured."
    if read.run.is_seen:
        return True, "The job was not started by `tightship run`."
    if capture_table.under_way(read.captures):
        return True, "A capture is under way."
    return False, ""


def _parts(view: View, read: _Read) -> dict[str, Node]:
    run = read.run
    return {
        "head": [
            question(
                f"How is {fmt.name(run.workflow)} doing?",
                state_word(run.state),
                *simulated_badge(run.simulated),
                *seen_badge(run.is_seen),
                *([link(imported_badge(run.fleet), fleet_href(run.fleet))] if run.fleet != LIVE else []),
            ),
            sentence(answers.one_run(run, read.findings, _calm(view.now_ns, read))),
            _header(view, read),
        ],
        "phases": no_update
        if read.timeline is None
        else phases.strip(run, read.timeline, _calm(view.now_ns, read), view.zone),
        "timeline": no_update
        if read.timeline is None
        else section("Over time", [_timeline(view, read.timeline)], anchor="time"),
        "account": section(
            "Where its device time went", [_account(read)], anchor="account", aside=_counted(read, view.zone)
        ),
        "captures": _captures(view, read),
    }


def _calm(now_ns: int, read: _Read) -> int:
    # Ages tick once a minute, not with every look: nobody reads seconds of a run that has lasted for hours.
    young = now_ns - read.run.start_ns < YOUNG_NS
    return now_ns if young else max(now_ns // fmt.MINUTE * fmt.MINUTE, read.run.start_ns)


def _header(view: View, read: _Read) -> Node:
    run = read.run
    rows: list[tuple[str, Node]] = [
        *([("name", fmt.name(run.name))] if run.name else []),
        ("workflow", link(fmt.name(run.workflow), runs_href(workflow=run.workflow))),
        ("team", fmt.name(run.team) if run.team else missing("No team was given to `tightship run --team`.")),
        (
            "owner",
            fmt.name(run.owner) if run.owner else missing("No owner was given to `tightship run --owner`."),
        ),
        ("host", _found(fmt.name(run.host), f"host:{run.host}") if run.host else missing("Nobody reported it.")),
        ("devices", fmt.devices(run.devices)),
        ("ranks", str(len(run.ranks)) if run.ranks else missing("No training process reported.")),
        ("steps", fmt.count(run.steps) if run.steps is not None else missing("No step counter reported.")),
        ("started", time_of(run.start_ns, view.zone)),
        *(
            [("waited", f"{fmt.duration(run.waiting_ns)} in the scheduler's queue")]
            if run.waiting_ns is not None
            else []
        ),
        ("ended", time_of(run.end_ns, view.zone, reason="It has not ended.")),
        ("run", html.Code(fmt.name(run.run))),
        *_launched_with(run),
    ]
    if run.offload:
        rows.append(("offload", _offload(run.offload)))
    parts: list[Node] = [facts(rows)]
    if run.reason:  # too long for a column
        parts.append(html.P(f"Why: {fmt.name(run.reason, limit=600)}", className="why"))
    parts += _seen(run)
    parts += _stands_still(run, view.now_ns)
    parts += where_it_was(read.stacks, view.zone)
    words = [fmt.code(word) for word in run.command]
    return html.Div([*parts, *([command(shlex.join(words), label="the command")] if words else [])])


def _seen(run: RunDetail) -> list[Node]:
    """What is missing of a run that nobody launched, and how its job gets it."""
    if not run.is_seen:
        return []
    text = (
        "The agent of its host found this run; `tightship run` did not start it. So its steps are not counted, and it "
        "cannot be captured. Its job has both when it is started so:"
    )
    return [notice(text, kind="status"), command("tightship run -- CMD", label="the command that starts the job")]


def _stands_still(run: RunDetail, now_ns: int) -> list[Node]:
    """That a live run makes no steps any more, and where to ask why."""
    if run.state != RunState.RUNNING or not run.steps or run.last_step_ns is None:
        return []
    silent_ns = now_ns - run.last_step_ns
    usual_ns = (run.last_step_ns - run.start_ns) // run.steps
    if silent_ns < max(SILENT_NS, SILENT_STEPS * usual_ns):
        return []
    text = f"No step for {fmt.clock(silent_ns)}. This says where its ranks are, and which one is waited for:"
    return [notice(text, kind="status"), command(f"tightship why {run.run}", label="the command that says why")]


def _launched_with(run: RunDetail) -> list[tuple[str, Node]]:
    """What its launcher saw; what it did not see has no row."""
    rows: list[tuple[str, Node]] = []
    if run.labels:
        found = [_found(f"{label}={value}", f"{label}={value}") for label, value in run.labels.items()]
        rows.append(("labels", [part for one in found for part in (one, ", ")][:-1]))
    if run.external_id:
        rows.append(("job id", _found(html.Code(fmt.name(run.external_id)), f"job:{run.external_id}")))
    if run.git_commit:
        changes = {True: ", with changes that are not in it", False: ", unchanged", None: ""}[run.git_dirty]
        short = html.Code(run.git_commit[:SHORT_COMMIT], title=run.git_commit)
        rows.append(("commit", [_found(short, f"commit:{run.git_commit}"), changes]))
    if run.image:
        rows.append(("image", html.Code(fmt.name(run.image))))
    versions = [f"torch {run.torch_version}" if run.torch_version else ""]
    versions += [f"CUDA {run.cuda_version}" if run.cuda_version else ""]
    versions += [f"driver {run.driver_version}" if run.driver_version else ""]
    if any(versions):
        rows.append(("versions", fmt.name(", ".join(filter(None, versions)))))
    return rows


def _found(shown: Node, term: str) -> Node:
    """A link to all runs in which this is found."""
    href = search_href(term)
    text = fmt.name(shown) if isinstance(shown, str) else shown
    return text if href is None else link(text, href)


def _offload(used: RunOffload) -> Node:
    """What the run's offload plan predicted, what its steps took, and what they waited for."""
    plan, step = used.plan, used.step
    predicted, measured = used.predicted_ns, used.measured_ns
    low, high = plan.get("predicted_low_ns"), plan.get("predicted_high_ns")
    text = (
        f"{plan.get('slots', '–')} slots and {plan.get('resident', '–')} resident of {plan.get('layers', '–')} layers; "
    )
    text += "no step time was predicted" if predicted is None else f"a step predicted to take {fmt.duration(predicted)}"
    if low is not None and high is not None:
        text += f" ({fmt.duration(low)} to {fmt.duration(high)})"
    text += ", none measured" if measured is None else f", measured {fmt.duration(measured)}"
    if predicted and measured:
        text += f" ({100 * (measured / predicted - 1):+.1f}\N{NO-BREAK SPACE}%)".replace("-", "\N{MINUS SIGN}")
    waits = {
        "weights": "wait_h2d_ns",
        "updates": "wait_update_ns",
        "a slot": "wait_slot_ns",
        "gradients": "wait_d2h_ns",
    }
    reported = [f"{fmt.duration(step[key])} for {what}" for what, key in waits.items() if step.get(key)]
    text += f"; it waited {', '.join(reported)}" if reported else ""
    if step.get("in_one_pass"):
        text += f"; of {plan.get('layers', '–')} layers {step['in_one_pass']} are updated in one pass over memory"
    return html.Span(text, className="sentence")


def _timeline(view: View, timeline: Timeline) -> Node:
    if metrics.is_empty(timeline):
        return empty(
            "No metric of this run has arrived.",
            "Metrics come from the agent on its host. It runs with `tightship up`, or alone:",
            "tightship agent",
        )
    return chart.draw(
        metrics.figure(timeline, view.zone),
        graph_id="run-over-time",
        title="Steps per second, activity, memory and power over time, with captures marked",
    )


def _counted(read: _Read, zone: ZoneInfo) -> str | None:
    until_ns = counted_until_ns(read.run)
    return None if until_ns is None else f"counted so far: until {fmt.moment(until_ns, zone)}"


def _account(read: _Read) -> Node:
    run = read.run
    buckets, total = run.account, run.device_ns
    if not buckets or not total:
        return html.P("Device time is accounted for about once a minute; this run's is not yet.", className="quiet")
    drawn = account.waterfall(buckets, total)
    if run.steps or not has_no_trace(buckets):
        return drawn
    todo = "Capture a trace below." if read.is_live else "Capture a trace of its next run."
    if run.is_seen:
        todo = "Start its job with `tightship run`, and capture a trace."
    why = f"No steps were counted: start-up and work cannot be distinguished. {todo}"
    return html.Div([drawn, html.P(why, className="quiet")])


def _finding_rows(read: _Read) -> list[grid.Row]:
    return [
        {
            "id": str(f.finding),
            "title": fmt.cell(f.title, limit=300),
            "title_href": finding_href(f.finding),
            "where": fmt.cell(f.where, limit=200),
            "share": f.saving.share_frac,
            "share_text": fmt.percent(f.saving.share_frac),
            "saving": f.saving.value,
            "saving_text": _saving_text(f.saving),
            "fix": fmt.cell(f.fix, limit=400),
            "rule": fmt.name(f.rule),
        }
        for f in read.findings
    ]


def _saving_text(saving: FindingSaving) -> str:
    words: dict[str, str] = {SavingUnit.STEP: " per step", SavingUnit.RECORDING: " of the recording"}
    per = words.get(saving.unit, "")
    value = fmt.span(saving.value, saving.low, saving.high)
    return f"{value}{per}, {saving.method}" if saving.method else value


def _findings(rows: list[grid.Row], read: _Read) -> Node:
    if rows:
        return grid.table(_TABLE, _finding_columns(), rows, label="Findings of this run", wrap=True)
    analyzed = [c for c in read.captures if c.state == "analyzed"]
    if analyzed and all(c.reason for c in analyzed):
        return html.P(f"Nothing could be judged: {analyzed[0].reason}.", className="quiet")
    if analyzed:
        return html.P("Its traces were analyzed; no rule found anything to change.", className="quiet")
    if not read.is_live or read.run.is_seen:
        return html.P("No trace of it was analyzed, so no rule was applied.", className="quiet")
    return html.P("Nothing is known yet: findings come from a trace. Capture one below.", className="quiet")


def _finding_columns() -> list[grid.Column]:
    share = "Share of the step or recording, or of the run's device time"
    return [
        grid.column("title", "What is wrong", "link", minWidth=160, flex=3),
        grid.column("share", "Share", "number", unit="0..1", minWidth=74, width=84, why=share),
        grid.column("saving", "Would save", "number", unit="ns", minWidth=150, flex=2, wide=True),
        grid.column("where", "Where", minWidth=130, flex=2, wide=True),
        grid.column("fix", "What to change", minWidth=150, flex=3, wide=True),
    ]


def _captures(view: View, read: _Read) -> Node:
    if read.captures:
        return capture_table.listing(read.captures, view.zone)
    if read.run.is_seen:
        return html.P("It cannot be captured: `tightship run` did not start it.", className="quiet")
    if read.is_live:
        return empty(
            "No trace has been captured.",
            "Press the button, or use the command. It takes a few seconds and the job continues.",
            f"tightship profile {read.run.run} --wait",
        )
    return html.P("No trace was captured while it ran.", className="quiet")
