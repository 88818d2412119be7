"""One defect per rule, put into an opened stretch of time; each says how much of the stretch it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from injection.block import HOST_NS, LEAD_NS, US, Block
from injection.sites import Base

from tightship_analyzers.hardware import find
from tightship_analyzers.rules.communication import low_bus_bandwidth
from tightship_analyzers.rules.kernels import fp32_gemm, launch_bound, small_kernel_swarm
from tightship_analyzers.rules.memory import pageable_copy

Put = Callable[[Block, Base], int]
"""Puts the defect into the whole block and returns its cost, ns."""

HALF = ["c10::BFloat16", "c10::BFloat16"]
MEMCPY = {"category": "gpu_memcpy"}
SIZE = 808
"""Of a matrix product of a size that no recording has, and small enough for what is put in to hold it."""


WAIT = (0.25, 0.4)
"""Share of the step that a block with a wait takes; half of it is the wait's fault."""


@dataclass(frozen=True)
class Defect:
    """How a rule is put to the test."""

    rule: str
    put: Put
    per_step: int = 2
    """Stretches opened in each step."""
    share: tuple[float, float] = (0.12, 0.25)
    """Share of the step that is put in, at least and at most."""
    also: frozenset[str] = field(default_factory=frozenset)
    """Rules that are right about the same stretch too."""
    on_cpu: bool = False
    """Fits recordings without a device as well."""

    @property
    def right_too(self) -> frozenset[str]:
        """Blocks end with a synchronisation that is there in fact."""
        return self.also | {"explicit-synchronization"}


def paused(name: str) -> Put:
    def put(block: Block, base: Base) -> int:
        block.frame(name, 0, block.length_ns)
        return block.length_ns

    return put


def marked(name: str) -> Put:
    def put(block: Block, base: Base) -> int:
        block.mark(name, 0, block.length_ns)
        return block.length_ns

    return put


def ranged(name: str) -> Put:
    def put(block: Block, base: Base) -> int:
        block.op(name, 0, block.length_ns)
        return block.length_ns

    return put


def called(name: str) -> Put:
    def put(block: Block, base: Base) -> int:
        block.call(name, 0, block.length_ns)
        return block.length_ns

    return put


def blocked(call: str, op: str = "", copy: str = "") -> Put:
    """The host waits for a kernel that fills half of the block, then does what it could have done meanwhile."""

    def put(block: Block, base: Base) -> int:
        half = block.length_ns // 2
        block.launched("aten::mm", 0, half, "gemm")
        if op:
            block.op(op, HOST_NS + 100, half)
        if copy:
            link = block.call("cudaMemcpyAsync", HOST_NS + 200, HOST_NS + 300)
            block.on_device(half - US, half, link, copy, bytes=4096, **MEMCPY)
        block.call(call, HOST_NS + 400, half)
        block.op("aten::prepare", half + 100, block.length_ns)
        return half

    return put


def pageable(block: Block, base: Base) -> int:
    """Staged for a tenth of the time, and then copied at 3 GB/s."""
    end, staging = block.length_ns, block.length_ns // 10
    size = 3 * (end - staging)
    block.op("aten::copy_", 0, end)
    link = block.call("cudaMemcpyAsync", US, end)
    block.on_device(staging, end, link, "Memcpy HtoD (Pageable -> Device)", bytes=size, **MEMCPY)
    device = find(base.device_name)
    assert device is not None
    left = pageable_copy.pinned_left(device, np.array([size]), np.array([end - staging]))
    return staging + round((end - staging) * (1 - float(left[0])))


def filled(block: Block, base: Base) -> int:
    end = block.length_ns
    middle, copy = end // 2, end // 10
    block.op("aten::zeros", 0, middle)
    for depth, name in enumerate(("aten::to", "aten::_to_copy", "aten::copy_")):
        block.op(name, middle + (depth + 1) * 200, end)
    link = block.call("cudaMemcpyAsync", middle + US, end)
    block.on_device(end - copy, end, link, "Memcpy HtoD (Pageable -> Device)", bytes=8 << 20, **MEMCPY)
    return end


def returned(block: Block, base: Base) -> int:
    end = block.length_ns
    middle = end // 2
    for start, stop, name in (
        (0, middle, "Memcpy DtoH (Device -> Pageable)"),
        (middle, end, "Memcpy HtoD (Pageable -> Device)"),
    ):
        block.op("aten::copy_", start, stop)
        link = block.call("cudaMemcpyAsync", start + US, stop)
        block.on_device(start + 2 * US, stop, link, name, bytes=8 << 20, **MEMCPY)
    return end


def zeroed(block: Block, base: Base) -> int:
    count = 10
    each = block.length_ns // count
    block.mark("Optimizer.zero_grad#AdamW.zero_grad", 0, 100 * US)
    for at in range(count):
        block.launched(
            "aten::zero_", at * each, (at + 1) * each, "Memset (Device)", category="gpu_memset", call="cudaMemsetAsync",
            bytes=1 << 20,
        )  # fmt: skip
    block.wait()
    return count * (each - LEAD_NS)


