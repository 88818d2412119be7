"""What all charts share: no frame, hairlines, one font. Text and lines take their colour from the style sheet.

[Note: themes] A Plotly template fixes colours when the figure is made, so a chart would have to be made again for the
other theme, and would flash. Here the template carries everything but the colours of text, grid and hover label;
assets/charts.css gives those from the variables of the theme, so that a chart turns with the page.
"""

from __future__ import annotations

import html as markup
from typing import Any

from dash import dcc, html

from tightship_dashboard.figures.elements import Node, attrs
from tightship_dashboard.sentences import formatting as fmt

Spec = dict[str, Any]
"""A part of a figure as Plotly's JSON has it."""
FONT = '"Helvetica Neue", Helvetica, Arial, "Liberation Sans", system-ui, sans-serif'
"""The stack of assets/page.css; Plotly measures text before the style sheet can reach it."""
HAIRLINE = "rgba(128,128,128,0.28)"

AXIS: Spec = {
    "showgrid": True,
    "gridcolor": HAIRLINE,
    "zeroline": False,
    "showline": False,
    "ticks": "",
    "fixedrange": True,
    "automargin": True,
    "title": {"standoff": 6},
}
X_AXIS: Spec = AXIS | {"ticklabelstandoff": 8}
"""Its first label begins below the lowest one of the other axis, which lies beside it."""


def layout(*, height: int, **more: Any) -> Spec:
    """The layout of a chart `height` pixels high; `more` is laid over it."""
    base: Spec = {
        "height": height,
        "autosize": True,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12},
        "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left"},
        "showlegend": False,
        "dragmode": False,
        # Keeps zoom and hover while live values arrive.
        "uirevision": "keep",
        "template": {},
    }
    return base | more


def draw(figure: Spec, *, graph_id: str | dict[str, str], title: str) -> Node:
    """The figure on the page; `title` is what a screen reader says."""
    graph = dcc.Graph(
        id=graph_id,
        figure=figure,
        config={"displayModeBar": False, "responsive": True, "scrollZoom": False, "showTips": False},
        className="chart",
        style={"height": f"{figure['layout']['height']}px"},
    )
    return html.Div(graph, role="figure", **attrs(aria_label=title))


def escaped(text: object) -> str:
    """A name from outside for a chart, where Plotly would read markup; entities show as the characters meant."""
    return markup.escape(fmt.name(text), quote=False)
