"""Time whose cause is known and whose place is yet to be looked up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightship_analyzers.facts.activity.cause import Cause
from tightship_analyzers.trace.columns import Bools, Int8s, Int32s, Int64s
from tightship_analyzers.trace.intervals import Intervals

NO_THREAD = -2
"""Below every row of `Trace.threads`, and below the -1 of a trace in which nothing ran on any."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Time with its cause, and the moment of a thread that tells the place."""

    start_ns: Int64s
    end_ns: Int64s
    cause: Int8s
    tid: Int32s
    moment_ns: Int64s
    name: Int32s
    """Name to show as the operator where `tid` is NO_THREAD."""
    is_constant: bool
    """The place is that of the moment throughout; else it follows the thread from `start_ns` to `end_ns`."""

    @classmethod
    def following(cls, time: Intervals, cause: Cause, tid: int) -> Found:
        """Time of a thread."""
        count = len(time)
        return cls(
            time.start_ns,
            time.end_ns,
            np.full(count, cause, dtype=np.int8),
            np.full(count, tid, dtype=np.int32),
            time.start_ns,
            np.full(count, -1, dtype=np.int32),
            is_constant=False,
        )

    def take(self, rows: Bools) -> Found:
        """Only these."""
        return Found(
            self.start_ns[rows],
            self.end_ns[rows],
            self.cause[rows],
            self.tid[rows],
            self.moment_ns[rows],
            self.name[rows],
            self.is_constant,
        )

    def cut_to(self, time: Intervals) -> Found:
        """Of what holds at one moment each: the parts that lie in `time`, which this covers."""
        row = np.searchsorted(self.start_ns, time.start_ns, side="right") - 1
        return Found(
            time.start_ns,
            time.end_ns,
            self.cause[row],
            self.tid[row],
            self.moment_ns[row],
            self.name[row],
            self.is_constant,
        )
