"""Where device time went, by fleet, team, workflow, state or run, over all that is known. Exact, in integers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, and_, case, distinct, func, literal_column, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_platform.database.models import (
    Allocation,
    Fleet,
    PastAccount,
    Run,
    RunAccount,
    RunActivity,
    UnallocatedDay,
    Workflow,
)
from tightship_platform.errors import Invalid
from tightship_platform.queries.filtered import in_fleet
from tightship_platform.queries.fleet import NO_TEAM, NOBODY
from tightship_platform.queries.goodput import Terms, goodput
from tightship_platform.results.filters import Filters
from tightship_platform.results.fleet import AccountGroup
from tightship_platform.results.run_account import KEPT
from tightship_platform.vocabulary import LIVE, AccountBy, Bucket

MAX_GROUPS = 10_000
REMOVED = "(removed)"
"""Group of runs that are gone, where they are asked for by state or by run: their device time stays."""
Key = ColumnElement[Any] | InstrumentedAttribute[Any]


@dataclass
class _Group:
    runs: int = 0
    devices: int | None = 0
    busy_ns: int = 0
    idle_ns: int = 0
    measured: int = 0
    """Runs with activity that was measured."""
    waiting_ns: int = 0
    waiting_runs: int = 0
    terms: Terms = field(default_factory=Terms)
    buckets: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


def account_groups(
    session: Session,
    by: AccountBy,
    *,
    fleet: str | None = None,
    all_fleets: bool = False,
    limit: int = MAX_GROUPS,
) -> list[AccountGroup]:
    """The groups, the largest first.

    :param fleet: an imported one; None: the live one.
    :param all_fleets: of every fleet; only by fleet, as fleets are never mixed.
    :raises NotFound: there is no such fleet.
    :raises Invalid: a limit out of range.
    """
    if not 1 <= limit <= MAX_GROUPS:
        raise Invalid("limit", limit, f"1 to {MAX_GROUPS}")
    if all_fleets and by != AccountBy.FLEET:
        raise Invalid("by", by, "fleet, where all fleets are asked for")
    wanted = true() if all_fleets else in_fleet(session, Filters(fleet=fleet), Run.fleet_id)
    key = _KEYS[by]
    groups: defaultdict[str, _Group] = defaultdict(_Group)
    _add_runs(session, groups, key, wanted)
    if fleet is None:
        _add_past(session, groups, by)
        _add_unallocated(session, groups, by)
    made = [_group(name, group) for name, group in groups.items()]
    return sorted(made, key=lambda one: (-one.device_ns, one.key))[:limit]


# Written out: PostgreSQL takes two parameters of one value for two different expressions in GROUP BY.
_LIVE: ColumnElement[str] = literal_column(f"'{LIVE}'")
_NO_TEAM: ColumnElement[str] = literal_column(f"'{NO_TEAM}'")
_FLEET = func.coalesce(select(Fleet.name).where(Fleet.id == Run.fleet_id).correlate(Run).scalar_subquery(), _LIVE)
_IS_PROGRESS = and_(
    RunAccount.bucket.in_([bucket.value for bucket in KEPT]),
    or_(RunAccount.bucket != Bucket.UNEXPLAINED.value, Run.steps > 0),
)
"""Work that was kept; what is unexplained of a run that counted no steps may have been anything."""
_KEYS: dict[AccountBy, Key] = {
    AccountBy.FLEET: _FLEET,
    AccountBy.TEAM: func.coalesce(Workflow.team, _NO_TEAM),
    AccountBy.WORKFLOW: Workflow.name,
    AccountBy.STATE: Run.state,
    AccountBy.RUN: Run.key,
}


def _add_runs(session: Session, groups: defaultdict[str, _Group], key: Key, wanted: ColumnElement[bool]) -> None:
    which = (wanted, Run.accounted_ns.is_not(None))
    name = key.label("name")
    runs = (
        select(
            name,
            func.count(Run.id),
            func.count(RunActivity.run_id),
            func.sum(RunActivity.busy_ns),
            func.sum(RunActivity.idle_ns),
            func.sum(Run.start_ns - Run.eligible_ns),
            func.count(Run.eligible_ns),
            func.sum(Run.ideal_ns),
        )
        .select_from(Run)
        .join(Workflow, Workflow.id == Run.workflow_id)
        .outerjoin(RunActivity, RunActivity.run_id == Run.id)
        .where(*which)
        .group_by(name)
    )
    for row in session.execute(runs):
        group = groups[row[0]]
        group.runs, group.measured, group.busy_ns, group.idle_ns, *rest = (int(value or 0) for value in row[1:])
        group.waiting_ns, group.waiting_runs, group.terms.ideal_ns = rest
    unnamed = func.max(case((Fleet.names_devices.is_(False), 1), else_=0))
    devices = (
        select(name, func.count(distinct(Allocation.device_id)), unnamed)
        .select_from(Run)
        .join(Workflow, Workflow.id == Run.workflow_id)
        .join(Allocation, Allocation.run_id == Run.id)
        .outerjoin(Fleet, Fleet.id == Run.fleet_id)
        .where(*which)
        .group_by(name)
    )
    for row in session.execute(devices):
        groups[row[0]].devices = None if row[2] else int(row[1])
    buckets = (
        select(
            name,
            RunAccount.bucket,
            func.sum(RunAccount.device_ns),
            func.sum(case((_IS_PROGRESS, RunAccount.device_ns), else_=0)),
            func.sum(case((and_(_IS_PROGRESS, Run.ideal_ns.is_not(None)), RunAccount.device_ns), else_=0)),
        )
        .select_from(Run)
        .join(Workflow, Workflow.id == Run.workflow_id)
        .join(RunAccount, RunAccount.run_id == Run.id)
        .where(*which)
        .group_by(name, RunAccount.bucket)
    )
    for row in session.execute(buckets):
        group = groups[row[0]]
        group.buckets[row[1]] += int(row[2] or 0)
        group.terms.add(row[1], int(row[2] or 0), progress_ns=int(row[3] or 0), rated_ns=int(row[4] or 0))


def _add_past(session: Session, groups: defaultdict[str, _Group], by: AccountBy) -> None:
    """What is left of runs that were removed; nothing of an imported fleet is."""
    for past in session.scalars(select(PastAccount)):
        names = {AccountBy.FLEET: LIVE, AccountBy.TEAM: past.team or NO_TEAM, AccountBy.WORKFLOW: past.workflow}
        group = groups[names.get(by, REMOVED)]
        group.runs += past.runs
        group.devices = None
        for bucket, device_ns in past.buckets.items():
            group.buckets[bucket] += device_ns
            # What is left of it does not tell whether it made steps.
            group.terms.add(bucket, device_ns, progress_ns=0 if bucket == Bucket.UNEXPLAINED else device_ns, rated_ns=0)


def _add_unallocated(session: Session, groups: defaultdict[str, _Group], by: AccountBy) -> None:
    """Of the live fleet, what no run held."""
    sums = UnallocatedDay.device_ns, UnallocatedDay.measured_ns, UnallocatedDay.busy_ns
    row = session.execute(select(func.count(), *map(func.sum, sums)).select_from(UnallocatedDay)).one()
    days, device_ns, measured_ns, busy_ns = (int(value or 0) for value in row)
    if not days:
        return
    if device_ns:
        group = groups[LIVE if by == AccountBy.FLEET else NOBODY]
        group.devices = group.devices if group.runs else None
        group.buckets[Bucket.UNALLOCATED] += device_ns
        group.busy_ns, group.idle_ns = group.busy_ns + busy_ns, group.idle_ns + measured_ns - busy_ns
        group.measured += measured_ns > 0
    if by == AccountBy.FLEET and LIVE in groups:
        groups[LIVE].terms.unallocated_ns = device_ns


def _group(name: str, group: _Group) -> AccountGroup:
    device_ns = sum(group.buckets.values())
    known = group.measured > 0
    return AccountGroup(
        key=name,
        runs=group.runs,
        devices=group.devices,
        device_ns=device_ns,
        busy_ns=group.busy_ns if known else None,
        idle_ns=group.idle_ns if known else None,
        unmeasured_ns=device_ns - group.busy_ns - group.idle_ns,
        buckets={bucket.value: group.buckets.get(bucket.value, 0) for bucket in Bucket}
        | {name: ns for name, ns in group.buckets.items() if name not in [b.value for b in Bucket]},
        waiting_ns=group.waiting_ns if group.waiting_runs else None,
        waiting_runs=group.waiting_runs,
        goodput=goodput(group.terms),
    )
