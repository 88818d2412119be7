"""What is wrong here, what does it cost, and what is the change?"""

from __future__ import annotations

import re

from dash import dcc, html

from tightship_analyzers.report import gap_lanes
from tightship_dashboard.figures import action_list, gap
from tightship_dashboard.figures.elements import (
    Node,
    command,
    facts,
    link,
    missing,
    prose,
    question,
    section,
    sentence,
    simulated_badge,
    time_of,
)
from tightship_dashboard.pages.view import View
from tightship_dashboard.sentences import answers
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, fit_href, one_trace_href, run_href, runs_href
from tightship_dashboard.sentences.rule_text import rule_text
from tightship_platform.database import ids
from tightship_platform.database.models import Trace
from tightship_platform.errors import NotFound
from tightship_platform.queries.actions import list_actions
from tightship_platform.queries.captures import find_trace, trace_url
from tightship_platform.queries.findings import get_finding
from tightship_platform.queries.opportunities import opportunity_of_finding
from tightship_platform.queries.runs import get_run
from tightship_platform.results.action import Action
from tightship_platform.results.evidence import Change, Evidence, Fact, Gap, PlanAdvice
from tightship_platform.results.finding import Finding, FindingSaving
from tightship_platform.units import format_bytes, unbroken
from tightship_platform.vocabulary import Method, SavingUnit

PATH = re.compile(r"/findings/([^/]{1,40})")

HOW_KNOWN: dict[str, str] = {
    Method.MEASURED: "Measured: the same job was seen before and after the change.",
    Method.SIMULATED: "Simulated: what was recorded was run again on paper without the defect, with everything that "
    "depends on it moving up. Low and high allow for the error of that.",
    Method.BOUND: "A bound: the most that the change can give back. What it really gives back can be less.",
}
_COSTS = {
    SavingUnit.STEP: "costs per step",
    SavingUnit.RECORDING: "costs in the recording",
    SavingUnit.DEVICE_TIME: "costs",
}


ACTIONS = 10
"""Of what was done about its opportunity, so much is listed."""
NOT_KNOWN = "Seen in the run's samples and its end. The saving is unknown and not counted."


def title(key: str) -> str:
    """Title of the browser's tab."""
    return f"Finding {fmt.name(key, limit=20)}"


def answer(view: View, key: str) -> Answer:
    """The first line, for the first paint.

    :raises NotFound: no finding has this number.
    """
    read = _Read(view, key)
    return answers.one_finding(read.finding, read.step_ns)


class _Read:
    """The prepared results behind one look at this page."""

    def __init__(self, view: View, key: str) -> None:
        newest = key.startswith(ids.NEWEST)
        if not newest and (not key.isascii() or not key.isdigit() or len(key) > 18):
            raise NotFound("finding", fmt.name(key, limit=40), "findings are numbered; `tightship findings` lists them")
        with view.database.session() as session:
            self.finding = get_finding(session, ids.find_number(session, ids.FINDING, key))
            self.run = get_run(session, self.finding.run)
            self.opportunity = opportunity_of_finding(session, self.finding.finding)
            self.actions: list[Action] = []
            """What was done about it, the newest first."""
            if self.opportunity is not None:
                self.actions = list_actions(session, opportunity=self.opportunity.opportunity, limit=ACTIONS)
            self.trace: Trace | None = None
            self.capture: str | None = None
            """The capture that the trace belongs to."""
            if self.finding.trace is not None:
                self.trace = find_trace(session, self.finding.trace)
                self.capture = self.trace.capture.key if self.trace.capture is not None else None
        summary = self.trace.summary if self.trace is not None else {}
        # Savings refer to the step as it is while nothing is recorded, where the step counter knows that.
        # A saving is given in unrecorded steps only where recording made them longer; so the shorter one is meant.
        steps = (summary.get("untraced_step_ns"), (summary.get("step_ns") or {}).get("mean"))
        self.step_ns: int | None = min((step for step in steps if step), default=None)
        self.steps: int | None = summary.get("steps")
        self.window_ns: int | None = summary.get("window_ns")


def layout(view: View, key: str) -> Node:
    """The whole page.

    :raises NotFound: no finding has this number.
    """
    read = _Read(view, key)
    finding = read.finding
    return html.Div(
        [
            question(
                "What is wrong here, and what is the change?",
                *simulated_badge(read.run.simulated),
            ),
            sentence(answers.one_finding(finding, read.step_ns)),
            _gap(view, finding.evidence, SavingUnit(finding.saving.unit)),
            html.Div([_cost(view, read), _fix(finding)], className="columns"),
            *_did_it_work(view, read),
            _how_known(view, read),
        ]
    )


