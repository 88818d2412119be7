"""From the time that would go to a finding: what all rules on traces have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.frames import ThreadFrames, place_of
from tightship_analyzers.facts.program.loader_ranges import LoaderRanges
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.simulation.dependency_graph import DependencyGraph
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.evidence import fact, worst_gap
from tightship_analyzers.findings.model import Finding, Rule, Saving
from tightship_analyzers.graph.edits import Edits, Float64s
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import DeviceEvents, Int64s
from tightship_platform.results.evidence import Evidence
from tightship_platform.units import format_frac, format_ns, plural
from tightship_platform.vocabulary import SavingUnit

WORKERS_FRAC = 0.05
"""Share of the step above which waiting for input counts; source: the profiler's TensorBoard plugin."""
MANY_STEPS = 3
"""Of so many recorded steps or more, what only one has is not taken for a part of every step. Of two it may be every
other one."""
TORCH = re.compile(r"(.*/)?torch/")
"""File of a frame that everything passes through."""
ONCE = fact("In one step only: whether it comes back is not recorded; record for longer")


def is_worth(facts: Facts, claims: Intervals, min_frac: float) -> bool:
    """Is it at least this share of the window, less what recording is known to have added to it?"""
    graph = facts.find(DependencyGraph)
    window_ns = facts[Window].window_ns - (graph.profiling_ns if graph is not None else 0)
    return 0 < claims.measure_ns >= min_frac * window_ns


def comes_back(facts: Facts, claims: Intervals) -> bool:
    """Of several steps more than one have it; what one of them has may be an event and no habit."""
    window = facts[Window]
    if window.count < MANY_STEPS or not len(claims):
        return True
    step = np.searchsorted(window.bounds_ns, claims.start_ns, side="right")
    return bool((step != step[0]).any())


def within_window(facts: Facts, claims: Intervals) -> Intervals:
    """What of it a finding may claim: what lies in whole steps, of a recording between the device's first and last
    work."""
    window = facts[Window]
    return claims.clip(window.claim_start_ns, window.claim_end_ns)


def unit_of(facts: Facts) -> SavingUnit:
    """The unit in which savings are given."""
    return SavingUnit.STEP if facts[Window].of_steps else SavingUnit.RECORDING


def waiter(facts: Facts) -> str:
    """Who waits, in a title: the device; of a job on a CPU, whose cores are the device and do what it waits for, the
    loop."""
    return "the loop" if facts.trace.device_kind == "cpu" else "the device"


def share_of(facts: Facts, claims: Intervals) -> str:
    """`12.3 % of the step`, or `of the recording`."""
    return f"{format_frac(claims.measure_ns / facts[Window].window_ns)} of the {unit_of(facts).whole}"


def time_of(facts: Facts, total_ns: int) -> str:
    """A total over the window as `1.2 ms of a step of 30 ms`, or `of a recording of 2 s`."""
    window = facts[Window]
    return f"{format_ns(total_ns // window.count)} of a {unit_of(facts).whole} of {format_ns(window.mean_ns)}"


def per_step_suffix(facts: Facts) -> str:
    """The unit of a figure: `a step` where it was divided by the steps, else `in all`, of a recording."""
    return "a step" if facts[Window].of_steps else "in all"


def in_window(facts: Facts) -> str:
    """Over what something was counted: `in 4 steps`, or `in the recording`."""
    window = facts[Window]
    return f"in {plural(window.count, 'step')}" if window.of_steps else "in the recording"


class Where(NamedTuple):
    """Where to look for a defect."""

    place: str
    elsewhere: Sequence[tuple[str, int]] = ()
    """(place, ns over the window) of further places; those below a tenth of the whole are not named."""


def costliest(facts: Facts, op: Int64s, cost_ns: Int64s, otherwise: str = "") -> Where:
    """The place of the operators that cost most, and the others.

    :param otherwise: what is said where the place of operators is not known.
    """
    (place, _), *elsewhere = facts[Places].costliest(op, cost_ns, otherwise)
    return Where(place, elsewhere)


def one_place(facts: Facts, op: Int64s, cost_ns: Int64s, otherwise: str) -> Where:
    """The same for a defect of the whole window: the costliest place where stacks tell its line; else one word for all,
    so that all ranks have it at the same place."""
    if facts[Places].stacks is not None:
        found = costliest(facts, op, cost_ns)
        return Where(found.place or otherwise, found.elsewhere)
    return Where(otherwise, facts[Places].costliest(op, cost_ns))


