"""The timeline of a gap as SVG that fits any width: places are shares of the width, so that text keeps its size."""

from __future__ import annotations

from tightship_analyzers.report.gap_lanes import LEAST_FRAC, Lane, description_of, lanes, window_ns
from tightship_analyzers.report.html.markup import Markup, element
from tightship_platform.results.evidence import Gap
from tightship_platform.units import format_ns

ROW, BAR = 20, 17
"""Height of a row and of the bar in it, in pixels."""
LABEL, BETWEEN, AXIS = 18, 8, 22
TICKS = 5
LEAST_TEXT_FRAC = 0.012
"""Bars narrower than this share of the width carry no text; their title says it."""


def drawing(gap: Gap) -> Markup:
    """What device, host thread and Python frames did around the gap, which is shaded."""
    first_ns, last_ns = window_ns(gap)
    width_ns = max(last_ns - first_ns, 1)

    def place(time_ns: int) -> float:
        return (min(max(time_ns, first_ns), last_ns) - first_ns) / width_ns

    parts: list[Markup] = []
    top = 4
    for lane in lanes(gap):
        parts.append(element("text", _label(lane), x="0", y=str(top + 12), class_="lane"))
        top += LABEL
        for span in lane.spans:
            start, end = place(span.start_ns), place(span.end_ns)
            parts.append(
                _span(
                    span.name,
                    f"{span.name} – {format_ns(span.end_ns - span.start_ns)}, "
                    f"begins at {format_ns(span.start_ns - gap.start_ns)}",
                    start,
                    max(end - start, LEAST_FRAC),
                    top + span.depth * ROW,
                    lane.lane,
                )
            )
        top += lane.rows * ROW + BETWEEN
    start, end = place(gap.start_ns), place(gap.end_ns)
    shade = element("rect", None, x=_share(start), width=_share(end - start), y="0", height=str(top), class_="shade")
    return element(
        "svg",
        [shade, *parts, *_axis(gap, first_ns, last_ns, top)],
        class_="gap",
        width="100%",
        height=str(top + AXIS),
        role="img",
        aria_label=f"Timeline: {description_of(gap)}",
    )


def _label(lane: Lane) -> str:
    if not lane.spans:
        return f"{lane.label}: none recorded"
    return f"{lane.label} ({lane.left_out} outer left out)" if lane.left_out else lane.label


def _span(name: str, title: str, start: float, width: float, top: int, lane: str) -> Markup:
    """A nested SVG, which cuts its text at the end of the bar."""
    inside = [element("title", title), element("rect", None, width="100%", height=str(BAR), rx="2", class_=lane)]
    if width >= LEAST_TEXT_FRAC:
        inside.append(element("text", name, x="4", y="12.5"))
    return element("svg", inside, x=_share(start), y=str(top), width=_share(width), height=str(BAR))


def _axis(gap: Gap, first_ns: int, last_ns: int, top: int) -> list[Markup]:
    parts = []
    for tick in range(TICKS):
        share = tick / (TICKS - 1)
        at_ns = first_ns - gap.start_ns + round(share * (last_ns - first_ns))
        anchor = "start" if tick == 0 else "end" if tick == TICKS - 1 else "middle"
        middle = None if tick in (0, TICKS - 1) else "middle"
        parts.append(
            element("text", format_ns(at_ns), x=_share(share), y=str(top + 15), text_anchor=anchor, class_=middle)
        )
        parts.append(element("line", None, x1=_share(share), x2=_share(share), y1=str(top), y2=str(top + 4)))
    return parts


def _share(value: float) -> str:
    return f"{100 * value:.4f}%"
