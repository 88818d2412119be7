"""What was done about opportunities, a line each, on the pages of what it was about."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from dash import html

from tightship_dashboard.figures.elements import Node, command, link, prose, section, time_of
from tightship_dashboard.sentences import actions as words
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import action_href, run_href
from tightship_platform.results.action import Action
from tightship_platform.results.opportunity import Opportunity


def lines(actions: Sequence[Action], zone: ZoneInfo) -> Node:
    """Of one opportunity, the newest first: when, by whom, what, and what was measured."""
    items = [
        html.Li(
            [
                time_of(one.time_ns, zone),
                f", {fmt.name(one.by)}: ",
                link(words.state_words(one), action_href(one.action)),
                f", {_measured(one)}" if one.verification else "",
                f" (“{fmt.name(one.reason, limit=300)}”)" if one.reason else "",
            ]
        )
        for one in actions
    ]
    return html.Ul(items, className="sentences")


def of_opportunity(opportunity: Opportunity, actions: Sequence[Action], zone: ZoneInfo) -> Node:
    """What was done about the opportunity behind a finding; where nothing was, how to begin."""
    body: list[Node] = [lines(actions, zone)] if actions else []
    if opportunity.state == "open":
        text = "Make the change and say so. The next run of the workflow then tells what it saved:"
        body += [html.P(text), command(f"tightship apply {opportunity.opportunity}")]
    return section("Did it work?", body, anchor="actions", aside=f"opportunity {opportunity.opportunity}")


def comparisons(run: str, actions: Sequence[Action]) -> list[Node]:
    """Of a run that was compared: with which one, for which change, and what came of it; nothing where it never was."""
    items = []
    for one in actions:
        found = one.verification
        if found is None:
            continue
        is_before = found.before.run == run
        other = found.after.run if is_before else found.before.run
        items.append(
            html.Li(
                [
                    "This run was compared with ",
                    link(fmt.name(other), run_href(other)),
                    f", from {'after' if is_before else 'before'} the change “",
                    link(prose(fmt.name(words.what_was_done(one), limit=200)), action_href(one.action)),
                    f"”: {fmt.name(found.verdict)}, {_measured(one)}.",
                ]
            )
        )
    return [section("Did it work?", [html.Ul(items, className="sentences")], anchor="compared")] if items else []


def _measured(action: Action) -> str:
    return f"measured {words.measured_text(action.verification)} of the step"
