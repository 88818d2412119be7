"""What the rules on pauses of the host have in common: one finding per place.

[Note: cold caches] On a CPU a pause also evicts from the caches what the rest of the step works on, and a collection or
a compilation takes memory that operators then fault in again. Loading that again takes no longer than the pause, which
had to load what took its place, and no more than half of the rest of the step: so much more the high end allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.activity.stall_cost import idle_through
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    ONCE,
    Where,
    claim,
    comes_back,
    in_window,
    is_worth,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Rule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.columns import Int32s, Int64s, Table
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.evidence import Evidence
from tightship_platform.text import shown
from tightship_platform.units import plural


class Pauses(NamedTuple):
    """What a thread did instead of feeding the device; none encloses another."""

    name: Int32s
    tid: Int32s
    start_ns: Int64s
    end_ns: Int64s

    @classmethod
    def outermost(cls, table: Table, name: Int32s, tid: Int32s) -> Pauses:
        """Rows of a table that no other row of the same thread encloses."""
        kept = np.zeros(len(table), dtype=np.bool_)
        for thread in np.unique(tid).tolist():
            rows = np.flatnonzero(tid == thread)
            end = table.end_ns[rows]
            latest = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
            kept[rows[end > latest]] = True
        return cls(name[kept], tid[kept], table.start_ns[kept], table.end_ns[kept])

    @classmethod
    def in_frames(cls, facts: Facts, wanted: Callable[[str], object]) -> Pauses:
        """The outermost calls of Python functions within the window whose names are wanted."""
        frames = facts[ThreadFrames].frames.overlapping(facts[Window].start_ns, facts[Window].end_ns)
        calls = frames.take(facts.trace.names.mask(frames.name, lambda name: bool(wanted(name))))
        return cls.outermost(calls, calls.name, calls.tid)


def claim_pauses(
    facts: Facts,
    rule: Rule,
    pauses: Pauses,
    *,
    min_frac: float,
    title: Callable[[Intervals, str], str],
    fix: str,
    change: Evidence,
    without_edit: Evidence | None = None,
    cause: str,
    what: str,
    sure_ns: Callable[[Intervals], int] = lambda claims: claims.measure_ns,
) -> Iterator[Finding]:
    """Findings on the places whose pauses cost the device at least this share of the window.

    :param title: from the claims and the name of what paused.
    :param without_edit: the change as the job's environment has it.
    :param what: noun for one pause; its plural ends in s.
    :param sure_ns: the low end, from the claims.
    """
    for place, rows in _by_place(facts, pauses).items():
        start_ns, end_ns = pauses.start_ns[rows], pauses.end_ns[rows]
        spans = Intervals.of(start_ns, end_ns)
        if facts.trace.device_kind == "cpu":
            # There the host is the device: what it does in a pause is no training work, operator or not.
            claims = within_window(facts, spans)
        else:
            claims = within_window(facts, idle_through(start_ns, end_ns, facts[DeviceGaps].spans))
        if not is_worth(facts, claims, min_frac):
            continue
        held_ns = within_window(facts, spans).measure_ns
        numbers, counts = np.unique(pauses.name[rows], return_counts=True)
        name = shown(facts.trace.names[int(numbers[counts.argmax()])], 80)
        without = Edits()
        for tid in np.unique(pauses.tid[rows]).tolist():
            own = pauses.tid[rows] == tid
            without |= Edits.without_host(tid, Intervals.of(start_ns[own], end_ns[own]))
        yield claim(
            facts,
            rule,
            claims,
            title=title(claims, name),
            where=Where(place),
            fix=fix,
            low_ns=sure_ns(claims) if comes_back(facts, claims) else 0,
            high_ns=held_ns + _cold_ns(facts, held_ns),
            gap=cause,
            evidence=[
                fact(
                    f"{plural(len(rows), what)} {in_window(facts)}, {time_of(facts, held_ns)}, mostly {name}",
                    len(rows),
                    f"{what}s",
                ),
                None if comes_back(facts, claims) else ONCE,
                change,
                without_edit,
            ],
            without=without,
        )


def _cold_ns(facts: Facts, held_ns: int) -> int:
    """What the rest of the steps may get shorter by, over the window; see [Note: cold caches]."""
    if facts.trace.device_kind != "cpu":
        return 0
    return min(held_ns, (facts[Window].window_ns - held_ns) // 2)


def _by_place(facts: Facts, pauses: Pauses) -> dict[str, list[int]]:
    where, names = facts[Places], facts.trace.names
    rows: dict[str, list[int]] = {}
    for row, (number, tid, start_ns, end_ns) in enumerate(_rows(pauses)):
        place = where.of_span(tid, start_ns, end_ns) or shown(names[number])
        rows.setdefault(place, []).append(row)
    return rows


def _rows(pauses: Pauses) -> Iterable[tuple[int, int, int, int]]:
    columns = (pauses.name, pauses.tid, pauses.start_ns, pauses.end_ns)
    return zip(*(column.tolist() for column in columns), strict=True)
