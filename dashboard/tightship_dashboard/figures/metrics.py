"""One run over time: steps per second, activity, memory and power on one time axis, with its captures marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from zoneinfo import ZoneInfo

from tightship_dashboard.figures import chart
from tightship_dashboard.figures.palette import CAPTURE_MARK, SERIES
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.timeline import CaptureSpan, DeviceSeries, RunSeries, Timeline

GIB = 1024**3
ROW_PX = 120
MARKS_PX = 26
TITLE_PX = 22
"""Above each row, for its title: on a telephone the line runs below all of it."""
FEW = 3
"""Up to this many lines of a kind have a colour each."""


def is_empty(timeline: Timeline) -> bool:
    """Whether no metric of the run has a single value."""
    return not any(row.series for row in _rows(timeline))


def figure(timeline: Timeline, zone: ZoneInfo) -> chart.Spec:
    """A row for each kind of metric that was recorded; a row without any value is left out."""
    rows = [row for row in _rows(timeline) if row.series]
    height = MARKS_PX + ROW_PX * max(1, len(rows)) + 34
    data: list[chart.Spec] = []
    axes: chart.Spec = {}
    notes: list[chart.Spec] = []
    span = (1 - MARKS_PX / height) / max(1, len(rows))
    head = TITLE_PX / ROW_PX
    for index, row in enumerate(rows):
        axis = f"y{index + 1}"
        top = 1 - MARKS_PX / height - index * span
        axes[f"yaxis{index + 1}"] = chart.AXIS | {
            "domain": [max(0.0, top - span * 0.78), top - span * head],
            "ticksuffix": row.ticks,
            "nticks": 4,
            "rangemode": "tozero",
            "anchor": "x",
        }
        notes.append(
            {
                "text": row.title,
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": top,
                "yref": "paper",
                "yanchor": "top",
                "showarrow": False,
            }
        )
        for number, line in enumerate(row.series):
            # Of many lines the band that they make is what can be read; which one is which shows on hover.
            colour = SERIES[number % len(SERIES)] if len(row.series) <= FEW else SERIES[0]
            data.append(_line(row, line, axis, colour, zone))
    shapes = _captures(timeline.captures, data, axes, zone, height)
    start, end = timeline.start_ns, timeline.end_ns
    bottom = f"y{max(1, len(rows))}"
    axis_x = chart.X_AXIS | {
        "type": "date",
        "anchor": bottom,
        "showgrid": False,
        "title": {"text": fmt.offset_at(start, zone), "standoff": 0, "font": {"size": 11}},
    }
    axis_x |= {"showspikes": True, "spikemode": "across", "spikethickness": 1, "spikedash": "solid"}
    axis_x |= {"spikecolor": chart.HAIRLINE, "spikesnap": "cursor"}
    return {
        "data": data,
        "layout": chart.layout(
            height=height,
            hovermode="closest",
            shapes=shapes,
            annotations=notes,
            xaxis=axis_x | {"range": [_x(start, zone), _x(end, zone)]},
            **axes,
        ),
    }


Samples = TypeVar("Samples", DeviceSeries, RunSeries)
Series = tuple[str, list[int], Sequence[float | None]]


@dataclass(frozen=True)
class _Row:
    """One kind of metric, a line for each device or rank."""

    title: str
    unit: str
    digits: int
    series: list[Series]
    ticks: str = ""
    """The unit as the axis repeats it; empty where the title says it."""


def _rows(timeline: Timeline) -> list[_Row]:
    devices, runs = timeline.devices, timeline.run_samples
    steps: list[Series] = [(f"rank {s.rank}", s.time_ns, s.steps_per_s) for s in timeline.steps if s.time_ns]
    # A device that several runs share says little about this one: what the run itself used comes first.
    own_activity = _of(runs, lambda row: row.util_frac, 100)
    own_memory = _of(runs, lambda row: row.memory_used_bytes, 1 / GIB)
    return [
        _Row("steps per second", " steps/s", 2, steps),
        _Row("activity by this run", " %", 0, own_activity, " %")
        if own_activity
        else _Row("activity", " %", 0, _of(devices, lambda row: row.util_frac, 100), " %"),
        _Row("host cores busy", " cores", 1, _of(_one_per_host(runs), lambda row: row.cpu_cores, 1)),
        _Row("memory", " GiB", 1, own_memory or _of(devices, lambda row: row.memory_used_bytes, 1 / GIB), " GiB"),
        _Row("power", " W", 0, _of(devices, lambda row: row.power_w, 1), " W"),
    ]


def _of(rows: Sequence[Samples], column: Callable[[Samples], Sequence[float | None]], scale: float) -> list[Series]:
    found: list[Series] = []
    for row in rows:
        values = column(row)
        if any(v is not None for v in values):
            scaled = [None if v is None else round(v * scale, 3) for v in values]
            found.append((_device_name(row), row.time_ns, scaled))
    return found


def _one_per_host(rows: list[RunSeries]) -> list[RunSeries]:
    # What the run's processes keep busy of a host is reported with each of its devices, and is the same each time.
    return list({row.host: row for row in reversed(rows)}.values())[::-1]


def _device_name(row: DeviceSeries | RunSeries) -> str:
    uuid = row.device if isinstance(row, RunSeries) else row.uuid
    return f"{fmt.name(row.host, limit=40)} {fmt.name(uuid, limit=40)}"


def _line(row: _Row, line: Series, axis: str, colour: str, zone: ZoneInfo) -> chart.Spec:
    label, times, values = line
    return {
        "type": "scatter",
        "mode": "lines" if len(times) > 1 else "markers",
        "x": [_x(t, zone) for t in times],
        "y": values,
        "yaxis": axis,
        "line": {"color": colour, "width": 1.3},
        "marker": {"color": colour, "size": 5},
        "opacity": 0.95 if len(row.series) <= FEW else 0.45,
        "connectgaps": False,
        "text": chart.escaped(label),
        "hovertemplate": f"%{{y:,.{row.digits}f}}{row.unit}, %{{text}}<br>%{{x|%H:%M:%S}}<extra></extra>",
    }


def _captures(
    captures: list[CaptureSpan], data: list[chart.Spec], axes: chart.Spec, zone: ZoneInfo, height: int
) -> list[chart.Spec]:
    """A mark above the rows for each capture, and a line or band through them."""
    # One that was never recorded is marked at its request.
    marked = [(c, _x(c.start_ns or c.requested_ns, zone)) for c in captures]
    if not marked:
        return []
    number = len(axes) + 1
    axes[f"yaxis{number}"] = {
        "domain": [1 - MARKS_PX / height, 1],
        "range": [0, 1],
        "visible": False,
        "fixedrange": True,
        "anchor": "x",
    }
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [x for _, x in marked],
            "y": [0.4] * len(marked),
            "yaxis": f"y{number}",
            "meta": "capture",
            "cliponaxis": False,
            "marker": {"symbol": "triangle-down", "size": 11, "color": CAPTURE_MARK},
            "customdata": [[chart.escaped(c.capture), chart.escaped(c.state)] for c, _ in marked],
            "hovertemplate": "capture %{customdata[0]}<br>%{customdata[1]}, %{x|%H:%M:%S}<extra></extra>",
        }
    )
    return [
        {
            "type": "rect",
            "x0": x,
            "x1": _x(c.end_ns, zone) if c.end_ns else x,
            "y0": 0,
            "y1": 1 - MARKS_PX / height,
            "yref": "paper",
            "fillcolor": "rgba(220, 62, 26, 0.13)",
            "line": {"width": 1, "color": "rgba(220, 62, 26, 0.6)"},
            "layer": "below",
        }
        for c, x in marked
    ]


def _x(time_ns: int, zone: ZoneInfo) -> str:
    # Text, not a number: Plotly would turn a number into the wall clock of the machine that the browser runs on.
    return fmt.wall_clock(time_ns, zone)
