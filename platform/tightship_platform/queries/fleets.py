"""Imported fleets: what is known of each, and what its figures take for granted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from tightship_platform.database.exact_sum import exact_sum
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
    device_ns = session.scalar(select(exact_sum(RunAccount.device_ns)).join(Run).where(mine)) or 0
    activity = RunActivity.busy_ns, RunActivity.idle_ns, RunActivity.long_idle_ns
    measured: Any = select(*map(exact_sum, activity)).select_from(RunActivity)
    measured = measured.join(Run, Run.id == RunActivity.run_id).where(mine)
    busy_ns, idle_ns, long_idle_ns = session.execute(measured).one()
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
        unaccounted_runs=unaccounted or 0,
        busy_ns=busy_ns,
        idle_ns=idle_ns,
        unmeasured_ns=device_ns - (busy_ns or 0) - (idle_ns or 0),
        long_idle_ns=long_idle_ns,
        imported_ns=fleet.done_ns,
    )
