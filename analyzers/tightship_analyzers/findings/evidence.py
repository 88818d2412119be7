"""The evidence of a finding: figures, the change to make, and the worst gap as a small timeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceBusy, DeviceGaps
from tightship_analyzers.facts.idle.causes import Cause, CauseRow, IdleCauses
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.op_tree import OpTree
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Names, Table
from tightship_platform.results.evidence import Change, Fact, Gap, GapLane, GapSpan, Overlay
from tightship_platform.results.overlay import check_overlay
from tightship_platform.text import shown

MAX_SPANS = 200
"""Per lane; the longest are kept, so that whatever encloses a kept span is kept too."""
MAX_NAME = 160
MOST_LOOKED_AT = 500
"""Of the longest gaps, for one of each cause; a page draws a few."""
PAD_FRAC = 0.15
"""Context shown on either side of a gap, as a share of it."""
MIN_PAD_NS = 20_000


def fact(text: str, value: float | None = None, unit: str = "") -> Fact:
    """A sentence with the figure that it rests on."""
    return Fact(text=text, value=value, unit=unit)


def change(before: str, after: str) -> Change:
    """Code as it is and as it should be."""
    return Change(before=before, after=after)


def overlay(name: str, value: str, numerics: str = "") -> Overlay:
    """The change as a variable of the job's environment.

    :param numerics: what it changes of the numbers that the job computes, in one sentence; empty: nothing.
    :raises Invalid: no advice may set it, or not so.
    """
    check_overlay({name: value})
    return Overlay(variables={name: value}, numerics=numerics)


def worst_gap(facts: Facts, claims: Intervals, cause: str) -> Gap | None:
    """The device gap that holds most of the claimed time; None where the claims touch no gap."""
    gaps = facts[DeviceGaps].spans
    held = claims.overlap_ns(gaps.start_ns, gaps.end_ns)
    if not len(held) or not held.max():
        return None
    row = int(held.argmax())
    return timeline(facts, int(gaps.start_ns[row]), int(gaps.end_ns[row]), cause)


def longest_gaps(facts: Facts, count: int) -> list[Gap]:
    """Long gaps of the device within the window, each with the cause of most of it: the longest of each cause, then
    what is longest of the others. The longest comes first.

    Only the `MOST_LOOKED_AT` longest of all are looked at.
    """
    gaps, idle = facts.find(DeviceGaps), facts.find(IdleCauses)
    if not count or gaps is None or idle is None:
        return []
    spans = gaps.spans
    longest = np.argsort(spans.start_ns - spans.end_ns, kind="stable")[:MOST_LOOKED_AT]
    firsts: list[tuple[int, int, CauseRow]] = []
    others: list[tuple[int, int, CauseRow]] = []
    seen: set[Cause] = set()
    for start_ns, end_ns in zip(spans.start_ns[longest].tolist(), spans.end_ns[longest].tolist(), strict=True):
        most, *_ = idle.window.within(Intervals.one(start_ns, end_ns)).rows()
        (others if most.cause in seen else firsts).append((start_ns, end_ns, most))
        seen.add(most.cause)
    chosen = sorted((firsts + others)[:count], key=lambda gap: gap[0] - gap[1])
    return [
        replace(timeline(facts, start_ns, end_ns, most.cause.word), place=shown(str(most.place), MAX_NAME) or None)
        for start_ns, end_ns, most in chosen
    ]


def timeline(facts: Facts, start_ns: int, end_ns: int, cause: str) -> Gap:
    """What device, host thread and Python frames did around an interval."""
    pad_ns = max(MIN_PAD_NS, int(PAD_FRAC * (end_ns - start_ns)))
    first_ns, last_ns = start_ns - pad_ns, end_ns + pad_ns
    steps = facts.find(Steps)
    return Gap(
        step=steps.number_at(start_ns) if steps else None,
        start_ns=start_ns,
        end_ns=end_ns,
        cause=cause,
        lanes=[
            GapLane(lane=lane, spans=_spans(facts.trace.names, tables, first_ns, last_ns))
            for lane, tables in _lanes(facts)
        ],
    )


def _lanes(facts: Facts) -> list[tuple[str, list[Any]]]:
    trace, tid = facts.trace, facts[Window].tid
    marks = trace.annotations.take(trace.annotations.tid == tid)
    ops = trace.host_ops.take(trace.host_ops.tid == tid)
    launches = trace.launches.take(trace.launches.tid == tid)
    stacks = facts.find(ThreadFrames)
    device: list[Any] = [trace.device_events]
    if trace.device_kind == "cpu":
        # On a CPU the operators are the device timeline; those in the loader or in a save are not part of it.
        top = facts[OpTree].top
        busy = facts[DeviceBusy].spans
        device = [top.take(busy.meets(top.start_ns, top.end_ns))]
    return [
        ("device", device),
        ("host", [marks, ops, launches]),
        ("frames", [stacks.frames] if stacks else []),
    ]


def _spans(names: Names, tables: list[Any], first_ns: int, last_ns: int) -> list[GapSpan]:
    rows: list[tuple[int, int, int]] = []
    for table in tables:
        near = _longest(table.overlapping(first_ns, last_ns), first_ns, last_ns)
        starts, ends = np.maximum(near.start_ns, first_ns), np.minimum(near.end_ns, last_ns)
        rows.extend(zip(starts.tolist(), ends.tolist(), near.name.tolist(), strict=True))
    rows.sort(key=lambda row: row[0] - row[1])
    rows = sorted(rows[:MAX_SPANS], key=lambda row: (row[0], -row[1]))
    levels: list[int] = []
    spans = []
    for start_ns, end_ns, name in rows:
        # The first level that is free: nesting depth for calls, one row per stream in use for kernels.
        depth = next((level for level, busy_until in enumerate(levels) if busy_until <= start_ns), len(levels))
        levels[depth : depth + 1] = [end_ns]
        spans.append(GapSpan(name=shown(names[name], MAX_NAME), start_ns=start_ns, end_ns=end_ns, depth=depth))
    return spans


def _longest(table: Any, first_ns: int, last_ns: int) -> Any:
    if len(table) <= MAX_SPANS:
        return table
    shown: Table = table
    size = np.minimum(shown.end_ns, last_ns) - np.maximum(shown.start_ns, first_ns)
    return table.take(np.argsort(-size, kind="stable")[:MAX_SPANS])
