"""How fast the host could go on if it never waited for the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.runtime_calls import Blocks, what_blocks

WAITS = (Blocks.DEVICE, Blocks.STREAM, Blocks.EVENT, Blocks.COPY, Blocks.FREE)


@dataclass(frozen=True, slots=True, eq=False)
class HostPace:
    """What the training thread needs for a step, as recorded.

    A device that is far behind hides it: with less work the device catches up, and then the host sets the pace.
    """

    needs: ClassVar[Needs] = (Window,)

    step_ns: int
    """The mean step of the thread without its waits for the device."""

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """From the thread's own steps and its blocking calls in them."""
        window, trace = facts[Window], facts.trace
        calls = trace.launches
        calls = calls.take((calls.tid == window.tid) & np.isin(what_blocks(trace), WAITS))
        waited = Intervals.of_table(calls).clip(window.host_start_ns, window.host_end_ns)
        return cls((window.host_end_ns - window.host_start_ns - waited.measure_ns) // window.count)
