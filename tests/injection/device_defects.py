"""Defects of the work that a device is given: copies, kernels, and how they are launched."""

from __future__ import annotations

import numpy as np
from injection.block import HOST_NS, LEAD_NS, US, Block
from injection.host_defects import MEMCPY, WAITS
from injection.sites import Base

from tightship_analyzers.facts.roofline import slow_kernels
from tightship_analyzers.facts.roofline.work import Family
from tightship_analyzers.hardware import find
from tightship_analyzers.rules.kernels import fp32_gemm, launch_bound
from tightship_analyzers.rules.memory import pageable_copy

HALVES = ("c10::BFloat16", "c10::Half")
SIZE = 808
"""Of a matrix product of a size that no recording has, and small enough for what is put in to hold it."""
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<MulFunctor<float>>>",
)
UNARY = tuple(f"aten::{name}" for name in ("gelu", "silu", "sigmoid", "tanh", "exp", "neg", "relu"))
CONVERSIONS = (
    "void cudnn::ops::nchwToNhwcKernel<float, float>",
    "void cudnn::ops::nhwcToNchwKernel<__half, __half>",
    "batched_transpose_32x32_half",
    "cask__5x_cudnn::nchw2nhwc<float>",
)
SINGLES = (
    "volta_sgemm_128x64_nn",
    "ampere_sgemm_32x128_tn",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>",
)
OPTIMIZERS = ("AdamW", "SGD", "Adagrad", "Lion")


def pageable(block: Block, base: Base) -> int:
    """One copy or two, each staged for a tenth of the time and then sent at 2 to 4 GB/s."""
    device = find(base.device_name)
    assert device is not None
    count, cost = block.rng.choice((1, 2)), 0
    name = "Memcpy HtoD (Pageable -> Device)"
    for at in range(count):
        begin, end = at * block.length_ns // count, (at + 1) * block.length_ns // count
        staging = (end - begin) // 10
        size = round(block.rng.uniform(2, 4) * (end - begin - staging))
        block.op("aten::copy_", begin, end)
        link = block.call("cudaMemcpyAsync", begin + US, end)
        block.on_device(begin + staging, end, link, name, bytes=size, **MEMCPY)
        left = pageable_copy.pinned_left(device, np.array([size]), np.array([end - begin - staging]))
        cost += staging + round((end - begin - staging) * (1 - float(left[0])))
    return cost


def filled(block: Block, base: Base) -> int:
    end = block.length_ns
    middle, copy = round(end * block.rng.uniform(0.3, 0.7)), end // 10
    block.op(block.any_of("aten::zeros", "aten::ones", "aten::full", "aten::randn", "aten::arange"), 0, middle)
    for depth, name in enumerate(("aten::to", "aten::_to_copy", "aten::copy_")):
        block.op(name, middle + (depth + 1) * 200, end)
    link = block.call("cudaMemcpyAsync", middle + US, end)
    size = block.rng.randrange(1 << 20, 16 << 20)
    block.on_device(end - copy, end, link, "Memcpy HtoD (Pageable -> Device)", bytes=size, **MEMCPY)
    return end


def returned(block: Block, base: Base) -> int:
    """There and back, through memory of either kind."""
    end = block.length_ns
    middle, size = round(end * block.rng.uniform(0.4, 0.6)), block.rng.randrange(1 << 20, 16 << 20)
    memory = block.any_of("Pageable", "Pinned")
    for start, stop, name in (
        (0, middle, f"Memcpy DtoH (Device -> {memory})"),
        (middle, end, f"Memcpy HtoD ({memory} -> Device)"),
    ):
        block.op(block.any_of("aten::copy_", "aten::_to_copy"), start, stop)
        link = block.call("cudaMemcpyAsync", start + US, stop if memory == "Pageable" else start + 2 * US)
        if memory == "Pinned":
            block.call(block.any_of(*WAITS), start + 3 * US, stop)
        block.on_device(start + 2 * US, stop, link, name, bytes=size, **MEMCPY)
    return end


