"""Redundant dtype casts: tensors are converted to another type and straight back.

## What it finds
Kernels that convert a tensor from one type to another (`float` → `c10::Half`) and, within the next few operators, a
tensor of the same sizes back; together more than 2 % of the step.

## Why it costs
Each conversion reads and writes the whole tensor and computes nothing. Typical: a norm, a mask or an activation that is
kept in float32 inside a half-precision model.

## Example
```python
x = F.layer_norm(x.float(), shape, weight.float()).half()
```

## Use instead
```python
x = F.layer_norm(x, shape, weight)       # accumulates in float32 internally
```
or let `torch.compile` fuse the conversions into their neighbours.

The saving is both conversions; its low end is 0, for one that the mathematics needs. On a CPU, whose operators take the
kernels' place, the high end adds half of what runs between the two, which then moves half the bytes.

## Known misses
Needs recorded shapes (`record_shapes=True`). Conversions of weights under autocast happen once per step and are not
counted; neither are those whose tensor changes its sizes in between.

## Source
https://pytorch.org/docs/stable/amp.html (what autocast runs in which type). 2 % of the step: conversions at the borders
of an autocast region are normal.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_

import numpy as np

from tightship_analyzers.facts.kernels.casts import Cast, Casts
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import claim, costliest, is_worth, mostly_in, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import HostOps, Int64s, Table
from tightship_platform.text import shown
from tightship_platform.units import plural

MIN_STEP_FRAC = 0.02
"""Share of the step below which it is no finding."""


def judge(facts: Facts) -> Judgement:
    """All pairs together, at the costliest place."""
    kernels, ops = facts.find(KernelOps), facts.trace.host_ops
    pairs = facts[Casts].round_trips(ops.tid.astype(np.int64))
    if not pairs:
        return []
    rows, by = (np.array(numbers) for numbers in zip(*((c.at, c.op) for pair in pairs for c in pair), strict=True))
    table: Table = ops if kernels is None else kernels.events
    events = table.take(rows)
    claims = within_window(facts, Intervals.of_table(events))
    if not is_worth(facts, claims, MIN_STEP_FRAC):
        return []
    where = costliest(facts, by, events.dur_ns, "aten::copy_")
    first = max(pairs, key=lambda pair: int(table.dur_ns[pair[0].at]))[0]
    types = f"{shown(first.from_type, 30)} → {shown(first.to_type, 30)} → {shown(first.from_type, 30)}"
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Redundant dtype casts take {share_of(facts, claims)}",
            where=where,
            fix="Keep one dtype through the block: norms and activations accept half precision, or compile the block",
            low_ns=0,
            high_ns=_with_narrow_work(facts, ops, pairs, claims) if kernels is None else None,
            evidence=[
                fact(f"Largest: {types}, sizes {list(first.dims)}"),
                fact(
                    f"{plural(len(pairs), 'round trip')}, {time_of(facts, int(events.dur_ns.sum()))}",
                    len(pairs),
                    "round trips",
                ),
                mostly_in(facts, by, events.dur_ns),
                change("layer_norm(x.float(), …).to(x.dtype)", "layer_norm(x, …)  # accumulates in float32 by itself"),
            ],
            without=_without_operators(ops, rows) if kernels is None else Edits.without_device(kernels.row[rows]),
        )
    ]


def _with_narrow_work(facts: Facts, ops: HostOps, pairs: list[tuple[Cast, Cast]], claims: Intervals) -> int:
    """The casts, and half of what runs between each and its way back, which then moves half the bytes."""
    first, last = (np.array(rows) for rows in zip(*((there.op, back.op) for there, back in pairs), strict=True))
    between = within_window(facts, Intervals.of(ops.start_ns[first], ops.end_ns[last])) - claims
    return claims.measure_ns + between.measure_ns // 2


def _without_operators(ops: HostOps, rows: Int64s) -> Edits:
    """On a CPU the casts are operators."""
    of_thread = {tid: ops.take(rows[ops.tid[rows] == tid]) for tid in np.unique(ops.tid[rows]).tolist()}
    return reduce(or_, (Edits.without_host(tid, Intervals.of_table(own)) for tid, own in of_thread.items()), Edits())


RULE = TraceRule(
    id="dtype-ping-pong",
    needs=(Window, Casts),
    title="Redundant dtype casts",
    fix="Keep one dtype through the block",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("^aten::_to_copy$"),
)