def _gap(view: View, evidence: list[Evidence], unit: SavingUnit) -> Node:
    gaps = [e for e in evidence if isinstance(e, Gap)]
    if not gaps:
        why = "This finding comes from metrics, not from a trace; there is no single gap to show."
        return section("The worst gap", [html.P(why, className="quiet")], anchor="gap")
    worst = max(gaps, key=lambda g: g.end_ns - g.start_ns)
    step = f"in step {fmt.count(worst.step)}" if worst.step is not None else "outside of any step"
    if unit is SavingUnit.RECORDING:
        step = "in the recording"
    heading, zero = (
        ("The worst gap", "device went idle") if gap_lanes.is_idle(worst) else ("An example", "stretch began")
    )
    caption = [f"Milliseconds since the {zero}, {step}, ", time_of(worst.start_ns, view.zone), ". Drag to zoom in."]
    return section(heading, [gap.captioned(worst, caption, graph_id="finding-gap")], anchor="gap")


def _cost(view: View, read: _Read) -> Node:
    finding, saving = read.finding, read.finding.saving
    unit = SavingUnit(saving.unit)
    rows: list[tuple[str, Node]] = [
        (_COSTS[unit], fmt.span(saving.value, saving.low, saving.high)),
        ("share of device time" if unit is SavingUnit.DEVICE_TIME else f"share of the {unit.whole}", _share(saving)),
    ]
    if read.step_ns is not None:
        rows.append(("a step lasts", fmt.duration(read.step_ns)))
    if unit is SavingUnit.RECORDING:
        rows.append(("the recording lasts", fmt.duration(read.window_ns)))
    if read.steps:
        rows.append(("steps looked at", fmt.count(read.steps)))
    rows += [
        (
            "where",
            html.Code(fmt.name(finding.where, limit=300)) if finding.where else missing("no place is known"),
        ),
        ("run", link(fmt.name(finding.run), run_href(finding.run))),
        ("workflow", link(fmt.name(finding.workflow), runs_href(workflow=finding.workflow))),
    ]
    if finding.rank is not None:
        rows.append(("rank", str(finding.rank)))
    said = [e for e in finding.evidence if isinstance(e, Fact)]
    sentences = [html.Li(prose(fmt.name(e.text, limit=300))) for e in said]
    return section("How often, how much", [facts(rows), html.Ul(sentences, className="sentences")], anchor="cost")


def _share(saving: FindingSaving) -> Node:
    if saving.share_frac is None:
        return missing("The total for this share is not known.")
    return fmt.percent(saving.share_frac)


def _fix(finding: Finding) -> Node:
    body: list[Node] = [html.P(prose(fmt.name(finding.fix, limit=1000)))]
    for change in (e for e in finding.evidence if isinstance(e, Change)):
        before, after = fmt.code(change.before), fmt.code(change.after)
        body += [
            html.P("Instead of", className="quiet"),
            html.Pre(html.Code(before), className="before"),
            html.P("write", className="quiet"),
            command(after, label="the change"),
        ]
    for plan in (e for e in finding.evidence if isinstance(e, PlanAdvice)):
        page = link("Will it fit, and how fast?", fit_href(workflow=plan.workflow))
        body += [html.P([page, " computes the plan here; or in a shell:"]), command(fmt.code(plan.command))]
    return section("The change", body, anchor="fix")


def _did_it_work(view: View, read: _Read) -> list[Node]:
    if read.opportunity is None:
        return []
    return [action_list.of_opportunity(read.opportunity, read.actions, view.zone)]


def _trace(trace: Trace, view: View) -> Node:
    recorded = [f" of rank {trace.rank}, recorded ", time_of(trace.created_ns, view.zone)]
    if trace.removed_ns is not None:
        return html.P(["The trace", *recorded, ", was removed ", time_of(trace.removed_ns, view.zone), "."])
    text = unbroken(f"Download the trace ({format_bytes(trace.bytes)})")
    opens = "; it opens in Perfetto and chrome://tracing."
    return html.P([html.A(text, href=trace_url(trace), download=""), *recorded, opens])


def _how_known(view: View, read: _Read) -> Node:
    finding = read.finding
    method = finding.saving.method
    body: list[Node] = [html.P(HOW_KNOWN.get(method, fmt.name(method)) if method else NOT_KNOWN)]
    text = rule_text(finding.rule)
    if text:
        body.append(
            html.Details(
                [html.Summary(["The rule ", html.Code(fmt.name(finding.rule)), ", in full"]), dcc.Markdown(text)]
            )
        )
    else:
        body.append(html.P(["Rule ", html.Code(fmt.name(finding.rule)), "."]))
    if read.trace is not None:
        body.append(_trace(read.trace, view))
    if read.trace is not None and read.capture is not None:
        whole = link("All that this trace says", one_trace_href(read.capture, read.trace.rank), className="act-link")
        body.append(html.P([whole, ": steps, gaps, kernels, critical path."]))
    return section("How we know", body, anchor="how")
