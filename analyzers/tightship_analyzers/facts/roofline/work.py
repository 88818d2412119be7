"""FLOPs and bytes of operators, from the sizes and types of their inputs. A multiply-add counts two.

What cannot be known from the inputs alone is not guessed: a forward convolution needs the size of its output, which its
backward tells, and attention counts as if no position were masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.program.op_shapes import Dims, Inputs


class Family(StrEnum):
    """What kind of work an operator does."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"


ON_ORDINARY_UNITS = (Family.ELEMENTWISE, Family.REDUCTION)
"""What matrix units do nothing for."""


class Work(NamedTuple):
    """What one call of an operator has to do at least."""

    family: Family
    dtype: str
    """As `hardware.DTYPES` names it: of the first factor; of elementwise work, of the destination or else of what its
    inputs are promoted to."""
    flops: int
    bytes: int
    """Every input and every output, once."""
    output_bytes: int


Element = tuple[str, int]
"""(Name in `hardware`, bytes)."""

ELEMENT: dict[str, Element] = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::half": ("fp16", 2),
    "c10::bfloat16": ("bf16", 2),
    "c10::float8_e4m3fn": ("fp8", 1),
    "c10::float8_e5m2": ("fp8", 1),
    "c10::float8_e4m3fnuz": ("fp8", 1),
    "c10::float8_e5m2fnuz": ("fp8", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "bool": ("int8", 1),
    "int": ("", 4),
    "long": ("", 8),
    "long int": ("", 8),
    "short": ("", 2),
}
"""Element type as torch writes it, in small letters → what it is."""

OutputSizes = Mapping[tuple[Dims, Dims], Dims]
"""(input, weight) of a convolution → size of its output, learnt from backward calls."""


def work_of(name: str, inputs: Inputs, outputs: OutputSizes) -> Work | None:
    """The work of one call; None where the operator is not known or its inputs do not tell."""
    if name in MATRIX:
        return _matrix(inputs, *MATRIX[name])
    if name in GROUPED:
        return _grouped(inputs)
    if name in CONVOLUTIONS:
        return _convolution(inputs, outputs)
    if name == CONVOLUTION_BACKWARD:
        return _convolution_backward(inputs)
    if name in ATTENTION:
        return _attention(inputs, *ATTENTION[name], starts=PACKED.get(name))
    if name in REDUCTIONS:
        return _reduction(inputs, REDUCTIONS[name])
    base = name.removeprefix("aten::").removesuffix("_")
    if base in ELEMENTWISE and name.startswith("aten::"):
        return _elementwise(base, inputs, in_place=name.endswith("_"))
    return None


