"""Steady-state steps still allocate memory from the driver.

## What it finds
Calls of `cudaMalloc`, `cudaFree` and their like (host memory, virtual memory, ROCm) by the training threads in more
than one step, or in the only one recorded, where the device idled for them; more than 1 % of the step.

## Why it costs
Each call takes 0.1 to 10 ms, and a free waits for everything that the device has queued. torch keeps freed blocks to
avoid it; calls in steady-state steps show that its cache is flushed (`empty_cache`), too fragmented for sizes that
change, or that the device is nearly full, so that torch gives all cached blocks back and tries again.

## Example
```python
for batch in loader:                       # another sequence length every step
    loss = model(batch).mean()
```

## Use instead
```python
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"   # before the first allocation
batch = pad(batch, multiple=128)           # few distinct sizes
```
Near the edge of the memory: a smaller batch, activation checkpointing or offloading. `tightship run --apply` sets the
variable.

The saving is the time in which the device idles for these calls. Its low end is half of it: a cache that fits still
makes some of them.

## Known misses
Warm-up: calls in the first of several recorded steps only are left out. Libraries that allocate on threads of their
own.

## Source
https://pytorch.org/docs/stable/notes/cuda.html ("Memory management"). 1 % of the step is where noise ends.
"""

from __future__ import annotations

import re

import numpy as np

from tightship_analyzers.facts.activity.device_busy import DeviceGaps
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.program.work_threads import WorkThreads
from tightship_analyzers.facts.window.steps import Steps
from tightship_analyzers.findings.claim import share_of
from tightship_analyzers.findings.evidence import change, overlay
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.findings.pauses import Pauses, claim_pauses
from tightship_analyzers.trace.names import matcher
from tightship_analyzers.trace.runtime_calls import ALLOCATING_CALL
from tightship_platform.results.overlay import ALLOCATOR


def judge(facts: Facts) -> Judgement:
    """One finding per place that makes torch allocate."""
    steps, launches, names = facts[Steps], facts.trace.launches, facts.trace.names
    chosen = names.mask(launches.name, matcher(ALLOCATING_CALL))
    calls = launches.take(chosen & facts[WorkThreads].among(launches.tid))
    calls = calls.take((calls.start_ns >= steps.host_start_ns) & (calls.start_ns < steps.host_end_ns))
    if steps.count > 1 and (not len(calls) or _step(steps, int(calls.start_ns.max())) == 0):
        return []
    return claim_pauses(
        facts,
        RULE,
        Pauses.outermost(calls, calls.name, calls.tid),
        min_frac=NOISE_FRAC,
        title=lambda claims, name: f"{name} in steady-state steps: the device idles for {share_of(facts, claims)}",
        fix="Keep the allocator's cache: no empty_cache() in the loop, few distinct sizes, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, some memory to spare",
        change=change(
            "python train.py",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
        ),
        without_edit=overlay(ALLOCATOR, "expandable_segments:True"),
        cause="allocator",
        what="allocator call",
        sure_ns=lambda claims: claims.measure_ns // 2,
    )


def _step(steps: Steps, time_ns: int) -> int:
    return int(np.searchsorted(steps.host_bounds_ns, time_ns, side="right")) - 1


RULE = TraceRule(
    id="allocator-churn",
    needs=(Steps, DeviceGaps),
    title="Steady-state steps still allocate memory from the driver",
    fix="Keep the allocator's cache: few distinct sizes, expandable segments, spare memory",
    judge=judge,
    page=__doc__ or "",
    signs=re.compile(f"^({ALLOCATING_CALL.pattern})$"),
)
