"""The roofline of a trace: what the kernels of each family achieved, and what the device would allow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts, Needs
from tightship_analyzers.facts.program.op_shapes import OpShapes
from tightship_analyzers.facts.roofline.work import (
    CONVOLUTION_BACKWARD,
    ON_ORDINARY_UNITS,
    Family,
    Work,
    convolution_outputs,
    work_of,
)
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.hardware import Device
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.model import Int64s

TF32_SIGNS = ("tf32", "_s1688gemm_", "xf32")
"""In the name of a kernel on 32-bit floats: it ran on matrix units at the rate of TF32."""


class OpWork(NamedTuple):
    """One call of an operator whose work is known, with the device time of its kernels."""

    op: int
    """Row in `Trace.host_ops`."""
    work: Work
    device_ns: int
    kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRoof:
    """All kernels of one family and element type."""

    family: Family
    dtype: str
    """`tf32` where kernels on 32-bit floats say that they use it; empty for types without arithmetic rates."""
    calls: int
    kernels: int
    device_ns: int
    flops: int
    bytes: int
    peak_flops_per_s: float | None
    """Of the device for this type; None where its document gives none."""
    least_ns: int
    """No device of this model can be faster: the sum over calls of the greater one of arithmetic and memory time."""
    memory_bound_ns: int
    """Device time of the calls that memory limits."""

    @property
    def achieved_flops_per_s(self) -> float:
        """FLOPs over device time."""
        return self.flops / self.device_ns * 1e9 if self.device_ns else 0.0

    @property
    def achieved_bytes_per_s(self) -> float:
        """Bytes over device time."""
        return self.bytes / self.device_ns * 1e9 if self.device_ns else 0.0

    @property
    def attainable_flops_per_s(self) -> float:
        """FLOPs over the least time."""
        return self.flops / self.least_ns * 1e9 if self.least_ns else 0.0

    @property
    def roof_frac(self) -> float:
        """Least time over device time: 1 is the roof. Above 1 where caches spared memory, or kernels ran at once."""
        return self.least_ns / self.device_ns if self.device_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roofline:
    """The window's work against the device's roof."""

    needs: ClassVar[Needs] = (DeviceModel, OpShapes, KernelOps, Window)

    device: Device
    families: tuple[FamilyRoof, ...]
    """The most device time first."""
    calls: tuple[OpWork, ...]
    """Every call whose work is known, in order of start."""
    tf32: frozenset[int]
    """Rows in `Trace.host_ops` of operators on 32-bit floats that run at the rate of TF32."""
    window_ns: int
    devices: int
    """With kernels in the window."""
    kernel_ns: int
    """Durations of all kernels that launched in the window, without collectives, copies and sets."""

    @property
    def known_ns(self) -> int:
        """Of these, kernels whose work is known."""
        return sum(row.device_ns for row in self.families)

    @property
    def mfu_frac(self) -> float | None:
        """Model FLOPs utilisation: time that the known FLOPs need at peak rates, over the window of all devices. None
        where a type that did work has no peak rate. FLOPs of unknown operators count as none, so it is a lower bound,
        except for attention: masked positions count.

        Recomputed activations count as work: strictly it is the hardware's utilisation (HFU).
        """
        needed_ns = 0.0
        for row in self.families:
            if row.family in ON_ORDINARY_UNITS:
                continue
            if row.peak_flops_per_s is None:
                return None
            needed_ns += row.flops / row.peak_flops_per_s * 1e9
        available_ns = self.window_ns * self.devices
        return needed_ns / available_ns if available_ns else None

    @classmethod
    def derive(cls, facts: Facts) -> Self:
        """Needs a known device, recorded shapes, and the launches of kernels."""
        model, shapes, kernels = facts[DeviceModel], facts[OpShapes], facts[KernelOps]
        window = facts[Window]
        computes = kernels.events.kind == EventKind.KERNEL
        calls = _calls(facts, shapes, kernels, computes)
        tf32 = tf32_ops(facts, kernels)
        return cls(
            device=model.device,
            families=_families(calls, model.device, tf32),
            calls=tuple(calls),
            tf32=tf32,
            window_ns=window.window_ns,
            devices=len(np.unique(kernels.events.device[computes])),
            kernel_ns=int(kernels.events.dur_ns[computes].sum()),
        )


def _calls(facts: Facts, shapes: OpShapes, kernels: KernelOps, computes: np.ndarray[Any, Any]) -> list[OpWork]:
    ops, names = facts.trace.host_ops, facts.trace.names
    rows = np.flatnonzero((kernels.op >= 0) & computes)
    counts = np.bincount(kernels.op[rows], minlength=len(ops))
    # Floats add whole nanoseconds exactly up to 104 days.
    device_ns = np.bincount(kernels.op[rows], weights=kernels.events.dur_ns[rows], minlength=len(ops))
    inputs = {row: shapes.of(ops, row) for row in np.flatnonzero(counts).tolist()}
    backward = np.flatnonzero(ops.name == names.id(CONVOLUTION_BACKWARD)).tolist()
    outputs = convolution_outputs(shapes.of(ops, row) for row in backward)
    calls = []
    for row, given in inputs.items():
        work = work_of(names[int(ops.name[row])], given, outputs)
        if work is not None:
            calls.append(OpWork(row, work, int(device_ns[row]), int(counts[row])))
    return calls


def tf32_ops(facts: Facts, kernels: KernelOps) -> frozenset[int]:
    """Operators a kernel of which says that it computes with TF32."""
    said = facts.trace.names.mask(kernels.events.name, lambda name: any(sign in name.lower() for sign in TF32_SIGNS))
    ops: Int64s = kernels.op[said]
    return frozenset(ops[ops >= 0].tolist())


def peak_of(device: Device, dtype: str, family: Family) -> float | None:
    """FLOP/s of the device for this type; elementwise work and reductions run on ordinary units."""
    if family in ON_ORDINARY_UNITS:
        return device.flops(dtype, matrix=False)
    # Without TF32 32-bit floats stay on ordinary units, even where the device has matrix units for other types.
    return device.flops(dtype, matrix=dtype != "fp32") or device.flops(dtype)


def least_ns(work: Work, device: Device, peak: float | None) -> tuple[float, bool]:
    """The least time of one call, and whether memory sets it."""
    memory_ns = work.bytes / device.memory_bytes_per_s * 1e9
    arithmetic_ns = work.flops / peak * 1e9 if peak else 0.0
    return max(memory_ns, arithmetic_ns), memory_ns >= arithmetic_ns


def _families(calls: list[OpWork], device: Device, tf32: frozenset[int]) -> tuple[FamilyRoof, ...]:
    groups: dict[tuple[Family, str], list[OpWork]] = {}
    for call in calls:
        fast = call.work.dtype == "fp32" and call.op in tf32
        groups.setdefault((call.work.family, "tf32" if fast else call.work.dtype), []).append(call)
    rows = []
    for (family, dtype), group in groups.items():
        peak = peak_of(device, dtype, family)
        least = [(call, *least_ns(call.work, device, peak)) for call in group]
        rows.append(
            FamilyRoof(
                family=family,
                dtype=dtype,
                calls=len(group),
                kernels=sum(call.kernels for call in group),
                device_ns=sum(call.device_ns for call in group),
                flops=sum(call.work.flops for call in group),
                bytes=sum(call.work.bytes for call in group),
                peak_flops_per_s=peak,
                least_ns=round(sum(ns for _, ns, _ in least)),
                memory_bound_ns=sum(call.device_ns for call, _, by_memory in least if by_memory),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.device_ns, row.family, row.dtype)))
