"""Removes what is older than the settings keep it: samples and step counts by the day, and means per minute.

[Note: what may go]
The raw records of a day go together, and only when nothing needs them any more: every run that lived on that day is
over and has its account, and the day's rollups have just been made of them. Imported runs are history that somebody
wanted here: their days stay. A day that is gone stays gone: ingest takes nothing more of it, because a rollup made of
what trickles in late would replace the one that was made of everything, and the accounts of its runs stay as they are.
Nor does ingest take anything of a day that would be removed at once, whether that was ever here or not.
A clock is no proof of age: nothing is older than the newest sample shows it to be. So a worker whose clock is years
ahead removes nothing, and ingest on such a server takes what it is sent.
Samples of devices that no run held, and samples of hosts, have no rollups: of them nothing stays.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tightship_platform.database import partitions
from tightship_platform.database.engine import Database
from tightship_platform.database.models import (
    HostSample,
    RemovedDay,
    Rollup,
    Run,
    RunSample,
    Sample,
    StepStat,
    UnallocatedHour,
)
from tightship_platform.samples import rollups
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.vocabulary import RunState

log = logging.getLogger(__name__)

DAY_NS = 86_400 * NS_PER_S
SLICE_NS = 600 * NS_PER_S
"""Rows are deleted in slices of this length, each in its own transaction: writers never wait for long."""
BUDGET_S = 300.0
"""No new day is begun after this time; the task comes again."""
TRIES = 5
"""How often a busy partition is tried before it is left to the next time."""
_RUNS_AT_ONCE = 100
_TABLES: tuple[type[Sample] | type[HostSample] | type[RunSample], ...] = (Sample, HostSample, RunSample)


@dataclass(kw_only=True)
class Removed:
    """What a call of `remove_samples` did."""

    days: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    """Key of a run → days that are old enough, and stay because of it."""


def day_of(time_ns: int) -> int:
    """Start of the UTC day."""
    return time_ns - time_ns % DAY_NS


def is_too_old(day_ns: int, keep_days: int, newest_ns: int) -> bool:
    """Whether samples and step counts of the day that starts at `day_ns` may go; with 0 days to keep they never do.

    :param newest_ns: time of the newest sample, or now where that is earlier.
    """
    return keep_days > 0 and day_ns + DAY_NS <= newest_ns - keep_days * DAY_NS


def newest_sample_ns(session: Session) -> int | None:
    """Time of the newest sample of all; None: there is none."""
    times = [session.scalar(select(func.max(table.time_ns))) for table in _TABLES]
    return max((time_ns for time_ns in times if time_ns is not None), default=None)


def days_that_data_show(session: Session, keep_days: int, *, now: int | None = None) -> int:
    """Days to keep by this clock, so that nothing goes that is not `keep_days` older than the newest sample.

    :returns: 0, for ever, where there is no sample.
    """
    newest_ns = newest_sample_ns(session)
    if keep_days == 0 or newest_ns is None:
        return 0
    ahead_ns = max(0, (now_ns() if now is None else now) - newest_ns)
    return keep_days + -(-ahead_ns // DAY_NS)


def removed_days(session: Session, first_ns: int, last_ns: int) -> set[int]:
    """Starts of the days in this time whose samples and step counts are gone, and of which none are taken any more."""
    found = select(RemovedDay.day_ns).where(RemovedDay.day_ns >= day_of(first_ns), RemovedDay.day_ns <= last_ns)
    return set(session.scalars(found))


def is_removed(session: Session, run: Run) -> bool:
    """Whether a part of what the run's account was made of is gone: a new one would be worse."""
    return bool(removed_days(session, run.start_ns, run.end_ns if run.end_ns is not None else run.last_seen_ns))


def remove_samples(database: Database, *, keep_days: int, now: int | None = None) -> Removed:
    """Remove samples and step counts of days that ended more than `keep_days` before the newest sample; 0: none.
    See [Note: what may go].

    Safe to repeat, and to be killed at any point: what was begun is finished the next time.
    """
    removed = Removed()
    if keep_days == 0:
        return removed
    now = now_ns() if now is None else now
    deadline_s = time.monotonic() + BUDGET_S
    with database.session() as session:
        begun = session.scalars(select(RemovedDay.day_ns).where(RemovedDay.removed_ns.is_(None))).all()
        newest_ns = min(now, newest_sample_ns(session) or 0)
    for day_ns in begun:
        _clear(database, day_ns, now)
    day_ns = -DAY_NS
    while time.monotonic() < deadline_s:
        with database.session() as session:
            next_ns = _next_day(session, day_ns + DAY_NS)
            if next_ns is None or not is_too_old(next_ns, keep_days, newest_ns):
                break
            day_ns = next_ns
            run = session.scalar(_needed_by(day_ns))
        if run is not None:
            removed.kept[run] = removed.kept.get(run, 0) + 1
            continue
        for hour_ns in range(day_ns, day_ns + DAY_NS, rollups.HOUR_NS):
            with database.session() as session:
                rollups.roll_up_range(session, hour_ns, hour_ns + rollups.HOUR_NS)
        with database.session() as session:
            session.add(RemovedDay(day_ns=day_ns))
        removed.days += _clear(database, day_ns, now)
    return removed


