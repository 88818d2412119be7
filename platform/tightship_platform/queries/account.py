"""Where the device time of a fleet went, in a period. Exact, in integers.

The database sums the runs that lie in one slice of the period whole; only those that cross the border of one are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, and_, case, distinct, func, literal_column, not_, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_platform.database.exact_sum import exact_sum
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
from tightship_platform.queries.account_sums import Counts, Group, Sums
from tightship_platform.queries.filtered import Conditions, checked_state, in_fleet, of_runs, with_rule, without
from tightship_platform.queries.goodput import Terms, goodput
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.results.fleet import NO_TEAM, NOBODY, AccountGroup, FleetAccount, FleetSlice
from tightship_platform.results.run_account import KEPT, losses
from tightship_platform.samples.retention import DAY_NS, day_of
from tightship_platform.units import now_ns
from tightship_platform.vocabulary import LIVE, AccountBy, Bucket, RunState

WEEK_NS = 7 * DAY_NS
"""The period, where none is asked for."""
MAX_GROUPS = 10_000
REMOVED = "(removed)"
"""Group of runs that are gone, where they are asked for by state or by run: their device time stays."""
_FLEET_NAME = select(Fleet.name).where(Fleet.id == Run.fleet_id).correlate(Run).scalar_subquery()
_KEYS: dict[AccountBy, ColumnElement[Any] | InstrumentedAttribute[Any]] = {
    # Written out: PostgreSQL takes two parameters of one value for two different expressions in GROUP BY.
    AccountBy.FLEET: func.coalesce(_FLEET_NAME, literal_column(f"'{LIVE}'")),
    AccountBy.TEAM: func.coalesce(Workflow.team, literal_column(f"'{NO_TEAM}'")),
    AccountBy.WORKFLOW: Workflow.name,
    AccountBy.STATE: Run.state,
    AccountBy.RUN: Run.key,
}
_IS_PROGRESS = and_(
    RunAccount.bucket.in_([bucket.value for bucket in KEPT]),
    or_(RunAccount.bucket != Bucket.UNEXPLAINED.value, Run.steps > 0),
)
_LIFE_END = func.coalesce(Run.end_ns, Run.last_seen_ns)


def fleet_account(
    session: Session,
    by: AccountBy = AccountBy.TEAM,
    filters: Filters = ALL,
    *,
    now: int | None = None,
    limit: int = MAX_GROUPS,
) -> FleetAccount:
    """Device time of one fleet in a period, by bucket: in all, by group and over time. Every part sums to the whole.

    :param filters: which runs count, and when; without a time the last seven days, of an imported fleet all of it.
    :param now: until when; None: until now.
    :param limit: groups at most, those with the most unproductive time.
    :raises Invalid: no such state, a limit out of range, or an empty period.
    :raises NotFound: there is no such fleet.
    """
    if not 1 <= limit <= MAX_GROUPS:
        raise Invalid("limit", limit, f"1 to {MAX_GROUPS}")
    state = checked_state(filters, RunState)
    of_fleet = in_fleet(session, filters, Run.fleet_id)
    since_ns, until_ns = _period(session, filters, of_fleet, now_ns() if now is None else now)
    sums = Sums(since_ns, until_ns)
    wanted = [
        of_fleet,
        *of_runs(session, filters),
        *with_rule(filters),
        *([] if state is None else [Run.state == state]),
    ]
    wanted += [Run.start_ns < until_ns, or_(since_ns < _LIFE_END, Run.start_ns >= since_ns)]
    unaccounted = select(func.count()).select_from(Run).where(*wanted, Run.accounted_ns.is_(None))
    counted = [*wanted, Run.accounted_ns.is_not(None)]
    _count_runs(session, sums, _KEYS[by], counted)
    _sum_whole_runs(session, sums, _KEYS[by], counted)
    _spread_runs(session, sums, _KEYS[by], counted)
    _spread_past(session, sums, by, filters)
    terms = Terms(unallocated_ns=_spread_unallocated(session, sums, by, filters))
    total: Counts = defaultdict(int)
    for bucket, device_ns in (pair for group in sums.groups.values() for pair in group.buckets.items()):
        total[bucket] += device_ns
    for group in sums.groups.values():
        terms.include(group.terms)
        if by is AccountBy.FLEET:
            group.terms.unallocated_ns = terms.unallocated_ns
    groups = [_group(name, group) for name, group in sums.groups.items()]
    waiting_runs = sum(group.waiting_runs for group in groups)
    return FleetAccount(
        fleet=filters.fleet or LIVE,
        by=by.value,
        since_ns=since_ns,
        until_ns=until_ns,
        device_ns=sum(total.values()),
        unproductive_ns=_unproductive(total),
        runs=sum(group.runs for group in groups),
        unaccounted_runs=session.scalar(unaccounted) or 0,
        buckets=_all_buckets(total),
        groups=sorted(groups, key=lambda one: (-one.unproductive_ns, -one.device_ns, one.key))[:limit],
        over_time=[
            FleetSlice(time_ns=since_ns + i * sums.width_ns, buckets=_all_buckets(sums.slices[i]))
            for i in sorted(sums.slices)
        ],
        slice_ns=sums.width_ns,
        simulated=sums.is_simulated,
        waiting_ns=sum(group.waiting_ns or 0 for group in groups) if waiting_runs else None,
        waiting_runs=waiting_runs,
        goodput=goodput(terms),
    )


def _period(session: Session, filters: Filters, of_fleet: ColumnElement[bool], now: int) -> tuple[int, int]:
    since_ns, until_ns = filters.since_ns, filters.until_ns
    if filters.fleet is not None and (since_ns is None or until_ns is None):
        life = select(func.min(Run.start_ns), func.max(_LIFE_END), func.max(Run.start_ns)).where(of_fleet)
        first_ns, end_ns, last_ns = session.execute(life).one()
        since_ns = (first_ns or 0) if since_ns is None else since_ns
        until_ns = max(end_ns or 0, (last_ns or 0) + 1) if until_ns is None else until_ns
    until_ns = now if until_ns is None else until_ns
    since_ns = max(0, until_ns - WEEK_NS) if since_ns is None else since_ns
    if not since_ns < until_ns:
        raise Invalid("Period", f"{since_ns} to {until_ns} ns", "a start before its end")
    return since_ns, until_ns


def _count_runs(session: Session, sums: Sums, key: Any, counted: Conditions) -> None:
    """Runs, how long they waited, and the devices that they held."""
    name = key.label("name")
    simulated = func.max(case((Run.simulated, 1), else_=0))
    waits = exact_sum(Run.start_ns - Run.eligible_ns), func.count(Run.eligible_ns)
    runs = select(name, simulated, func.count(Run.id), *waits).select_from(Run)
    runs = runs.join(Workflow, Workflow.id == Run.workflow_id).where(*counted).group_by(name)
    for row in session.execute(runs):
        group = sums.groups[row[0]]
        sums.is_simulated = sums.is_simulated or bool(row[1])
        group.runs, group.waiting_ns, group.waiting_runs = (int(value or 0) for value in row[2:])
    unnamed = func.max(case((Fleet.names_devices.is_(False), 1), else_=0))
    devices = (
        select(name, func.count(distinct(Allocation.device_id)), unnamed)
        .select_from(Run)
        .join(Workflow, Workflow.id == Run.workflow_id)
        .join(Allocation, Allocation.run_id == Run.id)
        .outerjoin(Fleet, Fleet.id == Run.fleet_id)
        .where(*counted)
        .group_by(name)
    )
    for row in session.execute(devices):
        sums.groups[row[0]].devices = None if row[2] else int(row[1])


def _sum_whole_runs(session: Session, sums: Sums, key: Any, counted: Conditions) -> None:
    """What runs spent that lie in one slice whole."""
    whole = [*counted, _lies_in_a_slice(sums)]
    name, number = key.label("name"), _slice_of(sums, Run.start_ns).label("number")

    def select_of(*columns: Any) -> Select[Any]:
        chosen = select(*columns).select_from(Run).join(Workflow, Workflow.id == Run.workflow_id)
        return chosen.join(RunAccount, RunAccount.run_id == Run.id).where(*whole)

    spent = exact_sum(RunAccount.device_ns)
    progress = exact_sum(case((_IS_PROGRESS, RunAccount.device_ns), else_=0))
    rated = exact_sum(case((and_(_IS_PROGRESS, Run.ideal_ns.is_not(None)), RunAccount.device_ns), else_=0))
    by_bucket = select_of(name, RunAccount.bucket, spent, progress, rated).group_by(name, RunAccount.bucket)
    for group, bucket, *sums_ns in session.execute(by_bucket):
        device_ns, progress_ns, rated_ns = (int(value or 0) for value in sums_ns)
        sums.groups[group].buckets[bucket] += device_ns
        sums.groups[group].terms.add(bucket, device_ns, progress_ns=progress_ns, rated_ns=rated_ns)
    for position, bucket, device_ns in session.execute(
        select_of(number, RunAccount.bucket, spent).group_by(number, RunAccount.bucket)
    ):
        if device_ns:
            sums.slices[int(position)][bucket] += int(device_ns)
    of_runs_ns = (
        select(name, exact_sum(Run.ideal_ns), exact_sum(RunActivity.busy_ns), exact_sum(RunActivity.idle_ns))
        .select_from(Run)
        .join(Workflow, Workflow.id == Run.workflow_id)
        .outerjoin(RunActivity, RunActivity.run_id == Run.id)
        .where(*whole)
        .group_by(name)
    )
    for group, ideal_ns, busy_ns, idle_ns in session.execute(of_runs_ns):
        sums.groups[group].terms.ideal_ns += int(ideal_ns or 0)
        if busy_ns is not None:
            sums.groups[group].add_activity((int(busy_ns), int(idle_ns)))


def _spread_runs(session: Session, sums: Sums, key: Any, counted: Conditions) -> None:
    """What runs spent that cross the border of a slice, or of the period."""
    of_run = (key, Run.start_ns, _LIFE_END, Run.steps, Run.ideal_ns, RunActivity.busy_ns, RunActivity.idle_ns)
    crossing = (
        select(Run.id, *of_run, RunAccount.bucket, RunAccount.device_ns)
        .select_from(Run)
        .join(Workflow, Workflow.id == Run.workflow_id)
        .join(RunAccount, RunAccount.run_id == Run.id)
        .outerjoin(RunActivity, RunActivity.run_id == Run.id)
        .where(*counted, not_(_lies_in_a_slice(sums)), RunAccount.device_ns > 0)
        .order_by(Run.id)
    )
    for of, rows in groupby(session.execute(crossing), lambda row: row[:8]):
        _, name, start_ns, end_ns, steps, ideal_ns, busy_ns, idle_ns = of
        group, buckets = sums.groups[name], {row[8]: row[9] for row in rows}
        part, whole_ns = sums.spread(group, start_ns, end_ns, buckets), sum(buckets.values())
        for bucket, device_ns in part.buckets.items():
            progress_ns = device_ns if _is_progress(bucket, bool(steps)) else 0
            rated_ns = 0 if ideal_ns is None else progress_ns
            group.terms.add(bucket, device_ns, progress_ns=progress_ns, rated_ns=rated_ns)
        ideal_ns = ideal_ns or 0
        group.terms.ideal_ns += part.until_ns * ideal_ns // whole_ns - part.before_ns * ideal_ns // whole_ns
        if busy_ns is not None:
            group.add_activity(part.activity(whole_ns, busy_ns, idle_ns))


def _spread_past(session: Session, sums: Sums, by: AccountBy, filters: Filters) -> None:
    """What is left of runs that were removed: nothing but their workflow and team. Of an imported fleet nothing is."""
    if without(filters, "since_ns", "until_ns", "workflow", "team") != ALL:
        return
    wanted = select(PastAccount).where(
        PastAccount.day_ns > sums.since_ns - DAY_NS,
        PastAccount.day_ns < sums.until_ns,
        *([] if filters.workflow is None else [PastAccount.workflow == filters.workflow]),
        *([] if filters.team is None else [PastAccount.team == filters.team]),
    )
    for past in session.scalars(wanted.order_by(PastAccount.day_ns)):
        names = {AccountBy.FLEET: LIVE, AccountBy.TEAM: past.team or NO_TEAM, AccountBy.WORKFLOW: past.workflow}
        group = sums.groups[names.get(by, REMOVED)]
        group.runs += past.runs if past.day_ns >= day_of(sums.since_ns) else 0
        group.devices = None
        sums.is_simulated = sums.is_simulated or past.simulated
        for bucket, device_ns in sums.spread(group, past.day_ns, past.day_ns + DAY_NS, past.buckets).buckets.items():
            # What is left of it does not tell whether it made steps.
            progress_ns = device_ns if _is_progress(bucket, has_steps=False) else 0
            group.terms.add(bucket, device_ns, progress_ns=progress_ns, rated_ns=0)


def _spread_unallocated(session: Session, sums: Sums, by: AccountBy, filters: Filters) -> int | None:
    """What no run held, of the live fleet as a whole; answers how much that was, None where nobody has counted it."""
    if without(filters, "since_ns", "until_ns") != ALL:
        return None
    within = UnallocatedDay.since_ns < sums.until_ns, UnallocatedDay.until_ns > sums.since_ns
    days = session.scalars(select(UnallocatedDay).where(*within).order_by(UnallocatedDay.day_ns)).all()
    total_ns = 0
    for day in days:
        if not day.device_ns:
            continue
        group = sums.groups[LIVE if by is AccountBy.FLEET else NOBODY]
        group.devices = group.devices if group.runs else None
        part = sums.spread(group, day.since_ns, day.until_ns, {Bucket.UNALLOCATED: day.device_ns})
        total_ns += part.buckets[Bucket.UNALLOCATED]
        if day.measured_ns:
            group.add_activity(part.activity(day.device_ns, day.busy_ns, day.measured_ns - day.busy_ns))
    return total_ns if days else None


def _is_progress(bucket: str, has_steps: bool) -> bool:
    """It is work that was kept; what is unexplained of a run that counted no steps may have been anything."""
    return bucket in KEPT and (has_steps or bucket != Bucket.UNEXPLAINED)


def _lies_in_a_slice(sums: Sums) -> ColumnElement[bool]:
    last_ns = case((Run.start_ns < _LIFE_END, _LIFE_END - 1), else_=Run.start_ns)
    return and_(
        Run.start_ns >= sums.since_ns,
        sums.until_ns >= _LIFE_END,
        _slice_of(sums, Run.start_ns) == _slice_of(sums, last_ns),
    )


def _slice_of(sums: Sums, time_ns: Any) -> ColumnElement[int]:
    since, width = (literal_column(str(ns), BigInteger) for ns in (sums.since_ns, sums.width_ns))
    number: ColumnElement[int] = (time_ns - since) // width
    return number


def _all_buckets(found: Mapping[str, int]) -> dict[str, int]:
    return {bucket.value: found.get(bucket.value, 0) for bucket in Bucket} | dict(found)


def _unproductive(buckets: Mapping[str, int]) -> int:
    return sum(device_ns for _, device_ns in losses(buckets))


def _group(name: str, group: Group) -> AccountGroup:
    device_ns = sum(group.buckets.values())
    return AccountGroup(
        key=name,
        runs=group.runs,
        devices=group.devices,
        device_ns=device_ns,
        unproductive_ns=_unproductive(group.buckets),
        busy_ns=group.busy_ns if group.is_measured else None,
        idle_ns=group.idle_ns if group.is_measured else None,
        unmeasured_ns=device_ns - group.busy_ns - group.idle_ns,
        buckets=_all_buckets(group.buckets),
        waiting_ns=group.waiting_ns if group.waiting_runs else None,
        waiting_runs=group.waiting_runs,
        goodput=goodput(group.terms),
    )
