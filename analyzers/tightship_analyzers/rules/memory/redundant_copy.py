"""Redundant copies within device memory, around collectives, graphs and gradient buckets.

## What it finds
Copies from device to device that only move a tensor to where something else expects it, more than 1 % of the step:

- around a collective: a clone that is sent instead of the tensor itself, or copies into and out of a buffer of
  symmetric memory;
- around a captured graph, which reads and writes at fixed addresses;
- between gradients and the buckets of DistributedDataParallel;
- buffers that DistributedDataParallel broadcasts before each forward pass and copies back one by one.

## Why it costs
Every byte is read and written once more, and every copy is launched by the host.

## Example
```python
dist.all_reduce(grad.clone())                              # and the sum copied back
model = DistributedDataParallel(model)                     # gradients are kept twice
```

## Use instead
```python
dist.all_reduce(grad)                                      # in place
model = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
torch._dynamo.mark_static_address(tensor)                  # an input of a graph that stays where it is
```

The saving is the copies' time that nothing else hides and the idle time of the device while the host launches them.
For DistributedDataParallel's copies the low end is the copies alone; for the others it is 0: a graph's inputs that
change have to be moved, and what sends from another buffer may need the producer to write into that one.

## Known misses
Copies that a kernel makes as part of other work (concatenation, a change of layout or type: *layout-ping-pong*,
*dtype-ping-pong*). Copies of buffers are recognised only where Python stacks were recorded.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html (`gradient_as_bucket_view`,
`broadcast_buffers`); torch/_inductor/cudagraph_trees.py (inputs that are not static are copied);
https://pytorch.org/docs/stable/symmetric_memory.html. 1 % of the step is where noise ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.kernels.staged_copies import ON_DEVICE, Reason, StagedCopies
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import claim, costliest, in_window, is_worth, per_step_suffix, share_of, time_of
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.issued import calls_of, issued
from tightship_analyzers.findings.model import NOISE_FRAC, Finding, Judgement, TraceRule
from tightship_analyzers.trace.intervals import Intervals
from tightship_analyzers.trace.model import Int64s
from tightship_platform.text import shown
from tightship_platform.units import format_bytes, plural


class Words(NamedTuple):
    """What is said of copies made for one reason."""

    of: str
    fix: str
    before: str
    after: str


WORDS = {
    Reason.COLLECTIVE: Words(
        "around collectives",
        "Send the tensor itself (dist.all_reduce is in place), or have its producer write into the buffer that is sent",
        "out = tensor.clone()\ndist.all_reduce(out)",
        "dist.all_reduce(tensor)",
    ),
    Reason.GRAPH: Words(
        "around captured graphs",
        "Keep a graph's inputs where it reads them: write batches into them, mark_static_address what stays",
        "compiled(weights, batch)",
        "torch._dynamo.mark_static_address(weights)  # once\ncompiled(weights, batch)",
    ),
    Reason.BUFFERS: Words(
        "of buffers that DistributedDataParallel broadcasts",
        "DistributedDataParallel(model, broadcast_buffers=False), where ranks need not share running statistics",
        "DistributedDataParallel(model)",
        "DistributedDataParallel(model, broadcast_buffers=False)",
    ),
    Reason.BUCKETS: Words(
        "between gradients and DistributedDataParallel's buckets",
        "DistributedDataParallel(model, gradient_as_bucket_view=True)",
        "DistributedDataParallel(model)",
        "DistributedDataParallel(model, gradient_as_bucket_view=True)",
    ),
}
SURE = (Reason.BUFFERS, Reason.BUCKETS)
"""A switch removes them."""


def judge(facts: Facts) -> Judgement:
    """One finding for each reason."""
    reason = facts[StagedCopies].reason
    found = (_finding(facts, one, np.flatnonzero(reason == one)) for one in WORDS)
    return [finding for finding in found if finding is not None]


def _finding(facts: Facts, reason: Reason, rows: Int64s) -> Finding | None:
    copies, trace, words = facts[StagedCopies], facts.trace, WORDS[reason]
    if not len(rows):
        return None
    events = copies.events.take(rows)
    less = issued(facts, _alone(facts, copies.row[rows]), copies.row[rows], calls_of(trace.host_ops, copies.op[rows]))
    if not is_worth(facts, less.claims, NOISE_FRAC):
        return None
    name = shown(trace.names[int(events.name[0])], 60)
    moved, steps = int(events.bytes[events.bytes > 0].sum()), facts[Window].count
    return claim(
        facts,
        RULE,
        less.claims,
        title=f"Redundant copies {words.of} cost {share_of(facts, less.claims)}",
        where=costliest(facts, copies.op[rows], events.dur_ns, name),
        fix=words.fix,
        low_ns=less.work.measure_ns if reason in SURE else 0,
        evidence=[
            fact(
                f"{plural(len(rows), 'copy', 'copies')} {in_window(facts)} ({name}), "
                f"{time_of(facts, int(events.dur_ns.sum()))}",
                len(rows),
                "copies",
            ),
            fact(f"They move {format_bytes(moved // steps)} {per_step_suffix(facts)}", moved / steps, "bytes")
            if moved
            else None,
            fact(f"Launching them takes the host {time_of(facts, less.host_ns)}", less.host_ns / steps, "ns"),
            change(words.before, words.after),
        ],
        without=less.without,
    )


def _alone(facts: Facts, rows: Int64s) -> Intervals:
    """When these events run and no other does."""
    events = facts.trace.device_events
    others = np.ones(len(events), dtype=np.bool_)
    others[rows] = False
    return Intervals.of_table(events.take(rows)) - Intervals.of_table(events.take(others))


RULE = TraceRule(
    id="redundant-copy",
    needs=(Window, DeviceGaps, StagedCopies),
    title="Copies within the device that only move a tensor to where something expects it",
    fix="Send, capture and reduce tensors where they are",
    judge=judge,
    page=__doc__ or "",
    signs=ON_DEVICE,
)
