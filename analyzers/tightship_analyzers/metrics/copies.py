"""Copies and sets of memory: their time by type, and the bandwidth they reached over time.

1 GB/s is one byte per nanosecond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tightship_analyzers.metrics.device_events import NO_DEVICE_EVENTS, tick_ns
from tightship_analyzers.metrics.duration_stats import DurationStats
from tightship_analyzers.trace.columns import EventKind, Int64s
from tightship_analyzers.trace.copy_memory import CopyMemory
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.numbers import MISSING
from tightship_platform.results.not_applicable import NotApplicable

NO_COPIES = NotApplicable("needs copies or sets of memory on the device; the trace holds none")

DIRECTION = re.compile(r"(?:hip)?(Memcpy) ?([HDPA]to[HDPA])|(?:hip)?(Memset)|(?:dma_?)?(?:memcpy)?([HD]to[HD])", re.I)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BandwidthSeries:
    """Bandwidth of all copies of one type together, as a step function."""

    time_ns: Int64s
    """(changes,) absolute, ascending."""
    gbps: np.ndarray[tuple[int], np.dtype[np.float64]]
    """(changes,) holds to the next change; 0 where none runs."""
    running: Int64s
    """(changes,) copies that run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthSummary:
    """Bandwidth at the moments of change while anything was moved, in GB/s, each moment counted once."""

    changes: int
    mean: float
    std: float
    """Of the sample; 0 with fewer than two changes."""
    min: float
    p25: float
    p50: float
    p75: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copies:
    """All copies, or sets, of one type."""

    type: str
    """`Memcpy HtoD`, `Memcpy DtoD`, `Memset` …; `Memcpy` where the trace does not tell the direction."""
    duration: DurationStats
    """On the device's timeline."""
    busy_ns: int
    """At least one of them ran."""
    bytes: int
    """Moved in all, as far as recorded."""
    transfer_ns: int
    """Time that moving those bytes took, to the nanosecond where the trace records bandwidths."""
    unsized: int
    """Copies whose bytes are not recorded; bandwidths do not count them."""
    pageable: int
    """Of the copies, those from or to pageable memory."""
    series: BandwidthSeries
    """Empty where no bytes are recorded."""

    @property
    def gbps(self) -> float | None:
        """Bytes over the time that moving them took; None where no bytes are recorded."""
        return self.bytes / self.transfer_ns if self.transfer_ns else None

    @property
    def summary(self) -> BandwidthSummary | None:
        """Statistics of the series; None where no bytes are recorded."""
        values = self.series.gbps[self.series.running > 0]
        if not len(values):
            return None
        quarter, half, rest = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
        return BandwidthSummary(
            changes=len(values),
            mean=float(values.mean()),
            std=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            min=float(values.min()),
            p25=quarter,
            p50=half,
            p75=rest,
            max=float(values.max()),
        )


def copy_type(name: str) -> str:
    """The type of a copy or set by the name of its event."""
    found = DIRECTION.match(name)
    if found is None:
        return "Memcpy"
    if found[3]:
        return "Memset"
    ends = (found[2] or found[4]).lower()
    return f"Memcpy {ends[0].upper()}to{ends[3].upper()}"


def copies(trace: Trace) -> tuple[Copies, ...] | NotApplicable:
    """One row per type, the longest first."""
    if not len(trace.device_events):
        return NO_DEVICE_EVENTS
    kind = trace.device_events.kind
    events = trace.device_events.take(np.flatnonzero((kind == EventKind.COPY) | (kind == EventKind.SET)))
    if not len(events):
        return NO_COPIES
    tick = tick_ns(trace)
    types = {number: copy_type(trace.names[number]) for number in numbers_in(events.name).tolist()}
    pageable = CopyMemory.of(trace, events).pageable
    result = []
    for kind_of in sorted(set(types.values())):
        mask = np.isin(events.name, [number for number, name in types.items() if name == kind_of])
        rows = events.take(mask)
        sized = rows.take(rows.bytes >= 0)
        # A recorded bandwidth is believed as far as it only adds what the clock of the trace cannot show.
        recorded = (sized.transfer_ns != MISSING) & (np.abs(sized.transfer_ns - sized.dur_ns) <= tick)
        took_ns = np.maximum(np.where(recorded, sized.transfer_ns, sized.dur_ns), 1)
        # What the clock shows as no time at all took up to one tick.
        end_ns = np.where(sized.dur_ns > 0, sized.end_ns, sized.start_ns + tick)
        result.append(
            Copies(
                type=kind_of,
                duration=DurationStats.of(rows.dur_ns),
                busy_ns=Intervals.of_table(rows).measure_ns,
                bytes=int(sized.bytes.sum()),
                transfer_ns=int(took_ns.sum()),
                unsized=len(rows) - len(sized),
                pageable=int(pageable[mask].sum()),
                series=_series(sized.start_ns, end_ns, sized.bytes / took_ns),
            )
        )
    return tuple(sorted(result, key=lambda row: (-row.duration.sum_ns, row.type)))


def _series(start_ns: Int64s, end_ns: Int64s, gbps: np.ndarray[tuple[int], np.dtype[np.float64]]) -> BandwidthSeries:
    """At one and the same moment ends come first: a copy that follows another does not run with it."""
    count = len(start_ns)
    time = np.append(end_ns, start_ns)
    order = np.argsort(time, kind="stable")
    running = np.cumsum(np.append(np.full(count, -1, np.int64), np.ones(count, np.int64))[order])
    total = np.cumsum(np.append(-gbps, gbps)[order])
    # What is left of the sum when nothing runs is rounding, and the base of what follows.
    rest_at = np.maximum.accumulate(np.where(running == 0, np.arange(2 * count), -1))
    base = np.where(rest_at >= 0, total[rest_at], 0.0)
    return BandwidthSeries(time_ns=time[order], gbps=np.where(running > 0, total - base, 0.0), running=running)
