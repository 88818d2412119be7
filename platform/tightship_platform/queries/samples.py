"""Samples as they were measured, one value each, newest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, Select, case, func, literal, or_, select, true, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from tightship_platform.database.models import Allocation, Device, Host, HostSample, Run, RunSample
from tightship_platform.database.models import Sample as DeviceSample
from tightship_platform.database.teams import seen_team
from tightship_platform.errors import NotFound
from tightship_platform.queries.filtered import checked_state, in_fleet, of_runs, with_rule, within, without
from tightship_platform.queries.runs import checked_limit, find_run
from tightship_platform.results import sample as results
from tightship_platform.results.filters import ALL, Filters
from tightship_platform.results.sample import Place, Sample, checked_metrics, read_place
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.validation import INT64_MAX
from tightship_platform.vocabulary import RunState

SAMPLES_AT_ONCE = 1000
"""Samples of a page, where nothing else is asked for."""
RECENT_NS = 3600 * NS_PER_S
"""How far back samples go where nothing is said of their time, nor of a run."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Samples of one table."""

    model: Any
    metrics: tuple[str, ...]
    prefix: str
    """Of the metrics' names, before those of the columns."""
    ids: tuple[InstrumentedAttribute[int], ...]
    """The rows of one instant are in their order."""


_DEVICES = _Kind(model=DeviceSample, metrics=results.DEVICE_METRICS, prefix="", ids=(DeviceSample.device_id,))
_HOSTS = _Kind(model=HostSample, metrics=results.HOST_METRICS, prefix=results.OF_HOST, ids=(HostSample.host_id,))
_RUNS = _Kind(
    model=RunSample, metrics=results.RUN_METRICS, prefix=results.OF_RUN, ids=(RunSample.run_id, RunSample.device_id)
)
_KINDS = (_DEVICES, _HOSTS, _RUNS)
# A table rather than its class: that somebody of another team held a device, too, is no secret.
_held = Allocation.__table__.alias()
_holder = Run.__table__.alias()
_HELD_THEN = (
    _held.c.device_id == DeviceSample.device_id,
    _held.c.start_ns <= DeviceSample.time_ns,
    func.coalesce(_held.c.end_ns, _holder.c.end_ns, INT64_MAX) > DeviceSample.time_ns,
)
_ONLY_HOLDER = (
    select(case((func.min(_held.c.run_id) == func.max(_held.c.run_id), func.min(_held.c.run_id))))
    .select_from(_held.join(_holder, _holder.c.id == _held.c.run_id))
    .where(*_HELD_THEN)
    .correlate(DeviceSample)
    .scalar_subquery()
)
"""The run that held the device of a sample then; null: none did, or several."""


def list_samples(
    session: Session,
    filters: Filters = ALL,
    *,
    device: str | None = None,
    run: str | None = None,
    metrics: Sequence[str] = (),
    after: str | None = None,
    limit: int = SAMPLES_AT_ONCE,
    now: int | None = None,
) -> list[Sample]:
    """Samples of a fleet, newest first; of one instant those of devices, then of hosts, then of runs.

    What is missing is left out.
    Filters of runs leave the samples that have a run. A caller of a team sees devices for as long as a run of theirs
    held them, and their own runs; hosts are everybody's. Without a time and a run, samples go back RECENT_NS.

    :param device: UUID.
    :param run: its id, or how that begins.
    :param after: those that come after this one, as `place_of` names it.
    :raises Invalid: no such metric or state, a limit out of range, or `after` names no sample.
    :raises NotFound: no such run or fleet, or what `after` names is gone.
    """
    wanted = checked_metrics(metrics)
    most = checked_limit(limit)
    state = checked_state(filters, RunState)
    conditions = [*of_runs(session, without(filters, "host")), *with_rule(filters)]
    if state is not None:
        conditions.append(Run.state == state)
    if run is not None:
        found = find_run(session, run)
        conditions.append(Run.id == found.id)
        filters = replace(filters, since_ns=max(filters.since_ns or 0, found.start_ns))
    if filters.since_ns is None:
        until_ns = filters.until_ns or (now_ns() if now is None else now)
        filters = replace(filters, since_ns=until_ns - RECENT_NS)
    is_everywhere = run is not None and filters.fleet is None  # a run that is named is of whatever fleet it is
    of_fleet = true() if is_everywhere else in_fleet(session, filters, Host.fleet_id)
    begin = None if after is None else _begin(session, read_place(after))
    rows: list[tuple[tuple[int, ...], list[Sample]]] = []
    for number, kind in enumerate(_KINDS):
        names = [name for name in kind.metrics if name in wanted]
        statement = _statement(kind, names, filters, conditions, device) if names else None
        if statement is None:
            continue
        statement = statement.where(of_fleet)
        if begin is not None:
            statement = statement.where(*_from(kind, begin))
        # One row more: of the first, everything may have been shown before.
        found_rows = session.execute(statement.limit(most + 1)).mappings().all()
        keys = _run_keys(session, {row["run_id"] for row in found_rows if "run_id" in row})
        for row in found_rows:
            key = (-row["time_ns"], number, *(row[one.key] for one in kind.ids))
            shown = begin.metrics if begin is not None and key == begin.key else names
            rows.append((key, list(_values(row, kind, [name for name in names if name in shown], keys))))
    rows.sort(key=lambda row: row[0])
    return list(islice((sample for _, of_row in rows for sample in of_row), most))


