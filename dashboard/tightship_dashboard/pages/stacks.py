"""Where the processes of a run were when its agent was last asked: part of a run's page."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from dash import html

from tightship_analyzers.hangs.live import why_it_hangs
from tightship_dashboard.figures.elements import Node, notice, time_of
from tightship_dashboard.sentences import formatting as fmt
from tightship_platform.results.stacks import StackDump
from tightship_platform.results.why import ProcessStack

SHOWN = 64
"""Of many processes, the stacks of so many are shown."""


def where_it_was(dump: StackDump | None, zone: ZoneInfo) -> list[Node]:
    """What was made of the last stacks that came; nothing where none ever did."""
    if dump is None or dump.taken_ns is None:
        return []
    why = why_it_hangs(dump.run, dump.processes, dump.taken_ns)
    text = fmt.name(f"{why.verdict} {why.cause}", limit=2000)
    shown = [part for one in why.processes[:SHOWN] for part in (html.P(_heading(one)), html.Pre(_stack(one)))]
    more = len(why.processes) - SHOWN
    left_out = [html.P(f"And {more} more: GET /api/v1/runs/{dump.run}/stacks has all.")] if more > 0 else []
    heading = html.Summary(["Stacks of its processes, read ", time_of(dump.taken_ns, zone)])
    return [notice(text, kind="status"), html.Details([heading, *shown, *left_out], id="run-stacks")]


def _heading(one: ProcessStack) -> str:
    steps = "" if one.steps is None else f", {fmt.count(one.steps)} steps"
    return f"{one.role if one.rank is None else f'rank {one.rank}'} (process {one.pid}){steps}"


def _stack(one: ProcessStack) -> str:
    return "\n".join(fmt.name(frame, limit=600) for frame in one.stack) or fmt.name(one.reason, limit=600)