MATRIX = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::_int_mm": (0, 1),
    "aten::_scaled_mm": (0, 1),
    "_C::cutlass_scaled_mm": (1, 2),
    "sgl_kernel::fp8_scaled_mm": (0, 1),
}
"""Operator → which inputs are the factors; those of vLLM and SGLang as their `ops` declare them."""
GROUPED = frozenset(("aten::_grouped_mm", "aten::_scaled_grouped_mm"))
"""One product for each group of rows (the tokens of an expert), of which the inputs tell the sum only."""
LEAST_RESULT_BYTES = 2
"""An element of the result: products of 8-bit factors give halves, or more."""
CONVOLUTIONS = frozenset(("aten::cudnn_convolution", "aten::miopen_convolution", "aten::convolution_overrideable"))
CONVOLUTION_BACKWARD = "aten::convolution_backward"
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""Matrix products: scores and values; scores again, and one for each of value, score, key and query gradients.
Source: Dao et al., FlashAttention, arXiv 2205.14135, algorithm 4."""
HEADS_FIRST, POSITIONS_FIRST = 2, 1
"""Axis of the positions: (batch, heads, positions, size) or (batch, positions, heads, size)."""
ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": (0, HEADS_FIRST, FORWARD_PRODUCTS),
    "aten::_scaled_dot_product_efficient_attention": (0, HEADS_FIRST, FORWARD_PRODUCTS),
    "aten::_scaled_dot_product_cudnn_attention": (0, HEADS_FIRST, FORWARD_PRODUCTS),
    "aten::_scaled_dot_product_fused_attention_overrideable": (0, HEADS_FIRST, FORWARD_PRODUCTS),
    "aten::_flash_attention_forward": (0, POSITIONS_FIRST, FORWARD_PRODUCTS),
    "aten::_efficient_attention_forward": (0, POSITIONS_FIRST, FORWARD_PRODUCTS),
    "aten::_cudnn_attention_forward": (0, HEADS_FIRST, FORWARD_PRODUCTS),
    "aten::_scaled_dot_product_flash_attention_backward": (1, HEADS_FIRST, BACKWARD_PRODUCTS),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, HEADS_FIRST, BACKWARD_PRODUCTS),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, HEADS_FIRST, BACKWARD_PRODUCTS),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": (1, HEADS_FIRST, BACKWARD_PRODUCTS),
    "aten::_flash_attention_backward": (1, POSITIONS_FIRST, BACKWARD_PRODUCTS),
    "aten::_efficient_attention_backward": (1, POSITIONS_FIRST, BACKWARD_PRODUCTS),
    "aten::_cudnn_attention_backward": (1, HEADS_FIRST, BACKWARD_PRODUCTS),
}
"""Operator → which input is the query, before key and value; axis of the positions; matrix products. Most of
`_scaled_dot_product_…` call one of the others, which then launches the kernels: work is attributed to the innermost."""
PACKED = {"aten::_efficient_attention_forward": 4, "aten::_efficient_attention_backward": 6}
"""Operator → the input that says where sequences start, if several of them are packed into one. Those of flash and
cuDNN then have three axes."""
REDUCTIONS = {
    "aten::_softmax": (1, 1),
    "aten::_log_softmax": (1, 1),
    "aten::_softmax_backward_data": (2, 1),
    "aten::_log_softmax_backward_data": (2, 1),
    "aten::native_layer_norm": (1, 1),
    "aten::native_layer_norm_backward": (2, 1),
    "aten::_fused_rms_norm": (1, 1),
    "aten::_fused_rms_norm_backward": (2, 1),
}
"""Operator on rows → how many tensors of the size of its first input it reads and writes; weights are small."""
COMPARISONS = frozenset(("eq", "ge", "gt", "le", "lt", "ne"))
"""Their result is one byte an element, unless it replaces an input."""
ONLY_WRITTEN = frozenset(("copy", "fill", "zero"))
"""Their first input is the destination, which they do not read."""
# fmt: off
ELEMENTWISE = COMPARISONS | ONLY_WRITTEN | frozenset((
    "abs", "add", "addcdiv", "addcmul", "clamp", "clamp_max", "clamp_min", "clone", "cos", "div", "dropout", "elu",
    "exp", "gelu", "gelu_backward", "hardswish", "leaky_relu", "log", "masked_fill", "maximum", "minimum", "mul",
    "native_dropout", "native_dropout_backward", "neg", "pow", "relu", "rsqrt", "sigmoid", "sigmoid_backward", "silu",
    "silu_backward", "sin", "sqrt", "square", "sub", "tanh", "tanh_backward", "threshold_backward", "where",
))
# fmt: on


def _matrix(inputs: Inputs, left: int, right: int) -> Work | None:
    first, second = _tensor(inputs, left), _tensor(inputs, right)
    element = _element(inputs, left)
    if first is None or second is None or element is None or len(first) != len(second):
        return None
    if len(first) not in (2, 3) or first[-1] != second[-2]:
        return None
    rows, inner, columns = prod(first[:-1]), first[-1], second[-1]
    output = rows * columns * max(element[1], LEAST_RESULT_BYTES)
    moved = (prod(first) + prod(second)) * element[1] + output
    return Work(Family.GEMM, element[0], 2 * rows * inner * columns, moved, output)


def _grouped(inputs: Inputs) -> Work | None:
    """(rows × inner) times (groups × inner × columns), each row by one group: all groups count as read."""
    rows, groups, element = _tensor(inputs, 0), _tensor(inputs, 1), _element(inputs, 0)
    if rows is None or groups is None or element is None:
        return None
    if (len(rows), len(groups)) == (3, 3):
        return _matrix(inputs, 0, 1)
    if (len(rows), len(groups)) != (2, 3) or rows[1] != groups[1]:
        return None
    output = rows[0] * groups[2] * max(element[1], LEAST_RESULT_BYTES)
    moved = (prod(rows) + prod(groups)) * element[1] + output
    return Work(Family.GEMM, element[0], 2 * prod(rows) * groups[2], moved, output)


def _reduction(inputs: Inputs, tensors: tuple[int, int]) -> Work | None:
    """Reads rows and writes as many; one operation an element, as far as this counts."""
    data, element = _tensor(inputs, 0), _element(inputs, 0)
    if data is None or element is None:
        return None
    one = prod(data) * element[1]
    return Work(Family.REDUCTION, element[0], prod(data), sum(tensors) * one, tensors[1] * one)


def _convolution(inputs: Inputs, outputs: OutputSizes) -> Work | None:
    data, weight, element = _tensor(inputs, 0), _tensor(inputs, 1), _element(inputs, 0)
    if data is None or weight is None or element is None:
        return None
    output = outputs.get((data, weight))
    multiply_adds = _multiply_adds(output, data, weight) if output is not None else None
    if output is None or multiply_adds is None:
        return None
    written = prod(output) * element[1]
    moved = (prod(data) + prod(weight)) * element[1] + written
    return Work(Family.CONVOLUTION, element[0], 2 * multiply_adds, moved, written)


def _convolution_backward(inputs: Inputs) -> Work | None:
    """The gradients of data and of weight, each as much work as the forward."""
    output, data, weight = (_tensor(inputs, number) for number in range(3))
    element = _element(inputs, 1)
    if output is None or data is None or weight is None or element is None:
        return None
    multiply_adds = _multiply_adds(output, data, weight)
    if multiply_adds is None:
        return None
    written = (prod(data) + prod(weight)) * element[1]
    # Each of the two products reads the output's gradient and the other factor.
    moved = 2 * prod(output) * element[1] + 2 * written
    return Work(Family.CONVOLUTION, element[0], 4 * multiply_adds, moved, written)


def _multiply_adds(output: Dims, data: Dims, weight: Dims) -> int | None:
    """Each element of the output, of a transposed convolution each of the data, meets `weight[1:]`.

    The weight's first axis are the channels of that side. Where both sides have as many, it is the smaller one:
    transposed convolutions enlarge.
    """
    if not len(output) == len(data) == len(weight) > 2:
        return None
    sides = [prod(side) for side in (output, data) if side[1] == weight[0]]
    return min(sides) * prod(weight[1:]) if sides else None


def convolution_outputs(backward: Iterable[Inputs]) -> OutputSizes:
    """What calls of `convolution_backward` tell of their forwards; nothing where two of them tell different sizes."""
    recorded: dict[tuple[Dims, Dims], set[Dims]] = {}
    for inputs in backward:
        output, data, weight = (_tensor(inputs, number) for number in range(3))
        if output is not None and data is not None and weight is not None:
            recorded.setdefault((data, weight), set()).add(output)
    return {key: sizes.pop() for key, sizes in recorded.items() if len(sizes) == 1}


def _attention(inputs: Inputs, query: int, positions: int, products: int, *, starts: int | None) -> Work | None:
    """`products` matrix products of (positions × size × positions), for each head of the query."""
    q, k, v = (_tensor(inputs, query + number) for number in range(3))
    element = _element(inputs, query)
    if q is None or k is None or v is None or element is None or not len(q) == len(k) == len(v) == 4:
        return None
    if starts is not None and _tensor(inputs, starts) is not None:
        return None
    scores = prod(q[:3]) * k[positions]
    # Half of the products have the size of keys, half that of values; the fifth of backward that of keys.
    flops = scores * (2 * (products - products // 2) * q[3] + 2 * (products // 2) * v[3])
    factors, output = (prod(q) + prod(k) + prod(v)) * element[1], prod(q[:3]) * v[3] * element[1]
    if products > FORWARD_PRODUCTS:
        # Reads the factors, the output and its gradient; writes a gradient for each factor.
        return Work(Family.ATTENTION, element[0], flops, 2 * factors + 2 * output, factors)
    return Work(Family.ATTENTION, element[0], flops, factors + output, output)


def _elementwise(base: str, inputs: Inputs, *, in_place: bool) -> Work | None:
    """One operation an element of the result, which is written once; tensors are read once."""
    numbers = [number for number, dims in enumerate(inputs.dims) if dims]
    sizes = [inputs.dims[number] for number in numbers]
    elements = [element for number in numbers if (element := _element(inputs, number)) is not None]
    if not elements or len(elements) < len(sizes):
        return None
    if in_place or base in ONLY_WRITTEN:
        result, element = (sizes[0] if numbers[0] == 0 else None), elements[0]
    else:
        result, element = broadcast(sizes), promoted(elements)
    # The condition alone does not tell the type of what it chooses from.
    if result is None or (base == "where" and numbers == [0]):
        return None
    written = prod(result) * (1 if base in COMPARISONS and not in_place else element[1])
    read = [prod(dims) * of[1] for dims, of in zip(sizes, elements, strict=True)]
    moved = sum(read[1:] if base in ONLY_WRITTEN else read) + written
    return Work(Family.ELEMENTWISE, element[0], prod(result), moved, written)


def broadcast(sizes: Sequence[Dims]) -> Dims | None:
    """Sizes of what an elementwise operator makes of tensors of these sizes; None where they do not fit."""
    try:
        return np.broadcast_shapes(*sizes)
    except ValueError:
        return None


def promoted(elements: Iterable[Element]) -> Element:
    """The type of a result of several: the widest, of floats if there are any; of the two halves neither but fp32.

    Source: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
    """
    kinds = set(elements)
    if {ELEMENT["c10::half"], ELEMENT["c10::bfloat16"]} <= kinds:
        kinds.add(ELEMENT["float"])
    return max(kinds, key=lambda kind: (kind[0].startswith(("fp", "bf")), kind[1]))


def _tensor(inputs: Inputs, number: int) -> Dims | None:
    dims = inputs.dims[number] if number < len(inputs.dims) else ()
    return dims if dims and min(dims) > 0 else None


def _element(inputs: Inputs, number: int) -> Element | None:
    return ELEMENT.get(inputs.types[number].lower()) if number < len(inputs.types) else None
