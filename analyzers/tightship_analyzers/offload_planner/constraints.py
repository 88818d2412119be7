"""What a plan may use: the user's constraints, the machine, its control group and its limit on pinned memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tightship_analyzers.offload_planner.candidate import Memory, Rules
from tightship_analyzers.offload_planner.request import CPU
from tightship_offload.plan.capabilities import RUNTIME
from tightship_offload.plan.host_limits import HostLimits
from tightship_offload.plan.model import HardwareSpec, Recompute

DEVICE_MARGIN_FRAC = 0.05
"""Of device memory: workspaces of matrix libraries, fragmentation."""
HOST_MARGIN_FRAC = 0.1
"""Of host memory: the interpreter, the input pipeline, the page cache that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A folder for layers."""

    folder: str
    """Its absolute path."""
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What the user fixes; None: the planner chooses, within what the machine allows."""

    device_bytes: int | None = None
    host_bytes: int | None = None
    pinned_bytes: int | None = None
    """Given, it takes the place of the memlock limit."""
    slots: int | None = None
    resident: tuple[int, ...] | None = None
    recompute: Recompute | None = None
    micro_batches: int | None = None
    may_stream: bool = RUNTIME.streams_updates
    """Layers may be updated on the device while their state streams through it."""
    residents_on_cpu: bool = RUNTIME.updates_residents_on_cpu
    """Resident layers may be updated on the CPU: less device memory, but their gradients and weights travel."""
    rules: Rules = field(default_factory=Rules)
    nvme: Disk | None = None
    """Where layers may be in files, if host memory does not hold them."""
    in_files: bool = False
    """They are."""
    host: HostLimits | None = None
    """Of the machine that will run the plan; None: only `hardware.host_bytes` counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes that a plan may take, and in words what sets them."""

    device: int
    device_by: str
    host: int
    host_by: str
    pinned: int | None
    pinned_by: str
    disk: Disk | None
    shared: bool
    """Host memory plays the device: what is on the device is in host memory."""

    def headroom_frac(self, memory: Memory) -> float:
        """The smaller of the free shares of device and host memory."""
        return min(1 - memory.device / max(1, self.device), 1 - self.host_bytes(memory) / max(1, self.host))

    def host_bytes(self, memory: Memory) -> int:
        """All that is in host memory."""
        return memory.host + memory.device if self.shared else memory.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A limit that a candidate breaks."""

    what: str
    """`device memory`, `host memory`, `pinned memory` or `disk space`."""
    needed: int
    allowed: int
    allowed_by: str

    @property
    def missing(self) -> int:
        """Bytes."""
        return self.needed - self.allowed


def limits_for(hardware: HardwareSpec, constraints: Constraints) -> Limits:
    """The limits in force. A margin is kept of what the machine has, none of what the user grants."""
    device, device_by = _less_margin(hardware.device_bytes, DEVICE_MARGIN_FRAC), "the device's memory less 5 %"
    if constraints.device_bytes is not None and constraints.device_bytes < device:
        device, device_by = constraints.device_bytes, "the device budget given"
    host, host_by = _less_margin(hardware.host_bytes, HOST_MARGIN_FRAC), "the host's memory less 10 %"
    if constraints.host is not None and constraints.host.usable is not None:
        usable = _less_margin(constraints.host.usable, HOST_MARGIN_FRAC)
        if usable < host:
            host, host_by = usable, f"{constraints.host.binding} less 10 %"
    if constraints.host_bytes is not None and constraints.host_bytes < host:
        host, host_by = constraints.host_bytes, "the host budget given"
    pinned, pinned_by = None, "nothing"
    if constraints.pinned_bytes is not None:
        pinned, pinned_by = constraints.pinned_bytes, "the budget of pinned memory given"
    elif constraints.host is not None and constraints.host.memlock is not None and counts_pinned(hardware.device):
        pinned, pinned_by = constraints.host.memlock, "the memlock limit (ulimit -l)"
    return Limits(
        device=device,
        device_by=device_by,
        host=host,
        host_by=host_by,
        pinned=pinned,
        pinned_by=pinned_by,
        disk=constraints.nvme,
        shared=hardware.device == CPU,
    )


def counts_pinned(device: str) -> bool:
    """Whether the device's driver counts the memory that it pins against the memlock limit.

    NVIDIA's does not: it takes pages by itself and never asks for RLIMIT_MEMLOCK. Of others it is not known.
    """
    return device != CPU and not re.match(r"(NVIDIA|Tesla|Quadro|GeForce|TITAN)\b", device)


def shortfalls(memory: Memory, limits: Limits) -> list[Shortfall]:
    """The limits that this much memory breaks, the worst in proportion first."""
    found = []
    for what, needed, allowed, by in (
        ("device memory", memory.device, limits.device, limits.device_by),
        ("host memory", limits.host_bytes(memory), limits.host, limits.host_by),
        ("pinned memory", memory.pinned, limits.pinned, limits.pinned_by),
        ("disk space", memory.files, *((limits.disk.free_bytes, limits.disk.folder) if limits.disk else (None, ""))),
    ):
        if allowed is not None and needed > allowed:
            found.append(Shortfall(what=what, needed=needed, allowed=allowed, allowed_by=by))
    return sorted(found, key=lambda one: -one.needed / max(1, one.allowed))


def _less_margin(size: int, margin_frac: float) -> int:
    return int(size * (1 - margin_frac))