def cast(block: Block, base: Base) -> int:
    middle = block.length_ns // 2
    dims, types = [[512, 1024], [512, 1024], []], ["float", "c10::Half", ""]
    block.op("aten::_to_copy", 0, 100)
    block.launched("aten::copy_", 0, middle, "direct_copy_kernel", dims=dims, types=types)
    block.launched("aten::copy_", middle, 2 * middle, "direct_copy_kernel", dims=dims, types=[types[1], types[0], ""])
    block.wait()
    return 2 * (middle - LEAD_NS)


def converted(block: Block, base: Base) -> int:
    block.launched("aten::cudnn_convolution", 0, block.length_ns, "void cudnn::ops::nchwToNhwcKernel<float, float>")
    block.wait()
    return block.length_ns - LEAD_NS


def swarmed(block: Block, base: Base) -> int:
    """Runs of nine kernels of 15 µs, each run as one operator would do it, with something else in between."""
    each, run = 15 * US + LEAD_NS, 10
    count = block.length_ns // each
    for at in range(count):
        name, kernel = ("aten::sum", "reduce_kernel") if at % run == run - 1 else ("aten::mul", "elementwise_kernel")
        block.launched(name, at * each, (at + 1) * each, kernel)
    block.wait()
    sizes = [min(run - 1, count - first) for first in range(0, count, run)]
    # Of a run one kernel stays; what lies between the others goes as well.
    return sum((size - 1) * each for size in sizes if size >= small_kernel_swarm.MIN_RUN)


def single_precision(block: Block, base: Base) -> int:
    block.launched("aten::mm", 0, block.length_ns, "volta_sgemm_128x64_nn")
    block.wait()
    device = find(base.device_name)
    assert device is not None
    matrix = device.matrix_flops.get("tf32") or device.matrix_flops["fp16"]
    plain = device.flops("fp32", matrix=False)
    assert plain
    return round((block.length_ns - LEAD_NS) * (1 - max(plain / matrix, 1 / fp32_gemm.MAX_SPEEDUP)))


def odd_sizes(block: Block, base: Base) -> int:
    """Two aligned products, and two of nearly the same size that take three times as long."""
    each = block.length_ns // 8
    for at in range(2):
        block.launched(
            "aten::mm", at * each, (at + 1) * each, "gemm_aligned", dims=[[SIZE, SIZE], [SIZE, SIZE]], types=HALF
        )
    for at in (2, 5):
        dims = [[SIZE, SIZE - 1], [SIZE - 1, SIZE]]
        block.launched("aten::mm", at * each, (at + 3) * each, "gemm_align1", dims=dims, types=HALF)
    block.wait()
    return 2 * (3 * each - LEAD_NS) - 2 * (each - LEAD_NS)


def spelt_out(block: Block, base: Base) -> int:
    scores = [[16, 512, 512], [], []]
    each = block.length_ns // 6
    block.launched("aten::bmm", 0, each, "gemm", dims=[[16, 512, 64], [16, 64, 512]], types=HALF)
    block.launched("aten::mul", each, 3 * each, "mul_kernel", dims=scores, types=[HALF[0], "Scalar", ""])
    block.launched("aten::_softmax", 3 * each, 5 * each, "softmax", dims=scores, types=[HALF[0], "Scalar", ""])
    block.launched("aten::bmm", 5 * each, 6 * each, "gemm", dims=[[16, 512, 512], [16, 512, 64]], types=HALF)
    block.wait()
    return 4 * each - 2 * LEAD_NS


def biased(block: Block, base: Base) -> int:
    quarter = block.length_ns // 4
    dims, types = [[8, 64, 56, 56], [128, 64, 3, 3], [128]], ["float"] * 3
    block.op("aten::conv2d", 0, 2 * HOST_NS + 100, dims=dims, types=types)
    block.launched("aten::cudnn_convolution", 0, quarter, "convolve", at_ns=50)
    block.launched("aten::add_", quarter, 3 * quarter, "add_bias_kernel", dims=[[8, 128, 56, 56], [1, 128, 1, 1], []])
    block.launched(
        "aten::batch_norm", 3 * quarter, 4 * quarter, "bn_fw", at_ns=2 * HOST_NS + 200, dims=[[8, 128, 56, 56]]
    )
    block.wait()
    return 2 * quarter - LEAD_NS


def small_grid(block: Block, base: Base) -> int:
    block.launched("aten::sort", 0, block.length_ns, "segmented_sort", grid=[4, 1, 1], block=[128, 1, 1])
    block.wait()
    return round((block.length_ns - LEAD_NS) * (1 - 4 / base.units))


def dispatched(block: Block, base: Base) -> int:
    """Kernels of 3 µs, each launched only when the one before has been done for 24 µs."""
    each = 30 * US
    count = block.length_ns // each
    for at in range(count):
        block.op("aten::dispatch", at * each, (at + 1) * each - 7 * US)
        block.launched("aten::mul_", (at + 1) * each - 6 * US, (at + 1) * each, "gemv", at_ns=(at + 1) * each - 7 * US)
    return count * (each - 3 * US - launch_bound.RESIDUAL_NS)


