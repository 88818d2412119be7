"""How long a step takes while nobody records: what the step counter says outside of captures."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Capture, StepStat, Trace
from tightship_platform.ingest.actions.steps import AROUND_NS, Counted, Span, captured_span, captured_spans, periods

MIN_STEPS = 10
"""With fewer steps outside of captures nothing is said."""


def untraced_step_ns(session: Session, trace: Trace) -> int | None:
    """The median step of the trace's rank around its capture; None where the counter does not tell."""
    mine = span_of(session, trace)
    if mine is None:
        return None
    begun, ended = mine
    rows = session.execute(
        select(StepStat.time_ns, StepStat.steps, StepStat.first_step_ns, StepStat.last_step_ns)
        .where(
            StepStat.run_id == trace.run_id,
            StepStat.rank == trace.rank,
            StepStat.time_ns >= begun - AROUND_NS,
            StepStat.time_ns <= ended + AROUND_NS,
            StepStat.steps > 0,
        )
        .order_by(StepStat.time_ns)
    )
    buckets = [Counted(*row) for row in rows]
    return median_step(buckets, captured_spans(session, trace.run_id))


def span_of(session: Session, trace: Trace) -> Span | None:
    """When the trace's capture slowed its run; None of a trace that was imported by itself."""
    capture = None if trace.capture_id is None else session.get(Capture, trace.capture_id)
    return None if capture is None else captured_span(capture)


def median_step(buckets: Sequence[Counted], recordings: Sequence[Span], *, min_steps: int = MIN_STEPS) -> int | None:
    """The median step over buckets in order of time, as `periods` takes them; None: too few steps."""
    paces = [(period.time_ns // period.steps, period.steps) for period in periods(buckets, recordings)]
    total = sum(steps for _, steps in paces)
    if total < min_steps:
        return None
    seen = 0
    for pace, steps in sorted(paces):
        seen += steps
        if 2 * seen >= total:
            return pace
    return None
