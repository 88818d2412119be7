"""A capture and how far it is: its stages with times, what went wrong, and its traces."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from dash import html

from tightship_dashboard.figures.elements import Node, attrs, missing, time_of
from tightship_dashboard.figures.palette import CAPTURE_STAGES
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.units import format_bytes, plural, unbroken
from tightship_platform.vocabulary import CaptureState


def under_way(captures: list[dict[str, Any]]) -> bool:
    """Whether something will still happen to one of them."""
    return any(not _state(c).is_final for c in captures)


def listing(captures: list[dict[str, Any]], zone: ZoneInfo) -> Node:
    """All captures of a run, the newest first."""
    newest = sorted(captures, key=lambda c: -c["requested_ns"])
    return html.Ol([_one(capture, zone) for capture in newest], className="captures")


def _state(capture: dict[str, Any]) -> CaptureState:
    try:
        return CaptureState(capture["state"])
    except ValueError:  # a state that a newer server made: show its word, promise nothing
        return CaptureState.REQUESTED


def _one(capture: dict[str, Any], zone: ZoneInfo) -> Node:
    state = _state(capture)
    return html.Li(
        [
            html.Div(
                [
                    html.Strong(fmt.name(capture["state"]), className=f"capture-state {state}"),
                    html.Span([time_of(capture["requested_ns"], zone), f" by {fmt.name(capture['requested_by'])}"]),
                    html.Span(_asked(capture.get("params") or {})),
                    html.Span(_took(capture)),
                    html.Code(fmt.name(capture["capture"]), className="quiet"),
                ],
                className="capture-head",
            ),
            _stages(capture, state),
            *_reason(capture, state),
            *_traces(capture),
        ],
        id=f"capture-{capture['capture']}",
        className="capture",
        **attrs(data_state=fmt.name(capture["state"])),
    )


def _stages(capture: dict[str, Any], state: CaptureState) -> Node:
    entered: dict[str, int] = capture.get("stages") or {}
    begun = capture["requested_ns"]
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
        items.append(html.Li([html.Span(stage.value), when], className=kind, **_current(kind)))
    if state in (CaptureState.FAILED, CaptureState.EXPIRED):
        at = entered.get(state)
        when = html.Small(f"+{fmt.duration(max(0, at - begun))}", title=fmt.iso(at)) if at else " "
        items.insert(reached + 1, html.Li([html.Span(state.value), when], className="bad"))
    return html.Ol(items, className="stages")


def _current(kind: str) -> dict[str, Any]:
    return attrs(aria_current="step") if kind == "now" else {}


def _asked(params: dict[str, Any]) -> str:
    if params.get("iterations"):
        asked = plural(params["iterations"], "iteration")
    elif params.get("duration_ns"):
        asked = fmt.duration(params["duration_ns"])
    else:
        asked = "length not recorded"
    kept = [word for key, word in (("stacks", "stacks"), ("shapes", "shapes"), ("memory", "memory")) if params.get(key)]
    return f"{asked} with {', '.join(kept)}" if kept else asked


def _took(capture: dict[str, Any]) -> Node:
    seconds = capture.get("latency_s")
    if seconds is None:
        return missing("Not all traces have arrived.")
    return unbroken(f"all traces after {seconds:.1f} s")


def _reason(capture: dict[str, Any], state: CaptureState) -> list[Node]:
    if not capture.get("reason"):
        return []
    kind = "error" if state in (CaptureState.FAILED, CaptureState.EXPIRED) else "status"
    return [html.P(unbroken(fmt.name(capture["reason"], limit=400)), className=f"notice {kind}")]


def _traces(capture: dict[str, Any]) -> list[Node]:
    ranks = capture.get("ranks") or []
    if not ranks:
        return []
    items = []
    for rank in ranks:
        text = unbroken(f"rank {rank['rank']}, {format_bytes(rank.get('bytes'))}")
        why = f"Download the trace of process {rank.get('pid')}; sha256 {rank.get('sha256')}"
        if rank.get("url") is None:
            items.append(
                html.Li(f"{text}; its file was removed", title=why.removeprefix("Download the "), className="quiet")
            )
            continue
        items.append(html.Li(html.A(text, href=trace_href(rank), title=why, download="")))
    expected = len(capture.get("expected") or [])
    if expected > len(ranks):
        items.append(html.Li(f"{expected - len(ranks)} to come", className="quiet"))
    return [html.Ul(items, className="traces")]


def trace_href(rank: dict[str, Any]) -> str:
    """Where the API serves a trace; only its own addresses are followed."""
    url = str(rank.get("url") or "")
    return quote(url, safe="/?=&%") if url.startswith("/api/") else "#captures"