def exposed(block: Block, base: Base) -> int:
    block.launched("c10d::allreduce_", 0, block.length_ns, "ncclDevKernel_AllReduce_Sum_f32", stream=base.stream + 90)
    block.wait()
    return block.length_ns - LEAD_NS


def collective(elements: int) -> dict[str, object]:
    return {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements} | {
        "Group size": 8, "Process Group Name": "0"}  # fmt: skip


def tiny(block: Block, base: Base) -> int:
    count = 20
    each = block.length_ns // count
    kernel, stream = "ncclDevKernel_AllReduce_Sum_f32", base.stream + 90
    for at in range(count):
        block.launched("c10d::allreduce_", at * each, (at + 1) * each, kernel, stream=stream, **collective(1000))
    block.wait()
    return (count - 1) * (each - LEAD_NS)


def slow_link(block: Block, base: Base) -> int:
    """Sent at a tenth of the link's rate."""
    device = find(base.device_name)
    assert device is not None
    rate = next(
        device.link_bytes_per_s[kind] for kind in low_bus_bandwidth.MACHINE_LINKS if kind in device.link_bytes_per_s
    )
    took = block.length_ns - LEAD_NS
    elements = int(took / 1e9 * 0.1 * rate / (2 * 7 / 8) / 4)
    block.launched(
        "c10d::allreduce_", 0, block.length_ns, "ncclDevKernel_AllReduce_Sum_f32", stream=base.stream + 90,
        **collective(elements),
    )  # fmt: skip
    block.wait()
    return round(took * (1 - 0.1 / low_bus_bandwidth.GOOD_FRAC))


def one_by_one(block: Block, base: Base) -> int:
    """An optimizer step over 20 tensors, four kernels each, of which one pass would do."""
    tensors, passes = 20, ("aten::mul_", "aten::add_", "aten::sqrt", "aten::addcdiv_")
    count = tensors * len(passes)
    each = block.length_ns // count
    block.mark("Optimizer.step#AdamW.step", 0, count * HOST_NS + 100)
    for at in range(count):
        name = passes[at % len(passes)]
        block.launched(name, at * each, (at + 1) * each, f"elementwise_{name}")
    block.wait()
    return count * each - LEAD_NS - tensors * (each - LEAD_NS)


DEFECTS: tuple[Defect, ...] = (
    Defect("starved-input", marked("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"), 1, on_cpu=True),
    Defect("synchronous-checkpoint", paused("torch/serialization.py(967): save"), 1, on_cpu=True),
    Defect("synchronous-scalar-read", blocked("cudaStreamSynchronize", "aten::item"), share=WAIT),
    Defect("data-dependent-shape", blocked("cudaStreamSynchronize", "aten::nonzero"), share=WAIT),
    Defect("explicit-synchronization", blocked("cudaDeviceSynchronize"), share=WAIT),
    Defect("allocator-churn", called("cudaMalloc")),
    Defect("cache-flush", paused("torch/cuda/memory.py(200): empty_cache"), on_cpu=True),
    Defect("garbage-collection", paused("<built-in function collect>"), on_cpu=True),
    Defect("logging-in-step", paused("<built-in function print>"), on_cpu=True),
    Defect("recompilation", ranged("entire_frame_compile"), on_cpu=True),
    Defect("busy-host", ranged("aten::prepare"), 1, share=(0.2, 0.35)),
    Defect("pageable-copy", pageable),
    Defect(
        "synchronous-copy",
        blocked("cudaStreamSynchronize", "aten::copy_", "Memcpy DtoH (Device -> Pinned)"),
        share=WAIT,
    ),
    Defect("fill-then-copy", filled, also=frozenset(["pageable-copy"])),
    Defect("device-round-trip", returned, also=frozenset(["pageable-copy", "synchronous-copy"])),
    Defect("zero-grad-memset", zeroed, 1),
    Defect("dtype-ping-pong", cast),
    Defect("layout-ping-pong", converted),
    Defect("launch-bound", dispatched),
    Defect("small-kernel-swarm", swarmed),
    Defect("fp32-gemm", single_precision),
    Defect("unaligned-half-dims", odd_sizes),
    Defect("unfused-attention", spelt_out),
    Defect("conv-bias-before-batch-norm", biased),
    Defect("low-grid", small_grid),
    Defect("exposed-communication", exposed, share=(0.11, 0.14)),
    Defect("tiny-collectives", tiny, 1, also=frozenset(["exposed-communication"])),
    Defect("low-bus-bandwidth", slow_link, also=frozenset(["exposed-communication"])),
    Defect("gloo-on-gpu", marked("gloo:all_reduce")),
    Defect("data-parallel", marked("DataParallel.forward")),
    Defect("single-tensor-optimizer", one_by_one, 1),
)
"""`loop-indexing` is judged on real pairs (tests/data/traces), `device-held-idle` on samples."""
