"""GPU tensors are communicated with Gloo, that is through the host.

## What it finds
Gloo's collectives (`gloo:all_reduce` and the like) in a job on an accelerator: the time in which the device idles under
them, and the copies to the host and back that they make; more than 1 % of the step.

## Why it costs
Gloo sends from the host's memory over TCP. Tensors are copied to the host, exchanged there, and copied back, over PCIe
and a socket instead of the links between the devices.

## Example
```python
dist.init_process_group("gloo")
```

## Use instead
```python
dist.init_process_group("nccl", device_id=device)       # "cpu:gloo,cuda:nccl" where both are needed
```

The saving is that time. Its low end is half of it: exchanging takes time over NCCL too.

## Known misses
Exchanges on threads of Gloo's own that the trace does not hold. Small exchanges of host data over Gloo are normal; they
count only while the device idles.

## Source
https://pytorch.org/docs/stable/distributed.html ("Which backend to use?": NCCL for distributed GPU training). 1 % of
the step is where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.program.vendor import Vendor
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import Where, claim, is_worth, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, NotApplicable, TraceRule
from tightship_analyzers.findings.pauses import Pauses
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.text import shown
from tightship_platform.units import plural

RANGES = re.compile(r"^gloo:")


def judge(facts: Facts) -> Judgement:
    """All exchanges together."""
    if facts.trace.device_kind != "gpu":
        return NotApplicable("needs an accelerator; on a CPU Gloo is the backend to use")
    names, window, ranges = facts.trace.names, facts[Window], facts.trace.annotations
    calls = ranges.take(names.mask(ranges.name, lambda name: RANGES.match(name) is not None))
    calls = calls.overlapping(window.start_ns, window.end_ns)
    if not len(calls):
        return []
    outer = Pauses.outermost(calls, calls.name, calls.tid)
    spans = Intervals.of(outer.start_ns, outer.end_ns)
    events = facts[KernelOps].events
    copies = Intervals.of_table(events.take(events.kind == EventKind.COPY)) & spans
    claims = within_window(facts, (facts[DeviceGaps].spans & spans) | copies)
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    place = facts[Places].of_span(int(outer.tid[0]), int(outer.start_ns[0]), int(outer.end_ns[0]))
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Communicating GPU tensors through the host idles the device for {share_of(facts, claims)}",
            where=Where(place or shown(names[int(outer.name[0])])),
            fix=f'Use {facts[Vendor].collectives} for GPU tensors: init_process_group("cpu:gloo,cuda:nccl")',
            low_ns=claims.measure_ns // 2,
            high_ns=within_window(facts, spans).measure_ns,
            gap="gloo",
            evidence=[
                fact(
                    f"{plural(len(outer.name), 'exchange')}, {time_of(facts, within_window(facts, spans).measure_ns)}",
                    len(outer.name),
                    "exchanges",
                ),
                change('init_process_group("gloo")', 'init_process_group("cpu:gloo,cuda:nccl")'),
            ],
        )
    ]


RULE = TraceRule(
    id="gloo-on-gpu",
    needs=(Window, KernelOps, DeviceGaps),
    title="GPU tensors are communicated through the host (Gloo)",
    fix="Use the backend nccl",
    judge=judge,
    page=__doc__ or "",
    signs=RANGES,
)
