"""One process drives several devices with `nn.DataParallel`.

## What it finds
Time under `DataParallel.forward` in which the device idles or only communicates; more than 1 % of the step.

## Why it costs
In every step the model is broadcast to all devices, the batch is scattered, results are gathered on one device, and
gradients are added up there. One interpreter issues the kernels of all devices, one after the other.

## Example
```python
model = nn.DataParallel(model).to(device)
```

## Use instead
```python
model = DistributedDataParallel(model.to(rank), device_ids=[rank])    # one process per device, torchrun
```

The saving is that time on the device that was recorded. Its low end is half of it: gradients must be exchanged still.

## Known misses
What the backward pass spends on adding up gradients. Other replicas that one process drives.

## Source
https://pytorch.org/docs/stable/notes/cuda.html ("Use nn.parallel.DistributedDataParallel instead of multiprocessing or
nn.DataParallel"). 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

from tightship_analyzers.facts.activity.device_busy import DeviceBusy, DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.places import Places
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import Where, claim, is_worth, share_of, time_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, NotApplicable, TraceRule
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.units import plural

RANGE = "DataParallel.forward"


def judge(facts: Facts) -> Judgement:
    """All calls together."""
    if facts.trace.device_kind != "gpu":
        return NotApplicable("needs an accelerator; on a CPU DataParallel does nothing")
    calls = facts.trace.annotations_named(RANGE)
    if not len(calls):
        return []
    spans, busy = Intervals.of_table(calls), facts[DeviceBusy]
    lost = facts[DeviceGaps].spans | (busy.communication - busy.compute)
    claims = within_window(facts, lost & spans)
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    place = facts[Places].of_span(int(calls.tid[0]), int(calls.start_ns[0]), int(calls.end_ns[0]))
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"nn.DataParallel idles the device for {share_of(facts, claims)}",
            where=Where(place or RANGE),
            fix="One process per device: DistributedDataParallel, started with torchrun",
            low_ns=claims.measure_ns // 2,
            high_ns=within_window(facts, spans).measure_ns,
            gap="data parallel",
            evidence=[
                fact(
                    f"{plural(len(calls), 'call')}, {time_of(facts, within_window(facts, spans).measure_ns)}",
                    len(calls),
                    "calls",
                ),
                change("nn.DataParallel(model)", "DistributedDataParallel(model, device_ids=[rank])  # torchrun"),
            ],
        )
    ]


RULE = TraceRule(
    id="data-parallel",
    needs=(Window, DeviceGaps),
    title="One process drives several devices with nn.DataParallel",
    fix="Use DistributedDataParallel",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile(f"^{re.escape(RANGE)}"),
)
