"""Memory timeline: what the allocator held, as far as the trace recorded allocations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

NO_MEMORY_EVENTS = NotApplicable("needs memory events; the trace holds none, record with profile_memory=True")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryTimeline:
    """One device's memory as step functions: `…[i]` holds from `time_ns[i]` to `time_ns[i + 1]`."""

    device: int
    """Device number; -1 for host memory."""
    time_ns: Int64s
    """(events,) absolute, ascending."""
    allocated_bytes: Int64s
    """(events,) held by tensors. Where the trace does not say, counted from 0 at its start."""
    reserved_bytes: Int64s | None
    """(events,) held by the caching allocator; None where the trace does not say."""
    is_relative: bool
    """`allocated_bytes` was counted from the trace's start: what was allocated before is not in it."""
    allocations: int
    frees: int
    churn_bytes: int
    """Sum of all allocations."""
    capacity_bytes: int | None
    """What the device has altogether; None where the trace does not say."""

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that tensors held."""
        return int(self.allocated_bytes.max())

    @property
    def peak_ns(self) -> int:
        """When they first held that."""
        return int(self.time_ns[self.allocated_bytes.argmax()])

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most that the allocator held."""
        return None if self.reserved_bytes is None else int(self.reserved_bytes.max())

    @property
    def peak_frac(self) -> float | None:
        """Share of the device's memory that the allocator held at most; of what tensors held, where it does not say."""
        held = self.peak_allocated_bytes if self.peak_reserved_bytes is None else self.peak_reserved_bytes
        return held / self.capacity_bytes if self.capacity_bytes else None

    @property
    def growth_bytes(self) -> int:
        """What tensors held after the last event, less what they held after the first."""
        return int(self.allocated_bytes[-1] - self.allocated_bytes[0])


def memory_timeline(trace: Trace) -> tuple[MemoryTimeline, ...] | NotApplicable:
    """One timeline per device, the host's memory (-1) first."""
    events = trace.memory_events
    if not len(events):
        return NO_MEMORY_EVENTS
    result = []
    for device in np.unique(events.device).tolist():
        own = events.take(events.device == device)
        recorded = bool((own.allocated >= 0).all())
        result.append(
            MemoryTimeline(
                device=device,
                time_ns=own.start_ns,
                allocated_bytes=own.allocated if recorded else np.cumsum(own.bytes),
                reserved_bytes=own.reserved if (own.reserved >= 0).all() else None,
                is_relative=not recorded,
                allocations=int((own.bytes > 0).sum()),
                frees=int((own.bytes < 0).sum()),
                churn_bytes=int(own.bytes[own.bytes > 0].sum()),
                capacity_bytes=_capacity(trace, device),
            )
        )
    return tuple(result)


def _capacity(trace: Trace, device: int) -> int | None:
    listed = trace.properties.get("deviceProperties")
    for entry in listed if isinstance(listed, list) and device >= 0 else ():
        if isinstance(entry, dict) and entry.get("id") == device:
            size = entry.get("totalGlobalMem")
            return size if type(size) is int and 0 < size < 2**50 else None
    return None
