"""Unfused attention: softmax, scale and mask kernels on materialized scores.

## What it finds
A softmax over scores of at least 128 × 128 between the matrix product that gives them and the one that takes them,
with the scaling, masking and dropout around it; together more than 2 % of the step.

## Why it costs
The scores of one layer are batch × heads × queries × keys numbers. Each of these kernels reads and writes all of them,
although a fused kernel never stores them at all. Memory grows with the square of the sequence length too.

## Example
```python
weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(d) + mask, dim=-1)
out = weights @ v
```

## Use instead
```python
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
```
In transformers: `attn_implementation="sdpa"`.

The saving is the kernels between the two products, forward and backward; the products themselves are none of it, also
where `unaligned-half-dims` says that they are slow for their sizes. The low end is 0 where a mask or a bias keeps
the fused kernels from being used. The high end adds what the two products take beyond their arithmetic at the device's
peak rate, where that is known: a fused kernel does the same arithmetic, and neither writes nor reads scores. On a CPU,
whose fused kernel takes masks, the low end is half of the saving.

## Known misses
Needs recorded shapes. Attention weights that the program itself reads must be computed this way.

## Source
Dao et al., "FlashAttention" (2022);
https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html; of the CPU
aten/src/ATen/native/transformers/sdp_utils_cpp.cpp (no dropout) and native/cpu/FlashAttentionKernel.cpp. 2 % of the
step.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import NamedTuple

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.plain_attention import PlainAttention
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.roofline.measured import Roofline, peak_of
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import claim, costliest, is_worth, mostly_in, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals, union_of
from tightship_analyzers.trace.model import Int64s
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""


def judge(facts: Facts) -> Judgement:
    """All of it together, at the costliest place."""
    attention, kernels = facts[PlainAttention], facts.find(KernelOps)
    if kernels is None:
        return [] if attention.drops else _on_cpu(facts, attention)
    events = kernels.events.take(attention.rows)
    claims = within_window(facts, Intervals.of_table(events))
    high_ns = claims.measure_ns + _moved_by_products_ns(facts, attention)
    work = Work("kernels", kernels.op[attention.rows], events.dur_ns, claims, high_ns)
    return _found(facts, work, Edits.without_device(kernels.row[attention.rows]))


def _moved_by_products_ns(facts: Facts, attention: PlainAttention) -> int:
    """What the products take beyond their arithmetic, over the window; 0 where that is not known."""
    roofline, window = facts.find(Roofline), facts[Window]
    if roofline is None:
        return 0
    products, ops = set(attention.products.tolist()), facts.trace.host_ops
    spare_ns = 0.0
    for call in roofline.calls:
        if call.op not in products or not window.host_start_ns <= ops.start_ns[call.op] < window.host_end_ns:
            continue
        dtype = "tf32" if call.op in roofline.tf32 else call.work.dtype
        peak = peak_of(roofline.device, dtype, call.work.family)
        spare_ns += max(0.0, call.device_ns - call.work.flops / peak * 1e9) if peak else 0.0
    return int(spare_ns)


def _on_cpu(facts: Facts, attention: PlainAttention) -> Judgement:
    """The operators are the device timeline."""
    window, ops = facts[Window], facts.trace.host_ops
    rows = attention.between
    rows = rows[(ops.start_ns[rows] >= window.claim_start_ns) & (ops.end_ns[rows] <= window.claim_end_ns)]
    claims = within_window(facts, union_of(attention.gone.values()))
    high = within_window(facts, union_of(attention.whole.values())) | claims
    without = reduce(or_, (Edits.without_host(tid, own) for tid, own in attention.gone.items()), Edits())
    return _found(
        facts, Work("operators", rows, ops.dur_ns[rows], claims, high.measure_ns, claims.measure_ns // 2), without
    )


class Work(NamedTuple):
    """What lies between the products."""

    what: str
    """Kernels or operators."""
    op: Int64s
    """(work,) operator that it is of."""
    dur_ns: Int64s
    claims: Intervals
    high_ns: int
    """Over the window."""
    low_ns: int = 0


def _found(facts: Facts, work: Work, without: Edits) -> Judgement:
    if not is_worth(facts, work.claims, MIN_STEP_FRAC):
        return []
    attention = facts[PlainAttention]
    return [
        claim(
            facts,
            RULE,
            work.claims,
            title=f"Unfused attention: {work.what} on materialized scores take {share_of(facts, work.claims)}",
            where=costliest(facts, work.op, work.dur_ns, "softmax"),
            fix="Use a fused kernel: F.scaled_dot_product_attention(q, k, v, …); in transformers: "
            "attn_implementation='sdpa'",
            low_ns=work.low_ns,
            high_ns=work.high_ns,
            evidence=[
                fact(
                    f"{plural(len(attention.calls), 'softmax call')} over up to {plural(attention.sequence, 'key')}; "
                    f"the {work.what} between the products take {time_of(facts, work.claims.measure_ns)}",
                    len(attention.calls),
                    "calls",
                ),
                mostly_in(facts, work.op, work.dur_ns),
                change(
                    "out = torch.softmax(q @ k.mT / d**0.5 + mask, -1) @ v",
                    "out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
                ),
            ],
            without=without,
        )
    ]


RULE = TraceRule(
    id="unfused-attention",
    needs=(Window, PlainAttention),
    title="Unfused attention: materialized scores",
    fix="Use scaled_dot_product_attention",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("^aten::(_softmax|_safe_softmax)"),
)
