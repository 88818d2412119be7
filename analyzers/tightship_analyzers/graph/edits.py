"""What a program would do differently without a defect, in terms of its trace.

A rule says it next to its finding (`Finding.without`); the dependency graph is then run again with these edits, and the
saving is what the steps lose. Edits of several findings are joined with `|` and simulated together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightship_analyzers.trace.columns import Int64s
from tightship_analyzers.trace.intervals import Intervals

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edits:
    """Changes to one rank's program. Times are absolute ns, threads are rows of `Trace.threads`.

    Make them with the class methods; nothing given means that nothing changes.
    """

    host: Mapping[int, Intervals] = field(default_factory=dict)
    """Thread → host time that goes: what ran or was waited for there takes no time."""
    syncs: Mapping[int, Intervals] = field(default_factory=dict)
    """Thread → calls that begin within do not wait for the device, and take no time."""
    device: Mapping[int, float] = field(default_factory=dict)
    """Row of `Trace.device_events` → share of its duration that is left, from 0 (gone, with its launch) upwards."""
    joined: frozenset[int] = frozenset()
    """Rows of `Trace.device_events` that need no launch: each follows, without a gap, the event before it
    in its stream, as in a fused kernel or a CUDA graph, but not before its thread has come to it. The host time of
    their launches is not part of this."""
    needs_cores: bool = False
    """Host time that goes has moved: it runs beside the rest, on cores that have to be idle."""

    @classmethod
    def without_host(cls, tid: int, spans: Intervals) -> Edits:
        """This time of a thread goes: dispatch that a compiled region does not need, a log line that is not written.
        Waiting for the device within is not host time; see `without_syncs`."""
        return cls(host={tid: spans})

    @classmethod
    def moved_host(cls, tid: int, spans: Intervals) -> Edits:
        """This time of a thread moves to other threads or processes: a loader that runs in workers, a save in the
        background. For the thread it goes, as by `without_host`; it still takes the time of other cores."""
        return cls(host={tid: spans}, needs_cores=True)

    @classmethod
    def without_syncs(cls, tid: int, spans: Intervals) -> Edits:
        """The blocking calls of a thread that begin within these spans go: give the calls' own spans, or those of the
        operators around them (`aten::item`)."""
        return cls(syncs={tid: spans})

    @classmethod
    def without_device(cls, rows: ArrayLike, left_frac: ArrayLike = 0.0) -> Edits:
        """Device events take `left_frac` of their time (one figure, or one per row); 0: they are not launched at all,
        while what the host did to launch them stays unless it is edited too.

        :raises ValueError: a share is negative or not a number.
        """
        numbers = np.asarray(rows, dtype=np.int64)
        left = np.broadcast_to(np.asarray(left_frac, dtype=np.float64), numbers.shape)
        if not (left >= 0).all():
            raise ValueError(f"a device event cannot keep {left.min()} of its time; give a share of 0 or more")
        return cls(device=dict(zip(numbers.tolist(), left.tolist(), strict=True)))

    @classmethod
    def launched_together(cls, rows: ArrayLike) -> Edits:
        """Device events that one launch starts, such as all but the first of a fused or captured group."""
        numbers: Int64s = np.asarray(rows, dtype=np.int64)
        return cls(joined=frozenset(numbers.tolist()))

    def within(self, start_ns: int, end_ns: int) -> Edits:
        """Those of them that concern the host outside of [start, end) left out."""

        def clipped(threads: Mapping[int, Intervals]) -> dict[int, Intervals]:
            return {tid: spans.clip(start_ns, end_ns) for tid, spans in threads.items()}

        return replace(self, host=clipped(self.host), syncs=clipped(self.syncs))

    def __or__(self, other: Edits) -> Edits:
        """Both at once; of two shares for one device event the smaller one holds."""
        device = dict(self.device)
        for row, left in other.device.items():
            device[row] = min(left, device.get(row, left))
        return Edits(
            host=_joined(self.host, other.host),
            syncs=_joined(self.syncs, other.syncs),
            device=device,
            joined=self.joined | other.joined,
            needs_cores=self.needs_cores or other.needs_cores,
        )


def _joined(one: Mapping[int, Intervals], other: Mapping[int, Intervals]) -> dict[int, Intervals]:
    both = dict(one)
    for tid, spans in other.items():
        both[tid] = both[tid] | spans if tid in both else spans
    return both
