"""Device time over time, by bucket."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from tightship_analyzers.report.palette import BUCKET_COLOUR
from tightship_dashboard.figures import chart
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.fleet import FleetAccount
from tightship_platform.results.run_account import BUCKET_LABEL, as_bucket, losses
from tightship_platform.units import NS_PER_MS, NS_PER_S
from tightship_platform.vocabulary import Bucket

HEIGHT = 240


def figure(account: FleetAccount, zone: ZoneInfo) -> chart.Spec:
    """One stacked bar per slice of the account's period; productive time at the bottom, then the losses, the largest
    of all lowest."""
    points = account.over_time
    since_ns, until_ns, slice_ns = account.since_ns, account.until_ns, account.slice_ns
    merged: dict[str, int] = {}
    for point in points:
        for name, value in point.buckets.items():
            merged[name] = merged.get(name, 0) + value
    largest = max((sum(p.buckets.values()) for p in points), default=0)
    width, unit = _unit(largest)
    when = [fmt.wall_clock(p.time_ns + slice_ns // 2, zone) for p in points]
    data = []
    for bucket in [Bucket.PRODUCTIVE, *(b for b, _ in losses(merged))]:
        values = [sum(v for n, v in p.buckets.items() if as_bucket(n) is bucket) for p in points]
        if not any(values):
            continue
        data.append(
            {
                "type": "bar",
                "name": BUCKET_LABEL[bucket],
                "x": when,
                "width": slice_ns / NS_PER_MS * 0.88,
                # Nothing is not a bar of no height: the hover label leaves it out.
                "y": [value / width if value else None for value in values],
                "customdata": [fmt.duration(value) for value in values],
                "hovertemplate": f"%{{customdata}} {BUCKET_LABEL[bucket]}<extra></extra>",
                "marker": {"color": BUCKET_COLOUR[bucket], "line": {"width": 0}},
            }
        )
    period = [fmt.wall_clock(since_ns, zone), fmt.wall_clock(max(until_ns, since_ns + slice_ns), zone)]
    return {
        "data": data,
        "layout": chart.layout(
            height=HEIGHT,
            barmode="stack",
            hovermode="x unified",
            xaxis=chart.X_AXIS
            | {
                "type": "date",
                "showgrid": False,
                "range": period,
                "title": {"text": fmt.offset_at(until_ns, zone), "standoff": 0, "font": {"size": 11}},
            },
            yaxis=chart.AXIS | {"ticksuffix": f" {unit}", "nticks": 5, "rangemode": "tozero"},
        ),
    }


def _unit(value_ns: int) -> tuple[int, str]:
    for width, unit in ((fmt.HOUR, "h"), (fmt.MINUTE, "min")):
        if value_ns >= width:
            return width, unit
    return NS_PER_S, "s"
