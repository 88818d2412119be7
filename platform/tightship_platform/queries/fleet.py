"""Where the device time of the whole fleet went.

[Note: runs that only partly lie in the period] An account says how much of a run's device time went where, not when.
It is taken to be spread evenly over the run's life, in whole nanoseconds by cumulative division: what is before and
after any instant adds up to the whole exactly, so periods and slices of periods always sum. Of runs that
were removed the sums of each day are left, which are spread over the day; as runs they count where they began in the
period. What no run held is known as a sum of each day, too, and is spread over the part of it that was counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import Any

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session

from tightship_platform.database.models import PastAccount, Run, RunAccount, UnallocatedDay, Workflow
from tightship_platform.errors import Invalid
from tightship_platform.queries.filtered import in_fleet
from tightship_platform.results.filters import Filters
from tightship_platform.results.fleet import FleetAccount, FleetSlice
from tightship_platform.samples.past_accounts import spent_until
from tightship_platform.samples.retention import DAY_NS, day_of
from tightship_platform.units import NS_PER_S
from tightship_platform.vocabulary import Bucket

SLICES = 60
"""Points of `over_time`, at most."""
NO_TEAM = "(no team)"
NOBODY = "(nobody)"
"""In place of a team or a workflow: of what no run held."""
Counts = defaultdict[str, int]


def fleet_account(session: Session, *, since_ns: int, until_ns: int, fleet: str | None = None) -> FleetAccount:
    """Device time of the period by bucket, in all, by team, by workflow and over time. Every part sums to the whole.

    :param fleet: an imported one; None: the live one.
    :raises Invalid: the period is empty.
    :raises NotFound: there is no such fleet.
    """
    of_fleet = in_fleet(session, Filters(fleet=fleet), Run.fleet_id)
    if not since_ns < until_ns:
        raise Invalid("Period", f"{since_ns} to {until_ns}", "since_ns before until_ns")
    width_ns = _width(since_ns, until_ns)
    total: Counts = defaultdict(int)
    teams: defaultdict[str, Counts] = defaultdict(lambda: defaultdict(int))
    workflows: defaultdict[str, Counts] = defaultdict(lambda: defaultdict(int))
    slices: defaultdict[int, Counts] = defaultdict(lambda: defaultdict(int))
    runs = 0
    simulated = False

    def add(start_ns: int, end_ns: int, workflow: str, team: str | None, buckets: Iterable[tuple[str, int]]) -> None:
        """Spread what was spent from start to end over the period."""
        edges = _edges(max(start_ns, since_ns), min(end_ns, until_ns), since_ns, width_ns)
        for bucket, device_ns in buckets:
            before = spent_until(device_ns, edges[0], start_ns, end_ns)
            reported = before
            for slice_ns, edge_ns in pairwise(edges):
                until = spent_until(device_ns, edge_ns, start_ns, end_ns)
                slices[(slice_ns - since_ns) // width_ns][bucket] += until - reported
                reported = until
            for counts in (total, teams[team or NO_TEAM], workflows[workflow]):
                counts[bucket] += reported - before

    rows = session.execute(_accounts(since_ns, until_ns).where(of_fleet))
    for (_, run_simulated, start_ns, end_ns, workflow, team), of_run in groupby(rows, key=lambda row: row[:6]):
        runs += 1
        simulated = simulated or bool(run_simulated)
        add(start_ns, end_ns, workflow, team, ((bucket, device_ns) for *_, bucket, device_ns in of_run))
    # Of an imported fleet nothing stays of what was removed.
    for past in session.scalars(_past_accounts(since_ns, until_ns)) if fleet is None else ():
        runs += past.runs if past.day_ns >= day_of(since_ns) else 0
        simulated = simulated or past.simulated
        add(past.day_ns, past.day_ns + DAY_NS, past.workflow, past.team, past.buckets.items())
    for day in session.scalars(_unallocated(since_ns, until_ns)) if fleet is None else ():
        add(day.since_ns, day.until_ns, NOBODY, NOBODY, [(Bucket.UNALLOCATED, day.device_ns)])
    return FleetAccount(
        since_ns=since_ns,
        until_ns=until_ns,
        device_ns=sum(total.values()),
        runs=runs,
        unaccounted_runs=_unaccounted(session, since_ns, until_ns, of_fleet),
        buckets=_all_buckets(total),
        by_team=_largest_first(teams),
        by_workflow=_largest_first(workflows),
        over_time=[
            FleetSlice(time_ns=since_ns + i * width_ns, buckets=_all_buckets(slices[i])) for i in sorted(slices)
        ],
        slice_ns=width_ns,
        simulated=simulated,
    )


def _accounts(since_ns: int, until_ns: int) -> Any:
    life_end = func.coalesce(Run.end_ns, Run.last_seen_ns)
    return (
        select(
            Run.id,
            Run.simulated,
            Run.start_ns,
            life_end.label("life_end_ns"),
            Workflow.name.label("workflow"),
            Workflow.team,
            RunAccount.bucket,
            RunAccount.device_ns,
        )
        .join(RunAccount, RunAccount.run_id == Run.id)
        .join(Workflow, Workflow.id == Run.workflow_id)
        .where(Run.start_ns < until_ns, or_(life_end > since_ns, Run.start_ns >= since_ns), RunAccount.device_ns > 0)
        .order_by(Run.id)
    )


def _past_accounts(since_ns: int, until_ns: int) -> Select[PastAccount]:
    within = PastAccount.day_ns > since_ns - DAY_NS, PastAccount.day_ns < until_ns
    return select(PastAccount).where(*within).order_by(PastAccount.day_ns)


def _unallocated(since_ns: int, until_ns: int) -> Select[UnallocatedDay]:
    within = UnallocatedDay.since_ns < until_ns, UnallocatedDay.until_ns > since_ns, UnallocatedDay.device_ns > 0
    return select(UnallocatedDay).where(*within).order_by(UnallocatedDay.day_ns)


def _unaccounted(session: Session, since_ns: int, until_ns: int, of_fleet: ColumnElement[bool]) -> int:
    life_end = func.coalesce(Run.end_ns, Run.last_seen_ns)
    wanted = select(func.count()).where(
        Run.start_ns < until_ns,
        or_(life_end > since_ns, Run.start_ns >= since_ns),
        Run.accounted_ns.is_(None),
        of_fleet,
    )
    return session.scalar(wanted.select_from(Run)) or 0


def _edges(first: int, last: int, since_ns: int, width_ns: int) -> list[int]:
    """first, the borders of slices between, last; an instant is one nanosecond."""
    last = max(last, first + 1)
    return [first, *range(first - (first - since_ns) % width_ns + width_ns, last, width_ns), last]


def _width(since_ns: int, until_ns: int) -> int:
    """A width that people know, such that there are at most SLICES slices."""
    least = -(-(until_ns - since_ns) // SLICES)
    steps = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 7 * 86_400, 30 * 86_400)
    return next((step * NS_PER_S for step in steps if step * NS_PER_S >= least), least)


def _all_buckets(found: dict[str, int]) -> dict[str, int]:
    return {bucket.value: found.get(bucket.value, 0) for bucket in Bucket}


def _largest_first(groups: dict[str, Counts]) -> dict[str, dict[str, int]]:
    order = sorted(groups, key=lambda name: (-sum(groups[name].values()), name))
    return {name: _all_buckets(groups[name]) for name in order}
