"""Times that a table has named already, in little memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right


class SeenTimes:
    """Those of one device, in ns. Samples come at regular times, mostly in order: of each stretch of equal steps its
    first time, its step and its last time are kept. What comes out of order is kept one by one."""

    def __init__(self) -> None:
        self._firsts, self._steps, self._lasts = array("q"), array("q"), array("q")
        self._late: set[int] = set()

    def add(self, time_ns: int) -> bool:
        """False: it is there already."""
        if not self._lasts or time_ns > self._lasts[-1]:
            self._extend(time_ns)
            return True
        place = bisect_right(self._firsts, time_ns) - 1
        if place >= 0 and time_ns <= self._lasts[place]:
            step = self._steps[place]
            if (time_ns - self._firsts[place]) % (step or 1) == 0:
                return False
        if time_ns in self._late:
            return False
        self._late.add(time_ns)
        return True

    def _extend(self, time_ns: int) -> None:
        if self._lasts:
            step = time_ns - self._lasts[-1]
            if self._steps[-1] in (0, step):
                self._steps[-1], self._lasts[-1] = step, time_ns
                return
        self._firsts.append(time_ns)
        self._steps.append(0)
        self._lasts.append(time_ns)

    @property
    def kept(self) -> int:
        """Stretches and single times that are kept."""
        return len(self._firsts) + len(self._late)
