"""The life of a run as a strip: start-up, steps, shutdown, with its captures marked."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from dash import html

from tightship_analyzers.report.palette import BUCKET_COLOUR
from tightship_dashboard.figures.elements import Node, attrs
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.run import Run
from tightship_platform.results.timeline import Timeline
from tightship_platform.vocabulary import Bucket, RunState

STEPS_COLOUR = BUCKET_COLOUR[Bucket.PRODUCTIVE]
UNKNOWN_COLOUR = BUCKET_COLOUR[Bucket.UNEXPLAINED]


def strip(run: Run, timeline: Timeline, now_ns: int, zone: ZoneInfo) -> Node:
    """Phases to scale, each with its name and length; a run without a step counter is one phase."""
    start = run.start_ns
    end = max(run.end_ns or now_ns, start + 1)
    phases = _phases(run, timeline, start, end)
    bars = [
        html.Div(
            html.Span(f"{label} {fmt.clock(stop - begin)}"),
            className="phase",
            style={"width": _percent(stop - begin, end - start), "background": colour},
            title=f"{label}: {fmt.clock(stop - begin)}, from {fmt.moment(begin, zone)} to {fmt.moment(stop, zone)}",
        )
        for label, begin, stop, colour in phases
        if stop > begin
    ]
    marks = [
        html.A(
            className="mark",
            href=f"#capture-{c.capture}",
            style={"left": _percent(at - start, end - start)},
            title=f"capture {fmt.name(c.capture)}: {fmt.name(c.state)}, {fmt.moment(at, zone)}",
            **attrs(aria_label=f"capture {fmt.name(c.capture)}"),
        )
        for c, at in ((c, c.start_ns or c.requested_ns) for c in timeline.captures)
        if start <= at <= end
    ]
    legend = [
        html.Li([html.Span(className="swatch", style={"background": colour}), f"{label} {fmt.clock(stop - begin)}"])
        for label, begin, stop, colour in phases
        if stop > begin
    ]
    return html.Div(
        [
            html.Div(marks, className="marks"),
            html.Div(bars, className="phases", **attrs(aria_hidden="true")),
            html.Ul(legend, className="key"),
        ],
        className="strip",
    )


def _phases(run: Run, timeline: Timeline, start: int, end: int) -> list[tuple[str, int, int, str]]:
    borders = _accounted(run, start, end) or _counted(run, timeline, start, end)
    if borders is None:
        return [("no step counted", start, end, UNKNOWN_COLOUR)]
    first, last = borders
    return [
        ("start-up", start, first, BUCKET_COLOUR[Bucket.STARTUP]),
        ("steps", first, last, STEPS_COLOUR),
        ("shutdown", last, end, BUCKET_COLOUR[Bucket.SHUTDOWN]),
    ]


def _accounted(run: Run, start: int, end: int) -> tuple[int, int] | None:
    """First and last step as the account of the run knows them, so that strip and account say the same."""
    account, devices = run.account, len(run.devices)
    if not account or not devices or not run.steps:
        return None
    first = start + account.get(Bucket.STARTUP, 0) // devices
    last = end - account.get(Bucket.SHUTDOWN, 0) // devices
    return (first, end if run.state == RunState.RUNNING else last) if start <= first <= last else None


def _counted(run: Run, timeline: Timeline, start: int, end: int) -> tuple[int, int] | None:
    """The same from the buckets of the step counter, for a run that has no account yet."""
    stepping = [
        t for series in timeline.steps for t, rate in zip(series.time_ns, series.steps_per_s, strict=False) if rate
    ]
    if not stepping:
        return None
    is_live = run.state == RunState.RUNNING
    return max(start, min(stepping)), end if is_live else min(end, max(stepping))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f}%"