def remove_minutes(database: Database, *, keep_days: int, now: int | None = None) -> int:
    """Remove the means per minute of runs that were over `keep_days` before the newest sample; 0: none. Returns how
    many runs.

    Means per hour stay as long as the run does.
    """
    if keep_days == 0:
        return 0
    now = now_ns() if now is None else now
    with database.session() as session:
        now = min(now, newest_sample_ns(session) or 0)
    minutes = and_(Rollup.run_id == Run.id, Rollup.width_ns == rollups.MINUTE_NS)
    found = select(Run.id).where(
        Run.state != RunState.RUNNING.value,
        Run.source.not_like("import:%"),
        _life_end() < now - keep_days * DAY_NS,
        select(Rollup.run_id).where(minutes).exists(),
    )
    count = 0
    while True:
        with database.session() as session:
            runs = session.scalars(found.limit(_RUNS_AT_ONCE)).all()
            _delete(session, Rollup, and_(Rollup.run_id.in_(runs), Rollup.width_ns == rollups.MINUTE_NS))
        if not runs:
            return count
        count += len(runs)


def _next_day(session: Session, from_ns: int) -> int | None:
    """Start of the first day with samples at or after `from_ns`."""
    times = [session.scalar(select(func.min(table.time_ns)).where(table.time_ns >= from_ns)) for table in _TABLES]
    first = min((time_ns for time_ns in times if time_ns is not None), default=None)
    return None if first is None else day_of(first)


def _life_end() -> ColumnElement[int]:
    return func.coalesce(Run.end_ns, Run.last_seen_ns)


def _lived_on(day_ns: int) -> ColumnElement[bool]:
    return and_(Run.start_ns < day_ns + DAY_NS, or_(_life_end() >= day_ns, Run.state == RunState.RUNNING.value))


def _needed_by(day_ns: int) -> Any:
    unsettled = or_(Run.state == RunState.RUNNING.value, Run.accounted_ns.is_(None), Run.accounted_ns < _life_end())
    kept = or_(unsettled, Run.source.like("import:%"))
    return select(Run.key).where(_lived_on(day_ns), kept).order_by(Run.start_ns, Run.id).limit(1)


def _clear(database: Database, day_ns: int, now: int) -> bool:
    """Remove every row of a day that was marked; False: a partition was busy, the rest is for the next time."""
    day = datetime.fromtimestamp(day_ns // NS_PER_S, UTC).date()
    for model in _TABLES:
        with database.session() as session:
            is_partition = day in partitions.list_partitions(session, model.__tablename__)
        if is_partition:
            if not _drop(database, model.__tablename__, day):
                return False
            continue
        for first_ns in range(day_ns, day_ns + DAY_NS, SLICE_NS):
            with database.session() as session:
                _delete(session, model, and_(model.time_ns >= first_ns, model.time_ns < first_ns + SLICE_NS))
    with database.session() as session:
        runs = session.scalars(select(Run.id).where(_lived_on(day_ns))).all()
    for run in runs:
        within = and_(StepStat.run_id == run, StepStat.time_ns >= day_ns, StepStat.time_ns < day_ns + DAY_NS)
        with database.session() as session:
            _delete(session, StepStat, within)
    with database.session() as session:  # the sums of the day stay
        _delete(
            session, UnallocatedHour, and_(UnallocatedHour.hour_ns >= day_ns, UnallocatedHour.hour_ns < day_ns + DAY_NS)
        )
        session.get_one(RemovedDay, day_ns).removed_ns = now
    return True


def _drop(database: Database, table: str, day: Any) -> bool:
    for attempt in range(TRIES):
        try:
            with database.session() as session:
                partitions.drop_partition(session, table, day)
        except OperationalError as error:
            why = " ".join(str(error.orig).split())
            log.debug("Partition %s of %s is busy at attempt %d: %s", day, table, attempt + 1, why)
            time.sleep(1)
        else:
            return True
    log.info("Partition %s of %s is too busy to be removed now", day, table)
    return False


def _delete(session: Session, model: Any, which: ColumnElement[bool]) -> None:
    session.execute(delete(model).where(which).execution_options(synchronize_session=False))
