"""What the sizes of a slow kernel show, and what to do about it."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tightship_analyzers.facts.program.op_shapes import Dims, Inputs
from tightship_analyzers.facts.roofline.slow_kernels import SlowKernel
from tightship_analyzers.facts.roofline.work import ATTENTION, CONVOLUTION_BACKWARD, MATRIX, Family
from tightship_analyzers.hardware import Device
from tightship_platform.units import plural

TILE = 128
"""Rows and columns of a result that a block computes, as a rule. Source: NVIDIA, "Matrix Multiplication Background
User's Guide" (tile quantization)."""
FEW_ROWS = 64
"""A product with fewer rows takes as long as its weights take to be read: in halves that is one operation a byte for
each row, and every device in hardware.toml does more than 64 while it reads a byte."""
FEW_CHANNELS = 32
"""Channels of a convolution that fill less than one step of its inner loop. Source: NVIDIA, "Convolutional Layers
User's Guide" (multiples of 8, better of 64)."""
NEW_ATTENTION = ("9.0", "10.0", "10.3")
"""CUDA compute capabilities for which FlashAttention-3 or cuDNN have kernels that torch's own flash attention, written
for 8.0, is not. Source: https://github.com/Dao-AILab/flash-attention."""

TUNED = ("out = model(x)", 'out = torch.compile(model, mode="max-autotune")(x)')
TUNED_ROCM = ("python job.py", "PYTORCH_TUNABLEOP_ENABLED=1 python job.py")

ANOTHER = ("out = experts(tokens)", "out = experts(tokens)  # of another library or backend, or tuned for these sizes")


class Advice(NamedTuple):
    """On one slow kernel."""

    what: str
    """`attention kernels`."""
    sizes: str
    fix: str
    before: str
    after: str


def advice_on(kernel: SlowKernel, device: Device) -> Advice:
    """By family and sizes."""
    match kernel.family:
        case Family.ATTENTION:
            return _on_attention(kernel, device)
        case Family.CONVOLUTION:
            return _on_convolution(kernel, device)
        case Family.REDUCTION:
            sizes = _listed([kernel.inputs.dims[0]])
            return Advice(
                "softmax or norm kernels", sizes, "Compile the region around it, or use a fused kernel", *TUNED
            )
        case _:
            return _on_product(kernel, device)


def _on_attention(kernel: SlowKernel, device: Device) -> Advice:
    query, axis, _ = ATTENTION[kernel.op]
    q, k = kernel.inputs.dims[query], kernel.inputs.dims[query + 1]
    sizes = f"{q[axis]} queries and {k[axis]} keys, {q[3 - axis]} heads of {q[-1]}, {q[0]} of them at once"
    call = "out = F.scaled_dot_product_attention(q, k, v)"
    if device.vendor == "AMD":
        fix = "Try another backend: flash attention of AITER or Composable Kernel"
        return Advice("attention kernels", sizes, fix, call, "out = flash_attn_func(q, k, v)  # of AITER, or CK")
    if device.capability in NEW_ATTENTION:
        fix = "Try a kernel of this device's generation: cuDNN's, FlashAttention-3 or -4"
    else:
        fix = "Try the other backends of scaled_dot_product_attention"
    after = "with sdpa_kernel(SDPBackend.CUDNN_ATTENTION): out = F.scaled_dot_product_attention(q, k, v)"
    return Advice("attention kernels", sizes, fix, call, after)


def _on_convolution(kernel: SlowKernel, device: Device) -> Advice:
    first = 1 if kernel.op == CONVOLUTION_BACKWARD else 0
    data, weight = kernel.inputs.dims[first : first + 2]
    sizes = _listed([data, weight])
    after = ("conv(x)", "conv.to(memory_format=torch.channels_last)(x)  # and torch.backends.cudnn.benchmark = True")
    what = "convolution kernels"
    if weight[1] == 1 and data[1] > 1:
        return Advice(what, f"{sizes}, depthwise", "Try channels-last memory, or a plain convolution", *after)
    if min(data[1], weight[0]) < FEW_CHANNELS:
        few = min(data[1], weight[0])
        return Advice(
            what, f"{sizes}: {plural(few, 'channel')} only", "Try channels-last memory, more channels", *after
        )
    tiles = _tiles(data[0] * prod(data[2:]), weight[0])
    if tiles < device.units:
        return Advice(what, f"{sizes}: {_few(tiles, device)}", "Take a larger batch, and channels-last memory", *after)
    library = "MIOpen" if device.vendor == "AMD" else "cuDNN"
    return Advice(what, sizes, f"Try channels-last memory, and let {library} measure its kernels", *after)


def _on_product(kernel: SlowKernel, device: Device) -> Advice:
    tuned = TUNED_ROCM if device.vendor == "AMD" else TUNED
    if kernel.op not in MATRIX:
        rows, groups = kernel.inputs.dims[:2]
        each = rows[0] // groups[0] if len(rows) == 2 else rows[1]
        sizes = f"{_listed([rows, groups])}: {plural(each, 'row')} for each of {plural(groups[0], 'group')} on average"
        if each >= FEW_ROWS:
            return Advice("grouped products", sizes, "Try another kernel for the experts, or other tiles", *ANOTHER)
        more = ("out = experts(tokens)", "out = experts(more_tokens)  # a larger batch, or fewer experts a rank")
        return Advice("grouped products", sizes, "Try another kernel or tiles, or give each expert more tokens", *more)
    batch, m, k, n = _sizes(kernel.inputs, *MATRIX[kernel.op])
    sizes = f"({m}×{k}) × ({k}×{n})" + (f", {batch} of them" if batch > 1 else "")
    tiles = _tiles(m, n) * batch
    if min(m, n) < FEW_ROWS:
        more = ("out = layer(x)", "out = layer(torch.cat(several))  # weights are read once for all")
        few = f"{sizes}: {plural(min(m, n), 'row')} only share the reading of the other factor"
        return Advice("matrix products", few, "Give more rows at once, or try a kernel for few rows", *more)
    if tiles < device.units:
        sizes += f": {_few(tiles, device)}"
        return Advice("matrix products", sizes, "Join products, take a larger batch, or tune for these sizes", *tuned)
    if k < FEW_ROWS:
        sizes += ": a short inner size, so that the result's bytes set the time"
        return Advice("matrix products", sizes, "Fuse what follows into the product, or tune for these sizes", *tuned)
    return Advice("matrix products", sizes, "Have kernels tuned for these sizes, or try another library", *tuned)


def _sizes(inputs: Inputs, left: int, right: int) -> tuple[int, int, int, int]:
    """(batch, rows, inner, columns)."""
    first, second = inputs.dims[left], inputs.dims[right]
    return prod(first[:-2]), first[-2], first[-1], second[-1]


def _tiles(rows: int, columns: int) -> int:
    return -(-rows // TILE) * -(-columns // TILE)


def _few(tiles: int, device: Device) -> str:
    return f"{plural(tiles, 'tile')} of {TILE}×{TILE} for {device.units} multiprocessors"


def _listed(tensors: list[Dims]) -> str:
    return " and ".join("×".join(map(str, dims)) for dims in tensors)
