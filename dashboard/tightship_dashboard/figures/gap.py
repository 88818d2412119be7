"""The worst gap of a finding: what device, host thread and Python frames did around it."""

from __future__ import annotations

from dash import html

from tightship_analyzers.report import gap_lanes
from tightship_analyzers.report.palette import LANE_COLOUR
from tightship_dashboard.figures import chart
from tightship_dashboard.figures.elements import Node
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.evidence import Gap, GapSpan
from tightship_platform.units import NS_PER_MS, format_ns, plural, unbroken

ROW = 24
"""Height of one row of spans in pixels."""
SHADE = "rgba(207, 123, 0, 0.15)"
INK = "#14161a"
"""Text on the colours of the lanes, in both themes (contrast above 4.5:1)."""


def figure(gap: Gap) -> chart.Spec:
    """Three lanes over milliseconds since the gap began, with the gap shaded; what it is stands in the caption."""
    zero = gap.start_ns
    length = gap.end_ns - zero
    least = round(gap_lanes.LEAST_FRAC * length)
    data: list[chart.Spec] = []
    notes: list[chart.Spec] = []
    top = 0.0
    for lane in gap_lanes.lanes(gap):
        left_out = f" ({plural(lane.left_out, 'outer one')} left out)" if lane.left_out else ""
        notes.append(_label(lane.label + (left_out if lane.spans else ": none recorded"), top + 0.1))
        top += 0.9
        if lane.spans:
            data.append(_bars(lane.spans, zero, top, LANE_COLOUR[lane.lane], least))
        top += lane.rows + 0.35
    return {
        "data": data,
        "layout": chart.layout(
            height=round(top * ROW) + 68,
            margin={"l": 8, "r": 8, "t": 8, "b": 36},
            barmode="overlay",
            bargap=0,
            hovermode="closest",
            dragmode="zoom",
            uniformtext={"mode": "hide", "minsize": 10},
            shapes=[
                {
                    "type": "rect",
                    "x0": 0,
                    "x1": length / NS_PER_MS,
                    "y0": 0,
                    "y1": 1,
                    "yref": "paper",
                    "fillcolor": SHADE,
                    "line": {"width": 0},
                    "layer": "below",
                }
            ],
            annotations=notes,
            xaxis=chart.AXIS | {"ticksuffix": " ms", "fixedrange": False, "nticks": 8, "range": _window(gap)},
            yaxis=chart.AXIS | {"range": [top, 0], "showticklabels": False, "showgrid": False},
        ),
    }


def _bars(spans: list[GapSpan], zero: int, top: float, colour: str, least: int) -> chart.Spec:
    names = [chart.escaped(span.name) for span in spans]
    lengths = [span.end_ns - span.start_ns for span in spans]
    return {
        "type": "bar",
        "orientation": "h",
        "base": [(span.start_ns - zero) / NS_PER_MS for span in spans],
        "x": [max(length, least) / NS_PER_MS for length in lengths],
        "y": [top + span.depth + 0.5 for span in spans],
        "width": 0.86,
        "text": names,
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "textfont": {"color": INK, "size": 11},
        "customdata": [
            [name, unbroken(format_ns(length)), unbroken(format_ns(span.start_ns - zero))]
            for name, length, span in zip(names, lengths, spans, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} long, begins at %{customdata[2]}<extra></extra>",
        # A hairline of paper parts neighbours, where they are wide enough to lose it; assets/charts.css colours it.
        "marker": {"color": colour, "line": {"width": [1 if x > 8 * least else 0 for x in lengths]}},
        "cliponaxis": True,
    }


def captioned(gap: Gap, caption: Node, *, graph_id: str | dict[str, str]) -> Node:
    """The timeline between its title and its caption, which both wrap where the window is narrow."""
    title = unbroken(fmt.name(gap_lanes.description_of(gap), limit=400))
    drawing = chart.draw(figure(gap), graph_id=graph_id, title=f"{title}, in three lanes")
    return html.Figure([html.P(html.Strong(title)), drawing, html.Figcaption(caption)], className="gap")


def _window(gap: Gap) -> list[float]:
    """From the first to the last span shown, in ms since the gap began."""
    return [(time_ns - gap.start_ns) / NS_PER_MS for time_ns in gap_lanes.window_ns(gap)]


def _label(text: str, y: float) -> chart.Spec:
    return {
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": y,
        "yanchor": "top",
        "text": text,
        "showarrow": False,
        "align": "left",
    }
