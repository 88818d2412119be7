"""Where device time went, as bars: the waterfall of one account, and one bar per team on the same scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import html

from tightship_analyzers.report.palette import BUCKET_COLOUR
from tightship_dashboard.figures import bars
from tightship_dashboard.figures.elements import Node, link
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.buckets import BUCKET_MEANING
from tightship_platform.results.fleet import AccountGroup
from tightship_platform.results.run_account import BUCKET_LABEL, as_bucket, has_no_trace, losses
from tightship_platform.vocabulary import Bucket

ALLOCATED = "Time in which a run held a device."
WITH_NOBODY = "Time in which a run held a device, or a host reported one that no run held."
NO_TRACE = "No trace shows how much of it was productive."


def waterfall(buckets: dict[str, int], total_ns: int, *, hrefs: dict[Bucket, str] | None = None) -> Node:
    """Allocated time (of a fleet also what was not), what each loss takes off it (largest first, unexplained last), and
    what did work, where a trace tells.

    `hrefs` leads from a bucket to the runs behind it.
    """
    whole = ("reported", WITH_NOBODY) if buckets.get(Bucket.UNALLOCATED) else ("allocated", ALLOCATED)
    rows = [_row(*whole, None, 0, total_ns, total_ns)]
    left = total_ns
    for bucket, value in losses(buckets):
        left -= value
        label = link(BUCKET_LABEL[bucket], hrefs[bucket]) if hrefs and bucket in hrefs else BUCKET_LABEL[bucket]
        rows.append(_row(label, BUCKET_MEANING[bucket], bucket, left, value, total_ns))
    productive = sum(v for b, v in buckets.items() if as_bucket(b) is Bucket.PRODUCTIVE)
    label, meaning = BUCKET_LABEL[Bucket.PRODUCTIVE], BUCKET_MEANING[Bucket.PRODUCTIVE]
    known = None if has_no_trace(buckets) else productive
    rows.append(_row(label, meaning, Bucket.PRODUCTIVE, 0, known, total_ns))
    return bars.waterfall("Device time, what each loss takes off it, and what is left", rows)


def _row(label: Node, meaning: str, bucket: Bucket | None, start: int, value: int | None, total: int) -> Node:
    """One bar; of a value that nobody knows (None) it says so."""
    colour = BUCKET_COLOUR[bucket] if bucket else "var(--ink-2)"
    kind = "whole" if bucket is None else "unexplained" if bucket is Bucket.UNEXPLAINED else "part"
    found = NO_TRACE if value is None else f"{fmt.duration(value)}, {fmt.share(value, total)} of all."
    return bars.bar(label, start, value, total, colour=colour, title=f"{meaning} {found}", kind=kind)


def by_group(groups: Sequence[AccountGroup], *, kind: str) -> Node:
    """One stacked bar per team (or state), all on the scale of the largest; the largest first."""
    held = sorted((group for group in groups if group.device_ns), key=lambda one: (-one.device_ns, one.key))
    rows = []
    for group in held:
        total, stack, most = group.device_ns, _stack(group.buckets), held[0].device_ns
        segments = [_segment(bucket, value, total, most) for bucket, value in stack if value > 0]
        productive = None if has_no_trace(group.buckets) else group.buckets.get(Bucket.PRODUCTIVE, 0)
        rows.append(
            html.Tr(
                [
                    html.Th(fmt.name(group.key, limit=40), scope="row"),
                    html.Td(html.Div(segments, className="track stack"), className="draw"),
                    html.Td(fmt.duration(total), className="number"),
                    html.Td(fmt.share(productive, total), className="number share", title="productive share"),
                ]
            )
        )
    head = html.Thead(
        html.Tr(
            [html.Th(kind, scope="col"), html.Th(""), html.Th("held", scope="col"), html.Th("productive", scope="col")]
        )
    )
    return html.Table([head, html.Tbody(rows)], className="bars groups")


def _stack(buckets: dict[str, int]) -> list[tuple[Bucket, int]]:
    productive = sum(v for b, v in buckets.items() if as_bucket(b) is Bucket.PRODUCTIVE)
    return [(Bucket.PRODUCTIVE, productive), *losses(buckets)]


def _segment(bucket: Bucket, value: int, total: int, most: int) -> Node:
    return html.Div(
        className="bar",
        style={"width": bars.length(value, most), "background": BUCKET_COLOUR[bucket]},
        title=f"{BUCKET_LABEL[bucket]}: {fmt.duration(value)}, {fmt.share(value, total)}",
    )


def key(buckets: dict[str, int]) -> Node:
    """Which colour is which bucket, in the order in which the bars stack them."""
    items: list[Any] = []
    for bucket, value in _stack(buckets):
        if value > 0:
            swatch = html.Span(className="swatch", style={"background": BUCKET_COLOUR[bucket]})
            items.append(html.Li([swatch, BUCKET_LABEL[bucket]], title=BUCKET_MEANING[bucket]))
    return html.Ul(items, className="key")
