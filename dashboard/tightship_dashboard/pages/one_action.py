"""Did this change work? What was changed, the two runs that were compared, and what else happened."""

from __future__ import annotations

import re

from dash import html

from tightship_dashboard.figures import action_list, calibration, chart
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
from tightship_dashboard.sentences import actions as words
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, actions_href, run_href, runs_href
from tightship_platform.errors import NotFound
from tightship_platform.queries.actions import compared_runs_left, get_action, list_actions
from tightship_platform.results.action import Action, ComparedRun, ToChange, Verification
from tightship_platform.vocabulary import ActionKind

PATH = re.compile(r"/did-it-work/([^/]{1,40})")
OTHERS = 20
"""Of what else was done about an opportunity, so much is listed, the newest first."""
_QUESTION: dict[str, str] = {
    ActionKind.APPLY: "Did this change work?",
    ActionKind.DISMISS: "Why was this dismissed?",
    ActionKind.REOPEN: "Why was this reopened?",
}


def title(key: str) -> str:
    """Title of the browser's tab."""
    return f"Action {fmt.name(key, limit=20)}"


def answer(view: View, key: str) -> Answer:
    """The first line, for the first paint.

    :raises NotFound: no action has this number.
    """
    with view.database.session() as session:
        return words.one_action(get_action(session, _number(key)))


def _number(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 18:
        raise NotFound("action", fmt.name(key, limit=40), "actions are numbered; `tightship actions` lists them")
    return int(key)


def layout(view: View, key: str) -> Node:
    """The whole page.

    :raises NotFound: no action has this number.
    """
    with view.database.session() as session:
        action = get_action(session, _number(key))
        found, others, left = action.verification, [], set()
        if found is not None:
            left = compared_runs_left(session, found)
        if action.opportunity is not None:
            others = list_actions(session, opportunity=action.opportunity, limit=OTHERS)
    parts = [_done(action, view)]
    if action.change is not None:
        parts = [html.Div([_change(action.change), *parts], className="columns")]
    if found is not None:
        parts = [html.Div([_measured(action, found), _compared(found, left)], className="columns"), *parts]
    return html.Div(
        [
            question(_QUESTION.get(action.kind, "What was done here?"), *simulated_badge(action.simulated)),
            sentence(words.one_action(action)),
            *parts,
            *_history(action, others, view),
        ]
    )


def _measured(action: Action, found: Verification) -> Node:
    drawing = chart.draw(
        calibration.intervals(action.predicted, found),
        graph_id="action-intervals",
        title="What was predicted and what was measured, with their intervals",
    )
    margin = f"Saving of the step. A saving counts from the dotted line on, {fmt.percent(found.margin_frac)}."
    level = f"at {fmt.percent(found.level)}"
    rows: list[tuple[str, Node]] = [
        ("predicted", words.predicted_text(action.predicted) if action.predicted else missing(words.NOTHING_PREDICTED)),
        (f"measured, {level}", words.measured_text(found)),
        ("verdict", fmt.name(found.verdict)),
        ("measured is", found.agreement or missing("There is no prediction, or no interval, to compare.")),
    ]
    notes = [
        html.Li(prose(fmt.name(text[:1].upper() + text[1:], limit=400))) for text in (found.reason, *found.remarks)
    ]
    body = [
        html.Figure([drawing, html.Figcaption(margin)]),
        facts(rows),
        html.Ul(notes, className="sentences"),
    ]
    return section("Predicted beside measured", body, anchor="measured")


def _compared(found: Verification, left: set[str]) -> Node:
    pair = found.before, found.after
    rows = [
        ("run", [_run(one, left) for one in pair]),
        ("a step takes", [fmt.duration(one.step_ns) for one in pair]),
        ("device time of a step", [fmt.duration(one.step_device_ns) for one in pair]),
        ("steps", [fmt.count(one.steps) for one in pair]),
        ("periods", [fmt.count(one.periods) for one in pair]),
        ("of them resampled together", [_block(one) for one in pair]),
    ]
    table = html.Table(
        [
            html.Caption("The two runs that were compared", className="unseen"),
            html.Thead(html.Tr([html.Td(), *[html.Th(head, scope="col") for head in ("before", "after")]])),
            html.Tbody(
                [html.Tr([html.Th(name, scope="row"), *[html.Td(cell) for cell in cells]]) for name, cells in rows]
            ),
        ],
        className="plain",
    )
    note = "Without start-up, and without what a capture slowed. The step counter stores periods of a few seconds."
    return section("The two runs", [table, html.P(note, className="quiet")], anchor="runs")


def _run(run: ComparedRun, left: set[str]) -> Node:
    key = fmt.name(run.run)
    return link(key, run_href(run.run)) if run.run in left else html.Span(f"{key} (removed)")


def _block(run: ComparedRun) -> Node:
    return missing("There were too few periods.") if run.block is None else fmt.count(run.block)


def _done(action: Action, view: View) -> Node:
    by_opportunity = actions_href(opportunity=str(action.opportunity))
    rows: list[tuple[str, Node]] = [
        ("state", words.state_words(action)),
        ("by", fmt.name(action.by)),
        ("when", time_of(action.time_ns, view.zone)),
        ("workflow", link(fmt.name(action.workflow), runs_href(workflow=action.workflow))),
        ("team", fmt.name(action.team) if action.team else missing("The workflow has no team.")),
        (
            "opportunity",
            missing("It is gone: nothing finds it any more.")
            if action.opportunity is None
            else link(str(action.opportunity), by_opportunity),
        ),
    ]
    if action.kind == ActionKind.APPLY and action.before is not None:
        rows.append(("last run before it", link(fmt.name(action.before), run_href(action.before))))
    said = [html.P(["Note: ", fmt.name(action.reason, limit=600)], className="why")] if action.reason else []
    body = [html.P(prose(fmt.name(action.title, limit=400))), facts(rows), *said]
    return section("What was done", body, anchor="done")


def _change(change: ToChange) -> Node:
    body: list[Node] = [html.P(prose(fmt.name(change.fix, limit=1000)))]
    if change.places:
        places = [html.Li(html.Code(fmt.name(place, limit=300))) for place in change.places]
        body.append(html.Ul(places, className="sentences"))
    if change.before:
        before = html.Pre(html.Code(fmt.code(change.before)), className="before")
        body += [html.P("Instead of", className="quiet"), before]
    if change.after:
        body += [html.P("write", className="quiet"), command(fmt.code(change.after), label="the change")]
    if change.command:
        body += [html.P("Run", className="quiet"), command(fmt.code(change.command), label="the command")]
    return section("The change", body, anchor="change")


def _history(action: Action, all_of_it: list[Action], view: View) -> list[Node]:
    others = [one for one in all_of_it if one.action != action.action]
    if not others:
        return []
    return [section("What else was done about it", [action_list.lines(others, view.zone)], anchor="history")]
