"""What the names of copies tell of the memory on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tightship_analyzers.trace.columns import Bools
from tightship_analyzers.trace.model import DeviceEvents, Trace

STAGED_BYTES = 64 * 1024
"""Up to this size a copy from pageable memory to the device is staged and the call returns at once.
Source: CUDA Runtime API, "API synchronization behavior"."""


@dataclass(frozen=True, slots=True, eq=False)
class CopyMemory:
    """(events,) each; of what is no copy all are False."""

    pageable: Bools
    """One side is pageable host memory."""
    to_device: Bools
    """From the host to the device."""
    holds_host: Bools
    """The call waits, even that of the variants called Async: it is pageable, and not so small that it is staged."""

    @classmethod
    def of(cls, trace: Trace, events: DeviceEvents) -> Self:
        """Of some events of the trace."""
        pageable = trace.names.mask(events.name, lambda name: "pageable" in name.lower())
        to_device = trace.names.mask(events.name, lambda name: "HtoD" in name or "HostToDevice" in name)
        staged = to_device & (events.bytes >= 0) & (events.bytes <= STAGED_BYTES)
        return cls(pageable, to_device, pageable & ~staged)
