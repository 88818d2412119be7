"""A tensor is created on the host and then copied to the device.

## What it finds
An operator that needs no data (`zeros`, `full`, `arange`, `randn` …) on the host, directly followed by a copy of its
result to the device; more than 1 % of the step.

## Why it costs
The host writes every element, the copy moves it from pageable memory over the slowest link, and the host waits for
that. On the device the same fill is one kernel that nobody waits for.

## Example
```python
noise = torch.randn(batch, channels, height, width).to(device)
```

## Use instead
```python
noise = torch.randn(batch, channels, height, width, device=device)
```

The saving is the copy and the time in which the device idles while the host fills and copies.

## Known misses
A fill with other operators between it and the copy. Random numbers differ: the device has its own generator.

## Source
torch/profiler/_pattern_matcher.py (`ExtraCUDACopyPattern`);
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Create tensors directly on the target device"). 1 % of
the step is where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.activity.stall_cost import idle_through
from tightship_analyzers.facts.kernels.filled_copies import FilledCopies
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import claim, costliest, in_window, is_worth, share_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.text import shown
from tightship_platform.units import plural


def judge(facts: Facts) -> Judgement:
    """All pairs together, at the costliest place."""
    pairs, names = facts[FilledCopies], facts.trace.names
    if not len(pairs.fills):
        return []
    idle = idle_through(pairs.fills.start_ns, pairs.copies.end_ns, facts[DeviceGaps].spans)
    copies = Intervals.of_table(pairs.events)
    claims = within_window(facts, idle | copies)
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    where = costliest(facts, pairs.op, pairs.copies.end_ns - pairs.fills.start_ns)
    filler = shown(names[int(pairs.fills.name[0])].removeprefix("aten::").rstrip("_"), 40)
    without = Edits.without_device(pairs.row)
    for tid in sorted(set(pairs.fills.tid.tolist())):
        own = pairs.fills.tid == tid
        spans = Intervals.of(pairs.fills.start_ns[own], pairs.copies.end_ns[own])
        without |= Edits.without_host(tid, spans) | Edits.without_syncs(tid, spans)
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Tensors created on the host and copied to the device cost {share_of(facts, claims)}",
            where=where,
            fix=f"Create the tensor on the device: torch.{filler}(…, device=device)",
            low_ns=within_window(facts, idle).measure_ns // 2,
            gap="copy",
            evidence=[
                fact(
                    f"{plural(len(pairs.fills), 'tensor')} {in_window(facts)}, mostly made by {filler}",
                    len(pairs.fills),
                    "tensors",
                ),
                change(f"torch.{filler}(…).to(device)", f"torch.{filler}(…, device=device)"),
            ],
            without=without,
        )
    ]


RULE = TraceRule(
    id="fill-then-copy",
    needs=(Window, DeviceGaps, FilledCopies),
    title="A tensor is created on the host and then copied to the device",
    fix="Create it on the device: device=",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("HtoD|HostToDevice"),
)
