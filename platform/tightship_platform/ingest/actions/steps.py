"""How long a run's steps took, period by period, as its step counter stored them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Allocation, Capture, Device, Run, StepStat
from tightship_platform.ingest.actions.bootstrap import Period
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import CaptureState

AROUND_NS = 600 * NS_PER_S
"""Steps this far before and after a capture are of the same phase of the same job; and a capture whose end nobody
reported is over after this time."""
EXPORT_NS = 3 * NS_PER_S
"""Kineto still slows the job for a while after the file has appeared."""

Span = tuple[int, int]


class Counted(NamedTuple):
    """One bucket of the step counter."""

    start_ns: int
    steps: int
    first_step_ns: int | None
    """End of the first step that the rank ever made, however long ago."""
    last_step_ns: int | None
    """End of the bucket's last step."""


@dataclass(frozen=True, kw_only=True)
class RunSteps:
    """The steps of a run's furthest rank, and on what they were made."""

    periods: list[Period]
    ranks: int
    """Ranks that counted steps."""
    devices: Counter[str]
    """Devices that the run held, by name, else by kind."""


def run_steps(session: Session, run: Run) -> RunSteps:
    """Steps of the rank that made most of them. Ranks of one run wait for each other: one speaks for all."""
    made = func.sum(StepStat.steps)
    ranks = session.execute(
        select(StepStat.rank)
        .where(StepStat.run_id == run.id, StepStat.steps > 0)
        .group_by(StepStat.rank)
        .order_by(made.desc(), StepStat.rank)
    ).all()
    if not ranks:
        return RunSteps(periods=[], ranks=0, devices=_devices(session, run))
    rows = session.execute(
        select(StepStat.time_ns, StepStat.steps, StepStat.first_step_ns, StepStat.last_step_ns)
        .where(StepStat.run_id == run.id, StepStat.rank == ranks[0].rank, StepStat.steps > 0)
        .order_by(StepStat.time_ns)
    )
    return RunSteps(
        periods=periods([Counted(*row) for row in rows], captured_spans(session, run.id)),
        ranks=len(ranks),
        devices=_devices(session, run),
    )


def _devices(session: Session, run: Run) -> Counter[str]:
    held = (
        select(Device.id, Device.kind, Device.name)
        .join(Allocation, Allocation.device_id == Device.id)
        .where(Allocation.run_id == run.id)
        .distinct()
    )
    return Counter(row.name or row.kind for row in session.execute(held))


def periods(buckets: Sequence[Counted], recordings: Sequence[Span]) -> list[Period]:
    """Steps and their time of each bucket, in order of time; those whose steps touch a recording are left out.

    A bucket's steps took from the end of the last step before it to the end of its own last step. In the rank's first
    bucket the first step is the beginning instead, and does not count: until its end a run starts up.
    """
    found: list[Period] = []
    before_ns: int | None = None
    for start_ns, steps, first_ns, last_ns in buckets:
        begun_ns, counted = before_ns, steps
        if first_ns is not None and first_ns >= start_ns:
            begun_ns, counted = first_ns, steps - 1
        before_ns = last_ns
        if last_ns is None or begun_ns is None or counted < 1 or last_ns <= begun_ns:
            continue
        if not any(begun_ns < end and last_ns > begin for begin, end in recordings):
            found.append(Period(last_ns - begun_ns, counted))
    return found


def captured_spans(session: Session, run_id: int) -> list[Span]:
    """When captures slowed the run."""
    return [captured_span(capture) for capture in session.scalars(select(Capture).where(Capture.run_id == run_id))]


def captured_span(capture: Capture) -> Span:
    """From arming to the end of the export; nothing if it was never armed."""
    stages = capture.stages
    begun = stages.get(CaptureState.ARMED) or stages.get(CaptureState.RECORDING)
    if begun is None:
        return capture.requested_ns, capture.requested_ns
    after = [
        stages[state] for state in (CaptureState.WRITTEN, CaptureState.UPLOADED, CaptureState.FAILED) if state in stages
    ]
    return int(begun), int(min(after)) + EXPORT_NS if after else int(begun) + AROUND_NS
