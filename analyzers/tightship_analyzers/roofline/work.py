"""FLOPs and bytes of operators, from the sizes and types of their inputs. A multiply-add counts two.

What cannot be known from the inputs alone is not guessed: a forward convolution needs the size of its output, which its
backward tells, and attention counts as if no position were masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import prod
from typing import NamedTuple

from tightship_analyzers.facts.op_shapes import Dims, Inputs


class Family(StrEnum):
    """What kind of work an operator does."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"


class Work(NamedTuple):
    """What one call of an operator has to do at least."""

    family: Family
    dtype: str
    """As `hardware.DTYPES` names it, of the first factor."""
    flops: int
    bytes: int
    """Every input and every output, once."""
    output_bytes: int


ELEMENT: dict[str, tuple[str, int]] = {
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
"""Element type as torch writes it, in small letters → (name in `hardware`, bytes)."""

OutputSizes = Mapping[tuple[Dims, Dims], Dims]
"""(input, weight) of a convolution → size of its output, learnt from backward calls."""


def work_of(name: str, inputs: Inputs, outputs: OutputSizes) -> Work | None:
    """The work of one call; None where the operator is not known or its inputs do not tell."""
    if name in MATRIX:
        return _matrix(inputs, *MATRIX[name])
    if name in CONVOLUTIONS:
        return _convolution(inputs, outputs)
    if name == CONVOLUTION_BACKWARD:
        return _convolution_backward(inputs)
    if name in ATTENTION:
        return _attention(inputs, 0, products=FORWARD_PRODUCTS)
    if name in ATTENTION_BACKWARD:
        return _attention(inputs, 1, products=BACKWARD_PRODUCTS)
    base = name.removeprefix("aten::").removesuffix("_")
    if base in ELEMENTWISE and name.startswith("aten::"):
        return _elementwise(inputs, in_place=name.endswith("_"))
    return None


MATRIX = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::_scaled_mm": (0, 1),
}
"""Operator → which inputs are the factors."""
CONVOLUTIONS = frozenset(("aten::cudnn_convolution", "aten::miopen_convolution", "aten::convolution_overrideable"))
CONVOLUTION_BACKWARD = "aten::convolution_backward"
ATTENTION = frozenset(
    f"aten::_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn", "fused")
)
ATTENTION_BACKWARD = frozenset(f"{name}_backward" for name in ATTENTION)
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""Matrix products: scores and values; scores again, and one for each of value, score, key and query gradients.
Source: Dao et al., FlashAttention, arXiv 2205.14135, algorithm 4."""
# fmt: off
ELEMENTWISE = frozenset((
    "abs", "add", "addcdiv", "addcmul", "clamp", "clamp_max", "clamp_min", "clone", "copy", "cos", "div", "dropout",
    "elu", "eq", "exp", "fill", "gelu", "gelu_backward", "ge", "gt", "hardswish", "leaky_relu", "log", "lt",
    "masked_fill", "maximum", "minimum", "mul", "native_dropout", "native_dropout_backward", "ne", "neg", "pow",
    "relu", "rsqrt", "sigmoid", "sigmoid_backward", "silu", "silu_backward", "sin", "sqrt", "square", "sub", "tanh",
    "tanh_backward", "threshold_backward", "where", "zero",
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
    output = rows * columns * element[1]
    moved = (prod(first) + prod(second)) * element[1] + output
    return Work(Family.GEMM, element[0], 2 * rows * inner * columns, moved, output)


def _convolution(inputs: Inputs, outputs: OutputSizes) -> Work | None:
    data, weight, element = _tensor(inputs, 0), _tensor(inputs, 1), _element(inputs, 0)
    if data is None or weight is None or element is None:
        return None
    output = outputs.get((data, weight))
    if output is None:
        return None
    written = prod(output) * element[1]
    moved = (prod(data) + prod(weight)) * element[1] + written
    return Work(Family.CONVOLUTION, element[0], 2 * prod(output) * prod(weight[1:]), moved, written)


def _convolution_backward(inputs: Inputs) -> Work | None:
    """The gradients of data and of weight, each as much work as the forward."""
    output, data, weight = (_tensor(inputs, number) for number in range(3))
    element = _element(inputs, 1)
    if output is None or data is None or weight is None or element is None:
        return None
    written = (prod(data) + prod(weight)) * element[1]
    # Each of the two products reads the output's gradient and the other factor.
    moved = 2 * prod(output) * element[1] + 2 * written
    return Work(Family.CONVOLUTION, element[0], 4 * prod(output) * prod(weight[1:]), moved, written)


def convolution_output(inputs: Inputs) -> tuple[tuple[Dims, Dims], Dims] | None:
    """What a `convolution_backward` tells of its forward: (input, weight) and the size of the output."""
    output, data, weight = (_tensor(inputs, number) for number in range(3))
    return ((data, weight), output) if output is not None and data is not None and weight is not None else None


def _attention(inputs: Inputs, query: int, *, products: int) -> Work | None:
    """Inputs are (batch, heads, positions, size); `products` matrix products of (positions × size × positions)."""
    q, k, v = (_tensor(inputs, query + number) for number in range(3))
    element = _element(inputs, query)
    if q is None or k is None or v is None or element is None or not len(q) == len(k) == len(v) == 4:
        return None
    scores = prod(q[:3]) * k[2]
    # Half of the products have the size of keys, half that of values; the fifth of backward that of keys.
    flops = scores * (2 * (products - products // 2) * q[3] + 2 * (products // 2) * v[3])
    factors, output = (prod(q) + prod(k) + prod(v)) * element[1], prod(q[:3]) * v[3] * element[1]
    if products > FORWARD_PRODUCTS:
        # Reads the factors, the output and its gradient; writes a gradient for each factor.
        return Work(Family.ATTENTION, element[0], flops, 2 * factors + 2 * output, factors)
    return Work(Family.ATTENTION, element[0], flops, factors + output, output)


def _elementwise(inputs: Inputs, *, in_place: bool) -> Work | None:
    """One operation an element; every tensor is read once and the result, of the broadcast size, written once."""
    tensors = [
        (dims, element)
        for number, dims in enumerate(inputs.dims)
        if dims and (element := _element(inputs, number)) is not None
    ]
    if not tensors:
        return None
    result = prod(tensors[0][0]) if in_place else max(prod(dims) for dims, _ in tensors)
    written = result * tensors[0][1][1]
    read = sum(prod(dims) * element[1] for dims, element in tensors)
    return Work(Family.ELEMENTWISE, tensors[0][1][0], result, read + written, written)


def _tensor(inputs: Inputs, number: int) -> Dims | None:
    dims = inputs.dims[number] if number < len(inputs.dims) else ()
    return dims if dims and min(dims) > 0 else None


def _element(inputs: Inputs, number: int) -> tuple[str, int] | None:
    return ELEMENT.get(inputs.types[number].lower()) if number < len(inputs.types) else None
