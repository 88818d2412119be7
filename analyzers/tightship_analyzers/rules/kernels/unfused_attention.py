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
the fused kernels from being used; the high end adds nothing, though the products become faster too.

## Known misses
Needs recorded shapes. Attention weights that the program itself reads must be computed this way.

## Source
Dao et al., "FlashAttention" (2022);
https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html. 2 % of the step.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.kernels.plain_attention import PlainAttention
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import claim, costliest, is_worth, mostly_in, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""


def judge(facts: Facts) -> Judgement:
    """All of it together, at the costliest place."""
    attention, kernels = facts[PlainAttention], facts[KernelOps]
    events = kernels.events.take(attention.rows)
    claims = within_window(facts, Intervals.of_table(events))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    where = costliest(facts, kernels.op[attention.rows], events.dur_ns, "softmax")
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Unfused attention: kernels on materialized scores take {share_of(facts, claims)}",
            where=where,
            fix="Use a fused kernel: F.scaled_dot_product_attention(q, k, v, …)",
            low_ns=0,
            evidence=[
                fact(
                    f"{plural(len(attention.calls), 'softmax call')} over up to {plural(attention.sequence, 'key')}; "
                    f"the kernels between the products take {time_of(facts, int(events.dur_ns.sum()))}",
                    len(attention.calls),
                    "calls",
                ),
                mostly_in(facts, kernels.op[attention.rows], events.dur_ns),
                change(
                    "out = torch.softmax(q @ k.mT / d**0.5 + mask, -1) @ v",
                    "out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
                ),
            ],
            without=Edits.without_device(kernels.row[attention.rows]),
        )
    ]


RULE = TraceRule(
    id="unfused-attention",
    needs=(Window, KernelOps, PlainAttention),
    title="Unfused attention: materialized scores",
    fix="Use scaled_dot_product_attention",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("^aten::(_softmax|_safe_softmax)"),
)
