"""How device memory and step time change with the window: two rows over the number of slots, the chosen one marked."""

from __future__ import annotations

from collections.abc import Sequence

from tightship_dashboard.figures import chart
from tightship_dashboard.figures.palette import CHOSEN, LIMIT, SERIES
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.plan_answer import PlanAnswer, StepTime, WindowCurve
from tightship_platform.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_bytes

ROW_PX = 170
FOOT_PX = 26
_BAND = "rgba(58, 150, 214, 0.20)"


def figure(answer: PlanAnswer) -> chart.Spec:
    """The window of an answer; without times, where nothing fits."""
    points = answer.window.points
    steps = [point.step for point in points if point.step is not None]
    rows = [_memory(answer)]
    if len(steps) == len(points):
        rows.append(_time(answer, steps))
    height = ROW_PX * len(rows) + FOOT_PX
    data: list[chart.Spec] = []
    axes: chart.Spec = {}
    notes: list[chart.Spec] = []
    shapes: list[chart.Spec] = []
    span = (1 - FOOT_PX / height) / len(rows)
    for number, row in enumerate(rows):
        axis, top = f"y{number + 1}", 1 - number * span
        axes[f"yaxis{number + 1}"] = chart.AXIS | {
            "domain": [max(FOOT_PX / height, top - span * 0.86), top - span * 0.16],
            "ticksuffix": f" {row['unit']}",
            "nticks": 4,
            "range": [0, 1.12 * row["most"]],
            "anchor": "x",
        }
        notes.append(_note(row["title"], top))
        data += [trace | {"yaxis": axis} for trace in row["data"]]
        shapes += [_line(axis, at, colour) for at, colour in row["lines"]]
    slots = [point.slots for point in points]
    axis_x = chart.X_AXIS | {
        "anchor": f"y{len(rows)}",
        "showgrid": False,
        "title": {"text": "slots in the window", "standoff": 8, "font": {"size": 11}},
        "range": [slots[0] - 0.5, slots[-1] + 0.5],
        "tickformat": "d",
        "nticks": min(12, len(slots) + 1),
    }
    return {
        "data": data,
        "layout": chart.layout(height=height, hovermode="x", shapes=shapes, annotations=notes, xaxis=axis_x, **axes),
    }


def is_limit_drawn(answer: PlanAnswer) -> bool:
    """Whether the chart holds what may be used: far above every window, it would press them to the floor."""
    return answer.limits.device_bytes <= 4 * max(point.device_bytes for point in answer.window.points)


def _memory(answer: PlanAnswer) -> chart.Spec:
    points, allowed = answer.window.points, answer.limits.device_bytes
    largest = max(point.device_bytes for point in points)
    shown = is_limit_drawn(answer)
    most = max(largest, allowed) if shown else largest
    width, unit = _size(most)
    texts = [f"{format_bytes(p.device_bytes)}{'' if p.fits else ', does not fit'}" for p in points]
    return {
        "title": "device memory",
        "unit": unit,
        "most": most / width,
        "data": [_curve(answer.window, [p.device_bytes / width for p in points], texts)],
        "lines": [(allowed / width, LIMIT)] if shown else [],
    }


def _time(answer: PlanAnswer, steps: Sequence[StepTime]) -> chart.Spec:
    whole_ns = answer.whole.step.ns
    most = max(whole_ns, *(step.high_ns for step in steps))
    width, unit = _duration(most)
    slots = [point.slots for point in answer.window.points]
    bound = {"type": "scatter", "mode": "lines", "x": slots, "line": {"width": 0}, "hoverinfo": "skip"}
    texts = [f"{fmt.span(step.ns, step.low_ns, step.high_ns)}, simulated" for step in steps]
    return {
        "title": "time of a step, simulated",
        "unit": unit,
        "most": most / width,
        "data": [
            bound | {"y": [step.low_ns / width for step in steps]},
            bound | {"y": [step.high_ns / width for step in steps], "fill": "tonexty", "fillcolor": _BAND},
            _curve(answer.window, [step.ns / width for step in steps], texts),
        ],
        "lines": [(whole_ns / width, SERIES[2])],
    }


def _curve(curve: WindowCurve, values: list[float], texts: list[str]) -> chart.Spec:
    """The windows; hollow what does not fit, larger and of another colour the chosen one."""
    at = [point.slots == curve.chosen for point in curve.points]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [point.slots for point in curve.points],
        "y": values,
        "line": {"color": SERIES[0], "width": 1.3},
        "marker": {
            "color": [CHOSEN if mine else SERIES[0] for mine in at],
            "size": [12 if mine else 6 for mine in at],
            "symbol": ["circle" if point.fits else "circle-open" for point in curve.points],
            "opacity": 1,
        },
        "customdata": [f"{text}{', chosen' if mine else ''}" for text, mine in zip(texts, at, strict=True)],
        "hovertemplate": "%{x} slots: %{customdata}<extra></extra>",
        "cliponaxis": False,
    }


def _line(axis: str, at: float, colour: str) -> chart.Spec:
    place = {"x0": 0, "x1": 1, "xref": "paper", "y0": at, "y1": at, "yref": axis}
    return {"type": "line", "line": {"color": colour, "width": 1.3, "dash": "dash"}, "layer": "below"} | place


def _note(text: str, top: float) -> chart.Spec:
    place = {"x": 0, "xref": "paper", "xanchor": "left", "y": top, "yref": "paper", "yanchor": "top"}
    return {"text": text, "showarrow": False} | place


def _size(value: float) -> tuple[int, str]:
    return next(((2**power, unit) for power, unit in ((30, "GiB"), (20, "MiB")) if value >= 2**power), (2**10, "KiB"))


def _duration(value_ns: float) -> tuple[int, str]:
    widths = ((NS_PER_S, "s"), (NS_PER_MS, "ms"))
    return next(((width, unit) for width, unit in widths if value_ns >= width), (NS_PER_US, "µs"))
