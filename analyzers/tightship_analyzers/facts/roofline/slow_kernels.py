"""Kernels that take much longer than their work needs on this device.

[Note: what kernels reach] The roof of [Note: roofline] is the peak of data sheets, which no kernel reaches. Here a call
is given the time that good kernels take for its work: products at the fastest rate that was measured on the device,
attention and convolutions at half of that, memory at REACHED_MEMORY_FRAC of its rate, and for each kernel what an empty
one takes. Work is counted at its most where shapes leave it open (positions that a mask leaves out, experts that no
token chose): who is slow by that is slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tightship_analyzers.facts.kernels.device_model import DeviceUnits
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps, alone
from tightship_analyzers.facts.kernels.matrix_products import MatrixProducts
from tightship_analyzers.facts.kernels.plain_attention import PlainAttention
from tightship_analyzers.facts.kernels.unaligned_products import is_unaligned
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_shapes import Inputs, OpShapes
from tightship_analyzers.facts.roofline.captured_work import CapturedWork, CapturedWorks
from tightship_analyzers.facts.roofline.measured import OpWork, Roofline, tf32_ops
from tightship_analyzers.facts.roofline.work import ON_ORDINARY_UNITS, Family, Work
from tightship_analyzers.graph.edits import Float64s
from tightship_analyzers.hardware import Device
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.model import Int64s

SLOW_FRAC = 0.5
"""Of what its work needs, the time that a kernel takes is at least twice as much."""
SLOW_PRODUCT_FRAC, LARGE_FRAC = 2 / 3, 0.05
"""Products are judged more closely where what they could gain is a twentieth of the window alone: their rate was
measured, not derived. Source: products of one size that take 2 % and more of a reference trace (H100, MI300X) reach
0.70 to 1.01 of it; those of experts, which this is for, 0.26 to 0.57."""
REACHED_MEMORY_FRAC = 0.8
"""Of the memory's rate. Source: long elementwise kernels of the reference traces reach 0.92 of it (H100), and products
with one row for each request 0.79 (MI300X)."""
REACHED_FRAC = {Family.ATTENTION: 0.5, Family.CONVOLUTION: 0.5}
"""Of the rate of products; 1 where nothing is said. Source: FlashAttention-3 on 512 positions and heads of 128 reaches
430 of the 795 TFLOP/s that products reach on an H100, on 16,384 positions 621
(https://github.com/pytorch/benchmark/pull/2391). Convolutions of usual sizes are taken as no better."""
EMPTY_KERNEL_NS = 5_000
"""Source: copies of a few KiB take 1.5 to 2.5 µs in the reference traces of NVIDIA's devices, 4.8 on an MI300X."""
MIN_KERNEL_NS = 10_000
"""Of a shorter kernel the launch is what costs."""


@dataclass(slots=True)
class _Calls:
    """Calls of one operator with the same sizes, run by the same kernel."""

    calls: list[OpWork]
    memory_ns: float = 0.0
    needed_ns: float = 0.0

    @property
    def device_ns(self) -> int:
        return sum(call.device_ns for call in self.calls)

    def is_slow(self, window_ns: int) -> bool:
        kernels = sum(call.kernels for call in self.calls)
        return _is_slow(self.calls[0].work.family, kernels, self.device_ns, self.needed_ns, window_ns)

    def add(self, call: OpWork, memory_ns: float, arithmetic_ns: float) -> None:
        self.calls.append(call)
        self.memory_ns += memory_ns
        self.needed_ns += max(memory_ns, arithmetic_ns) + call.kernels * EMPTY_KERNEL_NS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlowKernel:
    """All slow calls that one kernel ran, of one operator."""

    kernel: str
    """The longest one, where a call launched several."""
    op: str
    family: Family
    inputs: Inputs
    """Of the costliest sizes."""
    calls: Int64s
    """(calls,) rows in `Trace.host_ops`; none of kernels that a graph replays."""
    rows: Int64s
    """(kernels,) rows in `KernelOps`."""
    left_frac: Float64s
    """(kernels,) how much of its time each needs."""
    device_ns: int
    needed_ns: int
    flops: int
    bytes: int
    by_memory: bool
    """Memory takes most of what is needed."""

    @property
    def reached_frac(self) -> float:
        """What is needed over what was taken."""
        return self.needed_ns / self.device_ns


@dataclass(frozen=True, slots=True, eq=False)
class SlowKernels:
    """Ranked by what they take beyond what they need.

    Left out are kernels that another defect explains: those of an attention that is spelt out, products of unaligned
    sizes or in float32 without matrix units, grids that leave the device half empty; elementwise work, which is to be
    fused; and kernels that share the device with others, whose rate says nothing.
    """

    needs: ClassVar[Needs] = (Roofline, KernelOps, OpShapes)

    kernels: tuple[SlowKernel, ...]

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs what the roofline needs."""
        roofline, kernels = facts[Roofline], facts[KernelOps]
        ops, names = facts.trace.host_ops, kernels.events.name
        launched = _Launched.of(kernels)
        longest = launched.longest
        tf32 = tf32_ops(facts, kernels)
        explained = _explained(facts, kernels, longest)
        by_sizes: dict[tuple[int, int, int], _Calls] = {}
        for call in roofline.calls:
            dtype = "tf32" if call.work.dtype == "fp32" and call.op in tf32 else call.work.dtype
            plain = dtype == "fp32" and call.work.family not in ON_ORDINARY_UNITS
            if plain or call.work.family is Family.ELEMENTWISE or call.op in explained:
                continue
            key = int(names[longest[call.op]]), int(ops.name[call.op]), int(ops.shapes[call.op])
            by_sizes.setdefault(key, _Calls([])).add(call, *_reached_ns(call.work, dtype, roofline.device))
        by_kernel: dict[tuple[int, int], list[_Calls]] = {}
        for (kernel, op, _), of_size in by_sizes.items():
            if of_size.is_slow(roofline.window_ns):
                by_kernel.setdefault((kernel, op), []).append(of_size)
        found = [_slow_kernel(facts, parts, launched) for parts in by_kernel.values()]
        found += _slow_replayed(facts, kernels, roofline)
        return cls(tuple(sorted(found, key=lambda one: (one.needed_ns - one.device_ns, one.kernel, one.op))))


def _is_slow(family: Family, kernels: int, device_ns: int, needed_ns: float, window_ns: int) -> bool:
    is_large = family is Family.GEMM and device_ns - needed_ns >= LARGE_FRAC * window_ns
    slow_frac = SLOW_PRODUCT_FRAC if is_large else SLOW_FRAC
    return device_ns >= MIN_KERNEL_NS * kernels and needed_ns < slow_frac * device_ns


def _reached_ns(work: Work, dtype: str, device: Device) -> tuple[float, float]:
    """What good kernels take for the bytes and for the arithmetic; see [Note: what kernels reach]."""
    memory_ns = work.bytes / (REACHED_MEMORY_FRAC * device.memory_bytes_per_s) * 1e9
    rate = None if work.family in ON_ORDINARY_UNITS else device.reached_flops(dtype)
    if not rate:
        # Without a rate arithmetic may take all the time there is: nothing is slow by it.
        return memory_ns, 0.0 if work.family in ON_ORDINARY_UNITS else math.inf
    return memory_ns, work.flops / (REACHED_FRAC.get(work.family, 1.0) * rate) * 1e9


class _Launched(NamedTuple):
    """Kernels of operators, rows in `KernelOps`: by operator, those of one by their time."""

    rows: Int64s
    ops: Int64s
    """(kernels,) rows in `Trace.host_ops`."""
    longest: Mapping[int, int]
    """Operator → the longest of its kernels."""

    @classmethod
    def of(cls, kernels: KernelOps) -> Self:
        events = kernels.events
        rows = np.flatnonzero((kernels.op >= 0) & (events.kind == EventKind.KERNEL))
        rows = rows[np.lexsort((events.dur_ns[rows], kernels.op[rows]))]
        ops = kernels.op[rows]
        last = np.flatnonzero(np.append(ops[1:] != ops[:-1], True)[: len(ops)])
        return cls(rows, ops, dict(zip(ops[last].tolist(), rows[last].tolist(), strict=True)))

    def by(self, calls: list[OpWork]) -> tuple[Int64s, Int64s]:
        """(kernels,) kernels of these calls, and the number of the call of each."""
        wanted = np.array([call.op for call in calls], dtype=np.int64)
        first, stop = np.searchsorted(self.ops, wanted), np.searchsorted(self.ops, wanted, side="right")
        each = np.repeat(np.arange(len(calls)), stop - first)
        return self.rows[np.concatenate([np.arange(*pair) for pair in zip(first, stop, strict=True)])], each


def _explained(facts: Facts, kernels: KernelOps, longest: Mapping[int, int]) -> set[int]:
    """Operators, rows in `Trace.host_ops`, whose kernels another defect or other work beside them explains."""
    events = kernels.events
    working = np.flatnonzero((events.kind == EventKind.KERNEL) | (events.kind == EventKind.COLLECTIVE))
    shared = working[~alone(events.take(working))]
    ops = set(kernels.op[shared].tolist())
    units = facts.find(DeviceUnits)
    if units is not None:
        empty = units.half_empty(events.blocks)
        ops |= {op for op, row in longest.items() if empty[row]}
    attention, products = facts.find(PlainAttention), facts.find(MatrixProducts)
    if attention is not None:
        ops |= set(attention.products.tolist()) | set(kernels.op[attention.rows].tolist())
    for product in products.products if products is not None else ():
        if is_unaligned(product, facts.trace.names[int(events.name[product.at])]):
            ops.add(int(kernels.op[product.at]))
    return ops


def _slow_kernel(facts: Facts, parts: list[_Calls], launched: _Launched) -> SlowKernel:
    """One kernel's slow calls, of any sizes."""
    trace, events = facts.trace, facts[KernelOps].events
    calls = [call for part in parts for call in part.calls]
    left = np.repeat([part.needed_ns / part.device_ns for part in parts], [len(part.calls) for part in parts])
    rows, call_of = launched.by(calls)
    worst = max(parts, key=lambda part: part.device_ns - part.needed_ns).calls[0]
    needed_ns = sum(part.needed_ns for part in parts)
    return SlowKernel(
        kernel=trace.names[int(events.name[launched.longest[worst.op]])],
        op=trace.names[int(trace.host_ops.name[worst.op])],
        family=worst.work.family,
        inputs=facts[OpShapes].of(trace.host_ops, worst.op),
        calls=np.array([call.op for call in calls], dtype=np.int64),
        rows=rows,
        left_frac=left[call_of],
        device_ns=sum(call.device_ns for call in calls),
        needed_ns=round(needed_ns),
        flops=sum(call.work.flops for call in calls),
        bytes=sum(call.work.bytes for call in calls),
        by_memory=2 * sum(part.memory_ns for part in parts) > needed_ns,
    )


def _slow_replayed(facts: Facts, kernels: KernelOps, roofline: Roofline) -> Iterator[SlowKernel]:
    """The same of kernels that a graph replays, where the captures of graphs tell their sizes."""
    captured, events = facts.find(CapturedWorks), kernels.events
    if captured is None:
        return
    lonely = alone(events)
    by_sizes: dict[tuple[int, str, Inputs], list[CapturedWork]] = {}
    for call in captured.calls:
        is_product = call.work.family is not Family.ELEMENTWISE and call.work.dtype != "fp32"
        if is_product and lonely[call.row]:
            by_sizes.setdefault((int(events.name[call.row]), call.op, call.inputs), []).append(call)
    for (kernel, op, inputs), calls in by_sizes.items():
        memory_ns, arithmetic_ns = _reached_ns(calls[0].work, calls[0].work.dtype, roofline.device)
        rows = np.array([call.row for call in calls], dtype=np.int64)
        device_ns = int(events.dur_ns[rows].sum())
        needed_ns = len(calls) * (max(memory_ns, arithmetic_ns) + EMPTY_KERNEL_NS)
        if _is_slow(calls[0].work.family, len(calls), device_ns, needed_ns, roofline.window_ns):
            yield SlowKernel(
                kernel=facts.trace.names[kernel],
                op=op,
                family=calls[0].work.family,
                inputs=inputs,
                calls=np.array([], dtype=np.int64),
                rows=rows,
                left_frac=np.full(len(rows), needed_ns / device_ns),
                device_ns=device_ns,
                needed_ns=round(needed_ns),
                flops=len(calls) * calls[0].work.flops,
                bytes=len(calls) * calls[0].work.bytes,
                by_memory=2 * len(calls) * memory_ns > needed_ns,
            )
