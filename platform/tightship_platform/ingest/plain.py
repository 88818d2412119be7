"""Bodies that need no second look: heartbeats and batches read straight into records, checked by their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, ValidationError

from tightship_platform.units import NS_PER_S
from tightship_platform.validation import COUNT_MAX, EARLIEST_NS, INT32_MAX, RANK_MAX

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


class PlainSample(_Record):
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


class PlainHostSample(_Record):
    time_ns: _Time
    cpu_frac: _Ratio | None = None
    memory_used_bytes: _Count | None = None
    swap_used_bytes: _Count | None = None
    disk_read_bytes_per_s: _Count | None = None
    disk_write_bytes_per_s: _Count | None = None
    net_rx_bytes_per_s: _Count | None = None
    net_tx_bytes_per_s: _Count | None = None


class PlainRunSample(_Record):
    time_ns: _Time
    run: str
    device: str
    util_frac: _Ratio | None = None
    memory_used_bytes: _Count | None = None
    cpu_cores: _Number | None = None


class PlainStep(_Record):
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


class PlainBatch(_Record):
    """A batch whose values need no second look."""

    host: str
    devices: list[_Device] = []
    samples: list[PlainSample] = []
    host_samples: list[PlainHostSample] = []
    run_samples: list[PlainRunSample] = []
    steps: list[PlainStep] = []
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


class PlainHeartbeat(_Record):
    """A heartbeat whose values need no second look."""

    host: str
    time_ns: _Time
    agent_version: str
    info: dict[str, str | int | float] = {}
    devices: list[_Device] = []
    sources: list[_Source] = []
    runs: list[_LiveRun] = []


_BATCH = msgspec.json.Decoder(PlainBatch)
_HEARTBEAT = msgspec.json.Decoder(PlainHeartbeat)


def read_batch(body: bytes) -> PlainBatch | None:
    """The batch; None: it has to go the long way."""
    try:
        return _BATCH.decode(body)
    except (ValidationError, msgspec.DecodeError, RecursionError):
        return None


def read_heartbeat(body: bytes) -> PlainHeartbeat | None:
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
