"""Runs, and where their device time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from tightship_platform.database import ids, models
from tightship_platform.errors import Invalid
from tightship_platform.queries.allocations import held_intervals, held_ns
from tightship_platform.queries.filtered import checked_state, in_fleet, of_runs, with_rule, within
from tightship_platform.queries.offload import offload_of
from tightship_platform.queries.pages import following, ordered
from tightship_platform.results.codec import decode
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.results.host import Device
from tightship_platform.results.run import Run, RunDetail, RunRank
from tightship_platform.vocabulary import LIVE, Bucket, RunState

MAX_LIMIT = 10_000
_NEWEST_FIRST = ((models.Run.start_ns, True), (models.Run.id, True))


def list_runs(session: Session, filters: Filters = ALL, *, after: str | None = None, limit: int = 200) -> list[Run]:
    """Runs of a fleet, newest first; times are those of their starts.

    :param after: those that come after this one: the last one of the page before.
    :raises Invalid: no such state, or a limit out of range.
    :raises NotFound: there is no run `after` any more.
    """
    state = checked_state(filters, RunState)
    wanted = select(models.Run).options(joinedload(models.Run.workflow)).order_by(*ordered(_NEWEST_FIRST))
    wanted = wanted.where(in_fleet(session, filters, models.Run.fleet_id))
    wanted = wanted.where(*of_runs(session, filters), *with_rule(filters), *within(filters, models.Run.start_ns))
    if after is not None:
        last = find_run(session, after)
        wanted = wanted.where(following(_NEWEST_FIRST, (last.start_ns, last.id)))
    if state is not None:
        wanted = wanted.where(models.Run.state == state)
    runs = session.scalars(wanted.limit(checked_limit(limit))).all()
    return _with_devices(session, runs)


def get_run(session: Session, key: str) -> RunDetail:
    """One run with everything that is known of it.

    :raises NotFound: no such run.
    """
    run = find_run(session, key)
    return RunDetail(
        **vars(_with_devices(session, [run])[0]),
        command=run.command,
        ranks=decode(list[RunRank], run.ranks, f"Ranks of run {run.key}"),
        error=run.error,
        oom_kills=run.oom_kills,
        fleet=fleet_name(session, run.fleet_id),
        last_seen_ns=run.last_seen_ns,
        last_step_ns=session.scalar(
            select(func.max(models.StepStat.last_step_ns)).where(models.StepStat.run_id == run.id)
        ),
        offload=offload_of(session, run.id),
    )


def find_run(session: Session, key: str) -> models.Run:
    """The run of that id, as a person gives it: see [Note: ids that people type] in `database.ids`.

    :raises NotFound: there is none.
    :raises Ambiguous: several ids begin so.
    """
    return ids.find_one(session, ids.RUN, select(models.Run).options(joinedload(models.Run.workflow)), key)


def fleet_name(session: Session, fleet_id: int | None) -> str:
    """Name of the fleet of a row; another team's is not shown."""
    return LIVE if fleet_id is None else session.scalar(select(models.Fleet.name).filter_by(id=fleet_id)) or "imported"


def checked_limit(limit: int) -> int:
    """Accept a number of rows to show.

    :raises Invalid: out of range.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid("limit", limit, f"1 to {MAX_LIMIT}")
    return limit


def accounts(session: Session, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """run id → every bucket's device time; runs that were never accounted are missing."""
    found: dict[int, dict[str, int]] = {}
    rows = select(models.RunAccount).where(models.RunAccount.run_id.in_(run_ids))
    for row in session.scalars(rows):
        found.setdefault(row.run_id, dict.fromkeys(map(str, Bucket), 0))[row.bucket] = row.device_ns
    return found


def _with_devices(session: Session, runs: Sequence[models.Run]) -> list[Run]:
    ids = [run.id for run in runs]
    devices = _devices(session, ids)
    held = held_intervals(session, ids)
    account = accounts(session, ids)
    return [_run(run, devices[run.id], held_ns(held.get(run.id, {})), account.get(run.id)) for run in runs]


def _devices(session: Session, run_ids: Sequence[int]) -> defaultdict[int, list[Device]]:
    devices: defaultdict[int, list[Device]] = defaultdict(list)
    rows = session.execute(
        select(
            models.Allocation.run_id,
            models.Host.name.label("host"),
            models.Device.uuid,
            models.Device.kind,
            models.Device.name,
        )
        .join(models.Device, models.Device.id == models.Allocation.device_id)
        .join(models.Host, models.Host.id == models.Device.host_id)
        .where(models.Allocation.run_id.in_(run_ids))
        .distinct()
        .order_by(models.Host.name, models.Device.uuid)
    )
    for row in rows:
        devices[row.run_id].append(Device(host=row.host, uuid=row.uuid, kind=row.kind, name=row.name))
    return devices


def _run(run: models.Run, devices: list[Device], allocated_ns: int, account: dict[str, int] | None) -> Run:
    # A live run goes on after its account was made: what is shown belongs together, as of that moment.
    is_current = run.end_ns is not None and run.accounted_ns is not None and run.accounted_ns >= run.end_ns
    device_ns = sum(account.values()) if account is not None and not is_current else allocated_ns
    return Run(
        run=run.key,
        workflow=run.workflow.name,
        team=run.workflow.team,
        owner=run.workflow.owner,
        state=run.state,
        reason=run.reason,
        exit_code=run.exit_code,
        start_ns=run.start_ns,
        end_ns=run.end_ns,
        devices=devices,
        steps=run.steps,
        device_ns=device_ns,
        account=account,
        accounted_ns=None if account is None else run.accounted_ns,
        simulated=run.simulated,
        source=run.source,
        host=run.host_name,
        user=run.user_name,
        labels=run.labels,
        external_id=run.external_id,
        git_commit=run.git_commit,
        git_dirty=run.git_dirty,
        image=run.image,
        torch_version=run.torch_version,
        cuda_version=run.cuda_version,
        driver_version=run.driver_version,
        name=run.name,
        waiting_ns=None if run.eligible_ns is None else run.start_ns - run.eligible_ns,
    )
