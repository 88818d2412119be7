"""Charts of one trace: what filled its steps, its critical path, and which rank came late in which step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dash import html

from tightship_analyzers.report.captions import step_buckets
from tightship_analyzers.report.palette import BUCKET_COLOUR, PART_COLOUR
from tightship_dashboard.figures import chart
from tightship_dashboard.figures.elements import Node
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.analysis.rank import RankAnalysis
from tightship_platform.results.analysis.skew import RankComparison
from tightship_platform.results.run_account import BUCKET_LABEL
from tightship_platform.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_frac, format_ns, unbroken
from tightship_platform.vocabulary import Bucket

BAR_PX = 30
MOST_LYING = 12
"""Up to this many steps lie below each other; more stand side by side."""
STANDING_PX = 240
HEAT_ROW_PX, HEAT_MOST_PX = 22, 620
HEAT = [[0, "rgba(207,123,0,0.05)"], [0.35, "rgba(207,123,0,0.45)"], [1, "#DC3E1A"]]
"""From the paper of either theme to what stands out on it."""
Rows = Sequence[tuple[str, Mapping[str, int]]]
"""Step → part → ns."""


def step_rows(one: RankAnalysis) -> Rows:
    """The buckets of each whole step; empty where the device's activity is not recorded."""
    rows = [(step.name, step_buckets(step)) for step in one.figures.steps]
    return [(name, {BUCKET_LABEL[bucket]: ns for bucket, ns in parts.items()}) for name, parts in rows if parts]


def path_rows(one: RankAnalysis) -> Rows:
    """The parts of each step's critical path."""
    names = [step.name for step in one.figures.steps] or ["recording"]
    paths = one.figures.critical_path or []
    named = zip([*names, *[f"step {n}" for n in range(len(names), len(paths))]], paths, strict=False)
    return [(name, {part.replace("_", " "): ns for part, ns in path.by_part_ns.items()}) for name, path in named]


def bucket_colours() -> dict[str, str]:
    """Label of a bucket → colour."""
    return {BUCKET_LABEL[bucket]: colour for bucket, colour in BUCKET_COLOUR.items()}


def part_colours() -> dict[str, str]:
    """Part of a critical path → colour."""
    return {part.replace("_", " "): colour for part, colour in PART_COLOUR.items()}


def stacked(rows: Rows, colours: Mapping[str, str]) -> chart.Spec:
    """One bar per step, divided into its parts: lying where steps are few, standing where they are many."""
    width, unit = _unit(max((sum(parts.values()) for _, parts in rows), default=0))
    lying = len(rows) <= MOST_LYING
    places = list(range(len(rows)))
    data = []
    for part in order(rows):
        values = [parts.get(part, 0) for _, parts in rows]
        lengths = [value / width if value else None for value in values]
        texts = [
            unbroken(
                f"{chart.escaped(name)}: {format_ns(value)}, {format_frac(value / (sum(parts.values()) or 1))} {part}"
            )
            for (name, parts), value in zip(rows, values, strict=True)
        ]
        data.append(
            {
                "type": "bar",
                "orientation": "h" if lying else "v",
                "x": lengths if lying else places,
                "y": places if lying else lengths,
                "name": part,
                "customdata": texts,
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {"color": colours.get(part, BUCKET_COLOUR[Bucket.UNEXPLAINED]), "line": {"width": 0}},
            }
        )
    along = chart.AXIS | {"ticksuffix": f" {unit}", "nticks": 6, "rangemode": "tozero"}
    steps = (chart.AXIS if lying else chart.X_AXIS) | {"showgrid": False}
    steps |= {"range": [len(rows) - 0.5, -0.5] if lying else [-0.5, len(rows) - 0.5]}
    if lying:
        steps |= {"tickvals": places, "ticktext": [chart.escaped(fmt.name(name, limit=24)) for name, _ in rows]}
    else:
        steps |= {"title": {"text": "whole steps, in order", "standoff": 8, "font": {"size": 11}}, "tickformat": "d"}
    return {
        "data": data,
        "layout": chart.layout(
            height=BAR_PX * len(rows) + 50 if lying else STANDING_PX,
            barmode="stack",
            bargap=0.3 if lying else 0.1,
            minreducedheight=BAR_PX,  # else Plotly cuts the labels below a single bar
            hovermode="closest",
            xaxis=along if lying else steps,
            yaxis=steps if lying else along,
        ),
    }


def order(rows: Rows) -> list[str]:
    """Parts as the bars stack them: what computed first, then the largest of all steps together; unexplained last."""
    sums: dict[str, int] = {}
    for _, parts in rows:
        for part, ns in parts.items():
            sums[part] = sums.get(part, 0) + ns
    first, last = BUCKET_LABEL[Bucket.PRODUCTIVE], BUCKET_LABEL[Bucket.UNEXPLAINED]
    return sorted(sums, key=lambda part: (part == last, part != first, -sums[part]))


def key(parts: Sequence[str], colours: Mapping[str, str]) -> Node:
    """Which colour is which part."""
    rest = BUCKET_COLOUR[Bucket.UNEXPLAINED]
    return html.Ul(
        [
            html.Li([html.Span(className="swatch", style={"background": colours.get(part, rest)}), part])
            for part in parts
        ],
        className="key",
    )


def late_map(across: RankComparison) -> chart.Spec | None:
    """Rank × step: by how much collectives would have begun sooner, had this rank not been late. None where the ranks
    share no whole steps."""
    ranks = sorted((row for row in across.ranks if row.late_by_step_ns), key=lambda row: row.rank)
    if not ranks:
        return None
    table = [row.late_by_step_ns or [] for row in ranks]
    steps = max(len(row) for row in table)
    width, unit = _unit(max(max(row) for row in table))
    texts = [
        [
            unbroken(f"rank {row.rank}, step {step}: {format_ns(ns)} late")
            for step, ns in enumerate(row.late_by_step_ns or [])
        ]
        for row in ranks
    ]
    return {
        "data": [
            {
                "type": "heatmap",
                "z": [[ns / width for ns in row] for row in table],
                "x": list(range(steps)),
                "y": [f"rank {row.rank}" for row in ranks],
                "customdata": texts,
                "hovertemplate": "%{customdata}<extra></extra>",
                "colorscale": HEAT,
                "zmin": 0,
                "xgap": 1,
                "ygap": 1,
                "colorbar": {"ticksuffix": f" {unit}", "thickness": 10, "outlinewidth": 0, "nticks": 5, "len": 1},
            }
        ],
        "layout": chart.layout(
            height=min(HEAT_MOST_PX, HEAT_ROW_PX * len(ranks) + 60),
            xaxis=chart.AXIS
            | {
                "showgrid": False,
                "tickformat": "d",
                "dtick": max(1, round(steps / 12)),
                "title": {"text": "whole steps that all ranks recorded", "standoff": 2, "font": {"size": 11}},
            },
            yaxis=chart.AXIS | {"showgrid": False, "autorange": "reversed", "type": "category"},
        ),
    }


def _unit(value_ns: int) -> tuple[int, str]:
    widths = ((NS_PER_S, "s"), (NS_PER_MS, "ms"))
    return next(((width, unit) for width, unit in widths if value_ns >= width), (NS_PER_US, "µs"))
