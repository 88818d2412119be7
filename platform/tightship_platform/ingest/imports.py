"""Imports: the past of another fleet, as somebody recorded it. Each part may come again; the rows are the same.

[Note: imports are not late] What is imported is no late batch: no day is too old for it, nothing of it revives a run or
closes one, and its runs, workflows and hosts are of its fleet alone, under names that begin with the fleet's. An
importer names its runs; their ids are made here, so that no import can touch a run that is not its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from tightship_platform import validation
from tightship_platform.captures import imported as imported_captures
from tightship_platform.database import removed_runs
from tightship_platform.database.audit import audit
from tightship_platform.database.locks import locked
from tightship_platform.database.models import (
    Allocation,
    Capture,
    Device,
    Fleet,
    FleetPart,
    Host,
    RemovedRun,
    Run,
    Sample,
    Workflow,
)
from tightship_platform.database.reporters import ANYBODY, Reporter
from tightship_platform.database.upsert import Row, add_missing, add_together
from tightship_platform.errors import Conflict, Forbidden, Gone, Invalid, NotFound
from tightship_platform.ingest.labels import check_labels, with_edits
from tightship_platform.redaction import hide_in_values
from tightship_platform.results.imported import (
    CaptureExpected,
    FleetRecord,
    FleetStored,
    ImportedCapture,
    ImportedDevice,
    ImportedPart,
    ImportedRun,
    ImportedSamples,
    PartReceived,
)
from tightship_platform.samples import dirty_hours
from tightship_platform.units import NS_PER_S, now_ns
from tightship_platform.validation import ERROR_MAX
from tightship_platform.vocabulary import LIVE, DeviceKind, FleetFormat, RunState

NAME_MAX = 60
"""Longest name of a fleet: names of its hosts and workflows begin with it."""
MAX_RUNS = 2000
MAX_SAMPLES = 50_000
"""Most of either that one part may hold."""
MAX_SPANS = 100_000
"""Most times of holding a device that one run may have."""
MAX_RANKS = 10_000
"""Most files that one capture may have."""
MAX_WINDOW_NS = 86_400 * NS_PER_S
"""A recording is shorter."""
MAX_ASSUMPTIONS = 20
UUIDS_AT_ONCE = 10_000
"""Of one question: hosts of a long history have more devices than a part names."""
MAX_REASONS = 100
ENDED = frozenset(RunState) - {RunState.RUNNING}
NO_HOST = "unknown"
"""Host of devices whose source names none."""


def put_fleet(
    session: Session, name: str, record: FleetRecord, *, reporter: Reporter = ANYBODY, now: int | None = None
) -> FleetStored:
    """Begin an import, go on with it, or end it; answers which of its parts are stored.

    :raises Invalid: the name or a value is not acceptable; nothing was changed.
    :raises Conflict: the fleet is another team's, or of another format.
    :raises Forbidden: the reporter speaks for one host only.
    """
    now = now_ns() if now is None else now
    _check_reporter(reporter)
    _check_fleet(name, record)
    values: Row = {
        "name": name,
        "team": reporter.team,
        "format": record.format,
        "assumptions": [],
        "names_devices": record.names_devices,
        "rows": 0,
        "refused": {},
        "changed_ns": now,
    }
    add_missing(session, Fleet, [values])
    fleet = _fleet(session, name, reporter)
    if fleet.format != record.format:
        raise Conflict(
            f"Fleet {name!r} was imported from {fleet.format}, so {record.format} does not go into it; "
            "choose another name with --name"
        )
    fleet.assumptions = [validation.line(text, ERROR_MAX) for text in record.assumptions]
    if fleet.interval_ns != record.interval_ns:
        fleet.interval_ns = record.interval_ns
        _account_again(session, Run.fleet_id == fleet.id)
    fleet.changed_ns, fleet.done_ns = now, now if record.is_done else None
    if record.is_done:
        fleet.rows = record.rows
        fleet.refused = {validation.line(why, ERROR_MAX): count for why, count in record.refused.items()}
        audit(session, reporter.name, "fleet.import", name, format=record.format, rows=record.rows)
    session.flush()
    parts = session.scalars(select(FleetPart.part).where(FleetPart.fleet_id == fleet.id).order_by(FleetPart.part))
    return FleetStored(parts=list(parts))


def put_part(
    session: Session, name: str, part: ImportedPart, *, reporter: Reporter = ANYBODY, now: int | None = None
) -> PartReceived:
    """Store a part of an import.

    :raises Invalid: a value is not acceptable; nothing was changed.
    :raises NotFound: the import has not begun.
    :raises Conflict: the fleet is another team's.
    :raises Gone: a run is being deleted; the caller rolls back.
    """
    now = now_ns() if now is None else now
    _check_reporter(reporter)
    _check_part(part, now)
    fleet = _fleet(session, name, reporter)
    for device in (device for run in part.runs for device in run.devices):
        device.host = device.host or NO_HOST
    for samples in part.samples:
        samples.host = samples.host or NO_HOST
    rows = len(part.runs) + sum(len(samples.time_ns) for samples in part.samples)
    if session.get(FleetPart, (fleet.id, part.part)) is not None:
        return PartReceived(rows=rows)
    wanted = [(device.host, device.uuid, device) for run in part.runs for device in run.devices]
    devices = _devices(session, fleet, wanted, part, now)
    workflows = _workflows(session, fleet, part.runs)
    _put_runs(session, fleet, part.runs, workflows, devices, now)
    _put_samples(session, part.samples, devices)
    session.add(FleetPart(fleet_id=fleet.id, part=part.part))
    fleet.changed_ns = now
    session.flush()
    return PartReceived(rows=rows)


def put_capture(
    session: Session, name: str, wanted: ImportedCapture, *, reporter: Reporter = ANYBODY, now: int | None = None
) -> CaptureExpected:
    """Make a capture of an imported run, or find it again; answers which of its files are missing.

    :raises Invalid: a value is not acceptable; nothing was changed.
    :raises NotFound: the import has not begun, or no part of it named the run.
    :raises Conflict: the fleet is another team's, or the earlier files are being analyzed.
    """
    now = now_ns() if now is None else now
    _check_reporter(reporter)
    _check_capture(wanted, now)
    fleet = _fleet(session, name, reporter)
    run = session.scalar(select(Run).where(Run.key == run_key(name, wanted.run), Run.fleet_id == fleet.id))
    if run is None:
        raise NotFound("run of the import", wanted.run, "a part that names it comes before its captures")
    key = hashlib.sha256(f"{name}\0{wanted.run}\0{wanted.start_ns}".encode()).hexdigest()[:16]
    missing = imported_captures.expect(
        session, run, key, wanted.traces, duration_ns=wanted.duration_ns, by=reporter.name, now=now
    )
    fleet.changed_ns = now
    return CaptureExpected(capture=key, missing=missing)


def require_capture(session: Session, name: str, key: str, *, reporter: Reporter = ANYBODY) -> None:
    """Whether the reporter may send a file of this capture of this fleet.

    :raises NotFound: there is no such fleet, or no such capture of it.
    :raises Conflict: the fleet is another team's.
    """
    _check_reporter(reporter)
    fleet = _fleet(session, name, reporter)
    found = select(Capture.id).join(Run, Run.id == Capture.run_id).where(Capture.key == key, Run.fleet_id == fleet.id)
    if session.scalar(found) is None:
        raise NotFound("capture of the import", key[:40], "import it again")


def run_key(fleet: str, name: str) -> str:
    """The public id of an imported run; always the same."""
    return hashlib.sha256(f"{fleet}\0{name}".encode()).hexdigest()[:16]


def _fleet(session: Session, name: str, reporter: Reporter) -> Fleet:
    """The fleet, locked until the transaction ends: parts of one import go one by one."""
    found = locked(session, select(Fleet).where(Fleet.name == name))
    if not found:
        raise NotFound("fleet", name[:200], "an import begins with POST /api/v1/fleets/NAME")
    if not reporter.is_admin and found[0].team != reporter.team:
        raise Conflict(f"The name {name!r} is another import's; choose another with --name")
    return found[0]


def _check_reporter(reporter: Reporter) -> None:
    if reporter.host is not None or reporter.user is not None:
        raise Forbidden(f"Token {reporter.name!r} reports for one host or user only, and cannot import a fleet")


def _check_fleet(name: str, record: FleetRecord) -> None:
    validation.key("Fleet", name)
    if len(name) > NAME_MAX or name == LIVE:
        raise Invalid("Fleet", name, f"a name of at most {NAME_MAX} characters other than {LIVE!r}")
    if record.format not in list(FleetFormat):
        raise Invalid("format", record.format, f"one of {', '.join(FleetFormat)}")
    if len(record.assumptions) > MAX_ASSUMPTIONS:
        raise Invalid("Number of assumptions", len(record.assumptions), f"at most {MAX_ASSUMPTIONS}")
    if len(record.refused) > MAX_REASONS:
        raise Invalid("Number of reasons", len(record.refused), f"at most {MAX_REASONS}")
    for what, count in (("rows", record.rows), *record.refused.items()):
        validation.count(what, count)
    if record.interval_ns is not None:
        validation.count("interval_ns", record.interval_ns, least=1, most=86_400_000_000_000)


def _check_part(part: ImportedPart, now: int) -> None:
    if len(part.part) != 64 or not set(part.part) <= set("0123456789abcdef"):
        raise Invalid("part", part.part, "64 hexadecimal digits")
    if len(part.runs) > MAX_RUNS:
        raise Invalid("Number of runs", len(part.runs), f"at most {MAX_RUNS} in one part")
    if sum(len(samples.time_ns) for samples in part.samples) > MAX_SAMPLES:
        raise Invalid("Number of samples", "too many", f"at most {MAX_SAMPLES} in one part")
    for run in part.runs:
        _check_run(run, now)
    for samples in part.samples:
        columns = samples.util_frac, samples.memory_used_bytes
        if any(len(column) != len(samples.time_ns) for column in columns):
            raise Invalid("Samples", samples.uuid, "columns of one length")
        for time_ns in samples.time_ns:
            validation.time_ns("time_ns", time_ns, now)
        for frac in samples.util_frac:
            if frac is not None and not 0 <= frac <= 1:
                raise Invalid("util_frac", frac, "a ratio from 0 to 1")
        for used in samples.memory_used_bytes:
            if used is not None:
                validation.count("memory_used_bytes", used)


def _check_capture(wanted: ImportedCapture, now: int) -> None:
    validation.name("Run", wanted.run)
    validation.time_ns("start_ns", wanted.start_ns, now)
    validation.count("duration_ns", wanted.duration_ns, most=MAX_WINDOW_NS)
    if not 1 <= len(wanted.traces) <= MAX_RANKS:
        raise Invalid("Number of traces", len(wanted.traces), f"1 to {MAX_RANKS} in one capture")
    if len({one.rank for one in wanted.traces}) < len(wanted.traces):
        raise Invalid("Ranks", wanted.run, "each rank once in a capture")
    for one in wanted.traces:
        validation.count("Rank", one.rank, most=validation.RANK_MAX)
        validation.name("Host", one.host, empty=True)
        validation.sha256(one.sha256)


def _check_run(run: ImportedRun, now: int) -> None:
    validation.name("Run", run.id)
    validation.name("Workflow", run.workflow)
    for what, value in (("Team", run.team), ("User", run.user), ("External id", run.external_id)):
        validation.optional_name(what, value)
    if run.state not in ENDED:
        raise Invalid("state", run.state, f"one of {', '.join(sorted(ENDED))}: imported runs have ended")
    validation.time_ns("start_ns", run.start_ns, now)
    validation.time_ns("end_ns", run.end_ns, now)
    if run.eligible_ns is not None:
        validation.time_ns("eligible_ns", run.eligible_ns, now)
        if run.eligible_ns > run.start_ns:
            raise Invalid("eligible_ns", run.eligible_ns, f"a time up to start_ns {run.start_ns}")
    if run.exit_code is not None:
        validation.count("exit_code", run.exit_code, most=255)
    check_labels(run.labels)
    if sum(len(device.spans) for device in run.devices) > MAX_SPANS:
        raise Invalid("Number of spans", run.id, f"at most {MAX_SPANS} of one run")
    for device in run.devices:
        validation.name("Device", device.uuid)
        validation.name("Device", device.name)
        validation.name("Host", device.host, empty=True)
        if device.kind not in list(DeviceKind):
            raise Invalid("kind", device.kind, f"one of {', '.join(DeviceKind)}")
        for span in device.spans:
            if len(span) != 2 or not run.start_ns <= span[0] <= span[1] <= run.end_ns:
                raise Invalid("Span", span, "[start_ns, end_ns] within the run")


Devices = dict[tuple[str, str], int]


def _devices(
    session: Session, fleet: Fleet, held: Sequence[tuple[str, str, ImportedDevice]], part: ImportedPart, now: int
) -> Devices:
    """(host, uuid) → id of each device that the part names; made where they are new."""
    known = {(host, uuid): device for host, uuid, device in held}
    hosts = sorted({host for host, _ in known} | {samples.host for samples in part.samples})
    names = {host: _own_name(fleet, host) for host in hosts}
    rows: list[Row] = [
        {
            "name": names[host],
            "first_seen_ns": now,
            "last_seen_ns": now,
            "info": {},
            "sources": [],
            "fleet_id": fleet.id,
        }
        for host in hosts
    ]
    add_missing(session, Host, rows)
    found = session.execute(select(Host.name, Host.id, Host.fleet_id).where(Host.name.in_(names.values()))).all()
    stranger = next((row.name for row in found if row.fleet_id != fleet.id), None)
    if stranger is not None:
        raise Conflict(f"A host of another fleet is called {stranger!r}; choose another name with --name")
    ids = {row.name: row.id for row in found}
    rows = [
        {
            "host_id": ids[names[host]],
            "uuid": uuid,
            "kind": device.kind,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
        }
        for (host, uuid), device in sorted(known.items())
    ]
    add_missing(session, Device, rows)
    of_hosts = {ids[names[host]]: host for host in hosts}
    of_part = sorted({uuid for _, uuid in known} | {samples.uuid for samples in part.samples})
    there = select(Device.id, Device.host_id, Device.uuid).where(Device.host_id.in_(of_hosts))
    devices = {
        (of_hosts[row.host_id], row.uuid): row.id
        for first in range(0, len(of_part), UUIDS_AT_ONCE)
        for row in session.execute(there.where(Device.uuid.in_(of_part[first : first + UUIDS_AT_ONCE])))
    }
    missing = next((s.uuid for s in part.samples if (s.host, s.uuid) not in devices), None)
    if missing is not None:
        raise Invalid("Samples", missing, "a device that a run of an earlier part, or of this one, held")
    return devices


def _workflows(session: Session, fleet: Fleet, runs: Sequence[ImportedRun]) -> dict[str, int]:
    """Name in the source → id of the fleet's workflow."""
    found: dict[str, int] = {}
    teams = {run.workflow: run.team for run in runs}
    owners = {run.workflow: run.user for run in runs}
    names = {name: _own_name(fleet, name) for name in sorted(teams)}
    rows: list[Row] = [
        {"name": names[name], "team": team, "owner": owners[name], "labels": {}, "fleet_id": fleet.id}
        for name, team in sorted(teams.items(), key=lambda one: one[0])
    ]
    add_missing(session, Workflow, rows)
    wanted = select(Workflow.name, Workflow.id, Workflow.fleet_id).where(Workflow.name.in_(names.values()))
    ids = {row.name: row for row in session.execute(wanted)}
    for name, own in names.items():
        if ids[own].fleet_id != fleet.id:
            raise Conflict(f"A workflow of another fleet is called {own!r}; choose another name with --name")
        found[name] = ids[own].id
    return found


