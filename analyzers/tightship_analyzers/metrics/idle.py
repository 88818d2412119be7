"""Idle time of each stream: did it wait for the host, for the next kernel's start, or for something else?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS, by_stream
from tightship_analyzers.metrics.duration_stats import DurationStats
from tightship_analyzers.trace.model import Trace
from tightship_platform.results.not_applicable import NotApplicable

KERNEL_WAIT_NS = 30_000
"""Gaps below this between two kernels that were both launched in time are the cost of starting a kernel.
Source: HolisticTraceAnalysis, `consecutive_kernel_delay`."""


class IdleKind(StrEnum):
    """What a stream waited for."""

    HOST_WAIT = "host_wait"
    """The next event was launched only after the stream was empty."""
    KERNEL_WAIT = "kernel_wait"
    """The next event was launched in time and began soon after."""
    OTHER = "other"
    """Launched in time, yet late: it waited for another stream or for an event. Or its launch is not in the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdle:
    """The gaps of one stream, between its first and its last event."""

    device: int
    stream: int
    events: int
    unlinked: int
    """Events without a launch in the trace; a gap before one is `other`."""
    gaps: dict[IdleKind, DurationStats]
    """The gaps of each kind."""

    @property
    def host_wait_ns(self) -> int:
        """Waited for the host."""
        return self.gaps[IdleKind.HOST_WAIT].sum_ns

    @property
    def kernel_wait_ns(self) -> int:
        """Waited for kernels to start."""
        return self.gaps[IdleKind.KERNEL_WAIT].sum_ns

    @property
    def other_ns(self) -> int:
        """Waited for anything else."""
        return self.gaps[IdleKind.OTHER].sum_ns


def idle_by_stream(trace: Trace, *, kernel_wait_ns: int = KERNEL_WAIT_NS) -> tuple[StreamIdle, ...] | NotApplicable:
    """The idle time of every stream, in order of device and stream.

    A gap reaches from the latest end so far to the next start; where events of a stream overlap there is none.
    """
    events = trace.device_events
    if not len(events):
        return NO_DEVICE_EVENTS
    never = np.iinfo(np.int64).min
    launched = np.full(len(events), never, dtype=np.int64)
    linked = events.launch >= 0
    launched[linked] = trace.launches.start_ns[events.launch[linked]]
    result = []
    for device, stream, rows in by_stream(events):
        dry_ns = np.maximum.accumulate(events.end_ns[rows])[:-1]
        gap_ns = events.start_ns[rows][1:] - dry_ns
        next_rows = rows[1:]
        idle = gap_ns > 0
        host = idle & (launched[next_rows] > dry_ns)
        kernel = idle & linked[next_rows] & ~host & (gap_ns < kernel_wait_ns)
        kinds = {IdleKind.HOST_WAIT: host, IdleKind.KERNEL_WAIT: kernel, IdleKind.OTHER: idle & ~host & ~kernel}
        result.append(
            StreamIdle(
                device=device,
                stream=stream,
                events=len(rows),
                unlinked=int((~linked[rows]).sum()),
                gaps={kind: DurationStats.of(gap_ns[chosen]) for kind, chosen in kinds.items()},
            )
        )
    return tuple(result)
