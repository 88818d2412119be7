"""Imported fleets: what is known of each, and what its figures take for granted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import Fleet, Run, RunAccount, RunActivity
from tightship_platform.errors import NotFound
from tightship_platform.results.fleet import ImportedFleet


def list_fleets(session: Session) -> list[ImportedFleet]:
    """Imported fleets by name."""
    return [_imported(session, fleet) for fleet in session.scalars(select(Fleet).order_by(Fleet.name))]


def get_fleet(session: Session, name: str) -> ImportedFleet:
    """One imported fleet.

    :raises NotFound: there is none of that name.
    """
    fleet = session.scalar(select(Fleet).where(Fleet.name == name))
    if fleet is None:
        raise NotFound("fleet", name[:200], "`tightship fleets` lists them")
    return _imported(session, fleet)


def fleet_names(session: Session) -> list[str]:
    """Names of the imported fleets."""
    return list(session.scalars(select(Fleet.name).order_by(Fleet.name)))


def _imported(session: Session, fleet: Fleet) -> ImportedFleet:
    mine = Run.fleet_id == fleet.id
    awaits = func.sum(case((Run.accounted_ns.is_(None), 1), else_=0))
    life = select(func.count(), func.min(Run.start_ns), func.max(Run.end_ns), awaits).select_from(Run).where(mine)
    runs, since_ns, until_ns, unaccounted = session.execute(life).one()
    device_ns = _whole(session.scalar(select(func.sum(RunAccount.device_ns)).join(Run).where(mine)))
    activity = RunActivity.busy_ns, RunActivity.idle_ns, RunActivity.long_idle_ns
    measured: Any = select(*(func.sum(column) for column in activity)).select_from(RunActivity)
    measured = measured.join(Run, Run.id == RunActivity.run_id).where(mine)
    busy_ns, idle_ns, long_idle_ns = session.execute(measured).one()
    known = busy_ns is not None
    return ImportedFleet(
        fleet=fleet.name,
        format=fleet.format,
        team=fleet.team,
        assumptions=fleet.assumptions,
        refused=fleet.refused,
        rows=fleet.rows,
        runs=runs,
        since_ns=since_ns,
        until_ns=until_ns,
        device_ns=device_ns,
        unaccounted_runs=_whole(unaccounted),
        busy_ns=_whole(busy_ns) if known else None,
        idle_ns=_whole(idle_ns) if known else None,
        unmeasured_ns=device_ns - _whole(busy_ns) - _whole(idle_ns),
        long_idle_ns=_whole(long_idle_ns) if known else None,
        imported_ns=fleet.done_ns,
    )


def _whole(total: Any) -> int:
    """A sum as the database has it: null of nothing, a decimal of large integers."""
    return int(total or 0)