def _own_name(fleet: Fleet, name: str) -> str:
    """A name within the fleet; one that would be too long is cut, and ends with its digest."""
    whole = f"{fleet.name}/{name}"
    if len(whole) <= validation.NAME_MAX:
        return whole
    return f"{whole[: validation.NAME_MAX - 9]}~{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _put_runs(
    session: Session,
    fleet: Fleet,
    runs: Sequence[ImportedRun],
    workflows: dict[str, int],
    devices: Devices,
    now: int,
) -> None:
    keys = {run_key(fleet.name, run.id): run for run in runs}
    gone = RemovedRun.key.in_(keys), RemovedRun.removed_ns.is_not(None)
    session.execute(delete(RemovedRun).where(*gone).execution_options(synchronize_session=False))
    if removed_runs.among(session, list(keys)):
        raise Gone("Runs of this import are being deleted; import again when they are gone")
    rows: list[Row] = [{"key": key, **_values(fleet, run, workflows[run.workflow])} for key, run in keys.items()]
    add_missing(session, Run, rows)
    there = {run.key: run for run in locked(session, select(Run).where(Run.key.in_(keys)).order_by(Run.key))}
    held: dict[int, set[tuple[int, int, int | None]]] = {
        run.id: {(devices[d.host, d.uuid], start, end) for d in keys[key].devices for start, end in d.spans}
        for key, run in there.items()
    }
    stored: dict[int, set[tuple[int, int, int | None]]] = {run_id: set() for run_id in held}
    of_runs = select(Allocation.run_id, Allocation.device_id, Allocation.start_ns, Allocation.end_ns)
    for run_id, device_id, start_ns, end_ns in session.execute(of_runs.where(Allocation.run_id.in_(held))):
        stored[run_id].add((device_id, start_ns, end_ns))
    changed = [run_id for run_id in held if stored[run_id] != held[run_id]]
    again = [run_id for run_id in changed if stored[run_id]]
    session.execute(delete(Allocation).where(Allocation.run_id.in_(again)).execution_options(synchronize_session=False))
    new = [
        {"run_id": run_id, "device_id": device_id, "start_ns": start_ns, "end_ns": end_ns}
        for run_id in changed
        for device_id, start_ns, end_ns in sorted(held[run_id], key=lambda one: one[:2])
    ]
    add_missing(session, Allocation, new)
    for key, run in there.items():
        if run.fleet_id != fleet.id:
            raise Conflict(f"The id {key} is another fleet's; choose another name with --name")
        values = _values(fleet, keys[key], workflows[keys[key].workflow])
        values["labels"] = with_edits(values["labels"], run.label_edits)
        for column, value in values.items():
            if getattr(run, column) != value:
                setattr(run, column, value)
        if run.id in changed:
            run.accounted_ns = None


