"""The timeline of a gap, ready to draw: which spans lie in which row of which lane, and what is said of it.

A gap may come from elsewhere (a database, another version), so missing lanes and unknown causes are taken as they
come. Drawings: the HTML report's, the dashboard's chart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightship_analyzers.report.palette import cause_label
from tightship_platform.results.evidence import Gap, GapSpan
from tightship_platform.units import format_ns

LANES = (("device", "device"), ("host", "host thread"), ("frames", "Python frames"))
MAX_DEPTH = 12
"""Rows of a lane; deeper ones are left out."""
ENCLOSING = 2
"""Of the levels that enclose everything shown, so many innermost ones are drawn."""
LEAST_FRAC = 0.0015
"""Share of the gap that a span is drawn as wide as at least; what is shorter would not show at all."""

BUSY = {"loop": "in this loop", "optimizer": "in this optimizer step"}
"""Stretches in which the device is not idle but works in small pieces."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One lane of the timeline."""

    lane: str
    label: str
    spans: list[GapSpan]
    """`depth` is its row in the lane."""
    left_out: int
    """Outer levels that are not drawn."""

    @property
    def rows(self) -> int:
        """Rows that it takes, at least one."""
        return max((span.depth for span in self.spans), default=0) + 1


def lanes(gap: Gap) -> list[Lane]:
    """All lanes, also those without spans."""
    return [_lane(gap, lane, label) for lane, label in LANES]


def window_ns(gap: Gap) -> tuple[int, int]:
    """From the first to the last span shown, the gap included."""
    spans = [span for row in gap.lanes for span in row.spans]
    first = min((span.start_ns for span in spans), default=gap.start_ns)
    last = max((span.end_ns for span in spans), default=gap.end_ns)
    return min(first, gap.start_ns), max(last, gap.end_ns)


def is_idle(gap: Gap) -> bool:
    """Whether the stretch shown is one in which the device did nothing."""
    return _cause(gap) not in BUSY


def description_of(gap: Gap) -> str:
    """How long the stretch is and what its cause is, in words."""
    cause, length = _cause(gap), format_ns(gap.end_ns - gap.start_ns)
    if cause in BUSY:
        return f"{length} {BUSY[cause]}"
    return f"device idle {length}: {cause_label(cause) or 'cause unknown'}"


def _cause(gap: Gap) -> str:
    return gap.cause.replace("_", " ")


def _lane(gap: Gap, lane: str, label: str) -> Lane:
    """Frames that enclose all that is shown, such as `main` and a launcher's, say nothing about the gap: the innermost
    `ENCLOSING` of them stay."""
    spans = [span for row in gap.lanes if row.lane == lane for span in row.spans]
    if not spans:
        return Lane(lane=lane, label=label, spans=[], left_out=0)
    first, last = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    around = {span.depth for span in spans if span.start_ns == first and span.end_ns == last}
    outer = next(depth for depth in range(len(around) + 1) if depth not in around)
    left_out = max(0, outer - ENCLOSING) if max(span.depth for span in spans) >= outer else 0
    shifted = [replace(span, depth=span.depth - left_out) for span in spans if span.depth >= left_out]
    return Lane(lane=lane, label=label, spans=[span for span in shifted if span.depth < MAX_DEPTH], left_out=left_out)