def waits_for_workers(facts: Facts) -> bool:
    """Does the device wait for the loader's workers? Then the host would wait there for whatever it gains elsewhere,
    and a simulation, which takes the loader's time as given, would promise too much."""
    loader, gaps = facts.find(LoaderRanges), facts.find(DeviceGaps)
    if loader is None or gaps is None or loader.in_process:
        return False
    return is_worth(facts, gaps.spans & loader.spans, WORKERS_FRAC)


def gone(events: DeviceEvents, gone_frac: Float64s) -> Intervals:
    """The time of device events that would go: the last part of each, by its share."""
    lost_ns = np.rint(events.dur_ns * np.clip(gone_frac, 0.0, 1.0)).astype(np.int64)
    return Intervals.of(events.end_ns - lost_ns, events.end_ns)


def portion(spans: Intervals, frac: float) -> Intervals:
    """The same share of each interval, from its start."""
    kept_ns = np.rint((spans.end_ns - spans.start_ns) * min(max(frac, 0.0), 1.0)).astype(np.int64)
    return Intervals.of(spans.start_ns, spans.start_ns + kept_ns)


class Moved(NamedTuple):
    """What can come back at most of host time that other threads take over."""

    claims: Intervals
    spans: Intervals
    """The host time that this corresponds to."""
    most_ns: int
    """Over the window."""


def moved(facts: Facts, claims: Intervals, spans: Intervals, *, work_ns: int, threads: int) -> Moved:
    """Of the claims and the host time behind them what goes where `threads` threads take over `work_ns` of work: they
    need a share of that each, however many cores are idle, and the window does not get shorter than it."""
    most_ns = max(0, facts[Window].window_ns - work_ns // threads)
    if claims.measure_ns <= most_ns:
        return Moved(claims, spans, most_ns)
    return Moved(portion(claims, most_ns / claims.measure_ns), portion(spans, most_ns / spans.measure_ns), most_ns)


def mostly_in(facts: Facts, op: Int64s, cost_ns: Int64s) -> Evidence | None:
    """Which modules the operators belong to, where stacks tell."""
    modules = facts[Places].modules(op, cost_ns)
    if not modules:
        return None
    return fact("Modules, the costliest first: " + ", ".join(name for name, _ in modules[:3]))


def deepest(facts: Facts, claims: Intervals, place: str) -> Evidence | None:
    """The innermost function, of libraries other than torch too, in which most of that time was; None where that is
    `place` itself, or stacks do not tell."""
    stacks, names = facts.find(ThreadFrames), facts.trace.names
    if stacks is None or not len(stacks.files) or not len(claims):
        return None
    frames = stacks.files.overlapping(facts[Window].host_start_ns, facts[Window].end_ns)
    inside_ns = np.bincount(frames.name, weights=claims.overlap_ns(frames.start_ns, frames.end_ns))
    lasts_ns = np.bincount(frames.name, weights=frames.dur_ns)
    most = [n for n in np.flatnonzero(2 * inside_ns > claims.measure_ns).tolist() if not TORCH.match(names[n])]
    if not most:
        return None
    function = place_of(names[min(most, key=lambda number: (lasts_ns[number], number))])
    return fact(f"Most of it is in {function}") if function != place else None


def claim(
    facts: Facts,
    rule: Rule,
    claims: Intervals,
    *,
    title: str,
    where: Where,
    fix: str,
    evidence: Iterable[Evidence | None],
    low_ns: int | None = None,
    high_ns: int | None = None,
    gap: str = "",
    without: Edits | None = None,
) -> Finding:
    """A finding whose saving is the measure of `claims`, which lie within the window.

    :param low_ns: over the whole window, like `high_ns`; without them the value.
    :param gap: cause under which the worst gap is drawn.
    :param without: the program without the defect.
    """
    window, total_ns = facts[Window], claims.measure_ns
    return Finding(
        rule=rule.id,
        title=title,
        place=where.place,
        fix=fix,
        saving=Saving.per_step(
            window.count,
            value_ns=total_ns,
            low_ns=total_ns if low_ns is None else low_ns,
            high_ns=total_ns if high_ns is None else min(high_ns, window.window_ns),
        ),
        unit=unit_of(facts),
        share_frac=total_ns / window.window_ns,
        evidence=[
            *([worst] if gap and (worst := worst_gap(facts, claims, gap)) else []),
            *(entry for entry in evidence if entry is not None),
            *(
                fact(f"Of it at {other}: {time_of(facts, ns)}", ns / window.count, "ns")
                for other, ns in where.elsewhere
                if other and ns * 10 >= total_ns
            ),
        ],
        claims=claims,
        without=without,
    )
