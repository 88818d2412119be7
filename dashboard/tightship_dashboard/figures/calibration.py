"""Predicted savings beside measured ones: a point for each change that was applied and compared."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html

from tightship_dashboard.figures import chart
from tightship_dashboard.figures.elements import Node
from tightship_dashboard.figures.palette import ACTION_COLOUR, UNKNOWN_STATE
from tightship_dashboard.sentences import actions as words
from tightship_platform.results.action import Action, Prediction, Verification
from tightship_platform.vocabulary import ActionState, Verdict

HEIGHT = 320
ONE_HEIGHT = 130
META = "action"
"""Of points that lead to their action; assets/grids.js follows them."""
_SYMBOL = {Verdict.VERIFIED: "circle", Verdict.REFUTED: "x", Verdict.UNDECIDED: "circle-open"}
_STATE = {
    Verdict.VERIFIED: ActionState.VERIFIED,
    Verdict.REFUTED: ActionState.REFUTED,
    Verdict.UNDECIDED: ActionState.APPLIED,
}
_LEAST_SPAN = 10.0
"""Percent of the step that an axis shows at least."""
_Pair = tuple[Action, Prediction, Verification]


def pairs(actions: Sequence[Action]) -> list[_Pair]:
    """Those of which both intervals are known."""
    both = [(one, one.predicted, one.verification) for one in actions]
    return [(one, p, found) for one, p, found in both if p and found and found.low_frac is not None]


def figure(actions: Sequence[Action]) -> chart.Spec:
    """Measured over predicted, in percent of the step, with both intervals and the line where they are equal."""
    drawn = pairs(actions)
    predicted = [100 * end for _, one, _ in drawn for end in (one.low_frac, one.high_frac)]
    measured = [100 * (end or 0.0) for _, _, found in drawn for end in (found.low_frac, found.high_frac)]
    across, up = _range(predicted), _range([*predicted, *measured])
    data: list[chart.Spec] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": across,
            "y": across,
            "line": {"color": UNKNOWN_STATE, "width": 1.3, "dash": "dash"},
            "hoverinfo": "skip",
        }
    ]
    for verdict in Verdict:
        of_verdict = [pair for pair in drawn if pair[2].verdict == verdict]
        if of_verdict:
            data.append(_points(verdict, of_verdict))
    return {
        "data": data,
        "layout": chart.layout(
            height=HEIGHT,
            hovermode="closest",
            xaxis=chart.X_AXIS | _axis(across, "predicted saving of the step"),
            yaxis=chart.AXIS | _axis(up, "measured"),
        ),
    }


def key(actions: Sequence[Action]) -> Node:
    """Which sign is which verdict, of those that are drawn."""
    shown = {found.verdict for _, _, found in pairs(actions)}
    signs = {Verdict.VERIFIED: "●", Verdict.REFUTED: "✕", Verdict.UNDECIDED: "○"}
    items = [
        html.Li([html.Span(signs[verdict], style={"color": _colour(verdict)}), f" {verdict}"])
        for verdict in Verdict
        if verdict in shown
    ]
    return html.Ul([*items, html.Li("┄ as predicted")], className="key")


def intervals(predicted: Prediction | None, found: Verification) -> chart.Spec:
    """Of one action: predicted above measured, each with its interval, and from where on a saving counts."""
    rows: list[tuple[str, float, float | None, float | None, str, str]] = []
    if predicted is not None:
        ends = predicted.low_frac, predicted.high_frac
        text = words.predicted_text(predicted)
        rows.append(("predicted", predicted.saving_frac, *ends, UNKNOWN_STATE, text))
    ends_found = found.low_frac, found.high_frac
    text = words.measured_text(found)
    rows.append(("measured", found.saving_frac, *ends_found, _colour(Verdict(found.verdict)), text))
    values = [100 * end for _, value, *ends, _, _ in rows for end in (value, *ends) if isinstance(end, float)]
    margin = 100 * found.margin_frac
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "markers",
                "x": [100 * value],
                "y": [name],
                "marker": {"color": colour, "size": 11},
                "error_x": _error(value, low, high, colour),
                "customdata": [text],
                "hovertemplate": f"{name}: %{{customdata}}<extra></extra>",
                "cliponaxis": False,
            }
            for name, value, low, high, colour, text in rows
        ],
        "layout": chart.layout(
            height=ONE_HEIGHT,
            hovermode="closest",
            shapes=[
                {"type": "line", "x0": margin, "x1": margin, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
                | {"line": {"color": UNKNOWN_STATE, "width": 1.3, "dash": "dot"}}
            ],
            xaxis=chart.X_AXIS | _axis(_range(values), ""),
            yaxis=chart.AXIS | {"autorange": "reversed", "showgrid": False},
        ),
    }


def _points(verdict: Verdict, drawn: Sequence[_Pair]) -> chart.Spec:
    colour = _colour(verdict)
    texts = [
        f"<b>{chart.escaped(action.workflow)}</b>, {verdict}<br>"
        f"predicted {words.predicted_text(one)}<br>measured {words.measured_text(found)}"
        for action, one, found in drawn
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "meta": META,
        "x": [100 * one.saving_frac for _, one, _ in drawn],
        "y": [100 * found.saving_frac for _, _, found in drawn],
        "error_x": _errors([(one.saving_frac, one.low_frac, one.high_frac) for _, one, _ in drawn], colour),
        "error_y": _errors([(f.saving_frac, f.low_frac, f.high_frac) for _, _, f in drawn], colour),
        "marker": {
            "color": colour,
            "size": 10,
            "symbol": _SYMBOL[verdict],
            "line": {"color": colour, "width": 0 if verdict == Verdict.REFUTED else 2},
        },
        "customdata": [[action.action, text] for (action, _, _), text in zip(drawn, texts, strict=True)],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
        "cliponaxis": False,
    }


def _error(value: float, low: float | None, high: float | None, colour: str) -> chart.Spec:
    return _errors([(value, low, high)], colour)


def _errors(ends: Sequence[tuple[float, float | None, float | None]], colour: str) -> chart.Spec:
    return {
        "type": "data",
        "symmetric": False,
        "array": [None if high is None else max(0.0, 100 * (high - value)) for value, _, high in ends],
        "arrayminus": [None if low is None else max(0.0, 100 * (value - low)) for value, low, _ in ends],
        "color": colour,
        "thickness": 1.3,
        "width": 3,
    }


def _axis(span: list[float], title: str) -> chart.Spec:
    return {
        "range": span,
        "ticksuffix": " %",
        "nticks": 6,
        "zeroline": True,
        "zerolinecolor": chart.HAIRLINE,
        "title": {"text": title, "standoff": 8, "font": {"size": 11}},
    }


def _range(values: Sequence[float]) -> list[float]:
    """From 0 or below to the largest, and a little on either side."""
    low, high = min(0.0, *values, 0.0), max(_LEAST_SPAN, *values, 0.0)
    edge = 0.06 * (high - low)
    return [low - edge, high + edge]


def _colour(verdict: Verdict) -> str:
    return ACTION_COLOUR[_STATE[verdict]]
