"""How far a recording tells what the device did.

[Note: cut-off files] Kineto writes the events of the host first, thread after thread, and after them the calls of the
runtime and the device's events in order of time. So a file that is cut off usually holds the whole host and the device
up to some moment; after it the device would look idle, and a file without any device event like a job on the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from tightship_analyzers.trace.columns import Annotations, Bools, DeviceEvents, EventKind, HostOps, Int64s, Launches
from tightship_analyzers.trace.names import Names

GIVES_WORK = re.compile(r"(?:Launch(?!HostFunc)|Memcpy|Memset|EnqueueKernel|EnqueueMem)")
"""Calls that the device answers with an event; others (`cudaDeviceSynchronize`, …) a job on the CPU makes, too."""


AUTOGRAD = "autograd::engine::evaluate_function"
"""Operators under which a backward pass runs."""


def work_calls(names: Names, launches: Launches) -> Bools:
    """Which of the calls gave the device work."""
    return names.mask(launches.name, lambda text: GIVES_WORK.search(text) is not None)


def coverage(
    names: Names,
    host_ops: HostOps,
    annotations: Annotations,
    launches: Launches,
    device_events: DeviceEvents,
    written: Int64s,
    properties: Mapping[str, object],
    start_ns: int,
    *,
    cut_off: bool,
) -> tuple[Literal["gpu", "cpu"], int | None]:
    """Where the job computed, and until when the device's events are in the file (None: to its end).

    A whole file without device events is of a job on the CPU unless there are calls that gave a device work.

    :param written: (device events,) ascending in the order of the file, for kernels, copies and sets each.
    :param start_ns: of the trace; so far reach the device's events where there are none.
    """
    calls = work_calls(names, launches)
    if not len(device_events):
        used = bool(calls.any()) or (cut_off and _names_device(properties))
        return ("gpu", start_ns) if used else ("cpu", None)
    if not cut_off:
        return "gpu", None
    rows = np.flatnonzero((device_events.kind == EventKind.KERNEL) | (device_events.kind == EventKind.COLLECTIVE))
    rows = rows if len(rows) else np.arange(len(device_events))
    last_ns = int(device_events.end_ns[rows[written[rows].argmax()]])
    # The calls of some threads may come after those of all others. Of one that trains (it has annotations or a backward
    # pass) and of which none was written, everything is missing from its first operator on.
    trains = names.mask(host_ops.name, lambda text: text.startswith(AUTOGRAD))
    trains |= np.isin(host_ops.tid, annotations.tid)
    missing = np.isin(host_ops.tid, host_ops.tid[trains]) & ~np.isin(host_ops.tid, launches.tid[calls])
    return "gpu", min([last_ns, *host_ops.start_ns[missing][:1].tolist()])


def _names_device(properties: Mapping[str, object]) -> bool:
    """Does the header of a file tell of an accelerator, though perhaps the job did not use it?"""
    distributed = properties.get("distributedInfo")
    backend = str(distributed.get("backend")) if isinstance(distributed, dict) else ""
    return bool(properties.get("deviceProperties")) or "nccl" in backend
