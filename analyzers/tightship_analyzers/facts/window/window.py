"""The part of a trace that is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.facts.window.period import Period
from tightship_analyzers.facts.window.recording import Recording
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.trace.model import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Window(Period):
    """The part of a trace that is judged: its whole steps; without steps the recording, as far as devices were seen.

    [Note: a recording as one window] What serves without marks, or trains without an optimizer of torch, has no
    steps. Its recording is then judged as one period: savings are what the whole recording would lose, and a share is
    one of the recorded time. The device's first and last work bound what a finding may claim: what is before and after
    is start and end of the profiler, work that was launched before recording began, and waiting that nothing ended. It
    begins where the device's work is in the file: see [Note: cut from a longer recording] in recording.py.
    """

    needs: ClassVar[Needs] = ()

    of_steps: bool
    """Steps are judged; False: the recording as a whole."""
    claim_start_ns: int
    claim_end_ns: int
    """Between these findings may claim time: the whole steps, of a recording from the first to the last work."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Steps if there are any."""
        steps = facts.find(Steps)
        if steps is not None:
            return cls(steps.bounds_ns, steps.host_bounds_ns, steps.tid, True, steps.start_ns, steps.end_ns)
        trace = facts.trace
        tables = [table for table in (trace.host_ops, trace.device_events, trace.launches) if len(table)]
        if not tables:
            return NotApplicable("needs operators or device events; the trace holds neither")
        tids = trace.host_ops.tid if len(trace.host_ops) else np.array([], dtype=np.int32)
        start_ns = max(min(int(table.start_ns[0]) for table in tables), facts[Recording].unseen_until_ns)
        end_ns = max(int(table.end_ns.max()) for table in tables)
        if trace.covered_end_ns is not None:
            end_ns = min(end_ns, trace.covered_end_ns)
        if end_ns <= start_ns:
            return NotApplicable("needs device events; the trace holds none")
        bounds_ns = np.array([start_ns, end_ns], dtype=np.int64)
        return cls(
            bounds_ns,
            bounds_ns,
            int(np.bincount(tids).argmax()) if len(tids) else -1,
            False,
            *_work(trace, start_ns, end_ns),
        )


def _work(trace: Trace, start_ns: int, end_ns: int) -> tuple[int, int]:
    """From the first to the last work of the device; on a CPU, whose work are the operators, the window."""
    events = trace.device_events
    if not len(events):
        return start_ns, end_ns
    return int(events.start_ns[0]), min(end_ns, int(events.end_ns.max()))
