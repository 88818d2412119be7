"""A stretch of a trace in parts that follow one another."""

from __future__ import annotations

from dataclasses import dataclass

from tightship_analyzers.trace.model import Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Period:
    """Parts without a gap between them: the steps of a thread, or a whole recording as the only part."""

    bounds_ns: Int64s
    """(parts + 1,): ends of the parts, the first one being the start of the first."""
    host_bounds_ns: Int64s
    """(parts + 1,): when the training thread passed them; earlier, where the device runs far behind it."""
    tid: int
    """The training thread; without steps the thread that ran most operators; -1 where nothing ran on any."""

    @property
    def count(self) -> int:
        """Number of whole parts, at least 1."""
        return len(self.bounds_ns) - 1

    @property
    def start_ns(self) -> int:
        """Where the first begins."""
        return int(self.bounds_ns[0])

    @property
    def end_ns(self) -> int:
        """Where the last ends."""
        return int(self.bounds_ns[-1])

    @property
    def host_start_ns(self) -> int:
        """Where the first begins for the training thread."""
        return int(self.host_bounds_ns[0])

    @property
    def host_end_ns(self) -> int:
        """Where the last ends for the training thread."""
        return int(self.host_bounds_ns[-1])

    @property
    def lag_ns(self) -> int:
        """How far the device is behind the thread at most; 0 where its parts are those of the host."""
        return int((self.bounds_ns - self.host_bounds_ns).max())

    @property
    def window_ns(self) -> int:
        """All together."""
        return self.end_ns - self.start_ns

    @property
    def mean_ns(self) -> int:
        """The mean part, rounded down."""
        return self.window_ns // self.count
