"""The part of a trace that is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tightship_analyzers.facts.memo import Facts, NotApplicable
from tightship_analyzers.facts.steps import Steps


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The part of a trace that is judged: its whole steps; without steps all that has device events."""

    start_ns: int
    end_ns: int
    tid: int
    """The training thread; without steps the thread that ran most operators; -1 where nothing ran on any."""

    @property
    def window_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Steps if there are any."""
        steps = facts.find(Steps)
        if steps is not None:
            return cls(steps.start_ns, steps.end_ns, steps.tid)
        trace = facts.trace
        tables = [table for table in (trace.host_ops, trace.device_events, trace.launches) if len(table)]
        if not tables:
            return NotApplicable("needs operators or device events; the trace holds neither")
        tids = trace.host_ops.tid if len(trace.host_ops) else np.array([], dtype=np.int32)
        start_ns = min(int(table.start_ns[0]) for table in tables)
        end_ns = max(int(table.end_ns.max()) for table in tables)
        if trace.covered_end_ns is not None:
            end_ns = min(end_ns, trace.covered_end_ns)
            if end_ns <= start_ns:
                return NotApplicable("needs device events; the trace holds none")
        return cls(
            start_ns,
            end_ns,
            int(np.bincount(tids).argmax()) if len(tids) else -1,
        )
