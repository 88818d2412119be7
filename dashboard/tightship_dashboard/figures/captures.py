"""A capture and how far it is: its stages with times, what went wrong, and its traces."""

from __future__ import annotations

from urllib.parse import quote
from zoneinfo import ZoneInfo

from dash import html

from tightship_dashboard.figures.elements import Node, attrs, link, missing, time_of
from tightship_dashboard.figures.palette import CAPTURE_STAGES
from tightship_dashboard.sentences import formatting as fmt
from tightship_dashboard.sentences.links import one_trace_href
from tightship_platform.results.capture import Capture
from tightship_platform.units import NS_PER_S, format_bytes, plural, unbroken
from tightship_platform.vocabulary import CaptureState
from tightship_platform.wire import CaptureParams


def under_way(captures: list[Capture]) -> bool:
    """Whether something will still happen to one of them."""
    return any(not _state(c).is_final for c in captures)


def listing(captures: list[Capture], zone: ZoneInfo) -> Node:
    """All captures of a run, the newest first."""
    newest = sorted(captures, key=lambda c: -c.requested_ns)
    return html.Ol([_one(capture, zone) for capture in newest], className="captures")


def _state(capture: Capture) -> CaptureState:
    try:
        return CaptureState(capture.state)
    except ValueError:  # a state that a newer server made: show its word, promise nothing
        return CaptureState.REQUESTED


def _one(capture: Capture, zone: ZoneInfo) -> Node:
    state = _state(capture)
    return html.Li(
        [
            html.Div(
                [
                    html.Strong(fmt.name(capture.state), className=f"capture-state {state}"),
                    html.Span([time_of(capture.requested_ns, zone), f" by {fmt.name(capture.requested_by)}"]),
                    html.Span(_asked(capture.params)),
                    html.Span(_took(capture)),
                    html.Code(fmt.name(capture.capture), className="quiet"),
                ],
                className="capture-head",
            ),
            _stages(capture, state),
            *_reason(capture, state),
            *_traces(capture),
        ],
        id=f"capture-{capture.capture}",
        className="capture",
        **attrs(data_state=fmt.name(capture.state)),
    )


def _stages(capture: Capture, state: CaptureState) -> Node:
    entered = capture.stages
    begun = capture.requested_ns
    reached = max((s.rank for s in CAPTURE_STAGES if s in entered), default=0)
    items = []
    for stage in CAPTURE_STAGES:
        at = entered.get(stage)
        if stage is state and not state.is_final:
            kind = "now"
        elif at is not None or stage.rank <= reached:
            kind = "done"
        else:
            kind = "never" if state.is_final else "todo"
        if at is None:
            when: Node = " "
        else:
            when = html.Small("0 s" if at == begun else f"+{fmt.duration(max(0, at - begun))}", title=fmt.iso(at))
        current = attrs(aria_current="step") if kind == "now" else {}
        items.append(html.Li([html.Span(stage.value), when], className=kind, **current))
    if state in (CaptureState.FAILED, CaptureState.EXPIRED):
        at = entered.get(state)
        when = html.Small(f"+{fmt.duration(max(0, at - begun))}", title=fmt.iso(at)) if at else " "
        items.insert(reached + 1, html.Li([html.Span(state.value), when], className="bad"))
    return html.Ol(items, className="stages")


def _asked(params: CaptureParams) -> str:
    if params.iterations:
        asked = plural(params.iterations, "iteration")
    elif params.duration_ns:
        asked = fmt.duration(params.duration_ns)
    else:
        asked = "length not recorded"
    kept = [word for word in ("stacks", "shapes", "memory") if getattr(params, word)]
    return f"{asked} with {', '.join(kept)}" if kept else asked


def _took(capture: Capture) -> Node:
    seconds = capture.latency_s
    if seconds is None:
        return missing("Not all traces have arrived.")
    return f"all traces after {fmt.duration(seconds * NS_PER_S)}"


def _reason(capture: Capture, state: CaptureState) -> list[Node]:
    if not capture.reason:
        text = capture.passes_reason
        return [html.P(unbroken(fmt.name(text, limit=400)), className="notice status")] if text else []
    kind = "error" if state in (CaptureState.FAILED, CaptureState.EXPIRED) else "status"
    return [html.P(unbroken(fmt.name(capture.reason, limit=400)), className=f"notice {kind}")]


def _traces(capture: Capture) -> list[Node]:
    ranks = capture.ranks
    if not ranks:
        return []
    items = []
    for rank in ranks:
        text = unbroken(f"rank {rank.rank}, {format_bytes(rank.bytes)}")
        process = "" if rank.pid is None else f" of process {rank.pid}"
        why = f"Download the trace{process}; sha256 {rank.sha256}"
        if rank.url is None:
            items.append(
                html.Li(f"{text}; its file was removed", title=why.removeprefix("Download the "), className="quiet")
            )
            continue
        items.append(html.Li(html.A(text, href=trace_href(rank.url), title=why, download="")))
        second = rank.second_pass
        if second is not None:
            light = unbroken(f"second pass, {format_bytes(second.bytes)}")
            why = f"Download the second trace{process}, without stacks and shapes; sha256 {second.sha256}"
            items.append(html.Li(html.A(light, href=trace_href(second.url), title=why, download="")))
    expected = len(capture.expected)
    if expected > len(ranks):
        items.append(html.Li(f"{expected - len(ranks)} to come", className="quiet"))
    analysis = link("Read the analysis", one_trace_href(capture.capture), className="act-link")
    return [html.Ul([html.Li(analysis), *items], className="traces")]


def trace_href(address: str | None) -> str:
    """Where the API serves a trace; only its own addresses are followed."""
    url = address or ""
    return quote(url, safe="/?=&%") if url.startswith("/api/") else "#captures"
