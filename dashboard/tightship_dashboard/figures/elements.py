"""The few kinds of things that pages are made of: sentences, facts, badges, commands to copy, empty states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from dash import dcc, html

from tightship_dashboard.figures.palette import RUN_COLOUR
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import Answer, Link
from tightship_platform.units import unbroken
from tightship_platform.vocabulary import RunState

Node = Any
"""A Dash component, text, or a list of them; Dash does not type its components."""


def attrs(**values: str) -> dict[str, Any]:
    """`aria_label="x"` and `data_copy="y"` as the attributes that HTML knows."""
    return {name.replace("_", "-"): value for name, value in values.items()}


def link(text: Node, href: str, **props: Any) -> Node:
    """Inside a page an anchor, to another page a link that does not reload, to the API an ordinary one."""
    if href.startswith(("#", "/api/")):
        return html.A(text, href=href, **props)
    return dcc.Link(text, href=href, **props)


def prose(text: str) -> Node:
    """Text in which `backticks` mark code, as rules write it."""
    pieces = text.split("`")
    if len(pieces) < 3 or len(pieces) % 2 == 0:
        return unbroken(text)
    return [html.Code(piece) if i % 2 else unbroken(piece) for i, piece in enumerate(pieces) if piece]


def sentence(answer: Answer) -> Node:
    """The answer of a page, in words."""
    return html.P(
        [link(prose(part.text), part.href) if isinstance(part, Link) else html.Span(prose(part)) for part in answer],
        className="answer",
    )


def question(text: str, *aside: Node) -> Node:
    """The page's question, small; the answer is what is large."""
    return html.Div([html.H1(text, tabIndex="-1", id="question"), *aside], className="question")


def section(title: str, children: Sequence[Node], *, anchor: str, aside: Node = None) -> Node:
    """A part of a page with a heading, reachable by its anchor."""
    head = html.Div([html.H2(title), html.Div(aside, className="aside")] if aside else html.H2(title), className="head")
    return html.Section([head, *children], id=anchor)


def missing(reason: str) -> Node:
    """'–' with the reason on hover."""
    return html.Span(fmt.MISSING, title=reason, className="missing", **attrs(aria_label=f"missing: {reason}"))


def time_of(time_ns: int | None, zone: ZoneInfo, *, reason: str = "not recorded") -> Node:
    """A moment in the viewer's zone; ISO on hover."""
    if time_ns is None:
        return missing(reason)
    return html.Time(fmt.moment(time_ns, zone), dateTime=fmt.iso(time_ns), title=fmt.iso(time_ns))


def state_word(state: str) -> Node:
    """The state of a run: a dot and always the word."""
    known = state in RunState.__members__.values()
    colour = RUN_COLOUR[RunState(state)] if known else "currentColor"
    live = " live" if state == RunState.RUNNING else ""
    return html.Span(
        [html.Span(className=f"dot{live}", style={"background": colour}), fmt.name(state)], className="state"
    )


def badge(text: str, title: str) -> Node:
    """A word that must not be overlooked."""
    return html.Span(text, className="badge", title=title)


def simulated_badge(simulated: bool) -> list[Node]:
    """Nothing for what was measured; a badge for what was not."""
    return [badge("simulated data", "Made up by a simulator; nothing here was measured.")] if simulated else []


def command(text: str, *, label: str = "") -> Node:
    """A command or code, with a button that copies it."""
    button = html.Button("copy", type="button", className="copy", **attrs(data_copy=text, aria_label=f"Copy {label}"))
    return html.Div([html.Pre(html.Code(text)), button], className="command")


def facts(rows: Iterable[tuple[str, Node]]) -> Node:
    """Names and values in two columns that wrap."""
    return html.Dl([html.Div([html.Dt(term), html.Dd(value)]) for term, value in rows], className="facts")


def empty(what: str, do: str, *commands: str) -> Node:
    """Nothing to show: why, what to do next, and the command for it."""
    return html.Div([html.P(prose(what)), html.P(prose(do)), *[command(c) for c in commands]], className="empty")


def notice(text: str, *, kind: str = "error") -> Node:
    """One line that says what happened and what was not lost."""
    return html.P(text, className=f"notice {kind}", role="alert" if kind == "error" else "status")
