"""Calls of the vendors' runtimes by name: what holds the host, copies, allocates or launches a graph."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from tightship_analyzers.trace.columns import Int8s
from tightship_analyzers.trace.joins import numbers_in
from tightship_analyzers.trace.model import Trace


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
    """The copy that it starts itself. (The variants called Async return when it is queued.)"""
    STREAM_WAIT = 5
    """Not the host: a stream waits for an event from here on."""
    RECORD = 6
    """Nothing: it marks the place in a stream that others wait for."""
    FREE = 7
    """All that was launched before, for it frees memory which that may use."""


_CALLS = {
    Blocks.DEVICE: re.compile(r"(cuda|hip|mtia|xpu)\w*DeviceSynchronize(_v\d+)?|cuCtxSynchronize|synchronize"),
    Blocks.STREAM: re.compile(r"(cuda|hip|mtia|xpu)\w*StreamSynchronize\w*|cuStreamSynchronize|synchronizeStream"),
    Blocks.EVENT: re.compile(r"(cuda|hip|mtia|xpu)\w*EventSynchronize\w*|cuEventSynchronize"),
    Blocks.COPY: re.compile(
        r"(cuda|hip)Memcpy(2D|3D)?(To|From)?(Array|Symbol)?(_v\d+)?|hipMemcpyWithStream"
        r"|(hip|cu)Memcpy(Dto|Hto)[DH](_v\d+)?|cuMemcpy(_v\d+)?"
    ),
    Blocks.STREAM_WAIT: re.compile(r"(cuda|hip)StreamWaitEvent\w*|cuStreamWaitEvent|enqueueCommand waitOnEvent"),
    Blocks.RECORD: re.compile(r"(cuda|hip)EventRecord\w*|cuEventRecord\w*|recordEvent"),
    Blocks.FREE: re.compile(r"(cuda|hip)Free(Host)?|cuMemFree(_v\d+)?"),
}

SYNC_CALL = re.compile("|".join(_CALLS[kind].pattern for kind in (Blocks.DEVICE, Blocks.STREAM, Blocks.EVENT)))
"""Calls that wait for the device and do nothing else."""

BLOCKING_COPY = _CALLS[Blocks.COPY]

COPY_CALL = re.compile(r"(cuda|hip|cu)(Memcpy|Memset)\w*")
"""Calls that start a copy or a fill, whether they wait for it or not."""

GRAPH_LAUNCH = re.compile(r"(cuda|hip|cu)GraphLaunch\w*")

ALLOCATING_CALL = re.compile(
    r"(cuda|hip)(Malloc|Free|Host(Alloc|Free|Malloc|Register|Unregister)|MemPool)\w*"
    r"|cuMem(Alloc|Free|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess|Host(Alloc|Register))\w*"
)


def what_blocks(trace: Trace) -> Int8s:
    """(launches,) a `Blocks` for each runtime call, by its name."""
    kind_of = np.zeros(len(trace.names) + 1, dtype=np.int8)
    for number in numbers_in(trace.launches.name).tolist():
        name = trace.names[number]
        kind_of[number] = next((kind for kind, pattern in _CALLS.items() if pattern.fullmatch(name)), Blocks.NOTHING)
    return kind_of[trace.launches.name]
