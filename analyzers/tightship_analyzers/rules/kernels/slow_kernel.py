"""Kernels that take much longer than their work needs.

## What it finds
Kernels whose work is known from recorded shapes (matrix products, grouped products of experts, fused attention,
convolutions, softmax and norms over rows) that take at least 5 % of the step and more than twice the time that good
kernels need for that work on this device; for each the reason that its sizes show. Products, whose rate is measured and
not derived, are found from 1.5 times on, where what they take beyond their need is 5 % of the step.

## Why it costs
The device is busy, and does half of what it could, or less. Usual reasons: one row of tiles, so that most
multiprocessors wait for the last ones; few rows that share the reading of all weights; experts with a handful of
tokens; narrow heads; depthwise convolutions; or a library without a good kernel for this device and these sizes.

## Example
```python
out = F.scaled_dot_product_attention(q, k, v)     # on an H100: the kernel of the generation before
```

## Use instead
```python
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):     # or FlashAttention-3
    out = F.scaled_dot_product_attention(q, k, v)
```
For products larger batches, or kernels tuned for their sizes (`torch.compile(mode="max-autotune")`; on ROCm
`PYTORCH_TUNABLEOP_ENABLED=1`).

The saving is what the kernels take beyond what their work needs: at the rate of the fastest product that was measured
on the device ([devices](../hardware.md)), at half of that for attention and convolutions, at 80 % of the memory's rate,
and 5 µs for each kernel. A bound, whose low end is 0: whether there is a faster kernel has to be tried.

Sizes of what a graph replays are those of its capture (`tightship analyze REPLAY --capture CAPTURE`), where the same
kernels are in the same order, and marks name the same batch size.

## Known misses
Kernels of unknown work: what a graph replays without its capture, custom and Triton kernels (products of experts by
triton_kernels are known), attention over pages or over packed sequences, forward convolutions without their backward.
Elementwise kernels, which are to be fused. Kernels whose defect has a rule already: `unfused-attention`,
`unaligned-half-dims`, `fp32-gemm`, `low-grid`. Work counts at its most: positions that a mask leaves out, experts that
no token chose.

## Source
Williams, Waterman, Patterson: "Roofline", CACM 52(4), 2009. NVIDIA, "Matrix Multiplication Background User's Guide"
(tiles, arithmetic intensity). Rates: hardware.toml and facts/roofline/slow_kernels.py. Half of the rate; two
thirds; 5 % of the step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.roofline.slow_kernels import SlowKernel, SlowKernels
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import (
    Where,
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
from tightship_analyzers.findings.kernel_sizes import advice_on
from tightship_analyzers.findings.model import NOISE_FRAC, Finding, Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.results.evidence import Fact
from tightship_platform.text import shown
from tightship_platform.units import format_frac, plural

MIN_STEP_FRAC = 0.05
"""Share of the step that a kernel takes, below which it is no finding."""
MOST_NAME = 100


def judge(facts: Facts) -> Judgement:
    """One finding for each place, on the kernels that run there; the one that could gain most names it."""
    events = facts[KernelOps].events
    places: dict[str, tuple[Where, list[SlowKernel]]] = {}
    for kernel in facts[SlowKernels].kernels:
        if is_worth(facts, within_window(facts, Intervals.of_table(events.take(kernel.rows))), MIN_STEP_FRAC):
            where = costliest(facts, facts[KernelOps].op[kernel.rows], events.dur_ns[kernel.rows], kernel.op)
            places.setdefault(where.place, (where, []))[1].append(kernel)
    return [finding for where, kernels in places.values() for finding in _finding(facts, where, kernels)]


def _finding(facts: Facts, where: Where, kernels: list[SlowKernel]) -> Iterator[Finding]:
    table, device = facts[KernelOps], facts[DeviceModel].device
    rows = np.concatenate([kernel.rows for kernel in kernels])
    left = np.concatenate([kernel.left_frac for kernel in kernels])
    claims = within_window(facts, gone(table.events.take(rows), 1 - left))
    if not is_worth(facts, claims, NOISE_FRAC):
        return
    first = kernels[0]
    advice = advice_on(first, device)
    yield claim(
        facts,
        RULE,
        claims,
        title=f"Slow {advice.what} at {format_frac(first.reached_frac)} of what good ones reach: "
        f"{share_of(facts, claims)} at most to gain",
        where=where,
        fix=advice.fix,
        low_ns=0,
        evidence=[
            *(_figures(facts, kernel) for kernel in kernels),
            fact(f"Sizes of the costliest: {advice.sizes}"),
            mostly_in(facts, table.op[rows], table.events.dur_ns[rows]),
            change(advice.before, advice.after),
        ],
        without=Edits.without_device(table.row[rows], left),
    )


def _figures(facts: Facts, kernel: SlowKernel) -> Fact:
    """`flash_fwd_kernel: 24 kernels, 2.72 ms of a step of 34.9 ms, 181 TFLOP/s where 363 can be reached`."""
    if kernel.by_memory:
        rate, unit = kernel.bytes / kernel.device_ns, "GB/s"
    else:
        rate, unit = kernel.flops / kernel.device_ns / 1e3, "TFLOP/s"
    return fact(
        f"{shown(kernel.kernel, MOST_NAME)}: {plural(len(kernel.rows), 'kernel')}, {time_of(facts, kernel.device_ns)}, "
        f"{_rate(rate)} {unit} where {_rate(rate / kernel.reached_frac)} can be reached",
        kernel.reached_frac,
        "of the rate that can be reached",
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


RULE = TraceRule(
    id="slow-kernel",
    needs=(Window, KernelOps, SlowKernels, DeviceModel),
    title="Kernels that take much longer than their work needs",
    fix="Use a kernel that fits the device and the sizes",
    judge=judge,
    page=__doc__ or "",
)
