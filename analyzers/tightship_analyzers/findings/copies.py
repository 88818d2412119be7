"""What the rules on blocking copies have in common: one finding per place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tightship_analyzers.facts.blocking.copies import BlockingCopies
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.findings.claim import Where, claim, gone, is_worth, time_of, waits_for_workers, within_window
from tightship_analyzers.findings.evidence import fact
from tightship_analyzers.findings.model import Finding, Rule
from tightship_analyzers.graph.edits import Edits, Float64s
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Bools
from tightship_platform.results.evidence import Evidence
from tightship_platform.text import shown
from tightship_platform.units import format_bytes, plural


def claim_copies(
    facts: Facts,
    rule: Rule,
    chosen: Bools,
    *,
    min_frac: float,
    title: Callable[[Intervals], str],
    fix: str,
    change: Evidence,
    left_frac: Float64s | None = None,
) -> Iterator[Finding]:
    """Findings on the places whose copies cost the device at least this share of the window.

    The high end adds the copies themselves, which could run beside computation.

    :param left_frac: (copies,) share of its time that each copy would take without the defect; not given: all of it.
    """
    copies, where = facts[BlockingCopies], facts[Places]
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        start_ns, end_ns = int(copies.start_ns[row]), int(copies.end_ns[row])
        place = where.of_span(int(copies.tid[row]), start_ns, end_ns) or where.of_op(int(copies.op[row]))
        rows.setdefault(place or shown(facts.trace.names[int(copies.events.name[row])]), []).append(row)
    for place, found in rows.items():
        mine = np.zeros(len(copies.op), dtype=np.bool_)
        mine[found] = True
        events = copies.events.take(mine)
        left = np.ones(len(events)) if left_frac is None else left_frac[mine]
        cost = within_window(facts, copies.cost(mine) | (gone(events, 1 - left) - _computing(facts)))
        if not is_worth(facts, cost, min_frac):
            continue
        held_ns = int((copies.end_ns[mine] - copies.start_ns[mine]).sum())
        size = int(events.bytes[events.bytes > 0].sum())
        tid = int(copies.tid[found[0]])
        edits = Edits.without_syncs(tid, Intervals.of(copies.start_ns[mine], copies.end_ns[mine]))
        if left_frac is not None:
            edits |= Edits.without_device(copies.row[mine], left)
        yield claim(
            facts,
            rule,
            cost,
            title=title(cost),
            where=Where(place),
            fix=fix,
            low_ns=0,
            high_ns=(cost | within_window(facts, Intervals.of_table(events))).measure_ns,
            gap="copy",
            evidence=[
                fact(
                    f"The host is blocked for {time_of(facts, held_ns)}, {plural(len(found), 'copy', 'copies')}; "
                    f"on the device {time_of(facts, int(events.dur_ns.sum()))}",
                    len(found),
                    "copies",
                ),
                fact(f"{format_bytes(size)} in all, {_rate(size, int(events.dur_ns.sum()))}", size, "bytes")
                if size
                else None,
                change,
            ],
            without=None if waits_for_workers(facts) else edits,
        )


def _computing(facts: Facts) -> Intervals:
    """When the device does something else than copying."""
    events = facts[KernelOps].events
    moves = (events.kind == EventKind.COPY) | (events.kind == EventKind.SET)
    return Intervals.of_table(events.take(~moves))


def _rate(size: int, duration_ns: int) -> str:
    return f"{size / max(duration_ns, 1):.1f} GB/s"
