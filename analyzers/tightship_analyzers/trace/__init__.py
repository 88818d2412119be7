"""Traces: `open(path or URL)` gives one rank's recording as columns, whatever wrote it.

from tightship_analyzers import trace

recorded = trace.open("rank0.json.gz")
for row in range(len(recorded.device_events)):
    name = recorded.names[recorded.device_events.name[row]]
"""

from tightship_analyzers.trace.kineto.reader import open_trace as open
from tightship_analyzers.trace.limits import DEFAULT_LIMITS, Limits, TraceError
from tightship_analyzers.trace.model import EventKind, Trace

__all__ = ["DEFAULT_LIMITS", "EventKind", "Limits", "Trace", "TraceError", "open"]
