"""How long a step takes while nobody records: what the step counter says outside of captures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Capture, StepStat, Trace
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import CaptureState

AROUND_NS = 600 * NS_PER_S
"""Steps this far before and after the capture are compared: the same phase of the same job."""
EXPORT_NS = 3 * NS_PER_S
"""Kineto still slows the job for a while after the file has appeared."""
MIN_STEPS = 10
"""With fewer steps outside of captures nothing is said."""

Span = tuple[int, int]


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
    return None if capture is None else _recording(capture)


def captured_spans(session: Session, run_id: int) -> list[Span]:
    """When captures slowed the run."""
    return [_recording(capture) for capture in session.scalars(select(Capture).where(Capture.run_id == run_id))]


class Counted(NamedTuple):
    """One bucket of the step counter."""

    start_ns: int
    steps: int
    first_step_ns: int | None
    """End of the first step that the rank ever made, however long ago."""
    last_step_ns: int | None
    """End of the bucket's last step."""


def median_step(buckets: Sequence[Counted], recordings: Sequence[Span], *, min_steps: int = MIN_STEPS) -> int | None:
    """The median step over buckets in order of time, those whose steps touch a recording left out.

    A bucket's steps took from the end of the last step before it to the end of its own last step. In the rank's first
    bucket the first step is the beginning instead, and does not count.
    """
    paces: list[tuple[int, int]] = []
    before_ns: int | None = None
    for start_ns, steps, first_ns, last_ns in buckets:
        begun_ns, counted = before_ns, steps
        if first_ns is not None and first_ns >= start_ns:
            begun_ns, counted = first_ns, steps - 1
        before_ns = last_ns
        if last_ns is None or begun_ns is None or counted < 1 or last_ns <= begun_ns:
            continue
        if not any(begun_ns < end and last_ns > begin for begin, end in recordings):
            paces.append(((last_ns - begun_ns) // counted, counted))
    total = sum(steps for _, steps in paces)
    if total < min_steps:
        return None
    seen = 0
    for pace, steps in sorted(paces):
        seen += steps
        if 2 * seen >= total:
            return pace
    return None


def _recording(capture: Capture) -> Span:
    """From arming to the end of the export; nothing if it was never armed."""
    stages = capture.stages
    begun = stages.get(CaptureState.ARMED) or stages.get(CaptureState.RECORDING)
    if begun is None:
        return capture.requested_ns, capture.requested_ns
    after = [
        stages[state] for state in (CaptureState.WRITTEN, CaptureState.UPLOADED, CaptureState.FAILED) if state in stages
    ]
    return int(begun), int(min(after)) + EXPORT_NS if after else int(begun) + AROUND_NS
