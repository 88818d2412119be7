"""Data is copied from the device to the host and straight back.

## What it finds
A copy from the device of at least 4 KiB that is followed, in the same step, by a copy of equally many bytes to the
same device; all such pairs together more than 1 % of the step.

## Why it costs
Both copies cross the slowest link of the machine, the host waits for the first one, and the device waits for the
second. Usually something small in between was written for the host: NumPy, a Python loop, a library without device
support.

## Example
```python
scores = torch.from_numpy(softmax(logits.cpu().numpy())).to(device)
```

## Use instead
```python
scores = torch.softmax(logits, dim=-1)
```

The saving is both copies and the time in which the device idles for them. Its high end adds the idle time between them,
in which the host works on the data.

## Known misses
A round trip whose size changes on the way. Two unrelated copies of equal size in one step would be taken for one; the
low end is 0 for that reason. Offloading, which stores data on the host on purpose, looks the same unless it is hidden
behind computation.

## Source
https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Create tensors directly on the target device", "Avoid
unnecessary CPU-GPU synchronization"). 4 KiB keeps single values out; 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceBusy, DeviceGaps
from tightship_analyzers.facts.blocking.copies import BlockingCopies
from tightship_analyzers.facts.kernels.kernel_ops import KernelOps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.claim import claim, costliest, in_window, is_worth, share_of, within_window
from tightship_analyzers.findings.evidence import change, fact
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.graph.edits import Edits
from tightship_analyzers.trace.columns import EventKind
from tightship_analyzers.trace.intervals import Intervals
from tightship_platform.units import format_bytes, plural

MIN_BYTES = 4096
"""Smaller copies are values, not data."""

FROM_DEVICE = re.compile("DtoH|DeviceToHost")
TO_DEVICE = re.compile("HtoD|HostToDevice")


def judge(facts: Facts) -> Judgement:
    """All pairs together, at the place of the costliest copy."""
    kernels = facts[KernelOps]
    pairs = _pairs(facts)
    if not pairs:
        return []
    rows = np.array(pairs).ravel()
    events = kernels.events.take(rows)
    # What else runs during a copy would run without it too.
    alone = Intervals.of_table(events) - (_computing(facts))
    waits = facts[BlockingCopies]
    cost = waits.cost(np.isin(waits.events.correlation, events.correlation))
    claims = within_window(facts, alone | cost)
    if not is_worth(facts, claims, NOISE_FRAC):
        return []
    between = Intervals.of(kernels.events.end_ns[rows[0::2]], kernels.events.start_ns[rows[1::2]])
    gaps = facts[DeviceGaps].spans & between
    size = int(events.bytes.sum()) // 2
    where = costliest(facts, kernels.op[rows[0::2]], kernels.events.dur_ns[rows[0::2]])
    back = costliest(facts, kernels.op[rows[1::2]], kernels.events.dur_ns[rows[1::2]])
    return [
        claim(
            facts,
            RULE,
            claims,
            title=f"Round trips of data to the host take {share_of(facts, claims)}",
            where=where,
            fix="Keep the data on the device; do the work between the two copies there",
            low_ns=0,
            high_ns=(claims | gaps).measure_ns,
            gap="copy",
            evidence=[
                fact(
                    f"{plural(len(pairs), 'round trip')} {in_window(facts)}, {format_bytes(size)} each way",
                    len(pairs),
                    "round trips",
                ),
                fact(f"It comes back at {back.place}") if back.place else None,
                change("torch.from_numpy(f(x.cpu().numpy())).to(device)", "f_on_device(x)"),
            ],
            without=Edits.without_device(kernels.row[rows]),
        )
    ]


def _pairs(facts: Facts) -> list[tuple[int, int]]:
    """Rows in `KernelOps` of copies from the device and of the next one back, each used once."""
    kernels, steps, names = facts[KernelOps], facts[Steps], facts.trace.names
    events = kernels.events
    large = (events.kind == EventKind.COPY) & (events.bytes >= MIN_BYTES)
    out = large & names.mask(events.name, lambda name: FROM_DEVICE.search(name) is not None)
    back = large & names.mask(events.name, lambda name: TO_DEVICE.search(name) is not None)
    waiting: dict[tuple[int, int, int], list[int]] = {}
    pairs = []
    for row in np.flatnonzero(out | back).tolist():
        step = steps.number_at(int(events.start_ns[row]))
        if step is None:
            continue
        key = int(events.device[row]), int(events.bytes[row]), step
        if out[row]:
            waiting.setdefault(key, []).append(row)
        elif waiting.get(key):
            pairs.append((waiting[key].pop(), row))
    return pairs


def _computing(facts: Facts) -> Intervals:
    kernels, busy = facts[KernelOps].events, facts[DeviceBusy]
    computes = kernels.take(kernels.kind == EventKind.KERNEL)
    return Intervals.of_table(computes) | busy.communication


RULE = TraceRule(
    id="device-round-trip",
    needs=(Steps, KernelOps, BlockingCopies),
    title="Data is copied from the device to the host and straight back",
    fix="Do the work in between on the device",
    judge=judge,
    page=__doc__ or "",
    signs=FROM_DEVICE,
)
