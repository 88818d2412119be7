"""The short way of heartbeats and batches: what nearly all of them are, stored with few statements.

[Note: the short way]
A fleet that works sends the same again and again: the same devices, the same runs, new figures. Such a body is read
straight into columns, checked by its types, and stored beside what this process knows of its host (`known`). Whatever
is not plain, be it a value that needs a second look, a device or run that is new, or a run that has ended, makes these
functions answer None, and what they did is rolled back: then the body goes the long way (`apply_heartbeat`,
`apply_batch`), which refuses, explains and counts. Both ways store the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, ValidationError
from sqlalchemy import Integer, bindparam, case, func, or_, update
from sqlalchemy.orm import Session

from tightship_platform.database.models import Host, HostSample, Run, RunSample, Sample
from tightship_platform.database.upsert import add_together
from tightship_platform.ingest.known import KnownHost, KnownRun
from tightship_platform.ingest.steps import put_new_steps
from tightship_platform.samples.rollups import FRESH_NS
from tightship_platform.units import NS_PER_S
from tightship_platform.validation import COUNT_MAX, EARLIEST_NS, INT32_MAX, RANK_MAX
from tightship_platform.vocabulary import RunState
from tightship_platform.wire import BatchReceived

SEEN_EVERY_NS = 10 * NS_PER_S
"""A batch writes when its host was seen no more often than this: heartbeats do."""
MAX_ROWS = 2000
"""Rows of one body; what an agent has saved up goes the long way."""

_Time = Annotated[int, Meta(ge=EARLIEST_NS)]
_Width = Annotated[int, Meta(ge=1, le=86_400 * NS_PER_S)]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Ratio = Annotated[float, Meta(ge=0, le=1)]
_Number = Annotated[float, Meta(ge=0, le=COUNT_MAX)]
_Degrees = Annotated[float, Meta(ge=-273.15, le=COUNT_MAX)]
_Rank = Annotated[int, Meta(ge=-1, le=RANK_MAX)]
_Pid = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class _Record(Struct, forbid_unknown_fields=True, gc=False):
    """Reads one record of the wire."""


class _Device(_Record):
    uuid: str
    kind: str
    name: str
    memory_bytes: int | None = None


class _Sample(_Record):
    time_ns: _Time
    device: str
    util_frac: _Ratio | None = None
    sm_active_frac: _Ratio | None = None
    sm_occupancy_frac: _Ratio | None = None
    tensor_active_frac: _Ratio | None = None
    dram_active_frac: _Ratio | None = None
    memory_used_bytes: _Count | None = None
    power_w: _Number | None = None
    temperature_c: _Degrees | None = None
    clock_hz: _Count | None = None
    pcie_rx_bytes_per_s: _Count | None = None
    pcie_tx_bytes_per_s: _Count | None = None
    nvlink_rx_bytes_per_s: _Count | None = None
    nvlink_tx_bytes_per_s: _Count | None = None


class _HostSample(_Record):
    time_ns: _Time
    cpu_frac: _Ratio | None = None
    memory_used_bytes: _Count | None = None
    swap_used_bytes: _Count | None = None
    disk_read_bytes_per_s: _Count | None = None
    disk_write_bytes_per_s: _Count | None = None
    net_rx_bytes_per_s: _Count | None = None
    net_tx_bytes_per_s: _Count | None = None


class _RunSample(_Record):
    time_ns: _Time
    run: str
    device: str
    util_frac: _Ratio | None = None
    memory_used_bytes: _Count | None = None
    cpu_cores: _Number | None = None


class _Step(_Record):
    run: str
    rank: _Rank
    time_ns: _Time
    width_ns: _Width
    steps: _Count
    first_step_ns: _Time | None = None
    last_step_ns: _Time | None = None


class _Allocation(_Record):
    run: str
    device: str
    start_ns: int
    end_ns: None = None


class QuickBatch(_Record):
    """A batch whose values need no second look."""

    host: str
    devices: list[_Device] = []
    samples: list[_Sample] = []
    host_samples: list[_HostSample] = []
    run_samples: list[_RunSample] = []
    steps: list[_Step] = []
    allocations: list[_Allocation] = []


class _Source(_Record):
    name: str
    state: str
    detail: str = ""


class _LiveRank(_Record):
    rank: _Rank
    pid: _Pid
    guard: bool
    steps: _Count | None = None


class _LiveRun(_Record):
    run: str
    ranks: list[_LiveRank] = []
    devices: list[str] = []
    since_ns: int = 0


class QuickHeartbeat(_Record):
    """A heartbeat whose values need no second look."""

    host: str
    time_ns: _Time
    agent_version: str
    info: dict[str, str | int | float] = {}
    devices: list[_Device] = []
    sources: list[_Source] = []
    runs: list[_LiveRun] = []


_BATCH = msgspec.json.Decoder(QuickBatch)
_HEARTBEAT = msgspec.json.Decoder(QuickHeartbeat)


def read_batch(body: bytes) -> QuickBatch | None:
    """The batch; None: it has to go the long way."""
    try:
        return _BATCH.decode(body)
    except (ValidationError, msgspec.DecodeError, RecursionError):
        return None


def read_heartbeat(body: bytes) -> QuickHeartbeat | None:
    """The heartbeat; None: it has to go the long way."""
    try:
        return _HEARTBEAT.decode(body)
    except (ValidationError, msgspec.DecodeError, RecursionError):
        return None


def described(devices: Sequence[Any]) -> tuple[tuple[str, str, str, int | None], ...]:
    """Devices as a host describes them, fit to be compared."""
    return tuple((one.uuid, one.kind, one.name, one.memory_bytes) for one in devices)


def stated_of_host(beat: Any) -> tuple[Any, ...]:
    """What a heartbeat says of its host in words, fit to be compared; its figures change."""
    words = {name: value if isinstance(value, str) else None for name, value in beat.info.items()}
    return beat.agent_version, words, [(one.name, one.state, one.detail) for one in beat.sources]


def stated_of_run(live: Any) -> tuple[Any, ...]:
    """What a heartbeat says of a run, fit to be compared; its steps change."""
    return live.since_ns, list(live.devices), [(one.rank, one.pid, one.guard) for one in live.ranks]


def quick_batch(session: Session, batch: QuickBatch, known: KnownHost, now: int) -> BatchReceived | None:
    """Store a batch; None: it has to go the long way, and the caller rolls back."""
    samples, host_samples, run_samples, steps = batch.samples, batch.host_samples, batch.run_samples, batch.steps
    count = len(samples) + len(host_samples) + len(run_samples) + len(steps)
    times = [one.time_ns for part in (samples, host_samples, run_samples, steps) for one in part]
    if not times or count > MAX_ROWS or described(batch.devices) != known.devices:
        return None
    # Nothing that may be too old to be kept, that is rolled up already, or that a clock far ahead of ours has made.
    last = _last_seen(batch, known)
    if last is None or min(times) < now - FRESH_NS or max([*times, *last.values()]) > now + FRESH_NS:
        return None
    device_ids = known.device_ids
    if not all(one.device in device_ids for one in samples) or not all(one.device in device_ids for one in run_samples):
        return None
    runs, stepped = known.runs, {step.run for step in steps}
    for key in sorted(last):
        if not _see(session, known.name, runs[key], min(last[key], now), counts=key in stepped):
            return None
    latest = min(now, max(times))
    if latest >= known.seen_ns + SEEN_EVERY_NS:
        _see_host(session, known, latest)
    host_samples.sort(key=lambda one: one.time_ns)
    samples.sort(key=lambda one: (one.time_ns, one.device))
    run_samples.sort(key=lambda one: (one.time_ns, one.run, one.device))
    steps.sort(key=lambda one: (one.run, one.time_ns, one.rank))
    run_ids = [runs[one.run].run_id for one in run_samples]
    used_ids = [device_ids[one.device] for one in run_samples]
    add_together(
        session,
        {
            HostSample: _columns(_HostSample, host_samples, host_id=[known.host_id] * len(host_samples)),
            Sample: _columns(_Sample, samples, device_id=[device_ids[one.device] for one in samples]),
            RunSample: _columns(_RunSample, run_samples, run_id=run_ids, device_id=used_ids),
        },
    )
    if steps and not put_new_steps(session, _columns(_Step, steps, run_id=[runs[one.run].run_id for one in steps])):
        return None
    return BatchReceived(rows=count + len(batch.allocations), unknown_runs=[])


def quick_heartbeat(session: Session, beat: QuickHeartbeat, known: KnownHost, now: int) -> bool:
    """Take note of a heartbeat; False: it has to go the long way, and the caller rolls back."""
    if (
        beat.time_ns > now + FRESH_NS
        or described(beat.devices) != known.devices
        or stated_of_host(beat) != known.stated
    ):
        return False
    if any(not isinstance(value, str) and not -COUNT_MAX <= value <= COUNT_MAX for value in beat.info.values()):
        return False
    for live in beat.runs:
        run = known.runs.get(live.run)
        if run is None or run.stated != stated_of_run(live):
            return False
    _see_host(session, known, now, beat.info)
    for live in sorted(beat.runs, key=lambda live: live.run):
        steps = max((rank.steps for rank in live.ranks if rank.steps is not None), default=-1)
        if not _see(session, known.name, known.runs[live.run], now, steps=steps):
            return False
    return True


def _last_seen(batch: QuickBatch, known: KnownHost) -> dict[str, int] | None:
    """The last time at which the batch shows each of its runs alive; None: a run or an allocation is new."""
    last: dict[str, int] = {}
    for sample in batch.run_samples:
        if sample.time_ns > last.get(sample.run, 0):
            last[sample.run] = sample.time_ns
    for step in batch.steps:
        last[step.run] = max(last.get(step.run, 0), step.last_step_ns or step.time_ns, step.first_step_ns or 0)
    for held in batch.allocations:
        last[held.run] = max(last.get(held.run, 0), held.start_ns)
    if not all(key in known.runs for key in last):
        return None
    if any((held.device, held.start_ns) not in known.runs[held.run].held for held in batch.allocations):
        return None
    return last


_SEE_RUN = (
    update(Run)
    .where(
        Run.id == bindparam("run"),
        Run.host_name == bindparam("host"),
        Run.end_ns.is_(None),
        Run.state == RunState.RUNNING.value,
        Run.source != "agent",
        or_(Run.steps.is_not(None), bindparam("counts", type_=Integer) == 0),
    )
    .values(
        last_seen_ns=case((Run.last_seen_ns < bindparam("at_ns"), bindparam("at_ns")), else_=Run.last_seen_ns),
        steps=case((func.coalesce(Run.steps, -1) < bindparam("counted"), bindparam("counted")), else_=Run.steps),
    )
    .execution_options(synchronize_session=False)
)
_SEE_HOST = (
    update(Host)
    .where(Host.id == bindparam("host"))
    .values(last_seen_ns=case((Host.last_seen_ns < bindparam("at_ns"), bindparam("at_ns")), else_=Host.last_seen_ns))
    .execution_options(synchronize_session=False)
)

_TELL_HOST = _SEE_HOST.values(info=bindparam("facts", type_=Host.info.type))


def _see(session: Session, host: str, run: KnownRun, at_ns: int, *, steps: int = -1, counts: bool = False) -> bool:
    """A sign of life of a run that lives; False: it does not, or its steps are to be counted and never were."""
    values = {"run": run.run_id, "host": host, "at_ns": at_ns, "counted": steps, "counts": int(counts)}
    # Core's connection rather than the session: half the work, the same transaction.
    return session.connection().execute(_SEE_RUN, values).rowcount == 1


def _see_host(session: Session, known: KnownHost, at_ns: int, info: Any = None) -> None:
    values: dict[str, int] = {"host": known.host_id, "at_ns": at_ns}
    if info is None or info == known.info:
        session.connection().execute(_SEE_HOST, values)
        return
    session.connection().execute(_TELL_HOST, values | {"facts": info})
    known.info = info


_NAMED = ("run", "device")


def _columns(kind: type[Struct], records: Sequence[Any], **ids: list[int]) -> dict[str, list[Any]]:
    names = [name for name in kind.__struct_fields__ if name not in _NAMED]
    return {name: [getattr(one, name) for one in records] for name in names} | ids
