"""Collectives on the device: how long each took, how much of that nothing else hid, and how much it moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceBusy
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs, NotApplicable
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import DeviceEvents, Int32s, Int64s

ELEMENT_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "half": 2, "bfloat16": 2, "short": 2, "float16": 2,
    "float": 4, "int": 4, "float32": 4, "int32": 4,
    "double": 8, "long": 8, "float64": 8, "int64": 8,
}  # fmt: skip
"""Of the types as torch names them in collectives, in lower case."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCalls:
    """Communication kernels within the window, by start."""

    needs: ClassVar[Needs] = (KernelOps, DeviceBusy)

    events: DeviceEvents
    row: Int64s
    """(calls,) row in `Trace.device_events`."""
    op: Int64s
    """(calls,) row in `Trace.host_ops` of the operator that launched it; -1: unknown."""
    collective: Int32s
    """(calls,) name number of the collective; -1 where not recorded."""
    bytes: Int64s
    """(calls,) the larger one of what goes in and comes out; -1 where not recorded."""
    group: Int64s
    """(calls,) name number of the process group; -1 where not recorded."""
    group_size: Int64s
    """(calls,) ranks; -1 where not recorded."""
    exposed: Intervals
    """Communication while the device computes nothing."""

    @classmethod
    def derive(cls, facts: Facts) -> Self | NotApplicable:
        """Needs communication kernels."""
        kernels, busy = facts[KernelOps], facts[DeviceBusy]
        mine = np.flatnonzero(kernels.events.kind == EventKind.COLLECTIVE)
        if not len(mine):
            return NotApplicable("needs communication between ranks; the trace holds none")
        row = kernels.row[mine]
        recorded, trace = facts.trace.collectives, facts.trace
        on_device = recorded.take(recorded.on_device)
        order = np.argsort(on_device.row, kind="stable")
        at = np.minimum(np.searchsorted(on_device.row[order], row), max(len(order) - 1, 0))
        known = order[at] if len(order) else np.zeros(len(row), dtype=np.int64)
        found = on_device.row[known] == row if len(order) else np.zeros(len(row), dtype=np.bool_)
        sizes = {
            number: _element_bytes(trace.names[number]) for number in np.unique(recorded.dtype).tolist() if number >= 0
        }
        size = np.array([sizes.get(number, -1) for number in on_device.dtype.tolist()], dtype=np.int64)
        elements = np.maximum(on_device.in_elements, on_device.out_elements)
        moved = np.where((size > 0) & (elements >= 0) & (elements < 2**50), elements * size, -1)
        return cls(
            events=kernels.events.take(mine),
            row=row,
            op=kernels.op[mine],
            collective=_picked(on_device.name, known, found).astype(np.int32),
            bytes=_picked(moved, known, found),
            group=_picked(on_device.group, known, found),
            group_size=_picked(on_device.group_size, known, found),
            exposed=busy.communication - busy.compute,
        )


def _picked(column: Int64s | Int32s, rows: Int64s, found: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64s:
    if not len(column):
        return np.full(len(rows), -1, dtype=np.int64)
    return np.where(found, column[rows], -1).astype(np.int64)


def _element_bytes(name: str) -> int:
    return ELEMENT_BYTES.get(name.lower().removeprefix("c10::").removeprefix("torch."), -1)
