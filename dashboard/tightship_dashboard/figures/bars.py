"""Bars of time, one below the other and all to one scale, with length and share as numbers beside them."""

from __future__ import annotations

from dash import html

from tightship_dashboard.figures.elements import Node
from tightship_dashboard.sentences import formatting as fmt


def waterfall(caption: str, rows: list[Node]) -> Node:
    """Bars that begin where others end.

    :param caption: what they show, for those who do not see them.
    """
    return html.Table([html.Caption(caption, className="unseen"), html.Tbody(rows)], className="bars waterfall")


def bar(label: Node, start: int, value: int | None, total: int, *, colour: str, title: str, kind: str = "part") -> Node:
    """One of them; a value that nobody knows (None) has no length.

    :param start: where it begins, of `total`.
    :param kind: its class in the style sheet.
    """
    style = {"left": length(start, total), "width": length(value or 0, total), "background": colour}
    drawn = [html.Div(style=style, className=f"bar {kind}")] if value else []
    return html.Tr(
        [
            html.Th(label, scope="row"),
            html.Td(html.Div(drawn, className="track"), className="draw"),
            html.Td(fmt.duration(value), className="number"),
            html.Td(fmt.share(value, total), className="number share"),
        ],
        title=title,
    )


def length(value: int, whole: int) -> str:
    """How far a bar reaches, where `whole` is all of the scale."""
    return f"{100 * value / whole:.3f}%" if whole else "0%"
