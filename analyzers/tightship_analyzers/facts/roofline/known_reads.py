"""What the known products of a span move: the bytes that set the pace of decoding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.roofline.captured_work import CapturedWorks
from tightship_analyzers.facts.roofline.measured import Roofline
from tightship_analyzers.facts.roofline.work import Family


class KnownReads(NamedTuple):
    """Products of known sizes."""

    bytes: int
    """Every input and every output once, all experts counted."""
    device_ns: int
    """Of their kernels."""


def known_reads(facts: Facts, spans: list[tuple[int, int, int]]) -> KnownReads:
    """Of the products that were launched within spans (thread, start, end), from a host operator or a graph."""
    launched: list[tuple[int, int, int, int]] = []
    roofline, captured = facts.find(Roofline), facts.find(CapturedWorks)
    ops, calls = facts.trace.host_ops, facts.trace.launches
    for known in roofline.calls if roofline is not None else ():
        if known.work.family is Family.GEMM:
            launched.append((int(ops.tid[known.op]), int(ops.start_ns[known.op]), known.work.bytes, known.device_ns))
    if captured is not None:
        events = facts[KernelOps].events
        for replayed in captured.calls:
            launch = int(events.launch[replayed.row])
            if replayed.work.family is Family.GEMM and launch >= 0:
                took_ns = int(events.end_ns[replayed.row] - events.start_ns[replayed.row])
                launched.append((int(calls.tid[launch]), int(calls.start_ns[launch]), replayed.work.bytes, took_ns))
    if not launched:
        return KnownReads(0, 0)
    table = np.array(launched, dtype=np.int64)
    within = np.zeros(len(table), dtype=np.bool_)
    for tid, start_ns, end_ns in spans:
        within |= (table[:, 0] == tid) & (table[:, 1] >= start_ns) & (table[:, 1] < end_ns)
    return KnownReads(int(table[within, 2].sum()), int(table[within, 3].sum()))
