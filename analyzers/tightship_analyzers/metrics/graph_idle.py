"""Idle time before work of captured graphs that the host had launched already."""

from __future__ import annotations

import numpy as np

from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Trace
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import GRAPH_LAUNCH


def graph_idle(trace: Trace, gaps: Intervals) -> Intervals:
    """Of `gaps`, in which the device did nothing, those that end in work of a graph whose launch began before the gap.

    Such a graph begins late on the device, or pauses within: the host cannot shorten these gaps by being faster.
    """
    events, launches = trace.device_events, trace.launches
    graphs = trace.names.ids(matcher(GRAPH_LAUNCH))
    next_row = np.searchsorted(events.start_ns, gaps.end_ns, side="left")
    launch = np.append(events.launch, -1)[np.minimum(next_row, len(events))]
    is_graph = (launch >= 0) & np.isin(np.append(launches.name, -1)[launch], graphs)
    waited = is_graph & (np.append(launches.start_ns, 0)[launch] < gaps.start_ns)
    return Intervals.of(gaps.start_ns[waited], gaps.end_ns[waited])
