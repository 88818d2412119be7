"""From the time that would go to a finding: what all rules on traces have in common."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tightship_analyzers.evidence import Evidence, fact, worst_gap
from tightship_analyzers.facts.device_busy import DeviceGaps
from tightship_analyzers.facts.loader_ranges import LoaderRanges
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.places import Places
from tightship_analyzers.facts.steps import Steps
from tightship_analyzers.graph.edits import Edits, Float64s
from tightship_analyzers.rule import Finding, Rule, Saving
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import DeviceEvents, Int64s
from tightship_platform.units import format_frac, format_ns

WORKERS_FRAC = 0.05
"""Share of the step from which on waiting for input counts; source: the profiler's TensorBoard plugin."""


def is_worth(facts: Facts, claims: Intervals, min_frac: float) -> bool:
    """Is it at least this share of the steps?"""
    return 0 < claims.measure_ns >= min_frac * facts[Steps].window_ns


def within_steps(facts: Facts, claims: Intervals) -> Intervals:
    """What of it lies in whole steps."""
    return claims.clip(facts[Steps].start_ns, facts[Steps].end_ns)


def share_of(facts: Facts, claims: Intervals) -> str:
    """`12.3 %` of the step."""
    return format_frac(claims.measure_ns / facts[Steps].window_ns)


def a_step(facts: Facts, total_ns: int) -> str:
    """A total over all steps as `1.2 ms of a step of 30 ms`."""
    steps = facts[Steps]
    return f"{format_ns(total_ns // steps.count)} of a step of {format_ns(steps.mean_ns)}"


def one_place(facts: Facts, places: list[tuple[str, int]], otherwise: str) -> tuple[str, list[tuple[str, int]]]:
    """Where to look for a defect of the whole step, and the other places: the dearest one where stacks tell its line;
    else one word for all, so that all ranks have it at the same place."""
    if facts[Places].stacks is not None:
        return places[0][0] or otherwise, places[1:]
    return otherwise, places


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


def mostly_in(facts: Facts, op: Int64s, cost_ns: Int64s) -> Evidence | None:
    """Which modules the operators belong to, where stacks tell."""
    modules = facts[Places].modules(op, cost_ns)
    if not modules:
        return None
    return fact("Modules, the dearest first: " + ", ".join(name for name, _ in modules[:3]))


def claim(
    facts: Facts,
    rule: Rule,
    claims: Intervals,
    *,
    title: str,
    place: str,
    fix: str,
    evidence: Iterable[Evidence | None],
    low_ns: int | None = None,
    high_ns: int | None = None,
    gap: str = "",
    elsewhere: Iterable[tuple[str, int]] = (),
    without: Edits | None = None,
) -> Finding:
    """A finding whose saving is the measure of `claims`, which lie within the steps.

    :param low_ns: over all steps, like `high_ns`; without them the value.
    :param gap: cause under which the worst gap is drawn.
    :param elsewhere: (place, ns over all steps) of further places; those below a tenth of the whole are not named.
    :param without: the program without the defect.
    """
    steps, total_ns = facts[Steps], claims.measure_ns
    return Finding(
        rule=rule.id,
        title=title,
        place=place,
        fix=fix,
        saving=Saving.per_step(
            steps.count,
            value_ns=total_ns,
            low_ns=total_ns if low_ns is None else low_ns,
            high_ns=total_ns if high_ns is None else min(high_ns, steps.window_ns),
        ),
        unit=rule.scope.unit,
        share_frac=total_ns / steps.window_ns,
        evidence=[
            *([worst] if gap and (worst := worst_gap(facts, claims, gap)) else []),
            *(entry for entry in evidence if entry is not None),
            *(
                fact(f"Of it at {other}: {a_step(facts, ns)}", ns / steps.count, "ns")
                for other, ns in elsewhere
                if ns * 10 >= total_ns
            ),
        ],
        claims=claims,
        without=without,
    )