@dataclass(frozen=True, kw_only=True)
class _Begin:
    """Where a page begins."""

    kind: _Kind
    time_ns: int
    ids: list[int]
    metrics: tuple[str, ...]
    """Of that row, those that come after the one that was shown last."""

    @property
    def key(self) -> tuple[int, ...]:
        """By which rows are sorted."""
        return (-self.time_ns, _KINDS.index(self.kind), *self.ids)


def _begin(session: Session, place: Place) -> _Begin:
    """:raises NotFound: its host, device or run is gone."""
    kind = next(one for one in _KINDS if place.metric in one.metrics)
    of_device = select(Device.id).join(Host).where(Host.name == place.host, Device.uuid == place.device)
    wanted: list[Select[Any]] = [select(Host.id).where(Host.name == place.host) if kind is _HOSTS else of_device]
    if kind is _RUNS:
        wanted.insert(0, select(Run.id).where(Run.key == place.run))
    ids = [one for one in map(session.scalar, wanted) if one is not None]
    if len(ids) < len(wanted):
        named = f"{place.host}/{place.device or ''}/{place.run or ''}"
        raise NotFound("sample", named, "begin again without `after`")
    metrics = kind.metrics[kind.metrics.index(place.metric) + 1 :]
    return _Begin(kind=kind, time_ns=place.time_ns, ids=ids, metrics=metrics)


def _statement(
    kind: _Kind, names: Sequence[str], filters: Filters, of_run: list[ColumnElement[bool]], device: str | None
) -> Select[Any] | None:
    """Rows with any of these metrics; None: none can be what is asked for."""
    model = kind.model
    columns = [getattr(model, name.removeprefix(kind.prefix)).label(name) for name in names]
    wanted = select(model.time_ns, *kind.ids, Host.name.label("host"), *columns)
    if kind is _HOSTS:
        if device is not None or of_run:
            return None
        wanted = wanted.join(Host, Host.id == HostSample.host_id)
    else:
        wanted = wanted.add_columns(Device.uuid.label("device")).join(Device, Device.id == model.device_id).join(Host)
    if kind is _DEVICES:
        wanted = wanted.add_columns(_ONLY_HOLDER.label("run_id"))
        if of_run:
            held = select(Allocation.device_id).join(Run).where(*of_run)
            wanted = wanted.where(DeviceSample.device_id.in_(held))
            wanted = wanted.where(_ONLY_HOLDER.in_(select(Run.id).where(*of_run)))
        elif seen_team() is not None:
            theirs = (
                select(literal(1))
                .select_from(Allocation)
                .join(Run)
                .where(
                    Allocation.device_id == DeviceSample.device_id,
                    Allocation.start_ns <= DeviceSample.time_ns,
                    func.coalesce(Allocation.end_ns, Run.end_ns, INT64_MAX) > DeviceSample.time_ns,
                )
            )
            wanted = wanted.where(theirs.correlate(DeviceSample).exists())
    elif kind is _RUNS and of_run:
        wanted = wanted.where(RunSample.run_id.in_(select(Run.id).where(*of_run)))
    if filters.host is not None:
        wanted = wanted.where(Host.name == filters.host)
    if device is not None:
        wanted = wanted.where(Device.uuid == device)
    return wanted.where(or_(*(column.is_not(None) for column in columns)), *within(filters, model.time_ns)).order_by(
        model.time_ns.desc(), *kind.ids
    )


def _from(kind: _Kind, begin: _Begin) -> Iterator[ColumnElement[bool]]:
    """Rows from there on, with the first itself, of which other metrics may follow."""
    time_ns, before = kind.model.time_ns, _KINDS.index(kind) - _KINDS.index(begin.kind)
    yield time_ns <= begin.time_ns  # alone, so that an index is read from there on
    if before < 0:
        yield time_ns < begin.time_ns
    elif before == 0:
        yield or_(time_ns < begin.time_ns, tuple_(*kind.ids) >= tuple_(*begin.ids))


def _run_keys(session: Session, run_ids: set[int | None]) -> dict[int, str]:
    """Of those that the caller may see."""
    rows = session.execute(select(Run.id, Run.key).where(Run.id.in_(run_ids - {None})))
    return {row.id: row.key for row in rows}


def _values(row: RowMapping, kind: _Kind, names: Sequence[str], keys: dict[int, str]) -> Iterator[Sample]:
    for name in names:
        if row[name] is not None:
            yield Sample(
                time_ns=row["time_ns"],
                host=row["host"],
                device=None if kind is _HOSTS else row["device"],
                run=None if kind is _HOSTS else keys.get(row["run_id"]),
                metric=name,
                value=row[name],
            )
