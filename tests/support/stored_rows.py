"""What is stored of a host and its run, fit to be compared with another's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from records import CPU, S, batch, held, host_samples, run_samples, samples, steps
from sqlalchemy import inspect, select

from tightship_platform.database.engine import Database
from tightship_platform.database.models import Allocation, Base, Host, HostSample, Run, RunSample, Sample, StepStat


def full_batch(host: str, run: str, now: int) -> dict[str, Any]:
    """The body of a batch with rows of each kind."""
    times = [now - 2 * S, now - S, now]
    values = {"util_frac": 0.5, "memory_used_bytes": 7, "power_w": 10}
    return asdict(
        batch(
            host,
            devices=[CPU],
            samples=samples(times, **values),
            host_samples=host_samples(times, cpu_frac=0.25),
            run_samples=run_samples(times, run, cpu_cores=1.5),
            steps=steps([now - 10 * S], run, each=4),
            allocations=[held(run)],
        )
    )


def without_nulls(value: Any) -> Any:
    """JSON as agents send it."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def rows_of(database: Database, host: str, run: str) -> list[Any]:
    """All rows of a host with one device, and of its run."""
    with database.session() as session:
        found = session.scalars(select(Host).where(Host.name == host)).one()
        run_id, device_id = session.scalars(select(Run.id).where(Run.key == run)).one(), found.devices[0].id
    return [
        _rows(database, Host, name=host),
        [row | {"ranks": [entry | {"host": ""} for entry in row["ranks"]]} for row in _rows(database, Run, key=run)],
        _rows(database, Sample, device_id=device_id),
        _rows(database, HostSample, host_id=found.id),
        _rows(database, RunSample, run_id=run_id),
        _rows(database, StepStat, run_id=run_id),
        _rows(database, Allocation, run_id=run_id),
    ]


def _rows(database: Database, model: type[Base], **of: Any) -> list[dict[str, Any]]:
    """Without the ids that differ."""
    with database.session() as session:
        found = session.scalars(select(model).filter_by(**of)).all()
    ours = {"id", "key", "name", "host_id", "run_id", "device_id", "host_name"}
    rows = [{c.key: getattr(row, c.key) for c in inspect(model).column_attrs if c.key not in ours} for row in found]
    return sorted(rows, key=lambda row: (row.get("time_ns", 0), row.get("rank", 0)))
