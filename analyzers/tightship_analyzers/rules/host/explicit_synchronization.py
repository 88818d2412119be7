"""Unneeded synchronization in the loop.

## What it finds
Places that call `torch.cuda.synchronize()`, `stream.synchronize()` or `event.synchronize()` in steady steps, after
which the device idles until the host has launched new work; more than 1 % of the step.

## Why it costs
The host normally runs ahead and queues kernels, so that the device always has work. A synchronization empties the
queue: the host waits for the device, then the device waits for the host.

## Example
```python
loss.backward()
torch.cuda.synchronize()
timer.record("backward")
```

## Use instead
```python
loss.backward()
backward_done.record()       # torch.cuda.Event(enable_timing=True), read after the step
```
Kernels of one stream run in order without it; another stream waits with `stream.wait_event(event)`, on the device.

Of each gap that is open when the call returns, at most as much goes as the host was blocked. Where other blocking calls
follow in the same step they may inherit the wait: then the low end is 0.

## Known misses
A synchronization that a later one of the same step would replace. The wait of a process that feeds the device through
another library.

## Source
https://pytorch.org/docs/stable/notes/cuda.html ("Asynchronous execution"). 1 % of the step is where noise ends.
"""

from __future__ import annotations

from tightship_analyzers.facts.blocking.sync_places import SyncKind, SyncPlaces
from tightship_analyzers.facts.memo import Facts
from tightship_analyzers.facts.window.window import Window
from tightship_analyzers.findings.claim import share_of
from tightship_analyzers.findings.evidence import change
from tightship_analyzers.findings.model import NOISE_FRAC, Judgement, TraceRule
from tightship_analyzers.findings.syncs import claim_syncs
from tightship_analyzers.trace.runtime_calls import SYNC_CALL


def judge(facts: Facts) -> Judgement:
    """One finding per place that waits."""
    return claim_syncs(
        facts,
        RULE,
        SyncKind.NOTHING,
        min_frac=NOISE_FRAC,
        title=lambda place: (
            f"{place.operator} waits for the device, which then idles for {share_of(facts, place.cost)}"
        ),
        fix="Remove the synchronization from the loop; measure with events, order streams with wait_event",
        change=change("torch.cuda.synchronize()", "stream.wait_event(event)  # only where another stream needs it"),
    )


RULE = TraceRule(
    id="explicit-synchronization",
    needs=(Window, SyncPlaces),
    title="Unneeded synchronization in the loop",
    fix="Remove the synchronization, or let streams wait on events",
    judge=judge,
    page=__doc__ or "",
    signs=SYNC_CALL,
)
