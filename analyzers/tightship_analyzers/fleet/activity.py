"""How much of a run's device time its devices worked, by their samples.

[Note: how samples are integrated]
- A sample of utilisation speaks from its time until the next one of its device, no longer than the interval of its
  fleet (live: one minute), and only while the run held the device. What no sample speaks for is unmeasured.
- Busy time is utilisation × that time, idle time is the rest of it. Of a run that shares a device its own use counts;
  where that is not known, the use of the whole device.
- A long idle stretch is LONG_IDLE_NS or more of samples below MAX_ACTIVITY_FRAC, each of which speaks until the next.
  A hole ends it: nobody knows what the device did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, case, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_analyzers.facts.run.held_idle import MAX_ACTIVITY_FRAC, MINUTE_NS, RunHistory
from tightship_platform.database.models import Fleet, Run, RunActivity, RunSample, Sample

LONG_IDLE_NS = 10 * MINUTE_NS


@dataclass
class Activity:
    """What samples measured; `busy_ns` ≤ `measured_ns`, `long_idle_ns` ≤ `measured_ns`."""

    busy_ns: int = 0
    measured_ns: int = 0
    long_idle_ns: int = 0

    def add(self, other: Activity) -> None:
        """Of another device, or another time."""
        self.busy_ns += other.busy_ns
        self.measured_ns += other.measured_ns
        self.long_idle_ns += other.long_idle_ns


def measure_activity(session: Session, run: Run, history: RunHistory) -> Activity:
    """See [Note: how samples are integrated]."""
    fleet = None if run.fleet_id is None else session.get(Fleet, run.fleet_id)
    most_ns = (fleet.interval_ns if fleet is not None else None) or MINUTE_NS
    sampled = {minute.device for minute in history.minutes}
    total = Activity()
    for device, spans in history.held.items():
        if device not in sampled:
            continue
        for start_ns, end_ns in spans:
            given = {"run": run.id, "device": device, "start": start_ns, "end": end_ns, "most": most_ns}
            found = _read(session, _OF_RUN, given) if run.fleet_id is None else Activity()
            total.add(found if found.measured_ns else _read(session, _OF_DEVICE, given))
    return total


def keep_activity(session: Session, run: Run, activity: Activity) -> None:
    """Store it with the run's account, in one transaction."""
    row = session.get(RunActivity, run.id)
    if not activity.measured_ns:
        if row is not None:
            session.delete(row)
        return
    if row is None:
        row = RunActivity(run_id=run.id)
        session.add(row)
    row.busy_ns, row.idle_ns = activity.busy_ns, activity.measured_ns - activity.busy_ns
    row.long_idle_ns = activity.long_idle_ns


def _read(session: Session, sums: Any, given: dict[str, int]) -> Activity:
    """Of one device while it was held; the database counts, as a week at one sample a second is 600,000 rows."""
    busy, measured, long_idle = session.execute(sums, given).one()
    measured_ns = int(measured or 0)
    return Activity(
        busy_ns=min(round(busy or 0), measured_ns), measured_ns=measured_ns, long_idle_ns=int(long_idle or 0)
    )


def _number(name: str) -> Any:
    return bindparam(name, type_=BigInteger())


def _sums(
    time_ns: InstrumentedAttribute[int], util_frac: InstrumentedAttribute[float | None], which: ColumnElement[bool]
) -> Any:
    """Busy, measured and long idle time of the samples of a span; made once, as making it takes longer than asking."""
    end, most = _number("end"), _number("most")
    within = (which, time_ns >= _number("start"), time_ns < end, util_frac.is_not(None))
    at, util = select(time_ns, util_frac).where(*within).subquery().c
    following = func.coalesce(func.lead(at).over(order_by=at), end)
    until = case((following < at + most, following), else_=at + most)
    spoken = select(at.label("at"), util.label("util"), case((until < end, until), else_=end).label("until")).subquery()
    idle = spoken.c.util < MAX_ACTIVITY_FRAC
    goes_on = and_(
        idle,
        func.lag(spoken.c.util).over(order_by=spoken.c.at) < MAX_ACTIVITY_FRAC,
        func.lag(spoken.c.until).over(order_by=spoken.c.at) == spoken.c.at,
    )
    marked = select(spoken, case((goes_on, 0), else_=1).label("begins")).subquery()
    width = marked.c.until - marked.c.at
    numbered = select(
        marked.c.util, width.label("width"), func.sum(marked.c.begins).over(order_by=marked.c.at).label("stretch")
    ).subquery()
    stretches = (
        select(
            func.sum(numbered.c.util * numbered.c.width).label("busy"),
            func.sum(numbered.c.width).label("measured"),
            func.max(numbered.c.util).label("top"),
        )
        .group_by(numbered.c.stretch)
        .subquery()
    )
    long = and_(stretches.c.top < MAX_ACTIVITY_FRAC, stretches.c.measured >= LONG_IDLE_NS)
    return select(
        func.sum(stretches.c.busy),
        func.sum(cast(stretches.c.measured, BigInteger)),
        func.sum(case((long, cast(stretches.c.measured, BigInteger)), else_=0)),
    )


_OF_DEVICE = _sums(Sample.time_ns, Sample.util_frac, Sample.device_id == _number("device"))
_OF_RUN = _sums(
    RunSample.time_ns,
    RunSample.util_frac,
    and_(RunSample.run_id == _number("run"), RunSample.device_id == _number("device")),
)
