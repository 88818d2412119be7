"""Runs, and where their device time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tightship_platform.database.models import Allocation, Device, Host, Run, RunAccount, Workflow
from tightship_platform.errors import Invalid, NotFound
from tightship_platform.queries.allocations import held_intervals, held_ns
from tightship_platform.queries.offload import offload_of
from tightship_platform.vocabulary import Bucket, RunState

MAX_LIMIT = 10_000


def list_runs(
    session: Session, *, workflow: str | None = None, state: str | None = None, limit: int = 200
) -> list[dict[str, Any]]:
    """Runs, newest first.

    :raises Invalid: no such state, or a limit out of range.
    """
    if state is not None and state not in list(RunState):
        raise Invalid("state", state, f"one of {', '.join(RunState)}")
    wanted = select(Run).options(joinedload(Run.workflow)).order_by(Run.start_ns.desc(), Run.id.desc())
    if workflow is not None:
        wanted = wanted.join(Workflow).where(Workflow.name == workflow)
    if state is not None:
        wanted = wanted.where(Run.state == state)
    runs = session.scalars(wanted.limit(checked_limit(limit))).all()
    return _with_devices(session, runs)


def get_run(session: Session, key: str) -> dict[str, Any]:
    """One run with everything that is known of it.

    :raises NotFound: no such run.
    """
    run = find_run(session, key)
    return {
        **_with_devices(session, [run])[0],
        "host": run.host_name,
        "user": run.user_name,
        "command": run.command,
        "labels": run.labels,
        "external_id": run.external_id,
        "source": run.source,
        "ranks": run.ranks,
        "error": run.error,
        "oom_kills": run.oom_kills,
        "last_seen_ns": run.last_seen_ns,
        "offload": offload_of(session, run.id),
    }


def find_run(session: Session, key: str) -> Run:
    """The run of that key.

    :raises NotFound: there is none.
    """
    run = session.scalar(select(Run).options(joinedload(Run.workflow)).where(Run.key == key))
    if run is None:
        raise NotFound("run", key[:40], "see `tightship runs`")
    return run


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
    rows = select(RunAccount).where(RunAccount.run_id.in_(run_ids))
    for row in session.scalars(rows):
        found.setdefault(row.run_id, dict.fromkeys(map(str, Bucket), 0))[row.bucket] = row.device_ns
    return found


def _with_devices(session: Session, runs: Sequence[Run]) -> list[dict[str, Any]]:
    ids = [run.id for run in runs]
    devices = _devices(session, ids)
    held = held_intervals(session, ids)
    account = accounts(session, ids)
    return [_run_dict(run, devices[run.id], held_ns(held.get(run.id, {})), account.get(run.id)) for run in runs]


def _devices(session: Session, run_ids: Sequence[int]) -> defaultdict[int, list[dict[str, Any]]]:
    devices: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    rows = session.execute(
        select(Allocation.run_id, Host.name.label("host"), Device.uuid, Device.kind, Device.name)
        .join(Device, Device.id == Allocation.device_id)
        .join(Host, Host.id == Device.host_id)
        .where(Allocation.run_id.in_(run_ids))
        .distinct()
        .order_by(Host.name, Device.uuid)
    )
    for row in rows:
        devices[row.run_id].append({"host": row.host, "uuid": row.uuid, "kind": row.kind, "name": row.name})
    return devices


def _run_dict(
    run: Run, devices: list[dict[str, Any]], allocated_ns: int, account: dict[str, int] | None
) -> dict[str, Any]:
    # A live run goes on after its account was made: what is shown belongs together, as of that moment.
    is_current = run.end_ns is not None and run.accounted_ns is not None and run.accounted_ns >= run.end_ns
    device_ns = sum(account.values()) if account is not None and not is_current else allocated_ns
    return {
        "run": run.key,
        "workflow": run.workflow.name,
        "team": run.workflow.team,
        "owner": run.workflow.owner,
        "state": run.state,
        "reason": run.reason,
        "exit_code": run.exit_code,
        "start_ns": run.start_ns,
        "end_ns": run.end_ns,
        "devices": devices,
        "steps": run.steps,
        "device_ns": device_ns,
        "account": account,
        "accounted_ns": None if account is None else run.accounted_ns,
        "simulated": run.simulated,
    }
