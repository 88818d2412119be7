"""Device time of runs that were removed, as sums of each day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from sqlalchemy import select, tuple_, update
from sqlalchemy.orm import Session

from tightship_platform.database.locks import begin_writing
from tightship_platform.database.models import PastAccount, Run
from tightship_platform.database.upsert import add_missing, table_of
from tightship_platform.samples.retention import DAY_NS, day_of

DELETED = "(deleted)"
"""In place of the name of a workflow whose runs a person deleted."""
MOST_DAYS = 3660
"""Days over which the device time of one run is spread, its last ones: ten years."""


def spent_until(device_ns: int, time_ns: int, start_ns: int, end_ns: int) -> int:
    """Device time, out of `device_ns` between start and end, before an instant; in whole nanoseconds by cumulative
    division, so that parts of the whole add up to it. What takes no time is spent right after its start."""
    if time_ns >= end_ns:
        return device_ns if time_ns > start_ns else 0
    return device_ns * (time_ns - start_ns) // (end_ns - start_ns) if time_ns > start_ns else 0


def keep(session: Session, run: Run, account: Mapping[str, int], *, keeps_names: bool) -> None:
    """Add a run that is about to go to the sums of its days."""
    workflow, team, run_team = run.workflow.name, run.workflow.team or "", run.team or ""
    names = (workflow, team, run_team) if keeps_names else (DELETED, "", "")
    days = dict(_by_day(run, account))
    table = table_of(PastAccount)
    key = tuple_(table.c.day_ns, table.c.workflow, table.c.team, table.c.run_team)
    columns = ("day_ns", "workflow", "team", "run_team")
    empty = {"simulated": False, "runs": 0, "buckets": {}}
    for first in range(0, len(ordered := sorted(days)), 200):
        wanted = [(day, *names) for day in ordered[first : first + 200]]
        begin_writing(session)
        add_missing(session, PastAccount, [dict(zip(columns, one, strict=True)) | empty for one in wanted])
        # Of the table, not the class: these sums may be out of sight of the team whose run goes.
        rows = session.execute(select(table).where(key.in_(wanted)).order_by(table.c.day_ns).with_for_update())
        for row in rows.all():
            buckets = defaultdict(int, row.buckets)
            for bucket, device_ns in days[row.day_ns].items():
                buckets[bucket] += device_ns
            changed = {
                "simulated": row.simulated or run.simulated,
                "runs": row.runs + (row.day_ns == ordered[0]),
                "buckets": dict(buckets),
            }
            this = [table.c[name] == getattr(row, name) for name in columns]
            session.execute(update(table).where(*this).values(**changed))


def _by_day(run: Run, account: Mapping[str, int]) -> Iterator[tuple[int, dict[str, int]]]:
    """Start of each day on which the run lived → bucket → device-ns."""
    start_ns = run.start_ns
    end_ns = max(start_ns, run.end_ns if run.end_ns is not None else run.last_seen_ns)
    last = day_of(max(start_ns, end_ns - 1))
    first = max(day_of(start_ns), last - (MOST_DAYS - 1) * DAY_NS)
    before = dict.fromkeys(account, 0)
    for day_ns in range(first, last + DAY_NS, DAY_NS):
        until = {name: spent_until(ns, day_ns + DAY_NS, start_ns, end_ns) for name, ns in account.items()}
        yield day_ns, {name: until[name] - before[name] for name in account if until[name] != before[name]}
        before = until