def _values(fleet: Fleet, run: ImportedRun, workflow_id: int) -> Row:
    return {
        "workflow_id": workflow_id,
        "external_id": run.external_id,
        "source": f"import:{fleet.format}",
        "simulated": False,
        "fleet_id": fleet.id,
        "user_name": run.user,
        "team": fleet.team,
        "command": [],
        "labels": hide_in_values(run.labels),
        "state": run.state,
        "reason": None if run.reason is None else validation.line(run.reason, ERROR_MAX),
        "exit_code": run.exit_code,
        "start_ns": run.start_ns,
        "end_ns": run.end_ns,
        "eligible_ns": run.eligible_ns,
        "last_seen_ns": run.end_ns,
        "ranks": [],
    }


def _put_samples(session: Session, samples: Sequence[ImportedSamples], devices: Devices) -> None:
    """However old they are; those that are there already stay as they are."""
    if not samples:
        return
    columns: dict[str, list[Any]] = {"time_ns": [], "device_id": [], "util_frac": [], "memory_used_bytes": []}
    hours: set[tuple[int, int]] = set()
    for one in samples:
        device_id = devices[one.host, one.uuid]
        columns["time_ns"] += one.time_ns
        columns["device_id"] += [device_id] * len(one.time_ns)
        columns["util_frac"] += one.util_frac
        columns["memory_used_bytes"] += one.memory_used_bytes
        hours |= {(device_id, time_ns - time_ns % dirty_hours.HOUR_NS) for time_ns in one.time_ns}
    add_together(session, {Sample: columns})
    dirty_hours.mark(session, hours)
    of_devices = {device_id for device_id, _ in hours}
    _account_again(session, Run.id.in_(select(Allocation.run_id).where(Allocation.device_id.in_(of_devices))))


def _account_again(session: Session, which: ColumnElement[bool]) -> None:
    """In one statement: a fleet has more runs than should be read for that."""
    again = update(Run).where(which, Run.accounted_ns.is_not(None)).values(accounted_ns=None)
    session.execute(again.execution_options(synchronize_session=False))
