"""Half-precision GEMMs whose dimensions are not multiples of 8 run on slow kernels.

## What it finds
`mm`, `addmm`, `bmm` and `baddbmm` of float16 or bfloat16 with a dimension that is not a multiple of 8, whose kernels
reach a lower rate than the aligned products of the same trace; together more than 2 % of the step. Which dimension
matters depends on how the factors lie in memory: a kernel whose name tells how much it reads at once decides, else the
two dimensions along which rows lie in memory as a rule (in (m×k) × (k×n): k and n). Products of an unfused attention
are not among them: their sizes are counts of tokens, which nobody pads, and `unfused-attention` does away with them.

## Why it costs
Tensor cores read 16 bytes at a time, 8 elements of half precision. With other sizes the library must use kernels that
read single elements (`…_align1`, `…_align2`), often of an older generation.

## Example
```python
head = nn.Linear(1024, 50257)             # the vocabulary of GPT-2
```

## Use instead
```python
head = nn.Linear(1024, 50304)             # the next multiple of 64; ignore the last 47 logits
```
Sequences: `pad_to_multiple_of=8`.

The saving of a product is what it takes longer than the padded one would at the rate that aligned products of the trace
reach (the median of those nearest in size), and no less than its factors and its result take at the device's memory
rate; where there is none within a factor of 4, half of it. The low end is 0.

## Known misses
Needs recorded shapes. Factors that lie transposed, where the kernel's name does not tell. Convolutions, and products
inside attention.

## Source
NVIDIA, "Matrix Multiplication Background User's Guide" (alignment: 16 bytes); torch/profiler/_pattern_matcher.py
(`MatMulDimInFP16Pattern`). 2 % of the step.
"""

from __future__ import annotations

import math
import re

import numpy as np

from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.matrix_products import MatrixProducts, Product
from tightship_analyzers.facts.kernels.plain_attention import PlainAttention
from tightship_analyzers.facts.kernels.unaligned_products import HALF, MULTIPLE, is_unaligned
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    claim,
    costliest,
    gone,
    is_worth,
    mostly_in,
    share_of,
    time_of,
    within_window,
)
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""
HALF_BYTES = 2
UNKNOWN_LEFT_FRAC = 0.5
"""What an aligned product takes, where the trace holds none to compare with."""
MIN_LEFT_FRAC = 0.1
"""No product is taken to become more than ten times as fast."""
SIZE_FACTORS = (1.25, 2.0, 4.0)
"""Aligned products within the first of these factors of its size are compared with it, else within the next."""
MIN_KERNEL_NS = 10_000
"""A launch takes 3 to 10 µs (source: launch-bound): of a shorter kernel it is the limit."""


def judge(facts: Facts) -> Judgement:
    """All such products together, at the place that costs most."""
    kernels = facts[KernelOps]
    halves = [product for product in facts[MatrixProducts].products if product.dtype in HALF]
    duration = kernels.events.dur_ns
    halves = [product for product in halves if duration[product.at] >= MIN_KERNEL_NS]
    is_odd = [is_unaligned(product, facts.trace.names[int(kernels.events.name[product.at])]) for product in halves]
    fused = _of_attention(facts)
    odd = [
        product
        for product, wrong in zip(halves, is_odd, strict=True)
        if wrong and int(kernels.op[product.at]) not in fused
    ]
    if not odd:
        return []
    aligned = [
        (product.flops, product.flops / int(duration[product.at]))
        for product, wrong in zip(halves, is_odd, strict=True)
        if not wrong
    ]
    rows = np.array([product.at for product in odd])
    model = facts.find(DeviceModel)
    memory = model.device.memory_bytes_per_s if model is not None else math.inf
    left = np.array([_left(product, int(duration[product.at]), aligned, memory) for product in odd])
    claims = within_window(facts, gone(kernels.events.take(rows), 1 - left))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    lost = duration[rows] * (1 - left)
    where = costliest(facts, kernels.op[rows], lost.astype(np.int64), "matrix products")
    worst = odd[int(lost.argmax())]
    sizes = f"({worst.m}×{worst.k}) × ({worst.k}×{worst.n})" + (f", {worst.batch} of them" if worst.batch > 1 else "")
    size = next(number for number in (worst.k, worst.n, worst.m) if number % MULTIPLE)
    padded = -(-size // MULTIPLE) * MULTIPLE
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Half-precision GEMMs whose dimensions are not multiples of 8 lose {share_of(facts, claims)}",
            where=where,
            fix=f"Pad the dimensions to a multiple of {MULTIPLE}, better 64: here {size} to {padded}",
            low_ns=0,
            evidence=[
                fact(f"Largest: {sizes}"),
                fact(
                    f"{plural(len(odd), 'product')}, {time_of(facts, int(duration[rows].sum()))}",
                    len(odd),
                    "products",
                ),
                fact(
                    f"{plural(len(aligned), 'aligned product')} of the same trace to compare with",
                    len(aligned),
                    "products",
                ),
                mostly_in(facts, kernels.op[rows], lost.astype(np.int64)),
                change(f"nn.Linear(…, {size})", f"nn.Linear(…, {padded})  # and ignore what is added")
                if worst.batch == 1
                else change(f"a @ b  # a size of {size}", f"F.pad(a, …) @ F.pad(b, …)  # {padded}, masked"),
            ],
            without=Edits.without_device(kernels.row[rows], left),
        )
    ]


def _of_attention(facts: Facts) -> set[int]:
    """Products of an unfused attention, rows in `Trace.host_ops`: their sizes are counts of tokens, which no user pads,
    and `unfused-attention` does away with them."""
    attention = facts.find(PlainAttention)
    return set() if attention is None else set(attention.products.tolist())


def _left(product: Product, duration_ns: int, aligned: list[tuple[int, float]], memory: float) -> float:
    """Share of its time that the padded product would take; `memory` in bytes/s."""
    rates = _rates(product.flops, aligned)
    if not rates:
        return UNKNOWN_LEFT_FRAC
    m, k, n = (-(-size // MULTIPLE) * MULTIPLE if size > 1 else 1 for size in (product.m, product.k, product.n))
    computing_ns = 2 * product.batch * m * k * n / float(np.median(rates))
    moving_ns = HALF_BYTES * product.batch * (m * k + k * n + m * n) / memory * 1e9
    return float(np.clip(max(computing_ns, moving_ns) / duration_ns, MIN_LEFT_FRAC, 1.0))


def _rates(flops: int, aligned: list[tuple[int, float]]) -> list[float]:
    """Rates of the aligned products nearest in size, as far as they are comparable."""
    for factor in SIZE_FACTORS:
        rates = [rate for size, rate in aligned if flops / factor <= size <= flops * factor]
        if rates:
            return rates
    return []


RULE = TraceRule(
    id="unaligned-half-dims",
    needs=(Window, KernelOps, MatrixProducts),
    title="Half-precision GEMMs whose dimensions are not multiples of 8",
    fix="Pad the dimensions to a multiple of 8",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile(r"^aten::(mm|addmm|bmm|baddbmm)$"),
)
