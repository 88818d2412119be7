"""What looks like a defect and costs nothing: no rule may say anything about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from injection.block import HOST_NS, LEAD_NS, US, Block
from injection.communication_defects import ALL_REDUCES, collective
from injection.device_defects import CONVERSIONS, ELEMENTWISE, HALVES, SIZE
from injection.host_defects import (
    ALLOCATIONS,
    COLLECTIONS,
    COMPILED_RANGES,
    FLUSHES,
    LOADERS,
    LOGS,
    MEMCPY,
    OWN_CODE,
    SAVES,
)
from injection.sites import Base

Put = Callable[[Block, Base], None]

BIG = {"grid": [4096, 1, 1], "block": [256, 1, 1]}


@dataclass(frozen=True)
class Harmless:
    """The stretch that it takes is full of work that has to be done."""

    name: str
    put: Put


def _behind(put: Put) -> Put:
    """The host does this while the device computes."""

    def behind(block: Block, base: Base) -> None:
        block.launched("aten::mm", 0, block.length_ns, "ampere_bf16_s16816gemm", **BIG)
        put(block, base)

    return behind


def _frame(*names: str) -> Put:
    return _behind(lambda block, base: block.frame(block.any_of(*names), 2 * HOST_NS, block.length_ns - US))


def _mark(*names: str) -> Put:
    return _behind(lambda block, base: block.mark(block.any_of(*names), 2 * HOST_NS, block.length_ns - US))


def _op(*names: str) -> Put:
    return _behind(lambda block, base: block.op(block.any_of(*names), 2 * HOST_NS, block.length_ns - US))


def _call(*names: str) -> Put:
    def put(block: Block, base: Base) -> None:
        block.call(block.any_of(*names), 2 * HOST_NS, block.length_ns - US)

    return _behind(put)


def _pinned(block: Block, base: Base) -> None:
    """A copy beside the computation."""
    end = block.length_ns
    block.launched("aten::mm", 0, end, "ampere_bf16_s16816gemm", **BIG)
    link = block.call("cudaMemcpyAsync", 2 * HOST_NS, 2 * HOST_NS + US)
    name = block.any_of("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)")
    block.on_device(end // 10, end // 2, link, name, stream=base.stream + 50, bytes=8 << 20, **MEMCPY)


def _overlapped(block: Block, base: Base) -> None:
    """Gradients that travel beside the computation, small ones as well."""
    end, count = block.length_ns, block.rng.choice((1, 12))
    block.launched("aten::mm", 0, end, "ampere_bf16_s16816gemm", **BIG)
    each = (end // 2) // count
    for at in range(count):
        begin = end // 4 + at * each
        block.launched(
            "c10d::allreduce_", begin, begin + each, ALL_REDUCES[0], stream=base.stream + 90,
            **collective(4 << 20 if count == 1 else 1000, 1),
        )  # fmt: skip


def _products(block: Block, base: Base) -> None:
    """Half precision, aligned along memory; on tensor cores; in one the number of rows is odd. No device is faster with
    sizes like these."""
    types, each = [block.any_of(*HALVES)] * 2, block.length_ns // 4
    for at in range(4):
        rows = 1024 * SIZE - at
        dims = [[rows, SIZE], [SIZE, SIZE]]
        block.launched("aten::mm", at * each, (at + 1) * each, "gemm_align8", dims=dims, types=types, **BIG)


def _tf32(block: Block, base: Base) -> None:
    kernel = block.any_of("ampere_sgemm_tf32_128x64", "cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4")
    block.launched("aten::mm", 0, block.length_ns, kernel, **BIG)


def _cast_once(block: Block, base: Base) -> None:
    block.op("aten::_to_copy", 0, 100)
    types = ["c10::BFloat16", "float", ""]
    dims = [[512, 1024], [512, 1024], []]
    block.launched("aten::copy_", 0, block.length_ns, "direct_copy_kernel", dims=dims, types=types, **BIG)


def _fused_update(block: Block, base: Base) -> None:
    block.mark("Optimizer.step#AdamW.step", 0, 2 * HOST_NS)
    block.launched("aten::_fused_adamw_", 0, block.length_ns, "multi_tensor_apply_kernel", **BIG)


def _long_elementwise(block: Block, base: Base) -> None:
    """Each of them is worth its launch, and stands alone between products."""
    each = 60 * US
    for at in range(block.length_ns // each):
        name, kernel = ("aten::mul", block.any_of(*ELEMENTWISE)) if at % 2 else ("aten::mm", "ampere_bf16_s16816gemm")
        block.launched(name, at * each, (at + 1) * each, kernel, **BIG)


def _fused_attention(block: Block, base: Base) -> None:
    half, end = block.any_of(*HALVES), block.length_ns
    scores = [[1 << 20, 64, 64], [], []]  # as much as any device moves in that time
    block.launched("aten::_scaled_dot_product_flash_attention", 0, end // 2, "flash_fwd_kernel", **BIG)
    block.launched("aten::_softmax", end // 2, end, "softmax_warp", dims=scores, types=[half, "Scalar", ""], **BIG)


def _plain_convolution(block: Block, base: Base) -> None:
    """Without a bias, and in its own layout."""
    third = block.length_ns // 3
    dims = [[8, 64, 56, 56], [128, 64, 3, 3], []]
    block.op("aten::conv2d", 0, HOST_NS + 100, dims=dims, types=["float", "float", ""])
    block.launched("aten::cudnn_convolution", 0, 2 * third, "sm80_xmma_fprop_implicit_gemm_tf32", at_ns=50, **BIG)
    block.launched(
        "aten::batch_norm", 2 * third, 3 * third, "bn_fw", at_ns=HOST_NS + 200, dims=[[8, 128, 56, 56]], **BIG
    )


def _short_conversion(block: Block, base: Base) -> None:
    """Far below what is worth a finding."""
    block.launched("aten::cudnn_convolution", 0, LEAD_NS + 2 * US, block.any_of(*CONVERSIONS))
    block.launched("aten::mm", LEAD_NS + 2 * US, block.length_ns, "ampere_bf16_s16816gemm", **BIG)


HARMLESS: tuple[Harmless, ...] = (
    Harmless("a batch is fetched behind the computation", _mark(*LOADERS)),
    Harmless("a checkpoint is written behind it", _frame(*SAVES)),
    Harmless("the cache is emptied behind it", _frame(*FLUSHES)),
    Harmless("garbage is collected behind it", _frame(*COLLECTIONS)),
    Harmless("a log is written behind it", _frame(*LOGS)),
    Harmless("something is compiled behind it", _op(*COMPILED_RANGES)),
    Harmless("own code runs behind it", _frame(*OWN_CODE)),
    Harmless("operators of the host run behind it", _op("aten::sort", "aten::topk")),
    Harmless("memory is allocated behind it", _call(*ALLOCATIONS)),
    Harmless("the ranks exchange behind it through the host", _mark("gloo:all_reduce")),
    Harmless("a pinned copy beside the computation", _pinned),
    Harmless("collectives beside the computation", _overlapped),
    Harmless("aligned half-precision products", _products),
    Harmless("products on tensor cores", _tf32),
    Harmless("a conversion that is kept", _cast_once),
    Harmless("a fused update", _fused_update),
    Harmless("long elementwise kernels", _long_elementwise),
    Harmless("fused attention, and a small softmax", _fused_attention),
    Harmless("a convolution without a bias before a norm", _plain_convolution),
    Harmless("a short change of layout", _short_conversion),
)