def zeroed(block: Block, base: Base) -> int:
    count = block.rng.randrange(6, 14)
    each = block.length_ns // count
    name = block.any_of(*OPTIMIZERS)
    fill = block.rng.random() < 0.5
    block.mark(f"Optimizer.zero_grad#{name}.zero_grad", 0, 100 * US)
    for at in range(count):
        start, end = at * each, (at + 1) * each
        if fill:
            kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
            block.launched("aten::fill_", start, end, kernel)
        else:
            block.launched(
                "aten::zero_", start, end, "Memset (Device)", category="gpu_memset", call="cudaMemsetAsync",
                bytes=1 << 20,
            )  # fmt: skip
    block.wait()
    return count * (each - LEAD_NS)


def cast(block: Block, base: Base) -> int:
    middle = block.length_ns // 2
    dims = [[512, block.rng.choice((1000, 1024, 1531))]] * 2 + [[]]
    wide, narrow = "float", block.any_of(*HALVES)
    there, back = block.rng.choice((([wide, narrow], [narrow, wide]), ([narrow, wide], [wide, narrow])))
    block.op("aten::_to_copy", 0, 100)
    block.launched("aten::copy_", 0, middle, "direct_copy_kernel", dims=dims, types=[*there, ""])
    block.launched("aten::copy_", middle, 2 * middle, "direct_copy_kernel", dims=dims, types=[*back, ""])
    block.wait()
    return 2 * (middle - LEAD_NS)


def converted(block: Block, base: Base) -> int:
    """Before a convolution and after it, or once."""
    count = block.rng.choice((1, 2))
    each = block.length_ns // count
    for at in range(count):
        block.launched("aten::cudnn_convolution", at * each, (at + 1) * each, block.any_of(*CONVERSIONS))
    block.wait()
    return count * (each - LEAD_NS)


def unfused(block: Block, base: Base) -> int:
    """Chains of kernels of 8 to 16 µs, each as one operator on one tensor does it, with something else in between."""
    each, run = block.rng.randrange(8, 17) * US + LEAD_NS, block.rng.randrange(6, 14)
    count = block.length_ns // each
    size = block.any_of(1000, 1024, 1531)
    for at in range(count):
        last = at % run == run - 1
        name = "aten::mm" if last else UNARY[at % run % len(UNARY)]
        kernel = "some_gemm" if last else block.any_of(*ELEMENTWISE)
        block.launched(name, at * each, (at + 1) * each, kernel, dims=[[512, size]], types=[HALVES[0]])
    block.wait()
    sizes = [min(run - 1, count - first) for first in range(0, count, run)]
    # Of a chain one kernel stays; what lies between the others goes as well.
    return sum((length - 1) * each for length in sizes if length > 1)


def single_precision(block: Block, base: Base) -> int:
    count = block.rng.choice((1, 3))
    each = block.length_ns // count
    for at in range(count):
        op = block.any_of("aten::mm", "aten::addmm", "aten::bmm")
        block.launched(op, at * each, (at + 1) * each, block.any_of(*SINGLES))
    block.wait()
    device = find(base.device_name)
    assert device is not None
    matrix = device.matrix_flops.get("tf32") or device.matrix_flops["fp16"]
    plain = device.flops("fp32", matrix=False)
    assert plain
    return round(count * (each - LEAD_NS) * (1 - max(plain / matrix, 1 / fp32_gemm.MAX_SPEEDUP)))


def odd_sizes(block: Block, base: Base) -> int:
    """Two aligned products, and two of nearly the same size that take two to three times as long."""
    times = block.rng.choice((2, 3))
    each = block.length_ns // (2 + 2 * times)
    types = [block.any_of(*HALVES)] * 2
    off = SIZE - block.rng.choice((1, 3, 5))
    dims = block.rng.choice(([[SIZE, off], [off, SIZE]], [[SIZE, SIZE], [SIZE, off]], [[SIZE, off], [off, off]]))
    batch = block.rng.random() < 0.5
    even, op = [[SIZE, SIZE], [SIZE, SIZE]], "aten::bmm" if batch else "aten::mm"
    if batch:
        dims, even = [[1, *one] for one in dims], [[1, *one] for one in even]
    slow = block.any_of("gemm_align1", "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_nn_align2", "gemm")
    for at in range(2):
        block.launched(op, at * each, (at + 1) * each, "gemm_aligned", dims=even, types=types)
    for at in (2, 2 + times):
        block.launched(op, at * each, (at + times) * each, slow, dims=dims, types=types)
    block.wait()
    return 2 * (times * each - LEAD_NS) - 2 * (each - LEAD_NS)


