"""Calls that hold the host until the device has got somewhere, by the names of the vendors' runtimes."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from tightship_analyzers.trace.columns import Int8s
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Trace

PAGEABLE = "Pageable"


class Blocks(IntEnum):
    """What a runtime call waits for."""

    NOTHING = 0
    DEVICE = 1
    """All that was launched before."""
    STREAM = 2
    """All of one stream."""
    EVENT = 3
    """One event that was recorded in a stream."""
    COPY = 4
    """The copy that it starts itself."""
    STREAM_WAIT = 5
    """Not the host: a stream waits for an event from here on."""
    RECORD = 6
    """Nothing: it marks the place in a stream that others wait for."""


_CALLS: tuple[tuple[re.Pattern[str], Blocks], ...] = (
    # Freeing device memory waits for all work on it.
    (re.compile(r"(cuda|hip|mtia|xpu)\w*DeviceSynchronize(_v\d+)?|cuCtxSynchronize|synchronize"), Blocks.DEVICE),
    (re.compile(r"(cuda|hip)Free(Host)?|cuMemFree(_v\d+)?"), Blocks.DEVICE),
    (re.compile(r"(cuda|hip|mtia|xpu)\w*StreamSynchronize\w*|cuStreamSynchronize|synchronizeStream"), Blocks.STREAM),
    (re.compile(r"(cuda|hip|mtia|xpu)\w*EventSynchronize\w*|cuEventSynchronize"), Blocks.EVENT),
    (
        re.compile(r"(cuda|hip)Memcpy(2D|3D)?(ToSymbol|FromSymbol)?|hipMemcpyWithStream|hipMemcpy(Dto|Hto)[DH]"),
        Blocks.COPY,
    ),
    (re.compile(r"cuMemcpy(Dto[DH]|Hto[DH])?(_v\d+)?"), Blocks.COPY),
    (re.compile(r"(cuda|hip)StreamWaitEvent\w*|cuStreamWaitEvent|enqueueCommand waitOnEvent"), Blocks.STREAM_WAIT),
    (re.compile(r"(cuda|hip)EventRecord\w*|cuEventRecord\w*|recordEvent"), Blocks.RECORD),
)


def what_blocks(trace: Trace) -> Int8s:
    """(launches,) a `Blocks` for each runtime call, by its name."""
    kind_of = np.zeros(len(trace.names) + 1, dtype=np.int8)
    for number in numbers_in(trace.launches.name).tolist():
        name = trace.names[number]
        kind_of[number] = next((kind for pattern, kind in _CALLS if pattern.fullmatch(name)), Blocks.NOTHING)
    return kind_of[trace.launches.name]
