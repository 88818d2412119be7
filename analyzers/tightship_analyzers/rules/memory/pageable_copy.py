"""Batches are copied to the device from pageable memory, which blocks the host.

## What it finds
Copies to the device whose source is pageable memory (`Memcpy HtoD (Pageable -> Device)`), where the host waited and the
device idled for it; more than 1 % of the step.

## Why it costs
The device can only read memory that the operating system keeps in place. From pageable memory the driver first copies
piece by piece into its own buffer, at a fraction of the link's rate, and the call returns only when that is done.

## Example
```python
loader = DataLoader(dataset, batch_size=64, num_workers=4)
for batch in loader:
    batch = batch.to(device)
```

## Use instead
```python
loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
for batch in loader:
    batch = batch.to(device, non_blocking=True)
```

The saving is the time in which the device idles while the host waits for the copy, the gap that the wait leaves behind,
and, where the device's link is known, what the copies take longer than from pinned memory, at 80 % of the link's rate,
while nothing is computed. The high end is all of the copies: from pinned memory they can run beside the previous step.

## Known misses
Copies of up to 64 KiB return at once; they only count where a synchronization follows. Copies that the data loader or a
save makes belong to those.

## Source
CUDA Runtime API, "API synchronization behavior"; links: the device's entry in hardware.toml;
https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html. 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.blocking.copies import BlockingCopies
from tightship_analyzers.facts.kernels.device_model import DeviceModel
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of
from tightship_analyzers.findings.copies import claim_copies
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.graph.edits import Float64s
from tightship_analyzers.hardware import Device
from tightship_analyzers.trace.model import Int64s

PINNED_FRAC = 0.8
"""Of the link's rate, which copies from pinned memory reach."""


def pinned_left(device: Device, size: Int64s, duration_ns: Int64s) -> Float64s:
    """(copies,) share of its time that each copy would take from pinned memory; 1 where nothing is known."""
    rate = device.link_bytes_per_s.get("pcie")
    if rate is None:
        return np.ones(len(size))
    took_ns = np.maximum(size, 0) / (PINNED_FRAC * rate) * 1e9
    return np.where(size > 0, np.clip(took_ns / np.maximum(duration_ns, 1), 0.0, 1.0), 1.0)


def judge(facts: Facts) -> Judgement:
    """One finding per place that copies."""
    copies, model = facts[BlockingCopies], facts.find(DeviceModel)
    events = copies.events
    return claim_copies(
        facts,
        RULE,
        copies.pageable & copies.to_device,
        min_frac=NOISE_FRAC,
        left_frac=pinned_left(model.device, events.bytes, events.dur_ns) if model else None,
        title=lambda cost: f"Copies from pageable memory idle the device for {share_of(facts, cost)}",
        fix="Pin the batch, copy asynchronously: DataLoader(…, pin_memory=True), batch.to(device, non_blocking=True)",
        change=change("batch = batch.to(device)", "batch = batch.to(device, non_blocking=True)  # pin_memory=True"),
    )


RULE = TraceRule(
    id="pageable-copy",
    needs=(Window, BlockingCopies),
    title="Batches are copied to the device from pageable memory",
    fix="Pin memory and copy with non_blocking=True",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile("pageable", re.IGNORECASE),
)