def spelt_out(block: Block, base: Base) -> int:
    """Scores of 3 or 4 dimensions, scaled, in some cases masked as well."""
    half, keys = block.any_of(*HALVES), block.rng.choice((160, 512, 1000))
    lead = block.rng.choice(([16], [2, 8]))
    between = block.rng.choice((["aten::mul"], ["aten::div", "aten::add"], ["aten::mul", "aten::masked_fill"]))
    softmax, scores = block.any_of("aten::_softmax", "aten::_safe_softmax"), [[*lead, keys, keys], [], []]
    count = 2 + 2 * (len(between) + 1)
    each = block.length_ns // count
    first, last = [[16, keys, 64], [16, 64, keys]], [[16, keys, keys], [16, keys, 64]]
    block.launched("aten::bmm", 0, each, "gemm_align8", dims=first, types=[half] * 2)
    for at, op in enumerate([*between, softmax]):
        start = (1 + 2 * at) * each
        block.launched(op, start, start + 2 * each, f"{op[6:]}_kernel", dims=scores, types=[half, "Scalar", ""])
    block.launched("aten::bmm", (count - 1) * each, count * each, "gemm_align8", dims=last, types=[half] * 2)
    block.wait()
    return (len(between) + 1) * (2 * each - LEAD_NS)


def biased(block: Block, base: Base) -> int:
    quarter = block.length_ns // 4
    spatial = block.rng.choice(([3136], [56, 56], [4, 28, 28]))
    dims = [[8, 64, *spatial], [128, 64, *[3] * len(spatial)], [128]]
    out, one = [8, 128, *spatial], [1, 128, *[1] * len(spatial)]
    block.op(f"aten::conv{len(spatial)}d", 0, 2 * HOST_NS + 100, dims=dims, types=["float"] * 3)
    block.launched("aten::cudnn_convolution", 0, quarter, "convolve", at_ns=50)
    adds = block.any_of("aten::add_", "aten::add")
    block.launched(adds, quarter, 3 * quarter, "add_bias_kernel", dims=[out, one, []])
    block.launched("aten::batch_norm", 3 * quarter, 4 * quarter, "bn_fw", at_ns=2 * HOST_NS + 200, dims=[out])
    block.wait()
    return 2 * quarter - LEAD_NS


def small_grid(block: Block, base: Base) -> int:
    """Kernels of a few thread blocks."""
    count, blocks = block.rng.choice((1, 4)), block.rng.randrange(1, 12)
    each = block.length_ns // count
    for at in range(count):
        kernel = block.any_of("segmented_sort", "void cub::DeviceScanKernel<int>", "triton_per_fused_mean_0")
        block.launched("aten::sort", at * each, (at + 1) * each, kernel, grid=[blocks, 1, 1], block=[128, 1, 1])
    block.wait()
    return round(count * (each - LEAD_NS) * (1 - blocks / base.units))


def slow(block: Block, base: Base) -> int:
    """Fused attention that takes four to eight times what its work needs."""
    device = find(base.device_name)
    assert device is not None
    half, dtype = ("c10::BFloat16", "bf16") if device.flops("bf16") else ("c10::Half", "fp16")
    count, positions, size = block.rng.choice((1, 2)), block.rng.choice((512, 1024)), block.rng.choice((64, 128))
    each = block.length_ns // count
    rate = (device.reached_flops(dtype) or 0) * slow_kernels.REACHED_FRAC[Family.ATTENTION]
    one = 4 * positions**2 * size
    heads = max(1, round(rate * (each - LEAD_NS) / 1e9 / block.rng.uniform(4, 8) / one))
    dims = [[1, positions, heads, size]] * 3
    for at in range(count):
        op = "aten::_flash_attention_forward"
        block.launched(op, at * each, (at + 1) * each, "flash_fwd_kernel", dims=dims, types=[half] * 3)
    block.wait()
    return round(count * (each - LEAD_NS - heads * one / rate * 1e9 - slow_kernels.EMPTY_KERNEL_NS))


def decoded(block: Block, base: Base) -> int:
    """Steps of a few requests, with attention between products."""
    requests = block.rng.randrange(1, 16)
    name = block.any_of(
        f"execute_context_0(0)_generation_{requests}({requests})",
        f"execute_{requests}_context_0(sq0sk0sqsq0sqsk0)_generation_{requests}(sq{requests}sk999sqsq1sqsk1)",
        f"step[DECODE bs={requests}]",
    )
    count = 3
    each = block.length_ns // count
    block.mark(name, 0, count * HOST_NS + 100)
    for at in range(count):
        attends = at == 1
        kernel = "paged_attention_v2_kernel" if attends else "gemm_mxfp4"
        block.launched("vllm::attention" if attends else "vllm::gemm", at * each, (at + 1) * each, kernel)
    return (count - 1) * (each - LEAD_NS) // 2


def singly(block: Block, base: Base) -> int:
    """One image after the other through the same module, each copied for it."""
    count = block.rng.randrange(3, 6)
    each, size = block.length_ns // count, block.rng.randrange(1 << 20, 16 << 20)
    image = [1, 3, block.rng.randrange(64, 512), block.rng.randrange(64, 512)]
    copy = each // 10
    for at in range(count):
        begin = at * each
        link = block.call("cudaMemcpyAsync", begin, begin + US)
        block.on_device(begin + LEAD_NS, begin + copy, link, "Memcpy HtoD (Pinned -> Device)", bytes=size, **MEMCPY)
        block.op(
            "aten::conv2d", begin + US + 100, begin + US + 200, dims=[image, [8, 3, 3, 3]], types=["float", "float"]
        )
        block.launched("aten::encode", begin + copy, begin + each, "encoder_kernel", at_ns=begin + 2 * US)
        block.frame("nn.Module: Encoder_0", begin + US, begin + 2 * US + HOST_NS)
    block.wait()
    return (count - 1) * (each - copy - LEAD_NS)


def dispatched(block: Block, base: Base) -> int:
    """Kernels of 3 to 6 µs, each launched only when the one before has been done for some time."""
    each, busy = block.rng.randrange(18, 34) * US, block.rng.randrange(3, 7) * US
    count = block.length_ns // each
    kernel = block.any_of("gemv", "void at::native::reduce_kernel<512, 1>", "triton_red_fused_mean_2")
    op = block.any_of("aten::mul_", "aten::linear", "aten::layer_norm")
    for at in range(count):
        launched = (at + 1) * each - busy - LEAD_NS - US
        block.op("aten::dispatch", at * each, launched)
        block.launched(op, (at + 1) * each - busy - LEAD_NS, (at + 1) * each, kernel, at_ns=launched)
    return count * (each - busy - launch_bound.RESIDUAL_NS)


def one_by_one(block: Block, base: Base) -> int:
    """An optimizer step over some tensors, a few kernels each, of which one pass would do."""
    tensors = block.rng.randrange(8, 24)
    passes = block.rng.choice(
        (
            ("aten::mul_", "aten::add_", "aten::sqrt", "aten::addcdiv_"),
            ("aten::mul_", "aten::add_", "aten::sign"),
            ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_"),
        )
    )
    count = tensors * len(passes)
    each = block.length_ns // count
    name = block.any_of(*OPTIMIZERS)
    block.mark(f"Optimizer.step#{name}.step", 0, count * HOST_NS + 100)
    for at in range(count):
        op = passes[at % len(passes)]
        block.launched(op, at * each, (at + 1) * each, f"elementwise_{op}")
    block.wait()
    return count * each - LEAD_NS - tensors * (each - LEAD_NS)
